//! The one place with `unsafe` code: memory maps, copyable inflate states, allocator settings, signals. Everything
//! outside sees safe types.

#![allow(unsafe_code)]

pub mod inflate;
pub mod malloc;
pub mod map;
pub mod signals;

//! The one place with `unsafe` code: memory maps and copyable inflate states. Everything outside sees safe types.

#![allow(unsafe_code)]

pub mod inflate;
pub mod map;

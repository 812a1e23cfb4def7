//! Splits a fat Python wheel, one whose libraries hold HIP code for many AMD GPUs, into a host wheel and one device
//! wheel per GPU bundle, as a stream. The README has the purpose, the options and a glossary; this is the inside.
//!
//! ```
//! use fatwheel::{SplitOptions, split};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let output_dir = directory.path().join("dist");
//! let wheel = "tests/fixtures/wheels/fatdemo-1.0-py3-none-manylinux_2_34_x86_64.whl";
//! let mut options = SplitOptions::new(wheel, &output_dir);
//! options.databases = vec!["torch-fat".to_owned()];
//! options.archs = Some("gfx942,gfx1100".to_owned());
//!
//! let report = split(&options)?;
//! assert_eq!(report.host.path, output_dir.join("fatdemo-1.0-py3-none-manylinux_2_34_x86_64.whl"));
//! let names: Vec<&str> = report.devices.iter().map(|device| device.name.as_str()).collect();
//! assert_eq!(names, ["amd-fatdemo-device-gfx1100", "amd-fatdemo-device-gfx942"]);
//! # Ok(())
//! # }
//! ```
//!
//! # Data flow
//!
//! [`pipeline`] runs the stages; each is a module that is named after what it does.
//!
//! ```text
//! io::Input ─► identify ─► classify ─► plan ─►┬─ rewrite ─► deflate ──► emit ─►┬─ finish ─► commit
//!                                             └─ unbundle ─► compress ─► emit ─┘
//!              pass 1: decides, writes nothing    pass 2: writes files without names
//! ```
//!
//! The first pass reads every member once and ends with a [`SplitPlan`](pipeline::plan::SplitPlan): which wheels
//! there will be, what is in them, and an [`EditPlan`](edit::EditPlan) for each fat binary. The second pass reads
//! the fat binaries once more and does what the plan says. What can fail because of headers, names or metadata
//! fails in the first pass; what only the bulk of the data can tell (a damaged compressed bundle, a full disk)
//! fails in the second, when the outputs still have no names.
//!
//! # Ownership
//!
//! [`io::Input`] owns the map of the wheel and outlives everything. Stages borrow from it and from the plan, on
//! scoped threads. Bytes that change hands in the second pass are owned by the item that carries them
//! ([`pipeline::item`]), together with a [`Grant`](pipeline::budget::Grant) of the producer's budget, which comes
//! back when the item is dropped.
//!
//! # Invariants
//!
//! - **All or nothing.** Outputs get their names in one step at the very end; until then, dropping them removes them.
//! - **Bounded memory.** Bytes in flight are counted against budgets that follow from one number
//!   ([`pipeline::limits`]). No binary and no large code object is ever in memory whole.
//! - **Same bytes.** Outputs depend on the input, the options and the version: everything that is written has a
//!   place in an order that the plan fixes, and is compressed in pieces that do not depend on the number of threads.
//! - **Nothing is lost.** Every byte of the input is in the host wheel or in a device wheel, but for what the
//!   options leave out (`--archs`, `--drop-spirv`), signatures that no longer hold, and the bookkeeping that is
//!   written anew.
//! - **Formats know nothing of files.** [`elf`], [`pe`], [`fatbin`], [`kpack`], [`wheel`], [`zip`], [`edit`] and
//!   [`arch`] are functions of bytes: no threads, no paths, no clocks. [`pipeline`] uses them, never the reverse.
//! - **Never a panic on bad input, never a guess.** What a format module does not understand is a
//!   [`Fault`](fault::Fault) that names the place and the offset; [`Error`] adds the wheel and the member.
//! - **`unsafe` is in [`sys`]** and nowhere else.
//!
//! # Where to find what
//!
//! | looking for | module |
//! |---|---|
//! | the order of the stages, and how they are wired | [`pipeline`], `pipeline::stream` |
//! | reading the input: wheel file, directory | [`io::input`], [`io::member`] |
//! | a pipe: keeping it, and working before it ends | [`io::spool`], [`pipeline::receive`], [`pipeline::spot`], [`pipeline::early`] |
//! | what is a fat binary, and where its bundles are | [`pipeline::classify`], [`elf::locate()`], [`pe::locate()`], [`fatbin::walk()`] |
//! | which target goes to which device wheel | [`arch::table`], [`wheel::devices`] |
//! | which archive answers for which target; why aliases | [`kpack::completeness`] |
//! | per-GPU files beside the binaries | [`wheel::database`], [`wheel::device_glob`] |
//! | all other decisions: overlay root, order, collisions, `--archs` | [`pipeline::plan`], [`wheel::archs`] |
//! | how an ELF file loses its bundles | [`elf::plan()`]; the layout is told in `elf::holes`, room for headers in `elf::room` |
//! | how a PE file does | [`pe`], [`pe::plan()`] |
//! | streaming a file through its edits, and verifying the result | [`edit`], [`elf::verify()`], [`pe::verify()`] |
//! | bundles, compressed bundles, entry IDs, wrappers | [`fatbin`] |
//! | archives and markers | [`kpack`], [`pipeline::archive`] |
//! | METADATA, RECORD, WHEEL, file names, `variant.json` | [`wheel`] |
//! | zip records, ZIP64 | [`zip`] |
//! | files that appear together or not at all | [`io::output`] |
//! | budgets, and why they cannot deadlock | [`pipeline::budget`], [`pipeline::limits`] |
//! | errors, hints, exit codes | [`fault`], [`error`], [`cli`] |
//! | options and the report | [`SplitOptions`], [`SplitReport`] |
//! | what a project decides: handlers, more targets, a section per distribution | [`wheel::rules`] |
//! | where every member went | [`manifest`], `pipeline::account` |
//!
//! The stable interface is what this page lists under re-exports and [`split`]; the modules are public so that
//! tests, benches and fuzz targets reach them, and may change in any version.

pub mod arch;
pub mod cli;
pub mod edit;
pub mod elf;
pub mod error;
pub mod fatbin;
pub mod fault;
pub mod io;
pub mod kpack;
pub mod manifest;
pub mod options;
pub mod pe;
pub mod pipeline;
pub mod source;
pub mod sys;
pub mod wheel;
pub mod zip;

pub use error::{Error, ErrorKind, Result};
pub use manifest::{Manifest, SplitRecord};
pub use options::*;
pub use pipeline::split;
pub use wheel::rules::Rules;
pub use wheel::variant::Format as VariantFormat;

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

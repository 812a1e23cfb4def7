//! Which binaries are split, which stay whole, and the edit plan of each.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::root::below;
use super::settings::Settings;
use super::unknown::Unknown;
use crate::arch::UnknownArch;
use crate::edit::BinaryPlan;
use crate::error::{Error, Result};
use crate::fatbin::entry_id::EntryId;
use crate::fault::{Fault, FaultKind};
use crate::io::{Input, MemberReader};
use crate::kpack::marker::marker;
use crate::options::SplitOptions;
use crate::pipeline::Context;
use crate::pipeline::cancel::cause;
use crate::pipeline::classify::{Classified, FatBinary, Kind, Layout};
use crate::pipeline::unbundle::join;
use crate::{elf, pe};

/// A fat binary that will be split.
#[derive(Debug)]
pub struct Binary {
    /// Index of the member.
    pub member: usize,
    /// Path relative to the overlay root, where it will be installed.
    pub kernel_name: String,
    /// What `classify` found.
    pub fat: FatBinary,
    /// What its wrappers will point at.
    pub marker: Vec<u8>,
    /// How it is rewritten.
    pub plan: BinaryPlan,
}

/// What the choice of binaries depends on.
pub struct Choice<'a> {
    /// The input.
    pub input: &'a Input,
    /// The overlay root.
    pub root: &'a str,
    /// Group name of the archives, for markers.
    pub group: &'a str,
    /// What applies to this wheel.
    pub settings: &'a Settings,
    /// Whether the second pass will read at random too.
    pub keep_checkpoints: bool,
    /// Options and cancellation.
    pub context: &'a Context<'a>,
}

/// A fat binary below the root that is to be split: its member, its kernel name, and what is known of it.
pub type Chosen = (usize, String, FatBinary);

impl<'a> Choice<'a> {
    /// Sorts the fat binaries below the root into those to split, which it returns, and those that stay whole.
    pub fn choose(
        &self,
        classified: &mut [Classified],
        unknown: &mut Unknown<'a>,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<Chosen>> {
        let Self { input, root, settings, .. } = *self;
        let options = self.context.options;
        let mut chosen = Vec::new();
        for (index, classified) in classified.iter_mut().enumerate() {
            let name = input.members()[index].name.as_str();
            if let Kind::Hidden(offset) = classified.kind {
                warnings.push(hidden(name, offset));
                continue;
            }
            let Some(kernel_name) = below(root, name) else {
                if let Kind::Fat(_) = classified.kind {
                    warnings.push(format!(
                        "{name}: a fat binary outside the overlay root {root}; it stays whole"
                    ));
                }
                continue;
            };
            match std::mem::replace(&mut classified.kind, Kind::Plain) {
                Kind::Plain | Kind::Hidden(_) => {}
                Kind::AlreadySplit => warnings.push(format!("{name}: already split; it is passed through")),
                Kind::Broken(fault) => keep_whole(fault, name, options, warnings)?,
                Kind::Fat(fat) => {
                    let mut whole = None;
                    for target in fat.bundles.iter().flat_map(|bundle| &bundle.header.entries) {
                        match target.id {
                            EntryId::Host => {}
                            EntryId::Spirv if options.drop_spirv => {}
                            EntryId::Spirv => {
                                whole = Some("it has SPIR-V code, which no archive can serve (--drop-spirv splits it all the same)".to_owned());
                            }
                            EntryId::Device(target) => {
                                let processor = target.processor.as_str();
                                let lookup = unknown.of_binary(&settings.table, processor, name);
                                let known = lookup.is_some_and(|lookup| lookup.is_known());
                                if !known && settings.unknown_arch() == UnknownArch::Host {
                                    whole = Some(format!(
                                        "it has code for {processor}, which the architecture table lacks"
                                    ));
                                }
                            }
                        }
                    }
                    match whole {
                        Some(why) => warnings.push(format!("{name}: stays whole in the host wheel: {why}")),
                        None => chosen.push((index, kernel_name.to_owned(), *fat)),
                    }
                }
            }
        }
        Ok(chosen)
    }

    /// Plans the edits of all binaries, in parallel: it reads relocation tables, which can be large. Takes their
    /// checkpoints' memory back.
    pub fn plan_edits(&self, chosen: Vec<Chosen>, warnings: &mut Vec<String>) -> Result<Vec<Binary>> {
        let Self { input, group, .. } = *self;
        let Context { options, cancel, .. } = *self.context;
        let count = chosen.len();
        let work: Vec<Mutex<Option<Chosen>>> =
            chosen.into_iter().map(|item| Mutex::new(Some(item))).collect();
        type Planned = (usize, std::result::Result<Binary, Fault>);
        let done: Vec<Mutex<Option<Planned>>> = (0..count).map(|_| Mutex::new(None)).collect();
        let next = AtomicUsize::new(0);
        let run = || -> Result<()> {
            loop {
                cancel.check()?;
                let slot = next.fetch_add(1, Ordering::Relaxed);
                let Some(item) = work.get(slot) else { return Ok(()) };
                let Some((member, kernel_name, mut fat)) =
                    item.lock().unwrap_or_else(PoisonError::into_inner).take()
                else {
                    continue;
                };
                let planned = {
                    let mut source = MemberReader::new(input, &input.members()[member], &fat.checkpoints)?;
                    marker(&kernel_name, group).and_then(|marker| {
                        let plan = match &fat.layout {
                            Layout::Elf(layout) => elf::plan(&mut source, layout, &marker),
                            Layout::Pe(layout) => pe::plan(&mut source, layout, &marker),
                        };
                        Ok((plan?, marker))
                    })
                };
                if !self.keep_checkpoints {
                    fat.checkpoints = crate::io::Checkpoints::every(u64::MAX);
                }
                let planned = planned.map(|(plan, marker)| Binary { member, kernel_name, fat, marker, plan });
                *done[slot].lock().unwrap_or_else(PoisonError::into_inner) = Some((member, planned));
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (1..options.jobs.clamp(1, count.max(1))).map(|_| scope.spawn(run)).collect();
            let first = run();
            let results: Vec<Result<()>> =
                std::iter::once(first).chain(threads.into_iter().map(join)).collect();
            cause(results.into_iter().filter_map(Result::err)).map_or(Ok(()), Err)
        })?;
        let mut binaries = Vec::with_capacity(count);
        for slot in done {
            let Some((member, planned)) = slot.into_inner().unwrap_or_else(PoisonError::into_inner) else {
                continue;
            };
            let name = &input.members()[member].name;
            match planned {
                Ok(binary) => {
                    warnings.extend(binary.plan.notes.iter().map(|note| format!("{name}: {note}")));
                    warnings.extend(unreferenced(&binary.fat).map(|note| format!("{name}: {note}")));
                    binaries.push(binary);
                }
                Err(fault) => keep_whole(fault, name, options, warnings)?,
            }
        }
        Ok(binaries)
    }
}

/// The warning about a binary with a bundle at `offset` that no section names.
pub(super) fn hidden(name: &str, offset: u64) -> String {
    format!(
        "{name}: stays whole in the host wheel: it has an offload bundle at offset {offset:#x}, but no section .hip_fatbin or .hipFatBinSegment (PE: .hip_fat, .hipFatB) that tells what uses it"
    )
}

/// A binary that cannot be split: with `--keep-unsupported` it stays whole, unless it is plainly damaged.
fn keep_whole(fault: Fault, name: &str, options: &SplitOptions, warnings: &mut Vec<String>) -> Result<()> {
    if options.keep_unsupported && fault.kind == FaultKind::Unsupported {
        warnings.push(format!("{name}: stays whole in the host wheel: {fault}"));
        return Ok(());
    }
    let helps = fault.kind == FaultKind::Unsupported;
    let error = Error::from(fault).in_member(name);
    Err(match helps {
        true => error.with_hint(
            "--keep-unsupported leaves such a binary whole in the host wheel; please report the case",
        ),
        false => error,
    })
}

/// Bundles that no wrapper points at hold code that no program can ask for. They are archived all the same.
fn unreferenced(fat: &FatBinary) -> Option<String> {
    let dead: Vec<String> = fat
        .bundles
        .iter()
        .enumerate()
        .filter(|(index, _)| !fat.bundle_of_wrapper.contains(&Some(*index)))
        .map(|(_, bundle)| format!("{:#x}", bundle.offset))
        .collect();
    (!dead.is_empty())
        .then(|| format!("no wrapper points at the offload bundle(s) at offset {}", dead.join(", ")))
}

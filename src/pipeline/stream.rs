//! The second pass: opens all outputs and wires the stages.

use std::fs::File;
use std::sync::Arc;

use crossbeam_channel::unbounded;

use super::Context;
use super::archive::KpackWriter;
use super::budget::Budget;
use super::cancel::{cause, stopped};
use super::classify::Layout;
use super::early::Early;
use super::emit::{self, Hashed};
use super::item::{Extent, cuts_of};
use super::limits::{Kinds, Limits};
use super::meter::Meter;
use super::plan::binaries::Binary;
use super::plan::wheels::output_name;
use super::plan::{DevicePlan, SplitPlan};
use super::rewrite::{FatStream, HostMember, Rewriter};
use super::sink::{Region, Sink};
use super::spot::Key;
use super::unbundle::{Cutter, join};
use super::workers::Workers;
use crate::error::Result;
use crate::io::Input;
use crate::io::output::scratch;
use crate::kpack::format;
use crate::options::Scheme;
use crate::options::{OutputFormat, SplitOptions};
use crate::zip::Attributes;
use crate::{elf, pe};

/// What the second pass leaves behind for `finish`.
pub struct Streamed {
    /// The host wheel's sink, and the variant's.
    pub hosts: Vec<Sink>,
    /// A sink per device wheel.
    pub devices: Vec<Sink>,
    /// A writer per archive.
    pub writers: Vec<KpackWriter>,
    /// The members that were written anew.
    pub hashed: Vec<Hashed>,
}

/// Runs the second pass.
pub(super) fn stream(
    context: &Context<'_>,
    input: &Input,
    plan: &SplitPlan,
    host_name: &str,
    early: Option<&Early>,
    meter: &Meter,
) -> Result<Streamed> {
    let options = context.options;
    let when = super::time_of_new_members(input, options);
    let open = |name: &str| match options.output_format {
        OutputFormat::Wheel => Sink::archive(&options.output_dir, name),
        OutputFormat::Directory => Sink::tree(&options.output_dir, name),
    };
    let mut hosts = vec![open(host_name)?];
    if let Some(variant) = &plan.variant {
        let name = match options.output_format {
            OutputFormat::Wheel => variant.file_name.as_str(),
            OutputFormat::Directory => variant.file_name.trim_end_matches(".whl"),
        };
        hosts.push(open(name)?);
    }
    let mut devices = Vec::with_capacity(plan.devices.len());
    let mut regions: Vec<Option<Region>> = plan.archives.archives.iter().map(|_| None).collect();
    for device in &plan.devices {
        let mut sink = open(&output_name(&device.filename, options.output_format))?;
        place_archives(plan, device, &mut sink, &mut regions, &Attributes::regular(0o644, when))?;
        devices.push(sink);
    }
    let scheme = match options.scheme {
        Scheme::Stored => format::Scheme::None,
        Scheme::Zstd(_) => format::Scheme::ZstdPerKernel,
    };
    let mut writers = Vec::with_capacity(plan.archives.archives.len());
    for (archive, region) in plan.archives.archives.iter().zip(regions) {
        let region = match region {
            Some(region) => region,
            None => Region { file: Arc::new(in_scratch(options)?), start: 0 },
        };
        writers.push(KpackWriter::new(archive.path.clone(), region, scheme));
    }
    let stage = SecondPass { context, input, plan, early, meter };
    let hashed = stage.run(&mut hosts, &mut writers)?;
    Ok(Streamed { hosts, devices, writers, hashed })
}

/// The first archive of a wheel is written in place; others wait in a file without a name.
fn place_archives(
    plan: &SplitPlan,
    device: &DevicePlan,
    sink: &mut Sink,
    regions: &mut [Option<Region>],
    attributes: &Attributes,
) -> Result<()> {
    if let Some(&first) = device.archives.first() {
        let archive = &plan.archives.archives[first];
        regions[first] = Some(sink.begin_in_place(&archive.path, attributes, archive.at_most)?);
    }
    Ok(())
}

fn in_scratch(options: &SplitOptions) -> Result<File> {
    scratch(&options.output_dir)
}

struct SecondPass<'a> {
    context: &'a Context<'a>,
    input: &'a Input,
    plan: &'a SplitPlan,
    early: Option<&'a Early>,
    meter: &'a Meter,
}

impl SecondPass<'_> {
    fn run(&self, hosts: &mut [Sink], writers: &mut [KpackWriter]) -> Result<Vec<Hashed>> {
        let Self { input, plan, early, meter, .. } = *self;
        let Context { options, cancel, stats } = *self.context;
        let limits = Limits::of(options, kinds(plan));
        let budget = |capacity| Budget::new(capacity, Arc::clone(cancel));
        std::thread::scope(|scope| {
            let (to_archives, frames) = unbounded();
            let (to_host, steps) = unbounded();
            let Workers { output, decoders, threads } =
                Workers::start(scope, self.context, &limits, to_archives, &to_host);
            let archives = scope.spawn(move || {
                cancel.watch(emit::archives(
                    &frames,
                    &plan.archives.cuts,
                    early,
                    writers,
                    &stats.emit_archives,
                ))
            });
            let host = scope.spawn(move || {
                cancel.watch(emit::host(&steps, input, hosts, |bytes| meter.add(bytes), &stats.emit_host))
            });
            let rewriter = Rewriter {
                input,
                cancel,
                meter,
                jobs: output.jobs.clone(),
                steps: to_host,
                decoders,
                cutter: Cutter::new(scope, output, budget(limits.objects)),
                cuts: &plan.archives.cuts,
                budget: budget(limits.blocks),
                next_ticket: 0,
                stats,
            };
            let read = cancel.watch(rewriter.run(host_members(input, plan, self.early)));
            let mut errors: Vec<_> = read.err().into_iter().collect();
            errors.extend(threads.join());
            errors.extend(join(archives).err());
            let hashed = join(host).map_err(|error| errors.push(error)).ok();
            match cause(errors) {
                Some(error) => Err(error),
                None => hashed.ok_or_else(stopped),
            }
        })
    }
}

fn kinds(plan: &SplitPlan) -> Kinds {
    let mut extents = plan.archives.extents.iter().flatten();
    let compressed = extents.clone().any(|extent| matches!(extent, Extent::Compressed { .. }));
    let plain = extents.any(|extent| matches!(extent, Extent::Plain(_)));
    match (plain, compressed) {
        (true, true) => Kinds::Both,
        (false, true) => Kinds::Compressed,
        (_, false) => Kinds::Plain,
    }
}

/// What happens to each member of the host wheel's body.
fn host_members<'plan>(
    input: &'plan Input,
    plan: &'plan SplitPlan,
    early: Option<&'plan Early>,
) -> impl Iterator<Item = (usize, HostMember<'plan>)> {
    let packs = input.map().is_none();
    plan.host.body.iter().map(move |&member| {
        let action = match plan.binaries.binary_search_by_key(&member, |binary| binary.member) {
            Ok(index) => {
                let extents = &plan.archives.extents[index];
                let mut fat = fat_stream(&plan.binaries[index], extents);
                fat.early = early.and_then(|early| {
                    let member = Key::member(input, member);
                    let complete = cuts_of(extents).all(|(cut, payload)| {
                        early.has(&Key { member, payload, range: plan.archives.cuts[cut].range.clone() })
                    });
                    complete.then_some((early, member, &plan.binaries[index].fat.checkpoints))
                });
                HostMember::Rewrite(fat)
            }
            Err(_) if packs => HostMember::Pack,
            Err(_) => HostMember::Copy,
        };
        (member, action)
    })
}

fn fat_stream<'plan>(binary: &'plan Binary, extents: &'plan [Extent]) -> FatStream<'plan> {
    FatStream {
        edits: &binary.plan.edits,
        extents,
        verify: binary.plan.verify.clone(),
        early: None,
        check: Box::new(|output| match &binary.fat.layout {
            Layout::Elf(layout) => elf::verify(output, layout, &binary.marker, &binary.plan),
            Layout::Pe(layout) => pe::verify(output, layout, &binary.marker),
        }),
    }
}

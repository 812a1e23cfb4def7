//! The second pass: opens all outputs and wires the stages.

use std::fs::File;
use std::sync::Arc;

use crossbeam_channel::{bounded, unbounded};

use super::Context;
use super::archive::KpackWriter;
use super::budget::Budget;
use super::cancel::{cause, stopped};
use super::classify::Layout;
use super::compress::{self, Scheme};
use super::deflates;
use super::emit::{self, Hashed};
use super::item::Extent;
use super::limits::Limits;
use super::meter::Meter;
use super::plan::binaries::Binary;
use super::plan::wheels::output_name;
use super::plan::{DevicePlan, SplitPlan};
use super::rewrite::{FatStream, HostMember, Rewriter};
use super::sink::{Region, Sink};
use super::unbundle::{self, Cutter, Output, join};
use crate::error::Result;
use crate::io::Input;
use crate::io::output::scratch;
use crate::kpack::format;
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
    meter: &Meter,
) -> Result<Streamed> {
    let options = context.options;
    let when = super::finish::time_of_new_members(input, options);
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
    let stage = SecondPass { context, input, plan, meter };
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
    meter: &'a Meter,
}

impl SecondPass<'_> {
    fn run(&self, hosts: &mut [Sink], writers: &mut [KpackWriter]) -> Result<Vec<Hashed>> {
        let Self { input, plan, meter, .. } = *self;
        let Context { options, cancel, stats } = *self.context;
        let memory = options.memory_limit.unwrap_or_else(|| Limits::default_memory(options.jobs));
        let limits = Limits::new(options.jobs, memory);
        let budget = |capacity| Budget::new(capacity, Arc::clone(cancel));
        std::thread::scope(|scope| {
            // What waits in channels is bounded by the budgets, not by their capacity.
            let (to_workers, jobs_to_do) = unbounded();
            let (to_archives, frames) = unbounded();
            let (to_host, steps) = unbounded();
            // A bundle is handed over when a decoder is free.
            let (to_decoders, bundles) = bounded(0);
            let mut threads = Vec::new();
            for _ in 0..limits.workers {
                let (jobs_to_do, to_archives, to_host) =
                    (jobs_to_do.clone(), to_archives.clone(), to_host.clone());
                let (scheme, deflates) = (options.scheme, deflates(options));
                threads.push(scope.spawn(move || {
                    cancel.watch(compress::work(&jobs_to_do, &to_archives, &to_host, scheme, deflates, stats))
                }));
            }
            let output = Output {
                cuts: &plan.archives.cuts,
                jobs: to_workers.clone(),
                frames: to_archives.clone(),
                scheme: options.scheme,
                cancel,
                stats,
            };
            for _ in 0..limits.decoders {
                let bundles = bundles.clone();
                let cutter = Cutter::new(scope, output.clone(), budget(limits.decoded));
                threads.push(scope.spawn(move || cancel.watch(unbundle::decompress(&bundles, cutter))));
            }
            let archives = scope.spawn(move || {
                cancel.watch(emit::archives(&frames, &plan.archives.cuts, writers, &stats.emit_archives))
            });
            let host = scope.spawn(move || {
                cancel.watch(emit::host(&steps, input, hosts, |bytes| meter.add(bytes), &stats.emit_host))
            });
            let rewriter = Rewriter {
                input,
                cancel,
                meter,
                jobs: to_workers,
                steps: to_host,
                bundles: to_decoders,
                cutter: Cutter::new(scope, output, budget(limits.objects)),
                budget: budget(limits.blocks),
                payloads: budget(limits.payloads),
                windows: budget(limits.windows),
                next_ticket: 0,
                stats,
            };
            drop((to_archives, bundles, jobs_to_do));
            let read = cancel.watch(rewriter.run(host_members(input, plan)));
            let mut errors: Vec<_> = read.err().into_iter().collect();
            for thread in threads {
                errors.extend(join(thread).err());
            }
            errors.extend(join(archives).err());
            let hashed = join(host).map_err(|error| errors.push(error)).ok();
            match cause(errors) {
                Some(error) => Err(error),
                None => hashed.ok_or_else(stopped),
            }
        })
    }
}

/// What happens to each member of the host wheel's body.
fn host_members<'plan>(
    input: &Input,
    plan: &'plan SplitPlan,
) -> impl Iterator<Item = (usize, HostMember<'plan>)> {
    let packs = input.map().is_none();
    plan.host.body.iter().map(move |&member| {
        let action = match plan.binaries.binary_search_by_key(&member, |binary| binary.member) {
            Ok(index) => {
                HostMember::Rewrite(fat_stream(&plan.binaries[index], &plan.archives.extents[index]))
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
        check: Box::new(|output| match &binary.fat.layout {
            Layout::Elf(layout) => elf::verify(output, layout, &binary.marker, &binary.plan),
            Layout::Pe(layout) => pe::verify(output, layout, &binary.marker),
        }),
    }
}

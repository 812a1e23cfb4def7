//! Stages *hash* and *commit*, up to the names: TOCs, RECORDs, `.dist-info`, central directories. Device wheels are
//! finished in parallel.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest, Sha256};

use super::Context;
use super::account::{account, digest};
use super::archive::KpackWriter;
use super::cancel::cause;
use super::classify::Classified;
use super::emit::Hashed;
use super::identify::Identified;
use super::plan::archives::ArchivePlan;
use super::plan::{DevicePlan, SplitPlan};
use super::sink::Sink;
use super::stream::Streamed;
use super::unbundle::join;
use crate::error::{Error, Result};
use crate::io::output::Pending;
use crate::io::{Input, StreamReader};
use crate::kpack::toc::Toc;
use crate::options::{DeviceOutput, Output, SplitOptions, SplitReport};
use crate::wheel::record::RecordWriter;
use crate::wheel::wheel_file::top_level;
use crate::zip::{Attributes, Method, Sizes};

/// Everything that finishing needs to know.
pub struct Finisher<'a> {
    /// Options and cancellation.
    pub context: &'a Context<'a>,
    /// The input.
    pub input: &'a Input,
    /// Its identity.
    pub identified: &'a Identified,
    /// Its members.
    pub classified: &'a [Classified],
    /// The plan.
    pub plan: &'a SplitPlan,
}

/// A device wheel to be finished, with its archives.
type DeviceWork<'a> = (Sink, &'a DevicePlan, Vec<(usize, KpackWriter)>);

/// A wheel on its way to its name, with the rows of its RECORD so far.
struct OpenWheel<'a> {
    sink: Sink,
    record: RecordWriter,
    attributes: &'a Attributes,
}

impl OpenWheel<'_> {
    /// Adds a small file that the split makes.
    fn add(&mut self, path: &str, bytes: &[u8]) -> Result<()> {
        self.sink.whole(path, self.attributes, bytes)?;
        self.record.push(path, &Sha256::digest(bytes).into(), bytes.len() as u64);
        Ok(())
    }

    /// Adds RECORD and ends the wheel.
    fn finish(mut self, record_path: &str, options: &SplitOptions) -> Result<(Pending, Output)> {
        let record = std::mem::take(&mut self.record).finish(record_path);
        self.sink.whole(record_path, self.attributes, &record)?;
        let (pending, size) = self.sink.finish(options.durable)?;
        let path = pending.path();
        let sha256 = if options.manifest { digest(&pending, size)? } else { None };
        Ok((pending, Output { path, size, sha256 }))
    }
}

impl Finisher<'_> {
    /// Finishes all wheels. They are complete afterwards, but for their names.
    pub fn finish(&self, streamed: Streamed) -> Result<(Vec<Pending>, SplitReport)> {
        let Streamed { hosts, devices, mut writers, hashed } = streamed;
        let attributes =
            Attributes::regular(0o644, super::time_of_new_members(self.input, self.context.options));
        let filled = self.fill(&mut writers)?;
        let mut writers: Vec<Option<KpackWriter>> = writers.into_iter().map(Some).collect();
        // One piece of work per wheel; the largest archives first.
        let mut work: Vec<DeviceWork<'_>> = Vec::new();
        for (sink, device) in devices.into_iter().zip(&self.plan.devices) {
            let own =
                device.archives.iter().filter_map(|&index| Some((index, writers[index].take()?))).collect();
            work.push((sink, device, own));
        }
        let slots: Vec<Mutex<Option<_>>> = work.into_iter().map(|item| Mutex::new(Some(item))).collect();
        let results: Vec<Mutex<Option<(Pending, DeviceOutput)>>> =
            slots.iter().map(|_| Mutex::new(None)).collect();
        let next = AtomicUsize::new(0);
        let run = || -> Result<()> {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(slot) = slots.get(index) else { return Ok(()) };
                self.context.cancel.check()?;
                let Some((sink, device, writers)) =
                    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
                else {
                    continue;
                };
                let wheel = OpenWheel { sink, record: RecordWriter::new(), attributes: &attributes };
                let done = self.context.cancel.watch(self.device(wheel, device, writers, &filled))?;
                *results[index].lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
            }
        };
        let hosts = std::thread::scope(|scope| {
            let threads: Vec<_> = (1..self.context.options.jobs.max(1)).map(|_| scope.spawn(run)).collect();
            let hosts = self.context.cancel.watch(self.hosts(hosts, &hashed, &attributes));
            let first = run();
            let mut errors: Vec<Error> = first.err().into_iter().collect();
            errors.extend(threads.into_iter().filter_map(|thread| join(thread).err()));
            match hosts {
                Ok(hosts) => cause(errors).map_or(Ok(hosts), Err),
                Err(error) => {
                    Err(cause(std::iter::once(error).chain(errors)).unwrap_or_else(super::cancel::stopped))
                }
            }
        })?;
        let mut pending = Vec::new();
        let mut outputs = Vec::new();
        for (wheel, output) in hosts {
            pending.push(wheel);
            outputs.push(output);
        }
        let mut devices = Vec::new();
        for slot in results {
            let Some((wheel, output)) = slot.into_inner().unwrap_or_else(PoisonError::into_inner) else {
                continue;
            };
            pending.push(wheel);
            devices.push(output);
        }
        let mut outputs = outputs.into_iter();
        let host = outputs.next().ok_or_else(super::cancel::stopped)?;
        let name = |member: usize| self.input.members()[member].name.clone();
        let mut report = SplitReport {
            host,
            input_size: self.input.length(),
            variant: outputs.next(),
            devices,
            split_binaries: self.plan.binaries.iter().map(|binary| name(binary.member)).collect(),
            warnings: Vec::new(),
            timings: Vec::new(),
            already_split: self.plan.binaries.is_empty() && self.plan.devices.is_empty(),
            record: None,
        };
        if self.context.options.manifest {
            report.record = Some(account(self, &hashed, &report));
        }
        Ok((pending, report))
    }

    /// Copies the code objects of generic targets into the archives of exact processors. The ordinal of each copy.
    fn fill(&self, writers: &mut [KpackWriter]) -> Result<HashMap<(usize, usize), u32>> {
        let mut filled = HashMap::new();
        for (index, archive) in self.plan.archives.archives.iter().enumerate() {
            for &(cut, source) in &archive.fills {
                let (target, source) = pair(writers, index, source).ok_or_else(super::cancel::stopped)?;
                filled.insert((index, cut), target.fill(cut, source)?);
            }
        }
        Ok(filled)
    }

    fn device(
        &self,
        mut wheel: OpenWheel<'_>,
        device: &DevicePlan,
        writers: Vec<(usize, KpackWriter)>,
        filled: &HashMap<(usize, usize), u32>,
    ) -> Result<(Pending, DeviceOutput)> {
        let mut targets = Vec::new();
        let mut code_objects = 0;
        for (position, (index, writer)) in writers.into_iter().enumerate() {
            let archive = &self.plan.archives.archives[index];
            targets.extend(archive.archive.targets().iter().map(ToString::to_string));
            code_objects += writer.count();
            let region = writer.region().clone();
            let toc = self.toc(index, archive, &writer, filled)?;
            let finished = writer.finish(toc)?;
            let sizes =
                Sizes { crc32: finished.crc32, compressed: finished.length, uncompressed: finished.length };
            if position > 0 {
                wheel.sink.begin(&archive.path, wheel.attributes, Method::Stored, finished.length)?;
                wheel.sink.write_region(&region, finished.length)?;
            }
            wheel.sink.end(sizes)?;
            wheel.record.push(&archive.path, &finished.sha256, finished.length);
        }
        let mut reader = StreamReader::new()?;
        for &member in &device.files {
            self.copy(&mut wheel, member, &mut reader)?;
        }
        let dist_info = device.filename.dist_info();
        wheel.add(&format!("{dist_info}/METADATA"), &device.metadata)?;
        let wheel_file = self.identified.wheel_file.device(env!("CARGO_PKG_VERSION"));
        wheel.add(&format!("{dist_info}/WHEEL"), &wheel_file)?;
        wheel.add(&format!("{dist_info}/top_level.txt"), &top_level(&self.plan.root))?;
        let (pending, output) = wheel.finish(&format!("{dist_info}/RECORD"), self.context.options)?;
        let report = DeviceOutput {
            output,
            name: device.name.clone(),
            key: device.bundle.key.clone(),
            targets,
            code_objects,
            files: device.files.len(),
        };
        Ok((pending, report))
    }

    fn copy(&self, wheel: &mut OpenWheel<'_>, index: usize, reader: &mut StreamReader) -> Result<()> {
        let member = &self.input.members()[index];
        wheel.sink.copy(self.input, member, reader)?;
        if !member.is_directory() {
            wheel.record.push(&member.name, &self.classified[index].sha256, member.size);
        }
        Ok(())
    }

    fn hosts(
        &self,
        sinks: Vec<Sink>,
        hashed: &[Hashed],
        attributes: &Attributes,
    ) -> Result<Vec<(Pending, Output)>> {
        let host = &self.plan.host;
        let mut record = RecordWriter::new();
        for &index in &host.body {
            let member = &self.input.members()[index];
            if member.is_directory() {
                continue;
            }
            match hashed.binary_search_by_key(&index, |hashed| hashed.member) {
                Ok(found) => record.push(&member.name, &hashed[found].sha256, hashed[found].size),
                Err(_) => record.push(&member.name, &self.classified[index].sha256, member.size),
            }
        }
        let metadata_path = self.identified.path("METADATA");
        let mut reader = StreamReader::new()?;
        let mut done = Vec::new();
        for (position, sink) in sinks.into_iter().enumerate() {
            let variant = self.plan.variant.as_ref().filter(|_| position > 0);
            let metadata = variant.map_or(&host.metadata, |variant| &variant.metadata);
            let mut wheel = OpenWheel { sink, record: record.clone(), attributes };
            for &index in &host.dist_info {
                if self.input.members()[index].name == metadata_path {
                    wheel.add(&metadata_path, metadata)?;
                } else {
                    self.copy(&mut wheel, index, &mut reader)?;
                }
            }
            if let Some(variant) = variant {
                wheel.add(&self.identified.path("variant.json"), &variant.json)?;
            }
            done.push(wheel.finish(&self.identified.path("RECORD"), self.context.options)?);
        }
        Ok(done)
    }

    fn toc(
        &self,
        index: usize,
        archive: &ArchivePlan,
        writer: &KpackWriter,
        filled: &HashMap<(usize, usize), u32>,
    ) -> Result<Toc> {
        let mut toc = Toc::new(self.plan.group.as_str(), archive.archive.name(), archive.archive.targets());
        let mut binary: Option<(usize, u32)> = None;
        for (entry, kernel, cut) in self.plan.archives.entries(archive) {
            // Entries come by kernel, and kernels by binary.
            let number = match binary {
                Some((last, number)) if last == kernel.binary => number,
                _ => {
                    let number = toc.add_binary(self.plan.binaries[kernel.binary].kernel_name.as_str());
                    binary = Some((kernel.binary, number));
                    number
                }
            };
            let ordinal = writer.ordinal(cut).or_else(|| filled.get(&(index, cut)).copied());
            let ordinal = ordinal.ok_or_else(super::cancel::stopped)?;
            toc.add(number, kernel.index, entry.target, ordinal, self.plan.archives.cuts[cut].size())?;
        }
        Ok(toc)
    }
}

/// Two different elements of a slice.
fn pair<T>(items: &mut [T], first: usize, second: usize) -> Option<(&mut T, &T)> {
    let [a, b] = items.get_disjoint_mut([first, second]).ok()?;
    Some((a, b))
}

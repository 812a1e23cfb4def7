//! `cargo bench --bench pieces [-- FILTER]`: the parts of a split one by one, and a whole one, with criterion.
//!
//! All inputs are generated. `deflate` also prints how much larger a stream of independent blocks is than a serial
//! one.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a benchmark may end so"
)]

mod support;

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use crossbeam_channel::unbounded;
use fatwheel::arch::TargetId;
use fatwheel::edit::Apply;
use fatwheel::elf;
use fatwheel::fatbin::CcobDecoder;
use fatwheel::fatbin::walk::{Storage, walk};
use fatwheel::fatbin::wrapper::{BundleSection, Located};
use fatwheel::fault::Fault;
use fatwheel::io::member::CHUNK;
use fatwheel::kpack::format::{BlobArea, Scheme};
use fatwheel::kpack::toc::Toc;
use fatwheel::pipeline::budget::Budget;
use fatwheel::pipeline::cancel::Cancel;
use fatwheel::pipeline::compress::{self, Job, deflate_whole};
use fatwheel::pipeline::item::{HostStep, Rewritten};
use fatwheel::pipeline::rewrite::BLOCK;
use fatwheel::pipeline::stats::Stats;
use fatwheel::zip::Archive;
use fatwheel::{SplitOptions, split};
use support::code_mixer::Mixer;
use support::elf_generator::{Device, Library, TARGETS, generate};
use support::wheel_generator::{FILE_NAME, WheelSpec, compress_bundle, write_wheel};

/// A fat library of about so many bytes, in memory.
fn library(size: u64) -> Vec<u8> {
    let seed = vec![7];
    let device = Device::new(&seed, size / 8 * 7, 320 << 10, TARGETS.len(), 5.0);
    let generated = generate(&Library { seed, host: size / 8, host_ratio: 3.8, device: Some(device) });
    let mixer = Mixer::new();
    generated.pieces.iter().flat_map(|piece| piece.bytes(&mixer, |_| Vec::new())).collect()
}

/// The bundle section of [`library`].
fn bundles(file: &[u8]) -> BundleSection {
    match elf::locate(&mut &*file).unwrap() {
        Located::Fat(layout) => layout.sections[0].clone(),
        other => panic!("not fat: {other:?}"),
    }
}

fn zip_read(criterion: &mut Criterion) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE_NAME);
    // The records are what counts: ten thousand members of a hundred bytes.
    let mut layout = fatwheel::zip::Layout::new();
    let mut bytes = Vec::new();
    let attributes = fatwheel::zip::Attributes::regular(0o644, (0x5a21, 0));
    for index in 0..10_000 {
        let name = format!("torch/lib/rocblas/library/TensileLibrary_Type_HH_Contraction_{index:05}.co");
        let sizes = fatwheel::zip::Sizes { crc32: 0, compressed: 100, uncompressed: 100 };
        bytes.extend(layout.known(&name, fatwheel::zip::Method::Stored, &attributes, sizes));
        bytes.resize(bytes.len() + 100, 0);
    }
    bytes.extend(layout.finish());
    std::fs::write(&path, &bytes).unwrap();
    let mut group = criterion.benchmark_group("zip_read");
    group.throughput(Throughput::Elements(10_000));
    group.bench_function("10000 members", |bencher| {
        bencher.iter(|| Archive::parse(black_box(&bytes)).unwrap().entries.len());
    });
    group.finish();
}

fn unbundle(criterion: &mut Criterion) {
    let file = library(32 << 20);
    let section = bundles(&file);
    let mut group = criterion.benchmark_group("unbundle");
    let bundles = walk(&mut &*file, &section).unwrap();
    group.throughput(Throughput::Elements(bundles.len() as u64));
    group.bench_function("walk", |bencher| bencher.iter(|| walk(&mut &*file, &section).unwrap().len()));
    let first = &bundles[0];
    let content = &file[first.offset as usize..(first.offset + first.length) as usize];
    let packed = compress_bundle(content);
    let whole = BundleSection { address: 0, range: 0..packed.len() as u64 };
    let Storage::Compressed { header, payload, .. } = &walk(&mut &*packed, &whole).unwrap()[0].storage else {
        panic!("the bundle is compressed");
    };
    let payload = &packed[payload.start as usize..payload.end as usize];
    group.throughput(Throughput::Bytes(content.len() as u64));
    group.bench_function("CCOB", |bencher| {
        bencher.iter(|| {
            let mut decoder = CcobDecoder::new(*header, 0).unwrap();
            let mut length = 0;
            for chunk in payload.chunks(CHUNK) {
                let sink = |bytes: &[u8]| {
                    length += bytes.len();
                    Ok::<_, Fault>(())
                };
                decoder.feed(chunk, sink).unwrap();
            }
            assert_eq!(length, content.len());
        });
    });
    group.finish();
}

fn edit_apply(criterion: &mut Criterion) {
    let file = library(32 << 20);
    let Located::Fat(layout) = elf::locate(&mut &*file).unwrap() else { panic!("not fat") };
    let marker = fatwheel::kpack::marker::marker("lib/libfat.so", "bigdemo").unwrap();
    let plan = elf::plan(&mut &*file, &layout, &marker).unwrap();
    let mut group = criterion.benchmark_group("edit_apply");
    group.bench_function("locate", |bencher| bencher.iter(|| elf::locate(&mut &*file).unwrap()));
    group.bench_function("plan", |bencher| {
        bencher.iter(|| elf::plan(&mut &*file, &layout, &marker).unwrap().edits.output_len());
    });
    // Bytes are only handed on, so that what counts is the number of chunks.
    group.throughput(Throughput::Elements(file.len().div_ceil(CHUNK) as u64));
    group.bench_function("apply", |bencher| {
        bencher.iter(|| {
            let (mut apply, mut length) = (Apply::new(&plan.edits), 0);
            let mut sink = |bytes: &[u8]| {
                length += bytes.len();
                Ok::<_, Fault>(())
            };
            for chunk in file.chunks(CHUNK) {
                apply.feed(chunk, &mut sink).unwrap();
            }
            apply.finish(&mut sink).unwrap();
            length
        });
    });
    group.finish();
}

/// Deflates `bytes` as the pipeline does: as blocks, each with the history of the one before it.
fn deflate_blocks(bytes: &[u8]) -> usize {
    let budget = Budget::new(usize::MAX / 2, Arc::new(Cancel::default()));
    let (to_worker, jobs) = unbounded();
    let (frames, _frames) = unbounded();
    let (steps, done) = unbounded();
    let mut previous: Option<Arc<Vec<u8>>> = None;
    let count = bytes.len().div_ceil(BLOCK);
    for (index, block) in bytes.chunks(BLOCK).enumerate() {
        let block = Arc::new(block.to_vec());
        let grant = budget.acquire(2 * BLOCK).unwrap();
        let before = previous.replace(Arc::clone(&block));
        let last = index + 1 == count;
        let job = Rewritten { ticket: index as u64, previous: before, block, last, grant };
        to_worker.send(Job::Deflate(job)).unwrap();
    }
    drop(to_worker);
    compress::work(&jobs, &frames, &steps, fatwheel::options::Scheme::Stored, true, &Stats::default())
        .unwrap();
    drop(steps);
    let size = |step| match step {
        HostStep::Block { deflated, .. } => deflated.len(),
        _ => 0,
    };
    done.into_iter().map(|(_, step)| size(step)).sum()
}

fn deflate(criterion: &mut Criterion) {
    let mixer = Mixer::new();
    let bytes: Vec<u8> = (0..8).flat_map(|n| mixer.host(1 << 20, 3.8, &[9, n])).collect();
    let (serial, blocks) = (deflate_whole(&bytes).unwrap().len(), deflate_blocks(&bytes));
    println!(
        "deflate/ratio: serial {:.4}, blocks {:.4}; blocks are {:.3} % larger",
        bytes.len() as f64 / serial as f64,
        bytes.len() as f64 / blocks as f64,
        100.0 * (blocks as f64 / serial as f64 - 1.0),
    );
    let mut group = criterion.benchmark_group("deflate");
    group.sample_size(10).throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("serial", |bencher| bencher.iter(|| deflate_whole(black_box(&bytes)).unwrap()));
    group.bench_function("blocks", |bencher| bencher.iter(|| deflate_blocks(black_box(&bytes))));
    group.finish();
}

fn kpack(criterion: &mut Criterion) {
    const KERNELS: u32 = 20_000;
    let target = TargetId::parse("gfx90a").unwrap();
    let mut group = criterion.benchmark_group("kpack");
    group.throughput(Throughput::Elements(u64::from(KERNELS)));
    group.bench_function("table of contents of 20000 kernels", |bencher| {
        let make = || {
            let mut area = BlobArea::new("archive", Scheme::ZstdPerKernel);
            let mut toc = Toc::new("bigdemo", "gfx90a", &[target]);
            for number in 0..KERNELS {
                if number % 1000 == 0 {
                    toc.add_binary(format!("lib/libfat{}.so", number / 1000));
                }
                let ordinal = area.place(50_000).unwrap().ordinal;
                toc.add(number / 1000, number % 1000, target, ordinal, 320 << 10).unwrap();
            }
            (toc, area)
        };
        let encode = |(toc, area): (Toc, BlobArea)| {
            let mut out = Vec::new();
            toc.finish(&area).unwrap().write_to(&mut out).unwrap();
            out.len()
        };
        bencher.iter_batched(make, encode, BatchSize::LargeInput);
    });
    group.finish();
}

fn end_to_end(criterion: &mut Criterion) {
    let directory = tempfile::tempdir().unwrap();
    let mut group = criterion.benchmark_group("end_to_end");
    group.sample_size(10);
    for (name, ccob) in [("plain bundles", false), ("compressed bundles", true)] {
        let path = directory.path().join(FILE_NAME);
        let summary = write_wheel(&WheelSpec { ccob, ..WheelSpec::default() }, &path, 2).unwrap();
        group.throughput(Throughput::Bytes(summary.unpacked));
        group.bench_function(name, |bencher| bencher.iter(|| split_once(&path, directory.path())));
    }
    group.finish();
}

fn split_once(wheel: &Path, directory: &Path) -> usize {
    let mut options = SplitOptions::new(wheel, directory.join("out"));
    options.databases = vec!["torch-fat".to_owned()];
    options.durable = false;
    options.jobs = 2;
    split(&options).unwrap().devices.len()
}

criterion_group!(pieces, zip_read, unbundle, edit_apply, deflate, kpack, end_to_end);
criterion_main!(pieces);

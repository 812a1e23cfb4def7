//! Failures seen in the field with other splitters, by the public report that describes them. Reports that another module
//! covers already are named there by what they are about: feature mixes and generics in `kpack`, unknown architectures
//! and files in `databases`, names and signatures in `zip_inputs`, second splits in `resplit`, running programs in `run`.

use std::fs;

use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _};
use object::{Endianness, elf};

use crate::support::bundle_builder::{BundleBuilder, CcobMethod, ccob};
use crate::support::elf_builder::{FatElf, bundle, noise};
use crate::support::kpack_reader::{newer_loader, shipped_loader};
use crate::support::run::{fixture, names, refuse_built, split_built};
use crate::support::wheel_builder::WheelBuilder;
use crate::support::zip_builder::ZipMember;

/// TheRock 7081, rocm-systems 9953, ROCm/pytorch 3581: one library compiled for `gfx90a:xnack+` and `xnack-` made every
/// kernel of the others fail, since its nearly empty archive came before the full one.
#[test]
fn therock_7081_sparse_feature_archives() {
    let full: Vec<Vec<u8>> = (0..4).map(|seed| noise(seed, 3000)).collect();
    let (on, off) = (noise(10, 3000), noise(11, 3000));
    let hip =
        full.iter().fold(FatElf::new(), |elf, code| elf.code(&[("gfx90a", code), ("gfx942", code)])).build();
    let shmem = FatElf::new().code(&[("gfx90a:xnack+", &on), ("gfx90a:xnack-", &off)]).build();
    let wheel = WheelBuilder::new("torch", "2.12")
        .file("torch/lib/libtorch_hip.so", hip)
        .file("torch/lib/librocshmem.so", shmem);
    let kpacks = split_built(&wheel, &[]).kpacks();
    for (isa, special) in
        [("gfx90a:sramecc+:xnack-", &off), ("gfx90a:sramecc+:xnack+", &on), ("gfx90a:sramecc-:xnack-", &off)]
    {
        for loader in [shipped_loader, newer_loader] {
            let find = |key: &str| loader(&kpacks, "torch/.kpack/torch", key, isa);
            for (index, code) in full.iter().enumerate() {
                assert!(find(&format!("lib/libtorch_hip.so#{index}")) == Some(code), "{isa} {index}");
            }
            assert!(find("lib/librocshmem.so#0") == Some(special), "{isa}");
        }
    }
    // On a device that reports no xnack, the code that needs it is not offered.
    assert_eq!(shipped_loader(&kpacks, "torch/.kpack/torch", "lib/librocshmem.so#0", "gfx90a"), None);
}

/// rocm-systems 6943 and 7069: the number in a kernel's key counted the units of one processor, the wrapper's field
/// holds the wrapper's number. Small numbers then find the wrong code object.
#[test]
fn rocm_systems_6943_the_key_is_the_wrappers_number() {
    let codes: Vec<Vec<u8>> = (0..3).map(|seed| noise(seed, 900)).collect();
    let elf = FatElf::new()
        .code(&[("gfx1100", &codes[0])])
        .code(&[("gfx942", &codes[1])])
        .code(&[("gfx942", &codes[2]), ("gfx1100", &codes[0])]);
    let split = split_built(&WheelBuilder::new("num", "1").file("num/a.so", elf.build()), &[]);
    let kpacks = split.kpacks();
    let gfx942 = &kpacks["num/.kpack/num_gfx942.kpack"];
    assert_eq!(gfx942.keys(), ["a.so#1", "a.so#2"], "and no #0");
    assert!(gfx942.get("a.so#1", "gfx942").unwrap().1 == codes[1]);
    // The wrappers say the same numbers: magic, version, pointer, then the index.
    let host = split.starting("num-1");
    let host = host.data("num/a.so");
    let at = host.windows(4).position(|window| window == b"HIPK").unwrap();
    let indices: Vec<&[u8]> = (0..3).map(|index| &host[at + 24 * index + 16..at + 24 * index + 20]).collect();
    assert_eq!(indices, [[0, 0, 0, 0], [1, 0, 0, 0], [2, 0, 0, 0]]);
}

/// Kernels of two libraries of one name in different directories overwrote each other.
#[test]
fn two_libraries_of_one_name_in_different_directories() {
    let [first, second] = [1, 2].map(|seed| noise(seed, 5000));
    let library = |code: &[u8]| FatElf::new().code(&[("gfx942", code)]).build();
    let wheel = WheelBuilder::new("same", "1")
        .file("same/x/_C.so", library(&first))
        .file("same/y/_C.so", library(&second));
    let kpacks = split_built(&wheel, &[]).kpacks();
    let kpack = &kpacks["same/.kpack/same_gfx942.kpack"];
    assert!(kpack.get("x/_C.so#0", "gfx942").unwrap().1 == first);
    assert!(kpack.get("y/_C.so#0", "gfx942").unwrap().1 == second);
}

/// pytorch 194498, rocm-systems 10685: whoever installed a target's wheel by name lacked the family's images.
#[test]
fn pytorch_194498_a_targets_wheel_requires_its_familys() {
    let wheel = WheelBuilder::new("leaf", "1")
        .file("leaf/a.so", FatElf::new().code(&[("gfx1100", b"code")]).build())
        .file("leaf/aotriton.images/amd-gfx11xx/flash/x", "image");
    let split = split_built(&wheel, &["--databases", "aotriton"]);
    let metadata = split.starting("amd_leaf_device_gfx1100").info("METADATA");
    assert!(metadata.contains("\nRequires-Dist: amd-leaf-device-gfx11 == 1\n"), "{metadata}");
}

/// TheRock 5858, rocm-systems 7505: a new folder name ended the split after hours.
#[test]
fn therock_5858_unknown_bundle_keys_fail_before_anything_is_written() {
    let wheel =
        WheelBuilder::new("key", "1").file("key/a.so", FatElf::new().code(&[("gfx1100", b"code")]).build());
    let known = wheel.clone().file("key/aotriton.images/amd-gfx110x/x", "image");
    assert!(
        split_built(&known, &["--databases", "aotriton"])
            .starting("amd_key_device_gfx110x-")
            .has("key/aotriton.images/amd-gfx110x/x")
    );
    let unknown = wheel.file("key/aotriton.images/amd-gfx77yy/x", "image");
    refuse_built(
        &unknown,
        &["--databases", "aotriton"],
        &["key/aotriton.images/amd-gfx77yy/x", "gfx77yy", "--arch-table"],
    );
}

/// Type, flags, file offset, address and memory size.
type Segment = (u32, u32, u64, u64, u64);

/// Program headers, and type, flags and offset of the sections, by the object crate.
fn headers(data: &[u8]) -> (Vec<Segment>, Vec<(u32, u64, u64)>) {
    let endian = Endianness::Little;
    let header = elf::FileHeader64::<Endianness>::parse(data).unwrap();
    let segments = header.program_headers(endian, data).unwrap();
    let segments = segments
        .iter()
        .map(|one| {
            (
                one.p_type(endian).0,
                one.p_flags(endian).0,
                one.p_offset(endian),
                one.p_vaddr(endian),
                one.p_memsz(endian),
            )
        })
        .collect();
    let sections = header.section_headers(endian, data).unwrap();
    let sections = sections
        .iter()
        .map(|one| (one.sh_type(endian).0, one.sh_flags(endian).0, one.sh_offset(endian)))
        .collect();
    (segments, sections)
}

/// Every ELF fixture before and after its split.
fn split_fixtures() -> Vec<(String, Vec<u8>, Vec<u8>)> {
    let mut wheel = WheelBuilder::new("elf", "1");
    let fixtures = names(&fixture("elf"));
    for name in &fixtures {
        let data = fs::read(fixture("elf").join(name)).unwrap();
        wheel = wheel.member(ZipMember::new(&format!("elf/{name}"), data).mode(0o100_755));
    }
    let host = split_built(&wheel, &[]).starting("elf-1");
    fixtures
        .into_iter()
        .map(|name| {
            let after = host.data(&format!("elf/{name}")).to_vec();
            (name.clone(), fs::read(fixture("elf").join(name)).unwrap(), after)
        })
        .collect()
}

/// TheRock 4656 and 4271 (a writable first segment crashes old kernels); TheRock 5430 and rocm-systems 7681 (a moved
/// program header table crashes programs on RHEL 8, since AT_PHDR is load bias + e_phoff there); TheRock 4561 (patchelf).
#[test]
fn therock_5430_program_headers_stay_where_they_are() {
    for (name, before, after) in split_fixtures() {
        assert_eq!(before[32..40], after[32..40], "{name}: e_phoff");
        let ((old, _), (new, _)) = (headers(&before), headers(&after));
        let loads = |segments: &[Segment]| {
            segments.iter().filter(|one| one.0 == elf::PT_LOAD.0).copied().collect::<Vec<_>>()
        };
        let (old, new) = (loads(&old), loads(&new));
        assert_eq!(
            (new[0].1, new[0].2, new[0].3),
            (old[0].1, old[0].2, old[0].3),
            "{name}: the first segment"
        );
        assert!(
            new.windows(2).all(|pair| pair[0].3 + pair[0].4 <= pair[1].3),
            "{name}: segments ascend: {new:x?}"
        );
        let end = |segments: &[Segment]| segments.last().map(|one| one.3 + one.4);
        assert!(end(&new) <= end(&old), "{name}: no new address range");
        let holes = if name == "libtwo.so" { 2 } else { 1 };
        assert!(new.len() <= old.len() + holes, "{name}: {new:x?}");
    }
}

/// TheRock 5498, rocm-systems 6757: dwz refuses an allocated section behind one that is not.
#[test]
fn therock_5498_allocated_sections_come_first() {
    for (name, before, after) in split_fixtures() {
        let order = |data: &[u8]| {
            let (_, sections) = headers(data);
            let first =
                sections.iter().skip(1).position(|section| section.1 & 2 == 0).unwrap_or(sections.len());
            (sections.len(), sections.iter().skip(1 + first).all(|section| section.1 & 2 == 0))
        };
        assert_eq!(
            order(&before),
            order(&after),
            "{name}: section count, and whether allocated sections come first"
        );
        let (_, sections) = headers(&after);
        let offsets = |allocated: bool| {
            let wanted = sections
                .iter()
                .skip(1)
                .filter(move |section| (section.1 & 2 != 0) == allocated && section.0 != 8);
            wanted.map(|section| section.2).collect::<Vec<u64>>()
        };
        assert!(offsets(true).iter().max() < offsets(false).iter().min(), "{name}: in the file too");
    }
}

/// rocm-systems 10058 and 10060: the `.debug` file of a fat binary was taken for one.
#[test]
fn rocm_systems_10058_a_debug_file_is_no_fat_binary() {
    let library = FatElf::new().code(&[("gfx942", b"code")]).build();
    let mut debug = library.clone();
    let sections_at = u64::from_le_bytes(debug[40..48].try_into().unwrap()) as usize;
    for index in [5, 7] {
        // .hip_fatbin and .hipFatBinSegment, as `objcopy --only-keep-debug` leaves them.
        let at = sections_at + 64 * index + 4;
        assert_eq!(debug[at..at + 4], [1, 0, 0, 0], "SHT_PROGBITS");
        debug[at] = 8;
    }
    let wheel = WheelBuilder::new("dbg", "1").file("dbg/a.so", library).file("dbg/a.so.debug", debug.clone());
    let split = split_built(&wheel, &[]);
    assert!(split.starting("dbg-1").data("dbg/a.so.debug") == debug);
    assert_eq!(split.kpacks()["dbg/.kpack/dbg_gfx942.kpack"].keys(), ["a.so#0"]);
}

/// llvm 206745: a code object was cut off where its bytes looked like the next bundle. ROCm/llvm-project 448: only
/// the first of several compressed bundles was read.
#[test]
fn llvm_206745_magics_inside_code_objects_are_data() {
    let mut code = noise(3, 40_000);
    for (at, magic) in [
        (100, &b"CCOB\x02\0\x01\0"[..]),
        (4096, b"__CLANG_OFFLOAD_BUNDLE__"),
        (8192 - 256, b"CCOB"),
        (20_000, b"FPIH"),
    ] {
        code[at..at + magic.len()].copy_from_slice(magic);
    }
    let content = bundle(&[("gfx942", &code)]);
    let mut elf = FatElf::new();
    for version in [1, 2, 3] {
        // Noise does not compress, so the magics are in the payload as they are.
        let compressed = ccob(version, CcobMethod::Zstd, &content);
        assert!(compressed.windows(8).any(|window| window == b"CCOB\x02\0\x01\0"), "the test needs it there");
        elf = elf.unit(compressed).unit(content.clone());
    }
    let kpacks = split_built(&WheelBuilder::new("mag", "1").file("mag/a.so", elf.build()), &[]).kpacks();
    let kpack = &kpacks["mag/.kpack/mag_gfx942.kpack"];
    assert_eq!(kpack.keys().len(), 6);
    assert!(kpack.keys().iter().all(|key| kpack.get(key, "gfx942").unwrap().1 == code));
}

/// hip-tests 468, llvm 139112 and 217640: entry IDs of newer compilers were skipped in silence.
#[test]
fn hip_tests_468_entry_ids_of_every_compiler() {
    let ids = [
        ("hipv4-amdgcn-amd-amdhsa--gfx950", "gfx950"),
        ("hip-amdgcn-amd-amdhsa--gfx906", "gfx906"),
        ("hip-amdgcn-amd-amdhsa-unknown-gfx942", "gfx942"),
        ("hipv4-amdgcn-amd-amdhsa-unknown-gfx90a:sramecc+:xnack-", "gfx90a:sramecc+:xnack-"),
        ("hipv4-amdgcn-amd-amdhsa--gfx11-generic", "gfx11-generic"),
    ];
    let host = BundleBuilder::new()
        .entry("host-x86_64-unknown-linux-gnu-", b"")
        .entry("host-x86_64-unknown-linux--", b"");
    let unit = ids.iter().fold(host, |unit, (id, target)| unit.entry(id, target.as_bytes())).build();
    let kpacks =
        split_built(&WheelBuilder::new("ids", "1").file("ids/a.so", FatElf::new().unit(unit).build()), &[])
            .kpacks();
    for (id, target) in ids {
        let processor = target.split(':').next().unwrap();
        let kpack = &kpacks[&format!("ids/.kpack/ids_{processor}.kpack")];
        assert_eq!(kpack.get("a.so#0", target).map(|(_, code)| code), Some(target.as_bytes()), "{id}");
    }
}

/// ROCm/llvm-project 2333: SPIR-V beside exact code, in both spellings, must never be dropped in silence.
#[test]
fn llvm_project_2333_spirv_is_never_lost_in_silence() {
    for id in ["hip-spirv64-amd-amdhsa--amdgcnspirv", "hip-spirv64-amd-amdhsa-unknown-amdgcnspirv"] {
        let unit = BundleBuilder::new().target("gfx906", b"code").entry(id, b"words").build();
        let fat = FatElf::new().unit(unit).build();
        let wheel = WheelBuilder::new("spv", "1")
            .file("spv/a.so", fat)
            .file("spv/b.so", FatElf::new().code(&[("gfx906", b"b")]).build());
        let split = split_built(&wheel, &[]);
        assert!(split.stderr.contains("spv/a.so: stays whole"), "{id}: {}", split.stderr);
        assert!(split.starting("spv-1").data("spv/a.so").windows(5).any(|window| window == b"words"));
    }
}

/// rocm-systems 7633 and 7957: a fat binary was shipped whole because a filter matched nothing.
#[test]
fn rocm_systems_7633_nothing_to_split_is_an_error() {
    let library = FatElf::new().code(&[("gfx942", b"code")]).build();
    let wheel = WheelBuilder::new("none", "1").file("none/a.so", library).file("other/readme", "");
    refuse_built(&wheel, &["--overlay-root", "other"], &["no fat binaries found below other", "none/a.so"]);
}

/// rocm-systems 7645: Tensile files with a feature in their name vanished from both sides.
#[test]
fn rocm_systems_7645_xnack_tensile_files_are_kept() {
    let files = [
        "Kernels.so-000-gfx90a-xnack-.hsaco",
        "Kernels.so-000-gfx90a-xnack+.hsaco",
        "TensileLibrary_Type_HH_gfx90a-xnack-.co",
    ];
    let wheel =
        WheelBuilder::new("tens", "1").file("tens/a.so", FatElf::new().code(&[("gfx90a", b"code")]).build());
    let wheel = files
        .iter()
        .fold(wheel, |wheel, file| wheel.file(&format!("tens/lib/rocblas/library/{file}"), *file));
    let device = split_built(&wheel, &["--databases", "rocblas"]).starting("amd_tens_device_gfx90a");
    for file in files {
        assert_eq!(device.text(&format!("tens/lib/rocblas/library/{file}")), file);
    }
}

/// uv 19440, pytorch 189748: a ZIP64 field where none is called for makes strict readers refuse the wheel. The readers of
/// `tests/support` check that no output has one; this input has it on every member, as nightly wheels do.
#[test]
fn uv_19440_superfluous_zip64_fields_are_not_copied() {
    use crate::support::zip_builder::Zip64;
    let member = |name: &str, data: Vec<u8>| ZipMember::new(name, data).zip64(Zip64::Superfluous);
    let wheel = WheelBuilder::new("uv", "1")
        .member(member("uv/a.so", FatElf::new().code(&[("gfx942", b"code")]).build()))
        .member(member("uv/lib/rocblas/library/k_gfx942.co", b"kernel".to_vec()));
    let split = split_built(&wheel, &["--databases", "rocblas"]);
    assert_eq!(split.wheels().len(), 2);
}

/// rocm-systems 6362, TheRock 5274: kernels for another GPU, left over in the build tree, came into a wheel unseen.
#[test]
fn rocm_systems_6362_a_processor_with_few_units_is_said() {
    let stray = (0..30).fold(FatElf::new(), |elf, seed| {
        let code = noise(seed, 100);
        if seed == 7 {
            elf.code(&[("gfx942", &code), ("gfx1201", &code)])
        } else {
            elf.code(&[("gfx942", &code)])
        }
    });
    let wheel = WheelBuilder::new("stray", "1").file("stray/a.so", stray.build());
    let said = split_built(&wheel, &[]).stderr;
    assert!(
        said.contains("few units have code for gfx1201 (1), others for 30") && said.contains("--archs"),
        "{said}"
    );
    assert_eq!(split_built(&wheel, &["--archs", "!gfx1201"]).stderr, "");
}

/// TheRock 7081 once more: the old layout has the hole, and whoever asks for it is told.
#[test]
fn therock_7081_the_old_layout_says_what_it_hides() {
    let library = FatElf::new()
        .code(&[("gfx90a", b"1")])
        .code(&[("gfx90a:xnack-", b"2"), ("gfx90a:xnack+", b"3")])
        .code(&[("gfx90a", b"4")]);
    let wheel = WheelBuilder::new("old", "1").file("old/a.so", library.build());
    assert_eq!(split_built(&wheel, &[]).stderr, "");
    let split = split_built(&wheel, &["--kpack-layout", "per-target"]);
    assert!(split.stderr.contains("gfx90a:xnack- (1 of 2 units)"), "{}", split.stderr);
    // And so it is: the shipped loader fails where the newer one goes on.
    let kpacks = split.kpacks();
    assert!(shipped_loader(&kpacks, "old/.kpack/old", "a.so#0", "gfx90a:xnack-").is_none());
    assert!(newer_loader(&kpacks, "old/.kpack/old", "a.so#0", "gfx90a:xnack-").is_some());
}

/// TheRock 6223: pins are exact, so a wheel that is missing from an index breaks the installation. The manifest has
/// every wheel that another one of the split pins.
#[test]
fn therock_6223_every_pin_is_a_wheel_of_the_manifest() {
    let library = FatElf::new().code(&[("gfx1100", b"1"), ("gfx1101", b"2"), ("gfx942", b"3")]);
    let wheel = WheelBuilder::new("pins", "1+rocm7")
        .file("pins/a.so", library.build())
        .file("pins/aotriton.images/amd-gfx11xx/x", "image");
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("manifest.json");
    split_built(&wheel, &["--databases", "aotriton", "--manifest", path.to_str().unwrap()]);
    let manifest: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let outputs = manifest["splits"][0]["outputs"].as_array().unwrap();
    let built: Vec<String> = outputs
        .iter()
        .map(|output| {
            format!("{} == {}", output["name"].as_str().unwrap(), output["version"].as_str().unwrap())
        })
        .collect();
    assert_eq!(built.len(), 5);
    let pins = outputs.iter().flat_map(|output| output["requires"].as_array().unwrap());
    let pins: Vec<&str> = pins.map(|pin| pin.as_str().unwrap().split(';').next().unwrap()).collect();
    assert!(pins.len() > 10, "{pins:?}");
    for pin in pins.into_iter().filter(|pin| *pin != "rocm-bootstrap") {
        assert!(built.iter().any(|wheel| wheel == pin), "{pin} is in no wheel of {built:?}");
    }
}

//! Per-architecture files, architectures that the table lacks, and the choice of device wheels.

use std::collections::BTreeSet;
use std::fs;

use crate::support::bundle_builder::BundleBuilder;
use crate::support::elf_builder::{FatElf, noise};
use crate::support::run::{Split, demo, refuse, refuse_built, split, split_built};
use crate::support::wheel_builder::WheelBuilder;
use crate::support::wheel_reader::Wheel;
use crate::support::zip_builder::ZipMember;

fn library(targets: &[&str]) -> Vec<u8> {
    let entries: Vec<(&str, &[u8])> = targets.iter().map(|&target| (target, target.as_bytes())).collect();
    FatElf::new().code(&entries).build()
}

/// A wheel with code for `targets` and these files below the overlay root `db`, each with its name as content.
fn wheel(targets: &[&str], files: &[&str]) -> WheelBuilder {
    let wheel = WheelBuilder::new("db", "1").file("db/lib/a.so", library(targets));
    files.iter().fold(wheel, |wheel, &file| wheel.file(&format!("db/{file}"), file))
}

/// Keys of the device wheels.
fn keys(split: &Split) -> Vec<String> {
    let names = split.names();
    let keys = names.iter().filter_map(|name| name.strip_prefix("amd_db_device_")?.split('-').next());
    keys.map(str::to_owned).collect()
}

/// The device wheel that has this file of `db`, if the host has not.
fn place(wheels: &[Wheel], file: &str) -> String {
    let name = format!("db/{file}");
    let found: Vec<&Wheel> = wheels.iter().filter(|wheel| wheel.has(&name)).collect();
    assert_eq!(found.len(), 1, "{file} is in {} wheels", found.len());
    assert_eq!(found[0].text(&name), file);
    let name = found[0].file_name();
    name.strip_prefix("amd_db_device_").map_or("host", |rest| rest.split('-').next().unwrap()).to_owned()
}

#[test]
fn torch_fat_moves_every_file_of_its_handlers_to_the_right_wheel() {
    let placed = [
        ("lib/rocblas/library/TensileLibrary_gfx90a.co", "gfx90a"),
        ("lib/rocblas/library/Kernels.so-000-gfx90a-xnack-.hsaco", "gfx90a"),
        ("lib/rocblas/library/Kernels.so-000-gfx90a-xnack+.hsaco", "gfx90a"),
        ("lib/rocblas/library/TensileLibrary_lazy_gfx1100.dat", "gfx1100"),
        ("lib/rocblas/library/TensileManifest.txt", "host"),
        ("lib/rocblas/other/TensileLibrary_gfx90a.co", "host"),
        ("lib/hipblaslt/library/gfx942/extop.co", "gfx942"),
        ("lib/hipblaslt/library/gfx942/anything.txt", "gfx942"),
        ("lib/hipblaslt/library/hipblasltTransform.hsaco", "host"),
        ("lib/hipsparselt/library/Kernels_gfx950.dat", "gfx950"),
        ("aotriton.images/amd-gfx11xx/flash/x.aks2", "gfx11"),
        ("aotriton.images/amd-gfx120x/flash/x.aks2", "gfx12_0"),
        ("aotriton.images/amd-gfx90a/flash/x.aks2", "gfx90a"),
        ("share/miopen/db/gfx942130.kdb", "gfx942"),
        ("share/miopen/db/gfx90878.fdb.txt", "gfx908"),
        ("share/miopen/db/gfx1100.model", "host"), // see below: with a processor's name it moves
        ("lib/libMIOpenCKGroupedConv_gfx942.so.1", "gfx942"),
        ("lib/hsa/gfx942/mla.co", "host"),
    ];
    let files: Vec<&str> = placed.iter().map(|(file, _)| *file).collect();
    let split = split_built(&wheel(&["gfx90a", "gfx942"], &files), &["--wheel-type", "torch-fat"]);
    let wheels = split.wheels();
    for (file, key) in placed {
        let key = if file.ends_with("gfx1100.model") { "gfx1100" } else { key };
        assert_eq!(place(&wheels, file), key, "{file}");
    }
    assert_eq!(keys(&split), ["gfx11", "gfx1100", "gfx12_0", "gfx908", "gfx90a", "gfx942", "gfx950"]);
}

#[test]
fn without_a_selection_files_stay() {
    let split = split(&demo(), &[]);
    let host = split.starting("fatdemo-");
    assert!(host.has("fatdemo/lib/rocblas/library/TensileLibrary_gfx942.co"));
}

#[test]
fn single_handlers() {
    let files = [
        "lib/rocblas/library/k_gfx942.co",
        "lib/hipblaslt/library/k_gfx942.co",
        "engines/arch_content/gfx942/x",
        "lib/libdevice_conv_operations_gfx942.a",
    ];
    for (handler, moved) in [
        ("rocblas", files[0]),
        ("hipblaslt", files[1]),
        ("hipkernelprovider", files[2]),
        ("composablekernel", files[3]),
    ] {
        let split = split_built(&wheel(&["gfx942"], &files), &["--databases", handler]);
        let wheels = split.wheels();
        for file in files {
            assert_eq!(
                place(&wheels, file),
                if file == moved { "gfx942" } else { "host" },
                "{handler}: {file}"
            );
        }
    }
}

#[test]
fn several_handlers_after_one_option() {
    let files = ["lib/rocblas/library/k_gfx942.co", "lib/hipblaslt/library/k_gfx942.co"];
    let split = split_built(&wheel(&["gfx942"], &files), &["--databases", "rocblas", "hipblaslt"]);
    let wheels = split.wheels();
    assert!(files.iter().all(|file| place(&wheels, file) == "gfx942"));
}

#[test]
fn device_files_globs() {
    let files = ["hsa/gfx942/deep/a.co", "hsa/gfx942/a.co", "kern-gfx1100.bin", "kern-gfxnone.bin"];
    let arguments = ["--device-files", "hsa/{arch}/*.co", "--device-files", "kern-{arch}.{bin,dat}"];
    let split = split_built(&wheel(&["gfx942"], &files), &arguments);
    let wheels = split.wheels();
    let places: Vec<String> = files.iter().map(|file| place(&wheels, file)).collect();
    assert_eq!(places, ["host", "gfx942", "gfx1100", "host"]);
}

#[test]
fn emptied_directories_go_and_others_stay() {
    let directory = |name: &str| ZipMember::new(name, "").stored().mode(0o040_755);
    let wheel = wheel(&["gfx942"], &["lib/hipblaslt/library/gfx942/x.co", "lib/keep/x.txt"])
        .member(directory("db/"))
        .member(directory("db/lib/"))
        .member(directory("db/lib/hipblaslt/"))
        .member(directory("db/lib/hipblaslt/library/"))
        .member(directory("db/lib/hipblaslt/library/gfx942/"))
        .member(directory("db/lib/keep/"))
        .member(directory("db/lib/was_empty/"));
    let host = split_built(&wheel, &["--databases", "hipblaslt"]).starting("db-1");
    let directories: BTreeSet<&str> = host.names().into_iter().filter(|name| name.ends_with('/')).collect();
    assert_eq!(directories, BTreeSet::from(["db/", "db/lib/", "db/lib/keep/", "db/lib/was_empty/"]));
}

#[test]
fn nothing_is_lost() {
    // Every file of the input is in exactly one output, byte for byte, but for what a split rewrites.
    let split = split(&demo(), &["--wheel-type", "torch-fat"]);
    let wheels = split.wheels();
    for member in &Wheel::read(&demo()).members {
        let holders: Vec<&Wheel> = wheels.iter().filter(|wheel| wheel.has(&member.name)).collect();
        assert_eq!(holders.len(), 1, "{}", member.name);
        let rewritten = ["bin/fatdemo", "libfatdemo.so", "libfatdemo_compressed.so", "METADATA", "RECORD"];
        if !rewritten.iter().any(|name| member.name.ends_with(name)) {
            assert_eq!(holders[0].data(&member.name), member.data, "{}", member.name);
        }
    }
}

#[test]
fn processors_that_the_table_lacks() {
    let unknown = wheel(&["gfx942", "gfx803", "gfx1171"], &["lib/rocblas/library/k_gfx940.co"]);
    let arguments = ["--databases", "rocblas"];

    let packaged = split_built(&unknown, &arguments);
    assert_eq!(keys(&packaged), ["gfx1171", "gfx803", "gfx940", "gfx942"]);
    // One message for binaries and files.
    let all = "the architecture table lacks gfx1171 (in db/lib/a.so); gfx803 (in db/lib/a.so); \
               gfx940 (1 files that rocblas claims, such as db/lib/rocblas/library/k_gfx940.co)";
    let warning = format!("warning: {all}; each gets a device wheel of its own\n");
    assert_eq!(packaged.stderr, warning);
    let strict = ["--databases", "rocblas", "--unknown-arch", "error"];
    refuse_built(
        &unknown,
        &strict,
        &[&all.replace("the architecture table lacks", "it lacks"), "--arch-table"],
    );

    // Names that are none are an error whatever is asked for, with all others that nobody knows.
    let nonsense = unknown.clone().file("db/aotriton.images/amd-gfx77xx/x", "image");
    let stderr =
        refuse_built(&nonsense, &["--databases", "aotriton"], &["gfx77xx (1 files that aotriton claims"]);
    assert!(stderr.contains("aliases for names in paths with --rules"), "{stderr}");

    // The only fat binary stays whole.
    let stderr = refuse_built(&unknown, &["--unknown-arch", "host"], &["no fat binaries found"]);
    assert!(stderr.contains("db/lib/a.so: stays whole in the host wheel: it has code for gfx"), "{stderr}");
    let both = unknown.clone().file("db/lib/b.so", library(&["gfx942"]));
    let host = split_built(&both, &["--unknown-arch", "host", "--databases", "rocblas"]);
    assert_eq!(keys(&host), ["gfx942"]);
    assert!(host.starting("db-1").data("db/lib/a.so") == library(&["gfx942", "gfx803", "gfx1171"]));
    assert!(host.starting("db-1").has("db/lib/rocblas/library/k_gfx940.co"));
}

#[test]
fn database_files_without_a_fat_binary() {
    let file = "lib/rocblas/library/k_gfx942.co";
    let wheel = WheelBuilder::new("db", "1").file("db/a.py", "").file(&format!("db/{file}"), file);
    for arguments in [&["--databases", "rocblas"][..], &["--wheel-type", "torch-fat", "--overlay-root", "db"]]
    {
        let split = split_built(&wheel, arguments);
        assert_eq!((keys(&split), split.stderr.as_str()), (vec!["gfx942".to_owned()], ""));
        let wheels = split.wheels();
        assert_eq!(place(&wheels, file), "gfx942");
        assert!(split.kpacks().is_empty());
        let metadata = split.starting("db-1").info("METADATA");
        assert!(metadata.contains("Provides-Extra: device-gfx942\n"), "{metadata}");
        assert!(!split.stdout.contains("nothing to do"), "{}", split.stdout);
    }
    // Nothing that the handler knows, or no handler: nothing to split.
    let words = ["no fat binaries found, nor files that the selected handlers know"];
    refuse_built(&wheel, &["--databases", "aotriton"], &words);
    refuse_built(&wheel, &[], &["no fat binaries found"]);
    // The rule is relative to the overlay root, so there must be one.
    let both = wheel.file("other/lib/rocblas/library/k_gfx90a.co", "kernel");
    let scratch = tempfile::tempdir().unwrap();
    let stderr = refuse(&both.write(scratch.path()), &["--databases", "rocblas"], 2);
    assert!(
        stderr.contains("other: 1 per-architecture files") && stderr.contains("--overlay-root"),
        "{stderr}"
    );
}

#[test]
fn a_database_file_moves_whole_even_if_it_is_a_fat_binary() {
    let name = "db/lib/libMIOpenCKGroupedConv_gfx942.so.1";
    // Large enough for its code to be compressed before it is known that it moves.
    let fat = FatElf::new().code(&[("gfx942", &noise(1, 9 << 20))]).build();
    let wheel = wheel(&["gfx90a"], &[]).file(name, fat.clone());
    let split = split_built(&wheel, &["--databases", "miopen"]);
    assert_eq!(keys(&split), ["gfx90a", "gfx942"]);
    assert!(split.starting("amd_db_device_gfx942").data(name) == fat && !split.starting("db-1").has(name));
    assert_eq!(split.kpacks().keys().collect::<Vec<_>>(), ["db/.kpack/db_gfx90a.kpack"]);
    // Without the handler it is split like any other.
    let split = split_built(&wheel, &[]);
    assert!(split.starting("db-1").data(name) != fat && split.kpacks().len() == 2);
}

#[test]
fn arch_table_adds_rows() {
    let scratch = tempfile::tempdir().unwrap();
    let table = scratch.path().join("table.json");
    fs::write(
        &table,
        r#"{"bundles": [{"key": "gfx11_7", "level": "sub_family", "display_name": "RDNA3.7", "members": ["gfx1171"]}],
            "targets": [{"name": "gfx1171", "chain": ["gfx1171", "gfx11_7", "gfx11"]}]}"#,
    )
    .unwrap();
    let wheel = wheel(&["gfx1171"], &["aotriton.images/amd-gfx11_7/x"]);
    let table = table.to_str().unwrap();
    let split =
        split_built(&wheel, &["--arch-table", table, "--unknown-arch", "error", "--databases", "aotriton"]);
    assert_eq!(keys(&split), ["gfx1171", "gfx11_7"]);
    assert_eq!(split.stderr, "");
    let metadata = split.starting("amd_db_device_gfx1171").info("METADATA");
    assert!(metadata.contains("Requires-Dist: amd-db-device-gfx11-7 == 1\n"), "{metadata}");
    for (content, code) in
        [("not json", 2), ("{\"targets\": [{\"name\": \"gfx1\", \"chain\": [\"nowhere\"]}]}", 2)]
    {
        fs::write(scratch.path().join("bad.json"), content).unwrap();
        let stderr =
            refuse(&demo(), &["--arch-table", scratch.path().join("bad.json").to_str().unwrap()], code);
        assert!(stderr.contains("--arch-table"), "{stderr}");
    }
    let stderr = refuse(&demo(), &["--arch-table", "/nonexistent/table.json"], 3);
    assert!(stderr.contains("/nonexistent/table.json"), "{stderr}");
}

#[test]
fn archs_keeps_or_drops_device_wheels_and_metadata_names_only_those() {
    for (list, left) in [
        ("gfx942", &["gfx942"][..]),
        ("gfx942,gfx1100", &["gfx1100", "gfx942"]),
        ("!gfx942", &["gfx1100", "gfx90a"]),
        ("gfx90a:xnack-", &["gfx90a"]),
    ] {
        let wheel = wheel(&["gfx90a", "gfx942", "gfx1100"], &["lib/rocblas/library/k_gfx942.co"]);
        let split = split_built(&wheel, &["--archs", list, "--databases", "rocblas"]);
        assert_eq!(keys(&split), left, "{list}");
        let host = split.starting("db-1");
        let extras: Vec<String> = host
            .info("METADATA")
            .lines()
            .filter_map(|line| line.strip_prefix("Provides-Extra: device-").map(str::to_owned))
            .filter(|key| key != "all")
            .collect();
        assert_eq!(extras, left, "{list}");
        assert!(!host.has("db/lib/rocblas/library/k_gfx942.co"), "dropped with its wheel, or moved");
        assert!(!host.data("db/lib/a.so").windows(4).any(|window| window == b"FPIH"));
    }
    let wheel = wheel(&["gfx90a"], &[]);
    let scratch = tempfile::tempdir().unwrap();
    let stderr = refuse(&wheel.write(scratch.path()), &["--archs", "gfx1201"], 2);
    assert!(stderr.contains("nothing is left; the wheel has gfx90a"), "{stderr}");
}

#[test]
fn rocsolver_909_generic_targets_go_to_the_smallest_bundle_that_covers_them() {
    for (generic, key) in [
        ("gfx9-generic", "gfx9_0"),
        ("gfx9-4-generic", "gfx9"),
        ("gfx10-1-generic", "gfx10_1"),
        ("gfx10-3-generic", "gfx10_3"),
        ("gfx11-generic", "gfx11"),
        ("gfx12-generic", "gfx12_0"),
    ] {
        let split = split_built(&wheel(&[generic], &[]), &[]);
        assert_eq!(keys(&split), [key], "{generic}");
        assert!(split.kpacks().contains_key(&format!("db/.kpack/db_{generic}.kpack")));
    }
}

#[test]
fn strict_and_aliased_names() {
    let files = ["lib/rocblas/library/k_gfx1250-strict.co", "aotriton.images/amd-gfx11_0/x"];
    let split = split_built(&wheel(&["gfx942"], &files), &["--databases", "rocblas", "aotriton"]);
    let wheels = split.wheels();
    assert_eq!(place(&wheels, files[0]), "gfx1250");
    assert_eq!(place(&wheels, files[1]), "gfx110x");
}

#[test]
fn spirv_keeps_a_binary_whole() {
    let unit = BundleBuilder::new()
        .target("gfx942", b"code")
        .entry("hip-spirv64-amd-amdhsa--amdgcnspirv", b"SPIR-V words")
        .build();
    let fat = FatElf::new().unit(unit).build();
    let wheel = wheel(&["gfx1100"], &[]).file("db/lib/spirv.so", fat.clone());
    let kept = split_built(&wheel, &[]);
    assert!(
        kept.stderr.contains("db/lib/spirv.so: stays whole in the host wheel: it has SPIR-V"),
        "{}",
        kept.stderr
    );
    assert!(kept.starting("db-1").data("db/lib/spirv.so") == fat);
    assert_eq!(keys(&kept), ["gfx1100"]);
    let dropped = split_built(&wheel, &["--drop-spirv"]);
    assert_eq!(keys(&dropped), ["gfx1100", "gfx942"]);
    assert!(
        !dropped.starting("db-1").data("db/lib/spirv.so").windows(12).any(|window| window == b"SPIR-V words")
    );
}

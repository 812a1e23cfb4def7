//! The archives, decoded with code of our own and searched as the runtime searches them.

use std::collections::BTreeMap;

use crate::support::bundle_builder::{BundleBuilder, CCOB_KINDS, ccob};
use crate::support::elf_builder::{FatElf, bundle, noise};
use crate::support::kpack_reader::{Kpack, accepted, newer_loader, shipped_loader};
use crate::support::run::{Split, demo_windows, refuse, split, split_built};
use crate::support::wheel_builder::WheelBuilder;

/// A unit's targets and code objects.
type Unit = Vec<(&'static str, Vec<u8>)>;

/// Every unit, target by target, with a code object of its own.
fn units(targets: &[&[&'static str]]) -> Vec<Unit> {
    let unit = |(number, targets): (usize, &&[&'static str])| {
        let code = |target: &str| noise(number as u64 * 100 + target.len() as u64, 500 + 10 * target.len());
        targets.iter().map(|&target| (target, [target.as_bytes(), &code(target)].concat())).collect()
    };
    targets.iter().enumerate().map(unit).collect()
}

fn library(units: &[Unit]) -> Vec<u8> {
    let add = |elf: FatElf, unit: &Unit| {
        let slices: Vec<(&str, &[u8])> =
            unit.iter().map(|(target, code)| (*target, code.as_slice())).collect();
        elf.code(&slices)
    };
    units.iter().fold(FatElf::new(), add).build()
}

/// Splits a wheel that has the units in `kp/lib/a.so`.
fn split_units(units: &[Unit], arguments: &[&str]) -> Split {
    split_built(&WheelBuilder::new("kp", "1").file("kp/lib/a.so", library(units)), arguments)
}

/// What the fat binary would have given a device: the first accepted target that the unit has.
fn expected<'u>(unit: &'u Unit, isa: &str) -> Option<&'u [u8]> {
    accepted(isa)
        .iter()
        .find_map(|target| unit.iter().find(|(other, _)| other == target).map(|(_, code)| code.as_slice()))
}

/// Every ISA that devices of these processors report.
fn isas(processors: &[&str]) -> Vec<String> {
    let forms =
        ["", ":xnack+", ":xnack-", ":sramecc+", ":sramecc+:xnack-", ":sramecc+:xnack+", ":sramecc-:xnack-"];
    processors.iter().flat_map(|processor| forms.map(|form| format!("{processor}{form}"))).collect()
}

/// Both loaders find for every ISA and unit what the fat binary would have given. Returns how many look-ups hit.
fn assert_complete(kpacks: &BTreeMap<String, Kpack>, units: &[Unit], processors: &[&str]) -> usize {
    let mut hits = 0;
    for isa in isas(processors) {
        for (index, unit) in units.iter().enumerate() {
            let Some(want) = expected(unit, &isa) else { continue };
            let key = format!("lib/a.so#{index}");
            let found = shipped_loader(kpacks, "kp/.kpack/kp", &key, &isa);
            assert!(found == Some(want), "{key} on {isa}: the shipped loader found {}", found.is_some());
            let found = newer_loader(kpacks, "kp/.kpack/kp", &key, &isa);
            assert!(found == Some(want), "{key} on {isa}: the newer loader found {}", found.is_some());
            hits += 1;
        }
    }
    hits
}

#[test]
fn the_table_of_contents() {
    let split = split_units(&units(&[&["gfx90a", "gfx942"], &["gfx942"]]), &[]);
    let kpacks = split.kpacks();
    assert_eq!(kpacks.keys().collect::<Vec<_>>(), ["kp/.kpack/kp_gfx90a.kpack", "kp/.kpack/kp_gfx942.kpack"]);
    let toc = &kpacks["kp/.kpack/kp_gfx942.kpack"].toc;
    assert_eq!(toc["group_name"], "kp");
    assert_eq!(toc["gfx_arch_family"], "gfx942");
    assert_eq!(toc["gfx_arches"], serde_json::json!(["gfx942"]));
    assert_eq!(toc["compression_scheme"], "zstd-per-kernel");
    let sizes = units(&[&["gfx90a", "gfx942"], &["gfx942"]]);
    assert_eq!(
        toc["toc"],
        serde_json::json!({
            "lib/a.so#0": {"gfx942": {"type": "hsaco", "ordinal": 0, "original_size": sizes[0][1].1.len()}},
            "lib/a.so#1": {"gfx942": {"type": "hsaco", "ordinal": 1, "original_size": sizes[1][0].1.len()}},
        })
    );
    assert_eq!(kpacks["kp/.kpack/kp_gfx90a.kpack"].keys(), ["lib/a.so#0"]);
}

#[test]
fn every_unit_of_a_mix_of_target_sets_is_found_under_its_own_number() {
    let units = units(&[
        &["gfx90a", "gfx942", "gfx1100"],
        &["gfx1100"],
        &["gfx942"],
        &["gfx90a"],
        &["gfx1100", "gfx90a"],
        &["gfx942", "gfx1100", "gfx90a"],
    ]);
    let split = split_units(&units, &["-j3"]);
    assert_eq!(assert_complete(&split.kpacks(), &units, &["gfx90a", "gfx942", "gfx1100"]), 7 * 11);
}

#[test]
fn feature_mixes_are_complete_in_one_archive_per_processor() {
    for mix in [
        &[&["gfx90a"][..], &["gfx90a:xnack+", "gfx90a:xnack-"]][..],
        &[&["gfx90a:xnack+"], &["gfx90a", "gfx90a:xnack-"], &["gfx90a:sramecc+:xnack-", "gfx90a"]],
        &[&["gfx90a:sramecc+"], &["gfx90a:xnack-"], &["gfx90a"]],
        &[&["gfx90a:sramecc+:xnack-", "gfx90a:xnack-"], &["gfx90a:sramecc+", "gfx90a:sramecc+:xnack+"]],
    ] {
        let units = units(mix);
        let split = split_units(&units, &[]);
        let kpacks = split.kpacks();
        assert_eq!(kpacks.keys().collect::<Vec<_>>(), ["kp/.kpack/kp_gfx90a.kpack"]);
        let hits = assert_complete(&kpacks, &units, &["gfx90a"]);
        assert!(hits >= 6, "{mix:?}: {hits}");
        // Aliases cost nothing: as many code objects as the units have.
        let kpack = &kpacks["kp/.kpack/kp_gfx90a.kpack"];
        assert_eq!(kpack.objects.len(), units.iter().map(Vec::len).sum::<usize>());
    }
}

#[test]
fn an_alias_names_the_same_ordinal() {
    let units = units(&[&["gfx90a"], &["gfx90a:xnack+", "gfx90a:xnack-"]]);
    let kpacks = split_units(&units, &[]).kpacks();
    let kpack = &kpacks["kp/.kpack/kp_gfx90a.kpack"];
    let mut arches = kpack.arches();
    arches.sort_unstable();
    assert_eq!(arches, ["gfx90a", "gfx90a:xnack+", "gfx90a:xnack-"]);
    let ordinal = |target| kpack.get("lib/a.so#0", target).map(|(ordinal, _)| ordinal);
    assert_eq!(ordinal("gfx90a:xnack+"), ordinal("gfx90a"));
    assert_eq!(ordinal("gfx90a:xnack-"), ordinal("gfx90a"));
    // Code for xnack+ alone must not answer for a device without it.
    assert_eq!(kpack.get("lib/a.so#1", "gfx90a"), None);
}

#[test]
fn per_target_layout() {
    let units = units(&[&["gfx90a"], &["gfx90a:xnack+", "gfx90a:xnack-"], &["gfx942"]]);
    let split = split_units(&units, &["--kpack-layout", "per-target"]);
    let kpacks = split.kpacks();
    assert_eq!(
        kpacks.keys().collect::<Vec<_>>(),
        [
            "kp/.kpack/kp_gfx90a.kpack",
            "kp/.kpack/kp_gfx90a:xnack+.kpack",
            "kp/.kpack/kp_gfx90a:xnack-.kpack",
            "kp/.kpack/kp_gfx942.kpack",
        ]
    );
    for (target, key) in [("gfx90a", 0), ("gfx90a:xnack+", 1), ("gfx90a:xnack-", 1), ("gfx942", 2)] {
        let kpack = &kpacks[&format!("kp/.kpack/kp_{target}.kpack")];
        assert_eq!(kpack.arches(), [target]);
        assert_eq!(kpack.keys(), [format!("lib/a.so#{key}")], "no aliases");
    }
    for (index, unit) in units.iter().enumerate() {
        for (target, code) in unit {
            let key = format!("lib/a.so#{index}");
            assert!(newer_loader(&kpacks, "kp/.kpack/kp", &key, target) == Some(code), "{key} on {target}");
        }
    }
}

#[test]
fn the_per_target_layout_under_both_loaders() {
    let layout = ["--kpack-layout", "per-target"];
    // Where all units have the same targets, neither loader misses anything.
    let same = units(&[&["gfx90a:xnack+", "gfx90a:xnack-", "gfx942"][..]; 3]);
    let kpacks = split_units(&same, &layout).kpacks();
    assert!(assert_complete(&kpacks, &same, &["gfx90a", "gfx942"]) >= 30);
    // Elsewhere, one that goes on after a miss finds all the same.
    let mixed = units(&[&["gfx90a"], &["gfx90a:xnack+", "gfx90a:xnack-"], &["gfx90a:sramecc+", "gfx942"]]);
    let kpacks = split_units(&mixed, &layout).kpacks();
    let mut missed = 0;
    for isa in isas(&["gfx90a", "gfx942"]) {
        for (index, unit) in mixed.iter().enumerate() {
            let key = format!("lib/a.so#{index}");
            let want = expected(unit, &isa);
            assert!(newer_loader(&kpacks, "kp/.kpack/kp", &key, &isa) == want, "{key} on {isa}");
            missed += usize::from(shipped_loader(&kpacks, "kp/.kpack/kp", &key, &isa) != want);
        }
    }
    assert!(missed > 0, "then why have another layout?");
}

#[test]
fn per_target_layout_is_refused_for_windows() {
    let stderr = refuse(&demo_windows(), &["--kpack-layout", "per-target"], 2);
    assert!(stderr.contains("colon") && stderr.contains("Windows"), "{stderr}");
    let split = split(&demo_windows(), &[]);
    assert!(split.kpacks().keys().all(|path| !path.contains(':')));
}

#[test]
fn without_compression() {
    let units = units(&[&["gfx90a", "gfx942"], &["gfx90a:xnack-"]]);
    for layout in ["per-processor", "per-target"] {
        let kpacks = split_units(&units, &["--compression", "none", "--kpack-layout", layout]).kpacks();
        assert!(kpacks.values().all(|kpack| kpack.toc["compression_scheme"] == "none"));
        let objects: usize = kpacks.values().map(|kpack| kpack.objects.len()).sum();
        assert_eq!(objects, 3);
    }
    let kpacks = split_units(&units, &["--compression", "none"]).kpacks();
    assert_complete(&kpacks, &units, &["gfx90a", "gfx942"]);
}

#[test]
fn identical_code_objects_of_an_archive_are_stored_once() {
    let same = noise(7, 40_000);
    let other = noise(8, 40_000);
    let units: Vec<Unit> = vec![
        vec![("gfx942", same.clone()), ("gfx1100", same.clone())],
        vec![("gfx942", other.clone())],
        vec![("gfx942", same.clone()), ("gfx90a:xnack-", same.clone()), ("gfx90a:xnack+", same.clone())],
    ];
    for scheme in ["zstd", "none"] {
        for jobs in ["-j1", "-j4"] {
            let kpacks = split_units(&units, &["--compression", scheme, jobs]).kpacks();
            let kpack = &kpacks["kp/.kpack/kp_gfx942.kpack"];
            assert!(
                kpack.objects == [same.clone(), other.clone()],
                "{scheme} {jobs}: {}",
                kpack.objects.len()
            );
            assert_eq!(kpack.get("lib/a.so#2", "gfx942").unwrap().0, 0);
            assert_eq!(kpacks["kp/.kpack/kp_gfx1100.kpack"].objects.len(), 1);
            assert_eq!(kpacks["kp/.kpack/kp_gfx90a.kpack"].objects.len(), 1);
            assert_complete(&kpacks, &units, &["gfx942", "gfx1100", "gfx90a"]);
        }
    }
}

#[test]
fn identical_code_objects_of_several_binaries_are_stored_once() {
    let same = noise(9, 10_000);
    let elf = FatElf::new().code(&[("gfx942", &same)]).build();
    let wheel = WheelBuilder::new("kp", "1").file("kp/a.so", elf.clone()).file("kp/sub/deep/a.so", elf);
    let kpacks = split_built(&wheel, &[]).kpacks();
    let kpack = &kpacks["kp/.kpack/kp_gfx942.kpack"];
    assert_eq!((kpack.objects.len(), kpack.keys()), (1, vec!["a.so#0", "sub/deep/a.so#0"]));
}

#[test]
fn rocm_systems_9167_generic_code_fills_the_archives_of_exact_processors() {
    // gfx942 has exact code for one unit only; the loader asks for the exact ISA first and does not go on.
    let units = units(&[
        &["gfx942", "gfx9-4-generic"],
        &["gfx9-4-generic"],
        &["gfx1100", "gfx11-generic"],
        &["gfx11-generic"],
    ]);
    for arguments in [&[][..], &["--archs", "gfx942,gfx1100"], &["--compression", "none"]] {
        let kpacks = split_units(&units, arguments).kpacks();
        let code = |archive: &str, key: usize, target: &str| {
            let kpack = &kpacks[&format!("kp/.kpack/kp_{archive}.kpack")];
            kpack.get(&format!("lib/a.so#{key}"), target).map(|(_, object)| object.to_vec())
        };
        assert_eq!(code("gfx942", 0, "gfx942"), Some(units[0][0].1.clone()));
        assert_eq!(code("gfx942", 1, "gfx942"), Some(units[1][0].1.clone()), "filled {arguments:?}");
        assert_eq!(code("gfx1100", 2, "gfx1100"), Some(units[2][0].1.clone()));
        assert_eq!(code("gfx1100", 3, "gfx1100"), Some(units[3][0].1.clone()), "filled {arguments:?}");
        let generics = kpacks.keys().filter(|path| path.contains("generic")).count();
        assert_eq!(generics, if arguments.first() == Some(&"--archs") { 0 } else { 2 });
    }
}

#[test]
fn llvm_project_448_compressed_and_plain_bundles_of_one_section() {
    let plain = |number: u64| {
        (bundle(&[("gfx942", &noise(number, 30_000)), ("gfx1201", &noise(number + 50, 30_000))]), number)
    };
    let mut elf = FatElf::new();
    let mut numbers = Vec::new();
    for (place, (version, method)) in CCOB_KINDS.into_iter().enumerate() {
        let (content, number) = plain(place as u64);
        elf = elf.unit(ccob(version, method, &content));
        let (content, next) = plain(place as u64 + 10);
        elf = elf.unit(content);
        numbers.extend([number, next]);
    }
    let wheel = WheelBuilder::new("kp", "1").file("kp/lib/a.so", elf.build());
    for jobs in ["-j1", "-j8"] {
        let kpacks = split_built(&wheel, &[jobs]).kpacks();
        for (index, &number) in numbers.iter().enumerate() {
            for (target, seed) in [("gfx942", number), ("gfx1201", number + 50)] {
                let kpack = &kpacks[&format!("kp/.kpack/kp_{target}.kpack")];
                let found = kpack.get(&format!("lib/a.so#{index}"), target);
                assert!(found.is_some_and(|(_, object)| object == noise(seed, 30_000)), "{target} {index}");
            }
        }
    }
}

#[test]
fn wrappers_may_share_a_bundle_and_bundles_may_have_none() {
    let elf = FatElf::new()
        .bundle(bundle(&[("gfx942", b"dead code")]))
        .bundle(bundle(&[("gfx942", b"shared code")]))
        .wrapper(1, 0)
        .wrapper(1, 0);
    let split = split_built(&WheelBuilder::new("kp", "1").file("kp/a.so", elf.build()), &[]);
    assert!(
        split.stderr.contains("kp/a.so: no wrapper points at the offload bundle(s) at offset 0x"),
        "{}",
        split.stderr
    );
    let kpacks = split.kpacks();
    let kpack = &kpacks["kp/.kpack/kp_gfx942.kpack"];
    let code = |key| kpack.get(key, "gfx942").map(|(_, object)| object);
    assert_eq!(code("a.so#0"), Some(&b"shared code"[..]));
    assert_eq!(code("a.so#1"), Some(&b"shared code"[..]));
    assert_eq!(code("a.so#2"), Some(&b"dead code"[..]), "nothing is lost");
    assert_eq!(kpack.objects.len(), 2);
}

#[test]
fn empty_code_objects_and_empty_device_bundles() {
    let units: Vec<Unit> = vec![vec![("gfx942", Vec::new()), ("gfx1100", b"code".to_vec())], vec![]];
    let kpacks = split_units(&units, &[]).kpacks();
    assert_eq!(kpacks["kp/.kpack/kp_gfx942.kpack"].get("lib/a.so#0", "gfx942"), Some((0, &b""[..])));
    assert_eq!(kpacks["kp/.kpack/kp_gfx1100.kpack"].get("lib/a.so#0", "gfx1100"), Some((0, &b"code"[..])));
}

#[test]
fn many_units_in_the_order_of_their_wrappers() {
    let units: Vec<Unit> = (0..300u64)
        .map(|number| {
            let target = if number % 3 == 0 { "gfx942" } else { "gfx1100" };
            vec![(target, noise(number, 100 + number as usize % 7))]
        })
        .collect();
    let kpacks = split_units(&units, &["-j4"]).kpacks();
    assert_eq!(assert_complete(&kpacks, &units, &["gfx942", "gfx1100"]), 7 * 300);
    assert_eq!(kpacks["kp/.kpack/kp_gfx942.kpack"].objects.len(), 100);
}

#[test]
fn code_objects_aligned_as_by_bundle_align() {
    let [first, second] = [1, 2].map(|seed| noise(seed, 5001));
    let unit = BundleBuilder::new().align(4096).target("gfx942", &first).target("gfx1100", &second).build();
    let kpacks =
        split_built(&WheelBuilder::new("kp", "1").file("kp/a.so", FatElf::new().unit(unit).build()), &[])
            .kpacks();
    for (target, code) in [("gfx942", first), ("gfx1100", second)] {
        let kpack = &kpacks[&format!("kp/.kpack/kp_{target}.kpack")];
        assert!(kpack.get("a.so#0", target).is_some_and(|(_, object)| object == code), "{target}");
    }
}

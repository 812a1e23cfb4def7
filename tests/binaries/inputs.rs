//! Which input of the kinds that must survive is tested by what: the table at the head of `MATRIX.md`. A fixture of a
//! row must be what the row says; a test must exist.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

use super::elf_file::*;
use super::pe_file::Pe;
use super::rewrite::{Fixture, fixtures};
use super::tools::{ELF_TOOLS, PE_TOOLS};

/// Whether a fixture is what its row says.
enum Is {
    Elf(fn(&Elf<'_>) -> bool),
    Pe(fn(&Pe<'_>) -> bool),
    /// Seen by how it was made, in `tests/fixtures/build.sh`.
    Made,
}

/// A kind of input; fixtures, which all of `tests/binaries` looks at; tools, which are applied to all fixtures; tests
/// with files that are built in memory.
struct Row(&'static str, Is, &'static [&'static str], &'static [&'static str], &'static [&'static str]);

use Is::{Elf as E, Made, Pe as P};

const NONE: &[&str] = &[];

fn align(elf: &Elf<'_>) -> u64 {
    elf.loads().map(|load| load.align).max().unwrap()
}

fn has(elf: &Elf<'_>, kind: u32) -> bool {
    elf.segments.iter().any(|segment| segment.kind == kind)
}

fn named(elf: &Elf<'_>, name: &str) -> bool {
    elf.named(name).next().is_some()
}

/// The PT_LOAD of the bundles, what of it is before them in memory, and what is behind them in the file.
fn position(elf: &Elf<'_>) -> (Segment, u64, u64) {
    let bundles = elf.named(".hip_fatbin").next().unwrap();
    let load = elf.loads().find(|load| load.memory().contains(&bundles.address)).unwrap();
    (load.clone(), bundles.address - load.address, load.file().end - bundles.file().end)
}

fn directory(pe: &Pe<'_>, index: usize) -> bool {
    pe.directories.get(index).is_some_and(|directory| directory.1 > 0)
}

/// Sections before and behind the bundles' in the section table.
fn around(pe: &Pe<'_>) -> (usize, usize) {
    let at = pe.sections.iter().position(|section| section.is(".hip_fat")).unwrap();
    (at, pe.sections.len() - at - 1)
}

const ROWS: &[Row] = &[
    Row(
        "shared object, lld and GNU ld",
        E(|e| e.kind == 3 && !has(e, PT_INTERP)),
        &["libone.so", "libgnu.so"],
        NONE,
        NONE,
    ),
    Row("PIE, lld and GNU ld", E(|e| e.kind == 3 && has(e, PT_INTERP)), &["pie", "pie_gnu"], NONE, NONE),
    Row(
        "static PIE",
        E(|e| e.kind == 3 && !has(e, PT_INTERP) && e.entry > 0),
        &["static_pie_x86_64"],
        NONE,
        NONE,
    ),
    Row(
        "ET_EXEC, lld and GNU ld",
        E(|e| e.kind == ET_EXEC && has(e, PT_INTERP)),
        &["exec", "exec_gnu"],
        NONE,
        NONE,
    ),
    Row(
        "static ET_EXEC",
        E(|e| e.kind == ET_EXEC && !has(e, PT_DYNAMIC)),
        &["static_exec_lld", "static_exec_bfd"],
        NONE,
        NONE,
    ),
    Row("`-z relro`, `-z now`", E(|e| has(e, PT_GNU_RELRO)), &["libgnu.so", "libnorosegment.so"], NONE, NONE),
    Row("`-z separate-code`", E(|e| e.loads().count() > 3), &["libgnu.so"], NONE, NONE),
    Row(
        "`-z noseparate-code`",
        E(|e| position(e).0.flags & 1 == 1),
        &["libgnu_noseparate.so", "libgnu_2m.so"],
        NONE,
        NONE,
    ),
    Row("no section headers", Made, NONE, &["llvm-objcopy --strip-sections"], NONE),
    Row("`--no-rosegment`", E(|e| position(e).0.flags & 1 == 1), &["libnorosegment.so"], NONE, NONE),
    Row(
        "`-z pack-relative-relocs`",
        E(|e| named(e, ".relr.dyn")),
        &["librelr.so", "libgnu_relr.so", "pie_relr"],
        NONE,
        NONE,
    ),
    Row("pages of 4 KiB", E(|e| align(e) == 4 << 10), &["libone.so", "libgnu.so"], NONE, NONE),
    Row("pages of 16 KiB", E(|e| align(e) == 16 << 10), &["lib16k.so"], NONE, NONE),
    Row("pages of 64 KiB", E(|e| align(e) == 64 << 10), &["lib64k.so", "static_pie_aarch64"], NONE, NONE),
    Row(
        "pages of 2 MiB",
        E(|e| align(e) == 2 << 20),
        &["lib2m.so", "libgnu_2m.so"],
        NONE,
        &["large_alignment_is_lowered_only_where_it_costs_much"],
    ),
    Row(
        "`--emit-relocs`",
        E(|e| named(e, ".rela.text")),
        &["libemit_relocs.so", "libemit_relocs_gnu.so"],
        NONE,
        NONE,
    ),
    Row("with PT_PHDR", E(|e| has(e, PT_PHDR)), &["libone.so", "pie"], NONE, NONE),
    Row("without PT_PHDR", E(|e| !has(e, PT_PHDR)), &["libgnu.so", "static_exec_bfd"], NONE, NONE),
    Row("without PT_NOTE", E(|e| !has(e, 4)), &["libnonote.so"], NONE, NONE),
    Row("PT_GNU_PROPERTY", E(|e| has(e, PT_GNU_PROPERTY)), &["libgnu.so", "exec_gnu"], NONE, NONE),
    Row(
        "`.gnu.hash` only",
        E(|e| named(e, ".gnu.hash") && !named(e, ".hash")),
        &["libone.so", "libgnu.so"],
        NONE,
        NONE,
    ),
    Row(
        "`.hash` only",
        E(|e| named(e, ".hash") && !named(e, ".gnu.hash")),
        &["libgnu_noseparate.so"],
        NONE,
        NONE,
    ),
    Row(
        "both",
        E(|e| named(e, ".hash") && named(e, ".gnu.hash")),
        &["libnonote.so", "libemit_relocs.so"],
        NONE,
        NONE,
    ),
    Row("`-g`", E(|e| named(e, ".debug_info")), &["libdebug.so", "libdebug_dwarf4.so"], NONE, NONE),
    Row(
        "split debug information",
        E(|e| named(e, ".gdb_index")),
        &["libdebug_split.so"],
        &["eu-strip -f"],
        NONE,
    ),
    Row(
        "compressed debug information",
        E(|e| e.named(".debug_info").all(|s| s.flags & 0x800 != 0)),
        &["libdebug_compressed.so"],
        NONE,
        NONE,
    ),
    Row(
        "stripped",
        E(|e| !named(e, ".symtab")),
        &["libmany.so", "libgnu.so"],
        &["strip", "llvm-strip", "eu-strip"],
        NONE,
    ),
    Row(
        "symbols and section names in one table",
        Made,
        NONE,
        NONE,
        &["names_may_share_a_table_with_symbols"],
    ),
    Row("more than 0xff00 sections", Made, NONE, NONE, &["more_sections_than_sixteen_bits_count"]),
    Row(
        "section headers not at the end",
        Made,
        NONE,
        &["patchelf 0.14 rpath", "patchelf 0.17 rpath"],
        &["section_headers_inside_a_segment_are_written_anew"],
    ),
    Row(
        "patchelf 0.14, 0.17, 0.19; chrpath; objcopy; dwz",
        Made,
        NONE,
        &[
            "patchelf 0.14 soname",
            "patchelf 0.17 needed",
            "patchelf 0.19 rpath",
            "patchelf, chrpath",
            "objcopy --add-section",
            "dwz",
        ],
        NONE,
    ),
    Row("auditwheel repair", Made, NONE, NONE, &["what_auditwheel_repaired_can_be_split"]),
    Row(
        "bundle first in its segment",
        E(|e| position(e).1 == 0 && position(e).2 > 0),
        &["libfirst.so"],
        NONE,
        &["bundle_at_the_start_of_its_segment_moves_the_start"],
    ),
    Row(
        "in the middle",
        E(|e| position(e).1 > 0 && position(e).2 > 0),
        &["libone.so", "libgnu.so"],
        NONE,
        NONE,
    ),
    Row(
        "last, with an end on a page",
        E(|e| position(e).1 > 0 && position(e).2 == 0 && position(e).0.file().end.is_multiple_of(4096)),
        &["liblast.so"],
        NONE,
        &["bundle_at_the_end_of_its_segment_shortens_it"],
    ),
    Row(
        "in a segment of its own",
        E(|e| position(e).1 == 0 && position(e).2 == 0),
        &["libown.so", "libtail.so"],
        NONE,
        NONE,
    ),
    Row(
        "in a writable segment",
        E(|e| position(e).0.flags & 2 == 2),
        &["libwritable.so", "libfirst.so"],
        NONE,
        NONE,
    ),
    Row(
        "behind `.bss`, nothing behind it",
        E(|e| position(e).0 == *e.loads().last().unwrap()),
        &["libtail.so"],
        NONE,
        NONE,
    ),
    Row(
        "smaller than a page",
        E(|e| e.named(".hip_fatbin").all(|s| s.size < 4096)),
        &["libtiny.so"],
        NONE,
        &["small_bundles_and_tight_markers"],
    ),
    Row("larger than 4 GiB", Made, NONE, NONE, &["bundles_of_more_than_four_gib_are_never_read"]),
    Row("without bytes, as in a `.debug` file", Made, NONE, NONE, &["what_is_no_fat_binary_passes"]),
    Row(
        "two sections of bundles",
        E(|e| e.named(".hip_fatbin").count() == 2),
        &["libtwo.so"],
        NONE,
        &["two_bundle_sections"],
    ),
    Row("wrappers in another order than bundles", Made, &["libpermuted.so"], NONE, NONE),
    Row(
        "several wrappers with one bundle; symbolic relocations",
        Made,
        &["librdc.so"],
        NONE,
        &["wrappers_of_every_kind"],
    ),
    Row(
        "pointers without a relocation",
        E(|e| e.kind == ET_EXEC || named(e, ".relr.dyn")),
        &["exec", "static_exec_lld", "librelr.so"],
        NONE,
        &["executables_hold_pointers_in_place"],
    ),
    Row("already split wrappers, and a mix", Made, NONE, NONE, &["split_wrappers_stay_as_they_are"]),
    Row(
        "wrapper segment of no whole number of wrappers",
        E(|e| e.named(".hipFatBinSegment").all(|s| s.size % 24 == 8)),
        &["libown.so"],
        NONE,
        NONE,
    ),
    Row(
        "aarch64, ppc64le, riscv64: static PIE",
        E(|e| [183, 21, 243].contains(&e.machine) && e.entry > 0),
        &["static_pie_aarch64", "static_pie_powerpc64le", "static_pie_riscv64"],
        NONE,
        &["other_machines"],
    ),
    Row(
        "aarch64, ppc64le, riscv64: shared object",
        E(|e| [183, 21, 243].contains(&e.machine) && named(e, ".rela.plt")),
        &["libshared_aarch64.so", "libshared_powerpc64le.so", "libshared_riscv64.so"],
        NONE,
        NONE,
    ),
    Row("32 bit or big-endian: passed through", Made, NONE, NONE, &["what_is_no_fat_binary_passes"]),
    Row("DLL, lld-link", P(|p| around(p).0 > 0 && around(p).1 > 0), &["plain.dll"], NONE, NONE),
    Row("EXE", P(|p| u16_at(p.bytes, p.at + 22) & 0x2000 == 0), &["program.exe", "fixed.exe"], NONE, NONE),
    Row("DLL, GNU ld", P(|p| around(p) == (3, 9)), &["gnu.dll"], NONE, NONE),
    Row(
        "several wrappers",
        P(|p| p.sections.iter().any(|s| s.is(".hipFatB") && s.memory_size() == 72)),
        &["plain.dll"],
        NONE,
        NONE,
    ),
    Row(
        "no base relocations",
        P(|p| !directory(p, 5)),
        &["fixed.exe"],
        NONE,
        &["wrapper_pointers_must_be_relocated_unless_nothing_is"],
    ),
    Row(
        "`.hip_fat` first, in the middle, last",
        Made,
        NONE,
        NONE,
        &["bundles_first_in_the_middle_and_last_in_every_alignment"],
    ),
    Row(
        "no free slot in the section table",
        P(|p| p.sections[0].raw - p.section_table().end < 40),
        &["crowded.dll"],
        NONE,
        &["without_a_slot_the_marker_takes_the_bundles_section"],
    ),
    Row(
        "debug directory: CodeView, repro",
        P(|p| directory(p, 6)),
        &["debug.dll"],
        NONE,
        &["debug_entries_follow_their_data"],
    ),
    Row(
        "COFF symbols, long names",
        P(|p| p.symbol_count > 0),
        &["symtab.dll", "gnu.dll"],
        NONE,
        &["coff_symbols_long_names_and_object_records_follow"],
    ),
    Row("data behind the image", P(|p| p.overlay().len() % 8 != 0), &["overlay.dll"], NONE, NONE),
    Row(
        "checksum: right",
        P(|p| p.checksum == p.right_checksum()),
        &["release.dll", "program.exe"],
        NONE,
        NONE,
    ),
    Row("checksum: none", P(|p| p.checksum == 0), &["plain.dll"], NONE, NONE),
    Row(
        "checksum: wrong",
        P(|p| p.checksum != 0 && p.checksum != p.right_checksum()),
        &["overlay.dll"],
        NONE,
        &["a_checksum_that_is_set_is_right_afterwards"],
    ),
    Row(
        "Authenticode certificate",
        Made,
        NONE,
        &["osslsigncode"],
        &["a_certificate_goes_and_the_overlay_stays"],
    ),
    Row(
        "FileAlignment 512, SectionAlignment 4096",
        P(|p| (p.file_align, p.section_align) == (512, 4096)),
        &["plain.dll"],
        NONE,
        NONE,
    ),
    Row(
        "FileAlignment 4096, SectionAlignment 65536",
        P(|p| (p.file_align, p.section_align) == (4096, 65536)),
        &["aligned.dll"],
        NONE,
        NONE,
    ),
    Row(
        "exception data, TLS",
        P(|p| directory(p, 3) && directory(p, 9)),
        &["plain.dll", "program.exe"],
        NONE,
        NONE,
    ),
    Row("delay imports", P(|p| directory(p, 13)), &["delayed.dll"], NONE, NONE),
    Row("`/guard:cf`", P(|p| directory(p, 10)), &["guarded.dll"], NONE, NONE),
    Row("ARM64", P(|p| u16_at(p.bytes, p.at + 4) == 0xaa64), &["arm64.dll"], NONE, NONE),
];

/// The table as Markdown.
pub fn table() -> String {
    let mut text = String::from(
        "| input | fixtures | made by the tool | built in memory, by the test |\n|---|---|---|---|\n",
    );
    for Row(input, _, fixtures, tools, tests) in ROWS {
        let list =
            |names: &[&str]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" ");
        writeln!(text, "| {input} | {} | {} | {} |", list(fixtures), tools.join(", "), list(tests)).unwrap();
    }
    text
}

/// The sources of all tests, in one.
fn sources(directory: &Path, into: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn every_input_is_tested() {
    let all: Vec<Fixture> = ["elf", "pe"].into_iter().flat_map(fixtures).collect();
    let mut code = String::new();
    for directory in ["src", "tests"] {
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(directory), &mut code);
    }
    for Row(input, is, names, tools, tests) in ROWS {
        assert!(names.len() + tools.len() + tests.len() > 0, "{input}: nothing tests it");
        for name in *names {
            let fixture = all.iter().find(|fixture| fixture.name == *name);
            let bytes = &fixture.unwrap_or_else(|| panic!("{input}: no fixture {name}")).bytes;
            let right = match is {
                Is::Elf(is) => is(&Elf::parse(bytes)),
                Is::Pe(is) => is(&Pe::parse(bytes)),
                Made => true,
            };
            assert!(right, "{name} is not: {input}");
        }
        for name in *tools {
            let known = ELF_TOOLS.iter().chain(&PE_TOOLS).any(|tool| tool.name == *name);
            assert!(known, "{input}: no tool {name}");
        }
        for name in *tests {
            assert!(code.contains(&format!("fn {name}()")), "{input}: no test {name}");
        }
    }
}

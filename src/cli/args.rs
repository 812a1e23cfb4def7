//! The command line as typed, and what it means. The Python tool's command line is accepted as it stands.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::builder::PossibleValuesParser;
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

use crate::error::{Error, Result};
use crate::options::Scheme;
use crate::options::{KpackLayout, OutputFormat, SplitOptions, SpoolTo, UnknownArch, VariantOptions};
use crate::wheel::database;
use crate::wheel::rules::Rules;
use crate::wheel::variant::{self, Format};

/// Splits a fat Python wheel into a host wheel and one device wheel per GPU bundle.
#[derive(Debug, Parser)]
#[command(name = "fatwheel", version, about, max_term_width = 110)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Split wheels.
    #[command(after_help = EXIT_CODES)]
    Split(Box<Split>),
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 bad or unsupported input (also: no fat binaries found), 2 usage, \
3 environment (I/O, disk full, memory), 130 interrupted. Of several wheels, those that can be split are; the code is \
that of the first failure.";

#[derive(Debug, Args)]
pub(super) struct Split {
    /// Wheels, directories that wheels were unpacked into, or - for standard input
    #[arg(value_name = "INPUT", required_unless_present = "input_option", conflicts_with = "input_option")]
    inputs: Vec<PathBuf>,

    /// The wheel's file name, for a pipe [default: as its .dist-info has it]
    #[arg(long, value_name = "NAME.whl")]
    input_name: Option<String>,

    /// The same as INPUT
    #[arg(long = "input", value_name = "PATH", hide = true)]
    input_option: Option<PathBuf>,

    /// Directory for the outputs; made if it does not exist
    #[arg(short, long, value_name = "DIR")]
    output_dir: PathBuf,

    /// TOML file with what a project wants for its wheels (documented in the README); options of the command line
    /// count more
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,

    /// Write a JSON file with every output, and where every member of every input went (documented in the README)
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,

    /// Directory of the wheel that .kpack/ is placed in [default: the one top-level directory with fat binaries]
    #[arg(long, value_name = "ROOT")]
    overlay_root: Option<String>,

    /// Device wheels are named PREFIX-KEY [default: amd-NAME-device]
    #[arg(long, value_name = "PREFIX")]
    device_package_prefix: Option<String>,

    /// Requires-Dist entries for device wheels; @GFXARCH@ stands for the bundle key
    #[arg(long, value_name = "REQUIREMENT", num_args = 1.., action = ArgAction::Append)]
    device_requires_dist: Vec<String>,

    /// Worker threads [default: all cores]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: Option<u16>,

    /// Peak memory to aim for, such as 128M or 1G [default: 96M + 32M per job]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory_limit: Option<u64>,

    /// How code objects are stored
    #[arg(long, value_enum, default_value_t = Compression::Zstd)]
    compression: Compression,

    /// zstd level, 1 to 22
    #[arg(long, value_name = "L", default_value_t = 3, value_parser = clap::value_parser!(i32).range(1..=22))]
    compression_level: i32,

    /// Move the per-architecture files that this kind of wheel has (rocblas, hipblaslt, hipsparselt, aotriton, miopen)
    #[arg(long, value_name = "TYPE", value_parser = PossibleValuesParser::new(database::preset_names()))]
    wheel_type: Option<String>,

    /// Move the per-architecture files of these libraries
    #[arg(long, value_name = "NAME", num_args = 1.., action = ArgAction::Append)]
    databases: Vec<String>,

    /// Move other per-architecture files, such as 'hsa/{arch}/*.co'
    #[arg(long, value_name = "GLOB")]
    device_files: Vec<String>,

    /// Keep only these device wheels (gfx942,gfx1100), or drop some ('!gfx900')
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    archs: Option<String>,

    /// What to do with processors that the architecture table lacks [default: package]
    #[arg(long, value_enum)]
    unknown_arch: Option<Unknown>,

    /// JSON file with more rows for the architecture table
    #[arg(long, value_name = "FILE")]
    arch_table: Option<PathBuf>,

    /// Split binaries that have SPIR-V as well, and drop the SPIR-V
    #[arg(long)]
    drop_spirv: bool,

    /// Leave binaries that cannot be rewritten safely whole in the host wheel
    #[arg(long)]
    keep_unsupported: bool,

    /// Go on with a warning where a file does not match the input's RECORD
    #[arg(long)]
    no_verify_record: bool,

    /// Check the MD5 in the header of compressed bundles too, which takes about as long as decoding them
    #[arg(long)]
    verify_bundles: bool,

    /// One archive per processor, or per target as the Python tool has it
    #[arg(long, value_enum, default_value_t = Layout::PerProcessor)]
    kpack_layout: Layout,

    /// Write wheels, or directories as if they had been unpacked
    #[arg(long, value_enum, default_value_t = Format_::Wheel)]
    output_format: Format_,

    /// Also write a variant wheel (experimental)
    #[arg(long)]
    generate_variant_wheel: bool,

    /// Label of the variant wheel
    #[arg(long, value_name = "LABEL", default_value = "variant")]
    variant_label: String,

    /// Profile of variant.json
    #[arg(long, value_enum, default_value_t = VariantFormat::Pep825)]
    variant_format: VariantFormat,

    /// Let the host wheel replace the input
    #[arg(long)]
    replace_input: bool,

    /// Do not wait until the outputs are on the disk
    #[arg(long)]
    no_sync: bool,

    /// Print the result as JSON (documented in the README) instead of the table
    #[arg(long, conflicts_with = "quiet")]
    pub(super) json: bool,

    /// Show where the time went, by stage
    #[arg(long)]
    pub(super) timings: bool,

    /// Where a wheel from a pipe is kept while it is split: output-dir, memory, or a directory
    #[arg(long, value_name = "WHERE", default_value = "output-dir")]
    spool: String,

    /// Say more
    #[arg(short, long, conflicts_with = "quiet")]
    pub(super) verbose: bool,

    /// Say nothing but errors
    #[arg(short, long)]
    pub(super) quiet: bool,

    /// Accepted for the Python tool's sake; no temporary files are made
    #[arg(long, value_name = "DIR", hide = true)]
    tmp_dir: Option<PathBuf>,

    /// Accepted for the Python tool's sake; no other program is run
    #[arg(long, value_name = "PATH", hide = true)]
    clang_offload_bundler: Option<PathBuf>,
}

/// Parses `128M`, `1G`, `100000000`: units of 1024.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        unit => return Err(format!("unknown unit {unit:?}, expected K, M or G")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is no size, expected such as 128M"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} is too large"))
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Compression {
    /// One zstd frame per code object
    Zstd,
    /// As they are
    None,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Unknown {
    /// A device wheel of their own, with a warning
    Package,
    /// An error, before anything is written
    Error,
    /// Binaries with such code stay whole in the host wheel
    Host,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Layout {
    PerProcessor,
    PerTarget,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format_ {
    Wheel,
    Directory,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum VariantFormat {
    Pep825,
    Variantlib,
    Kpack,
}

/// A command line that makes sense so far.
#[derive(Debug)]
pub(super) struct Run {
    /// What is to be split.
    pub(super) inputs: Vec<PathBuf>,
    /// How; its input is the first one.
    pub(super) options: SplitOptions,
    /// Where the manifest goes.
    pub(super) manifest: Option<PathBuf>,
}

impl Split {
    /// Resolves the arguments. Reads the architecture table, the rules file and the environment.
    pub(super) fn resolve(self) -> Result<Run> {
        let mut inputs = self.inputs;
        inputs.extend(self.input_option);
        let input = inputs.first().cloned().ok_or_else(|| Error::usage("no input"))?;
        if inputs.len() > 1 && inputs.iter().any(|input| input.as_os_str() == "-") {
            return Err(Error::usage("a wheel from standard input has to be the only one"));
        }
        if inputs.len() > 1 && self.input_name.is_some() {
            return Err(Error::usage("--input-name is the name of one wheel, and there are several"));
        }
        let mut options = SplitOptions::new(input, self.output_dir);
        options.spool = match self.spool.as_str() {
            "output-dir" => SpoolTo::OutputDir,
            "memory" => SpoolTo::Memory,
            directory => SpoolTo::Directory(directory.into()),
        };
        options.input_name = self.input_name;
        options.overlay_root = self.overlay_root;
        options.device_package_prefix = self.device_package_prefix;
        options.device_requires_dist = self.device_requires_dist;
        options.databases = self.wheel_type.into_iter().chain(self.databases).collect();
        options.device_files = self.device_files;
        options.archs = self.archs;
        options.unknown_arch = self.unknown_arch.map(|unknown| match unknown {
            Unknown::Package => UnknownArch::Package,
            Unknown::Error => UnknownArch::Error,
            Unknown::Host => UnknownArch::Host,
        });
        options.arch_table = self
            .arch_table
            .map(|path| std::fs::read_to_string(&path).map_err(|error| Error::io("read", path, error)))
            .transpose()?;
        options.rules = self.rules.map(|path| rules(&path)).transpose()?;
        options.manifest = self.manifest.is_some();
        options.taken = taken_by_manifest(self.manifest.as_deref(), &options.output_dir);
        options.drop_spirv = self.drop_spirv;
        options.keep_unsupported = self.keep_unsupported;
        options.verify_record = !self.no_verify_record;
        options.verify_bundles = self.verify_bundles;
        options.kpack_layout = match self.kpack_layout {
            Layout::PerProcessor => KpackLayout::PerProcessor,
            Layout::PerTarget => KpackLayout::PerTarget,
        };
        options.output_format = match self.output_format {
            Format_::Wheel => OutputFormat::Wheel,
            Format_::Directory => OutputFormat::Directory,
        };
        options.scheme = match self.compression {
            Compression::Zstd => Scheme::Zstd(self.compression_level),
            Compression::None => Scheme::Stored,
        };
        if self.generate_variant_wheel {
            variant::check_label(&self.variant_label).map_err(|fault| Error::usage(fault.to_string()))?;
            let format = match self.variant_format {
                VariantFormat::Pep825 => Format::Pep825,
                VariantFormat::Variantlib => Format::Variantlib,
                VariantFormat::Kpack => Format::Kpack,
            };
            options.variant = Some(VariantOptions { label: self.variant_label, format });
        }
        options.replace_input = self.replace_input;
        options.durable = !self.no_sync;
        options.memory_limit = self.memory_limit;
        if let Some(jobs) = self.jobs {
            options.jobs = usize::from(jobs);
        }
        if let Ok(text) = std::env::var("SOURCE_DATE_EPOCH") {
            let seconds = text.trim().parse().map_err(|_| {
                Error::usage(format!("SOURCE_DATE_EPOCH is {text:?}, expected seconds since 1970"))
            })?;
            options.source_date_epoch = Some(seconds);
        }
        Ok(Run { inputs, options, manifest: self.manifest })
    }
}

fn rules(path: &Path) -> Result<Arc<Rules>> {
    let text = std::fs::read_to_string(path).map_err(|error| Error::io("read", path.to_owned(), error))?;
    let rules = Rules::parse(&text);
    rules
        .map(Arc::new)
        .map_err(|fault| Error::usage(format!("--rules {}: {}", path.display(), fault.message)))
}

/// No wheel may have the manifest's name, if it stands beside the wheels.
fn taken_by_manifest(manifest: Option<&Path>, output_dir: &Path) -> BTreeSet<String> {
    let beside = manifest.filter(|path| path.parent() == Some(output_dir));
    beside.and_then(Path::file_name).and_then(|name| name.to_str()).map(str::to_owned).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn options(line: &str) -> SplitOptions {
        let words: Vec<String> =
            line.split('|').flat_map(|part| part.split(' ')).map(|word| word.replace('_', " ")).collect();
        let Command::Split(split) = Cli::try_parse_from(words).unwrap().command;
        split.resolve().unwrap().options
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_python_tools_command_line() {
        let options = options(
            "fatwheel split --input torch.whl --output-dir dist --device-package-prefix amd-torch-device \
             --overlay-root torch/ --wheel-type torch-fat --device-requires-dist rocm-sdk-device-@GFXARCH@_==_7.14 other \
             --compression zstd -j 4 --tmp-dir /tmp/x --clang-offload-bundler /opt/b --verbose --compression-level 5",
        );
        assert_eq!(options.input, PathBuf::from("torch.whl"));
        assert_eq!(options.output_dir, PathBuf::from("dist"));
        assert_eq!(options.device_requires_dist, ["rocm-sdk-device-@GFXARCH@ == 7.14", "other"]);
        assert_eq!(options.databases, ["torch-fat"]);
        assert_eq!((options.jobs, options.scheme), (4, Scheme::Zstd(5)));
    }

    #[test]
    fn sizes() {
        assert_eq!(size("128M"), Ok(128 << 20));
        assert_eq!(size("1GiB"), Ok(1 << 30));
        assert_eq!(size("77"), Ok(77));
        for wrong in ["", "M", "1T", "-1", "99999999999G", "1.5G"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn several_wheels() {
        let run = |line: &str| {
            let Command::Split(split) = Cli::try_parse_from(line.split(' ')).unwrap().command;
            split.resolve()
        };
        let both = run("fatwheel split a.whl b.whl -o dist --manifest dist/m.json").unwrap();
        assert_eq!(both.inputs, [PathBuf::from("a.whl"), PathBuf::from("b.whl")]);
        assert!(both.options.manifest && both.options.taken.contains("m.json"));
        assert!(run("fatwheel split a.whl -o dist --manifest m.json").unwrap().options.taken.is_empty());
        for wrong in ["fatwheel split a.whl - -o d", "fatwheel split a.whl b.whl --input-name c.whl -o d"] {
            assert!(run(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_newcomers_command_line() {
        let options = options("fatwheel split torch.whl -o dist");
        assert_eq!(options.overlay_root, None);
        assert_eq!(options.scheme, Scheme::Zstd(3));
        assert!(options.verify_record);
        for wrong in
            ["fatwheel split -o dist", "fatwheel split a.whl", "fatwheel split a.whl --input b.whl -o d"]
        {
            assert!(Cli::try_parse_from(wrong.split(' ')).is_err(), "{wrong}");
        }
    }
}

//! Per-architecture files beside the binaries (kernel databases), and the architecture each belongs to.
//!
//! A *handler* knows where one library keeps such files. Handlers are selected by name (`--databases`) or preset
//! (`--wheel-type`); a rules file has more of them, and `--device-files` adds patterns of the user's own. The first
//! that matches a file wins, in the order in which they were selected, patterns last. Rules see the path relative to the overlay root, with
//! forward slashes.
//!
//! In these names an architecture is `gfx[0-9]+[a-z]*`, then maybe `-strict`, then maybe `-xnack+` or `-xnack-`.
//! The hyphen form of the feature is Tensile's; what is returned is the target ID (`gfx90a:xnack-`), so that the
//! file goes where the processor's code goes and is not lost on the way (rocm-systems issue 7645).
//!
//! A file without a recognisable architecture stays in the host wheel, which every installation has. Whether the
//! architecture of a match is in the table is not checked here: the caller has `--unknown-arch` and the file's
//! path for the message.

use crate::arch::table::{ArchTable, strip_features};
use crate::fault::{Fault, Result};
use crate::wheel::device_glob::DeviceGlob;
use crate::wheel::rules::{CustomHandler, Wants};

/// How matches of `--device-files` are reported.
pub const DEVICE_FILES: &str = "device-files";

/// A per-architecture file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseFile<'s> {
    /// The handler that matched, or [`DEVICE_FILES`].
    pub handler: &'s str,
    /// Whose file it is.
    pub arch: ArchKey,
}

/// The architecture that a path names: a target ID (`gfx90a:xnack-`) or a bundle key (`gfx11`, `gfx12_0`). It
/// need not be one that the table knows, nor well formed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArchKey(String);

impl ArchKey {
    /// From a name in a path, where features may have the hyphen form.
    fn new(name: &str) -> Self {
        Self(name.replace("-xnack", ":xnack"))
    }

    /// The target ID or bundle key.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The same without features: what [`ArchTable::bundle_of`] takes.
    pub fn processor(&self) -> &str {
        strip_features(&self.0)
    }
}

type Detect = fn(&str, &ArchTable) -> Option<ArchKey>;

/// A handler: its name and its rule.
struct Handler {
    name: &'static str,
    detect: Detect,
}

const HANDLERS: [Handler; 7] = [
    Handler { name: "rocblas", detect: |path, _| tensile(path, "rocblas/library") },
    Handler { name: "hipblaslt", detect: |path, _| tensile(path, "hipblaslt/library") },
    Handler { name: "hipsparselt", detect: |path, _| tensile(path, "hipsparselt/library") },
    Handler { name: "aotriton", detect: aotriton },
    Handler { name: "miopen", detect: miopen },
    Handler { name: "hipkernelprovider", detect: hip_kernel_provider },
    Handler { name: "composablekernel", detect: composable_kernel },
];

/// What `--wheel-type` stands for.
const PRESETS: [(&str, &[&str]); 1] =
    [("torch-fat", &["rocblas", "hipblaslt", "hipsparselt", "aotriton", "miopen"])];

/// The handlers and patterns that a split uses. The default has none.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    handlers: Vec<Selected>,
    globs: Vec<DeviceGlob>,
}

/// A selected handler.
#[derive(Clone, Debug)]
enum Selected {
    /// Index into `HANDLERS`.
    BuiltIn(usize),
    Custom(CustomHandler),
}

impl Selected {
    fn name(&self) -> &str {
        match self {
            Self::BuiltIn(index) => HANDLERS.get(*index).map_or("", |handler| handler.name),
            Self::Custom(handler) => &handler.name,
        }
    }

    fn detect(&self, path: &str, table: &ArchTable) -> Option<ArchKey> {
        match self {
            Self::BuiltIn(index) => (HANDLERS.get(*index)?.detect)(path, table),
            Self::Custom(handler) => {
                handler.files.iter().find_map(|glob| glob.capture(path)).map(ArchKey::new)
            }
        }
    }
}

impl Selection {
    /// The handlers and patterns that `wants` names; a preset's name stands for its handlers. `custom` are the
    /// handlers that a rules file adds.
    ///
    /// # Errors
    /// Malformed for an unknown handler (the message lists the known ones) or a bad pattern.
    pub fn new(wants: &Wants, custom: &[CustomHandler]) -> Result<Self> {
        let mut selection = Self::default();
        for name in wants.databases.iter().flatten() {
            match PRESETS.iter().find(|(preset, _)| preset == name) {
                Some((_, members)) => {
                    for member in *members {
                        selection.add(member, custom)?;
                    }
                }
                None => selection.add(name, custom)?,
            }
        }
        for pattern in wants.device_files.iter().flatten() {
            selection.globs.push(DeviceGlob::parse(pattern)?);
        }
        Ok(selection)
    }

    /// All built-in handlers.
    pub fn every() -> Self {
        let handlers = (0..HANDLERS.len()).map(Selected::BuiltIn).collect();
        Self { handlers, globs: Vec::new() }
    }

    fn add(&mut self, name: &str, custom: &[CustomHandler]) -> Result<()> {
        let built_in = HANDLERS.iter().position(|handler| handler.name == name).map(Selected::BuiltIn);
        let own = || custom.iter().find(|handler| handler.name == name).cloned().map(Selected::Custom);
        let selected = built_in.or_else(own).ok_or_else(|| {
            let mut known: Vec<&str> = handler_names().chain(preset_names()).collect();
            known.extend(custom.iter().map(|handler| handler.name.as_str()));
            Fault::malformed(
                "database handlers",
                None,
                format!("unknown handler {name:?}; known are {}", known.join(", ")),
            )
        })?;
        if !self.handlers.iter().any(|other| other.name() == name) {
            self.handlers.push(selected);
        }
        Ok(())
    }

    /// Whether this is the name of a built-in handler or preset.
    pub fn is_known(name: &str) -> bool {
        handler_names().chain(preset_names()).any(|known| known == name)
    }

    /// Whether nothing is selected, so that no file is claimed.
    pub fn is_empty(&self) -> bool {
        self.handlers.is_empty() && self.globs.is_empty()
    }

    /// Whose file `path` is, if a selected handler or pattern claims it. `path` is relative to the overlay root,
    /// with forward slashes; `table` says which architectures are known where a rule depends on that.
    pub fn classify(&self, path: &str, table: &ArchTable) -> Option<DatabaseFile<'_>> {
        for handler in &self.handlers {
            if let Some(arch) = handler.detect(path, table) {
                return Some(DatabaseFile { handler: handler.name(), arch });
            }
        }
        let arch = self.globs.iter().find_map(|glob| glob.capture(path))?;
        Some(DatabaseFile { handler: DEVICE_FILES, arch: ArchKey::new(arch) })
    }
}

/// The names that `--databases` accepts.
pub fn handler_names() -> impl Iterator<Item = &'static str> {
    HANDLERS.iter().map(|handler| handler.name)
}

/// The names that `--wheel-type` accepts.
pub fn preset_names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|(name, _)| *name)
}

/// rocBLAS, hipBLASLt, hipSPARSELt: an architecture in the name of a `.co`, `.hsaco` or `.dat` file, or else a
/// directory per architecture under `library`, whatever is in it.
fn tensile(path: &str, library: &str) -> Option<ArchKey> {
    if !path.contains(library) {
        return None;
    }
    let name = file_name(path);
    if [".co", ".hsaco", ".dat"].iter().any(|suffix| name.ends_with(suffix))
        && let Some(arch) = find_arch(name)
    {
        return Some(ArchKey::new(arch));
    }
    let mut directories = directories(path).peekable();
    // `library` cannot be the very first component: the rule asks for a slash before it.
    directories.next()?;
    while let Some(directory) = directories.next() {
        if directory == "library"
            && let Some(arch) = directories.peek().filter(|next| is_arch(next))
        {
            return Some(ArchKey::new(arch));
        }
    }
    None
}

/// AOTriton: `aotriton.images/amd-<name>/...`. Its names for groups of targets differ from the bundle keys:
/// `gfx11xx` is the family gfx11, `gfx120x` the sub-family gfx12_0.
fn aotriton(path: &str, table: &ArchTable) -> Option<ArchKey> {
    let mut directories = directories(path).skip_while(|directory| *directory != "aotriton.images").skip(1);
    let name = directories.next()?.strip_prefix("amd-")?;
    if !name.starts_with("gfx") {
        return None;
    }
    Some(ArchKey::new(&group_key(name, table).unwrap_or_else(|| name.to_owned())))
}

/// The bundle key of a name whose last digits are `x`, if it is not a key itself and the table has the group.
fn group_key(name: &str, table: &ArchTable) -> Option<String> {
    if table.bundle(name).is_some() {
        return None;
    }
    let key = match name.strip_suffix("xx") {
        Some(family) => family.to_owned(),
        None => {
            let version = name.strip_suffix('x')?;
            let minor = version.chars().next_back().filter(char::is_ascii_digit)?;
            format!("{}_{minor}", version.strip_suffix(minor)?)
        }
    };
    table.bundle(&key).map(|bundle| bundle.key.clone())
}

/// MIOpen: libraries `MIOpenCK<word>_<ARCH>.so`, and tuning data under `miopen/db`.
fn miopen(path: &str, table: &ArchTable) -> Option<ArchKey> {
    let name = file_name(path);
    if let Some(arch) = miopen_library_arch(name) {
        return Some(ArchKey::new(arch));
    }
    let tuning_data = path.contains("miopen/db")
        && [".kdb", ".model", ".db.txt", ".fdb.txt"].iter().any(|suffix| name.ends_with(suffix));
    if !tuning_data {
        return None;
    }
    // The compute unit count follows without a separator, in hexadecimal: `gfx90878` is gfx908 with 0x78 units.
    // Only the table can tell where the architecture ends, so an unknown one stays in the host.
    name.match_indices("gfx").find_map(|(start, _)| {
        let rest = name.get(start..)?;
        let ends = (1..=rest.len()).rev().filter(|end| rest.is_char_boundary(*end));
        ends.filter_map(|end| rest.get(..end)).find(|arch| table.is_processor(arch)).map(ArchKey::new)
    })
}

/// The architecture of `(lib)?MIOpenCK<word>_<ARCH>.so...` or `.dll...`.
fn miopen_library_arch(name: &str) -> Option<&str> {
    let word_and_arch = name.strip_prefix("lib").unwrap_or(name).strip_prefix("MIOpenCK")?;
    let (word_and_arch, suffix) = word_and_arch.split_once('.')?;
    if !suffix.starts_with("so") && !suffix.starts_with("dll") {
        return None;
    }
    let (word, arch) = word_and_arch.rsplit_once("_gfx")?;
    let arch = word_and_arch.get(word_and_arch.len().checked_sub(arch.len() + "gfx".len())?..)?;
    let word_character = |c: char| c.is_alphanumeric() || c == '_';
    (!word.is_empty() && word.chars().all(word_character) && is_arch(arch)).then_some(arch)
}

/// hipKernelProvider: below `engines/arch_content` or `engines/test_arch_content`, the first directory that is an
/// architecture, however deep.
fn hip_kernel_provider(path: &str, _: &ArchTable) -> Option<ArchKey> {
    let mut directories = directories(path);
    let mut parent = directories.next()?;
    loop {
        let directory = directories.next()?;
        if parent == "engines" && matches!(directory, "arch_content" | "test_arch_content") {
            return directories.find(|directory| is_arch(directory)).map(ArchKey::new);
        }
        parent = directory;
    }
}

/// Composable Kernel: `(lib)?device_conv_operations_<ARCH>.{a,lib}`, where the target ID is written with `_` for
/// `:` and `-`, and `p` for `+`: `gfx90a_xnack_` is `gfx90a:xnack-`.
fn composable_kernel(path: &str, _: &ArchTable) -> Option<ArchKey> {
    let name = file_name(path);
    let name = name.strip_prefix("lib").unwrap_or(name).strip_prefix("device_conv_operations_")?;
    let name = name.strip_suffix(".a").or_else(|| name.strip_suffix(".lib"))?;
    let (processor, mut rest) = name.split_at_checked(processor_len(name)?)?;
    let mut target = processor.to_owned();
    if let Some(features) = rest.strip_prefix("_strict") {
        target.push_str("-strict");
        rest = features;
    }
    while !rest.is_empty() {
        let feature = ["_xnack", "_sramecc"].iter().find(|feature| rest.starts_with(**feature))?;
        let (sign, after) = match rest.get(feature.len()..)?.split_at_checked(1)? {
            ("p", after) => ('+', after),
            ("_", after) => ('-', after),
            _ => return None,
        };
        target.push(':');
        target.push_str(feature.get(1..)?);
        target.push(sign);
        rest = after;
    }
    Some(ArchKey(target))
}

/// The last component.
fn file_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// The components before the last.
fn directories(path: &str) -> impl Iterator<Item = &str> {
    let directories = path.rsplit_once('/').map(|(directories, _)| directories);
    directories.into_iter().flat_map(|directories| directories.split('/'))
}

/// Length of the `gfx[0-9]+[a-z]*` that `text` starts with.
fn processor_len(text: &str) -> Option<usize> {
    let rest = text.strip_prefix("gfx")?.as_bytes();
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let letters = rest.iter().skip(digits).take_while(|byte| byte.is_ascii_lowercase()).count();
    (digits > 0).then_some("gfx".len() + digits + letters)
}

/// The ends in `text` of the architectures that start with it, longest first: with feature and `-strict`, or
/// without one or both.
pub(super) fn arch_ends(text: &str) -> impl Iterator<Item = usize> {
    let mut ends = [None; 3];
    if let Some(processor) = processor_len(text) {
        let after = |end: usize, suffix: &str| {
            text.get(end..).filter(|rest| rest.starts_with(suffix)).map(|_| end + suffix.len())
        };
        let strict = after(processor, "-strict");
        let base = strict.unwrap_or(processor);
        let feature = after(base, "-xnack+").or_else(|| after(base, "-xnack-"));
        ends = [feature, strict, Some(processor)];
    }
    ends.into_iter().flatten()
}

/// The first architecture in `text`, as long as it gets.
fn find_arch(text: &str) -> Option<&str> {
    text.match_indices("gfx").find_map(|(start, _)| {
        let rest = text.get(start..)?;
        rest.get(..arch_ends(rest).next()?)
    })
}

/// True if `text` is exactly an architecture.
fn is_arch(text: &str) -> bool {
    arch_ends(text).next() == Some(text.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn select<'n>(names: impl IntoIterator<Item = &'n str>, patterns: &[&str]) -> Result<Selection> {
        let owned = |name: &str| name.to_owned();
        let databases = Some(names.into_iter().map(owned).collect());
        let device_files = Some(patterns.iter().map(|pattern| owned(pattern)).collect());
        Selection::new(&Wants { databases, device_files, ..Wants::default() }, &[])
    }

    /// Handler and target ID for `path`, with all handlers selected.
    fn classify(path: &str) -> Option<(String, String)> {
        let selection = select(handler_names(), &[]).unwrap();
        let file = selection.classify(path, &ArchTable::builtin().unwrap())?;
        Some((file.handler.to_owned(), file.arch.as_str().to_owned()))
    }

    fn check(rows: &[(&str, Option<(&'static str, &str)>)]) {
        for (path, expected) in rows {
            let found = classify(path);
            let found = found.as_ref().map(|(handler, arch)| (handler.as_str(), arch.as_str()));
            assert_eq!(found, *expected, "{path}");
        }
    }

    #[test]
    fn tensile_libraries() {
        check(&[
            ("lib/rocblas/library/TensileLibrary_gfx942.co", Some(("rocblas", "gfx942"))),
            ("lib/rocblas/library/Kernels.so-000-gfx90a-xnack-.hsaco", Some(("rocblas", "gfx90a:xnack-"))),
            ("lib/rocblas/library/Kernels.so-000-gfx1250-strict.hsaco", Some(("rocblas", "gfx1250-strict"))),
            ("lib/hipblaslt/library/TensileLibrary_lazy_gfx1100.dat", Some(("hipblaslt", "gfx1100"))),
            ("lib/hipsparselt/library/x_gfx950.dat", Some(("hipsparselt", "gfx950"))),
            // A directory per architecture: anything in it, but the file's own name goes first.
            ("lib/rocblas/library/gfx942/TensileManifest.txt", Some(("rocblas", "gfx942"))),
            ("lib/rocblas/library/gfx90a-xnack+/x_fallback.dat", Some(("rocblas", "gfx90a:xnack+"))),
            ("lib/rocblas/library/gfx942/x_gfx950.co", Some(("rocblas", "gfx950"))),
            ("lib/rocblas/library/gfx803/x.dat", Some(("rocblas", "gfx803"))),
            // No architecture, another suffix, another place.
            ("lib/rocblas/library/TensileLibrary_fallback.dat", None),
            ("lib/rocblas/library/notes_gfx942.txt", None),
            ("lib/rocblas/library/gfx942", None),
            ("lib/rocblas/library/gfx942-old/x.txt", None),
            ("lib/rocsolver/library/x_gfx942.co", None),
            ("lib/rocblas/library/gfx.co", None),
        ]);
    }

    #[test]
    fn aotriton_images() {
        check(&[
            ("lib/aotriton.images/amd-gfx942/flash/attn_fwd/k.aks2", Some(("aotriton", "gfx942"))),
            ("lib/aotriton.images/amd-gfx11xx/flash/k.aks2", Some(("aotriton", "gfx11"))),
            ("lib/aotriton.images/amd-gfx110x/flash/k.aks2", Some(("aotriton", "gfx110x"))),
            ("lib/aotriton.images/amd-gfx120x/flash/k.aks2", Some(("aotriton", "gfx12_0"))),
            ("lib/aotriton.images/amd-gfx103x/flash/k.aks2", Some(("aotriton", "gfx10_3"))),
            // Unknown groups keep their name: the caller's message can then say what was found.
            ("lib/aotriton.images/amd-gfx139x/flash/k.aks2", Some(("aotriton", "gfx139x"))),
            ("lib/aotriton.images/amd-gfx13xx/flash/k.aks2", Some(("aotriton", "gfx13xx"))),
            ("lib/aotriton.images/amd-gfx942", None),
            ("lib/aotriton.images/common/amd-gfx942/x", None),
            ("lib/aotriton.images/amd-cdna/x", None),
            ("lib/aotriton.images/README", None),
        ]);
    }

    #[test]
    fn miopen_databases_and_libraries() {
        check(&[
            ("share/miopen/db/gfx942130.db.txt", Some(("miopen", "gfx942"))),
            ("share/miopen/db/gfx90878.HIP.fdb.txt", Some(("miopen", "gfx908"))),
            ("share/miopen/db/gfx90a6e.HIP.fdb.txt", Some(("miopen", "gfx90a"))),
            ("share/miopen/db/gfx1030_36.db.txt", Some(("miopen", "gfx1030"))),
            ("share/miopen/db/gfx908_ConvAsm1x1U_decoder.ktn.model", Some(("miopen", "gfx908"))),
            ("share/miopen/db/gfx1250-strict.kdb", Some(("miopen", "gfx1250-strict"))),
            ("share/miopen/db/gfx803_36.db.txt", None),
            ("share/miopen/db/miopen.db.txt", None),
            ("share/miopen/db/gfx942.txt", None),
            ("share/other/gfx942.kdb", None),
            ("lib/libMIOpenCKGroupedConv_gfx942.so.1", Some(("miopen", "gfx942"))),
            ("bin/MIOpenCK_x_gfx1100.dll", Some(("miopen", "gfx1100"))),
            ("lib/libMIOpenCKx_gfx90a-xnack+.so", Some(("miopen", "gfx90a:xnack+"))),
            ("lib/libMIOpenCK_gfx942.so", None),
            ("lib/libMIOpenCKx_gfx942.a", None),
            ("lib/libMIOpenCKx_gfx942_y.so", None),
            ("lib/libMIOpen.so", None),
        ]);
    }

    #[test]
    fn hip_kernel_provider_content() {
        check(&[
            (
                "lib/hipdnn_plugins/engines/arch_content/p/gfx942/a/k.co",
                Some(("hipkernelprovider", "gfx942")),
            ),
            ("engines/test_arch_content/u/s/gfx90a/gfx942/k", Some(("hipkernelprovider", "gfx90a"))),
            ("engines/arch_content/gfx1250-strict/k", Some(("hipkernelprovider", "gfx1250-strict"))),
            ("engines/arch_content/p/gfx942", None),
            ("engines/arch_content/p/gfx942_old/k", None),
            ("engines/other/arch_content/gfx942/k", None),
            ("arch_content/gfx942/k", None),
        ]);
    }

    #[test]
    fn composable_kernel_archives() {
        check(&[
            ("lib/libdevice_conv_operations_gfx942.a", Some(("composablekernel", "gfx942"))),
            ("lib/device_conv_operations_gfx950_xnackp.lib", Some(("composablekernel", "gfx950:xnack+"))),
            ("lib/libdevice_conv_operations_gfx1250_strict.a", Some(("composablekernel", "gfx1250-strict"))),
            (
                "lib/libdevice_conv_operations_gfx90a_srameccp_xnack_.a",
                Some(("composablekernel", "gfx90a:sramecc+:xnack-")),
            ),
            ("lib/libdevice_conv_operations.a", None),
            ("lib/libdevice_conv_operations_gfx942_extra.a", None),
            ("lib/libdevice_conv_operations_gfx942_xnack.a", None),
            ("lib/libdevice_conv_operations_gfx942.so", None),
        ]);
    }

    /// rocm-systems issue 7645: the xnack forms belong to the processor's wheel.
    #[test]
    fn the_processor_has_no_features() {
        for (name, processor) in
            [("gfx90a-xnack-", "gfx90a"), ("gfx1250-strict-xnack+", "gfx1250-strict"), ("gfx11", "gfx11")]
        {
            assert_eq!(ArchKey::new(name).processor(), processor);
        }
    }

    #[test]
    fn only_selected_handlers_run() {
        let table = ArchTable::builtin().unwrap();
        let torch = select(["torch-fat", "rocblas"], &[]).unwrap();
        assert_eq!(torch.handlers.len(), 5);
        assert!(torch.classify("lib/rocblas/library/x_gfx942.co", &table).is_some());
        assert!(torch.classify("lib/libdevice_conv_operations_gfx942.a", &table).is_none());
        assert!(Selection::default().classify("lib/rocblas/library/x_gfx942.co", &table).is_none());
        let fault = select(["rocblas", "rocfft"], &[]).unwrap_err();
        for name in handler_names().chain(preset_names()).chain(["rocfft"]) {
            assert!(fault.message.contains(name), "{fault}");
        }
    }

    #[test]
    fn handlers_of_a_project_stand_in_the_order_of_selection() {
        let table = ArchTable::builtin().unwrap();
        let glob = |pattern: &str| DeviceGlob::parse(pattern).unwrap();
        let custom = CustomHandler {
            name: "mine".into(),
            files: vec![glob("a/{arch}.x"), glob("lib/**/*_{arch}.co")],
        };
        let handler = |names: &[&str], path: &str| {
            let databases = Some(names.iter().map(|&name| name.to_owned()).collect());
            let wants =
                Wants { databases, device_files: Some(vec!["**/*{arch}*".into()]), ..Wants::default() };
            let selection = Selection::new(&wants, std::slice::from_ref(&custom)).unwrap();
            let file = selection.classify(path, &table)?;
            Some((file.handler.to_owned(), file.arch.as_str().to_owned()))
        };
        let found = |handler: &str, arch: &str| Some((handler.to_owned(), arch.to_owned()));
        let both = "lib/rocblas/library/k_gfx942.co";
        assert_eq!(handler(&["mine", "rocblas"], both), found("mine", "gfx942"));
        assert_eq!(handler(&["rocblas", "mine"], both), found("rocblas", "gfx942"));
        assert_eq!(handler(&["mine"], "a/gfx90a-xnack-.x"), found("mine", "gfx90a:xnack-"));
        assert_eq!(handler(&[], "a/gfx942.x"), found(DEVICE_FILES, "gfx942"), "not selected");
        let unknown = Selection::new(
            &Wants { databases: Some(vec!["yours".into()]), ..Wants::default() },
            std::slice::from_ref(&custom),
        );
        assert!(unknown.unwrap_err().message.contains("torch-fat, mine"));
    }

    #[test]
    fn device_files_come_after_the_handlers() {
        let table = ArchTable::builtin().unwrap();
        let selection = select(["rocblas"], &["**/{arch}/**"]).unwrap();
        let handler = |path| selection.classify(path, &table).map(|file| file.handler);
        assert_eq!(handler("lib/rocblas/library/gfx942/x"), Some("rocblas"));
        assert_eq!(handler("hsa/gfx942/fmha.co"), Some(DEVICE_FILES));
        assert_eq!(handler("hsa/gfx.co"), None);
    }

    proptest! {
        #[test]
        fn no_path_panics(path in "(\\PC|gfx|/|_|-xnack|MIOpenCK|aotriton.images/amd-|engines/arch_content){0,12}(\\.co|\\.so|\\.kdb)?") {
            let selection = select(handler_names(), &["**/*{arch}*"]).unwrap();
            let _ = selection.classify(&path, &ArchTable::builtin().unwrap());
        }
    }
}

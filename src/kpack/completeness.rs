//! Which code objects an archive holds, and which of them answers for which kernel and target.
//!
//! # The problem
//! The shipped loader, on an agent with the ISA M, walks the subsets of M, most specific first, then those of M's
//! generic processor, and commits to the first archive that lists one of them. If that archive lacks the kernel,
//! the launch fails, although a less specific archive has it. The HIP runtime itself would have looked at each fat
//! binary alone. In real wheels, binaries differ in their targets (one compiled for `gfx90a:xnack+`, all the others
//! for `gfx90a`), so archives made one per target fail in the field.
//!
//! # The answer
//! One archive for each processor P, complete: what it lists and what it answers is made so that the loader always
//! finds what the runtime would have picked.
//!
//! Let E be the feature sets of P's own code, over all kernels, and G those of the code for P's generic processor.
//! For an agent with features F, let U(F) be the union of all sets in E and G that are subsets of F. What the runtime
//! picks for a kernel depends on F only through which sets are subsets of F, that is, only through U(F). So:
//! - P's archive lists P:U(F) for every F of which a set in E is a subset;
//! - for a listed P:U it answers, for every kernel, with what the runtime would pick for the agent P:U: P's own code
//!   for the most specific subset of U, or else the generic's.
//!
//! For an agent P:F with a subset in E, U(F) is listed, every listed subset of F is a subset of U(F), and the loader
//! tries the most specific first: it commits to P:U(F). For any other agent nothing listed is a subset of F (it
//! would have a subset in E, and so would F), and the loader goes on to the generic's archive, which is made by the
//! same rule. Loaders that go on after a miss find the same code objects.
//!
//! [`Layout::PerTarget`] is the old layout: one archive for each target, with exactly its own code.
//!
//! # Cost
//! A wheel can have 100,000 kernels with 30 targets each. Kernels with the same list of targets share all decisions;
//! a kernel costs 8 bytes and 4 more for each of its code objects, and entries are made while they are iterated.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::arch::{Features, Processor, TargetId};
use crate::fault::{Fault, Result};

/// A code object: whatever number the caller knows it by. Kernels may share one.
pub type CodeId = u32;

/// How code is distributed over archives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// One archive for each processor, complete.
    #[default]
    PerProcessor,
    /// One archive for each target ID, with exactly its own code.
    PerTarget,
}

/// Position of a target in a kernel's list; a list is never as long as that.
type Position = u16;
/// No code object answers.
const NOTHING: Position = Position::MAX;

/// All kernels of a wheel with their targets and code objects. A kernel is what one wrapper of one binary stands for.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// The distinct lists of targets, each sorted, and their numbers.
    lists: Vec<Box<[TargetId]>>,
    list_numbers: HashMap<Box<[TargetId]>, u32>,
    /// For each kernel its list and where its code objects start in `codes`.
    kernels: Vec<(u32, u32)>,
    codes: Vec<CodeId>,
}

impl Catalog {
    /// No kernels.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next kernel with its code objects and returns its number, counted from 0. A kernel without any is
    /// legal; no archive has an entry for it.
    ///
    /// # Errors
    /// A [`Fault`] if a target occurs twice, or for more than 2^32 code objects.
    pub fn add(&mut self, code: impl IntoIterator<Item = (TargetId, CodeId)>) -> Result<u32> {
        let mut code: Vec<_> = code.into_iter().collect();
        code.sort_unstable();
        let list: Box<[TargetId]> = code.iter().map(|&(target, _)| target).collect();
        if let Some(&[twice, _]) = list.array_windows().find(|[a, b]| a == b) {
            return Err(Fault::malformed(
                "offload bundle",
                None,
                format!("has two code objects for {twice}, and nothing says which one counts"),
            ));
        }
        let many = || Fault::unsupported("device code", None, "has more than 2^32 code objects or kernels");
        let first = u32::try_from(self.codes.len()).map_err(|_| many())?;
        let number = u32::try_from(self.kernels.len()).map_err(|_| many())?;
        if list.len() >= usize::from(NOTHING) {
            return Err(many());
        }
        let next = u32::try_from(self.lists.len()).map_err(|_| many())?;
        let list_number = match self.list_numbers.get(&list) {
            Some(&known) => known,
            None => {
                self.lists.push(list.clone());
                self.list_numbers.insert(list, next);
                next
            }
        };
        self.kernels.push((list_number, first));
        self.codes.extend(code.into_iter().map(|(_, code)| code));
        Ok(number)
    }

    /// Number of kernels.
    pub fn len(&self) -> usize {
        self.kernels.len()
    }

    /// Whether there are no kernels.
    pub fn is_empty(&self) -> bool {
        self.kernels.is_empty()
    }

    /// All targets that some kernel has code for, in order.
    pub fn targets(&self) -> BTreeSet<TargetId> {
        self.lists.iter().flat_map(|list| list.iter().copied()).collect()
    }

    /// Plans the archives, in the order of their names. `generic_of` gives the generic processor whose code a
    /// processor can run, if there is one.
    pub fn archives(
        &self,
        layout: Layout,
        generic_of: impl Fn(Processor) -> Option<Processor>,
    ) -> Vec<Archive> {
        let targets = self.targets();
        if layout == Layout::PerTarget {
            return targets.into_iter().map(|target| self.single_target(target)).collect();
        }
        let mut features: BTreeMap<Processor, Vec<Features>> = BTreeMap::new();
        for target in targets {
            features.entry(target.processor).or_default().push(target.features);
        }
        let archive = |(&processor, own): (&Processor, &Vec<Features>)| {
            let generic = generic_of(processor);
            let others = generic.and_then(|generic| features.get(&generic)).map_or(&[][..], Vec::as_slice);
            let listed = listed_features(own, others);
            self.complete(processor, generic, &listed)
        };
        features.iter().map(archive).collect()
    }

    fn single_target(&self, target: TargetId) -> Archive {
        let answers = self.lists.iter().map(|list| position(list, target)).collect();
        Archive { name: target.to_string(), targets: vec![target], answers }
    }

    fn complete(&self, processor: Processor, generic: Option<Processor>, listed: &[Features]) -> Archive {
        let pick = |list: &[TargetId], agent: Features| {
            std::iter::once(processor)
                .chain(generic)
                .flat_map(|processor| agent.subsets().map(move |features| TargetId { processor, features }))
                .map(|target| position(list, target))
                .find(|&position| position != NOTHING)
                .unwrap_or(NOTHING)
        };
        let answers =
            self.lists.iter().flat_map(|list| listed.iter().map(move |&agent| pick(list, agent))).collect();
        let targets = listed.iter().map(|&features| TargetId { processor, features }).collect();
        Archive { name: processor.to_string(), targets, answers }
    }
}

/// The position of a target in a sorted list, or [`NOTHING`].
fn position(list: &[TargetId], target: TargetId) -> Position {
    list.binary_search(&target).ok().and_then(|at| Position::try_from(at).ok()).unwrap_or(NOTHING)
}

/// The feature sets that the archive of a processor lists; `own` are those of its own code, `others` those of its
/// generic's. See the module's description.
fn listed_features(own: &[Features], others: &[Features]) -> Vec<Features> {
    let listed: BTreeSet<Features> = Features::all()
        .filter(|&agent| own.iter().any(|features| features.is_subset_of(agent)))
        .map(|agent| {
            let fitting = own.iter().chain(others).filter(|features| features.is_subset_of(agent));
            // Subsets of one agent never contradict each other.
            fitting.fold(Features::NONE, |union, &features| union.union(features).unwrap_or(union))
        })
        .collect();
    listed.into_iter().collect()
}

/// One archive: its name, what it lists, and how it answers.
#[derive(Clone, Debug)]
pub struct Archive {
    name: String,
    targets: Vec<TargetId>,
    /// For each list of the catalog, for each target of the archive: which of the kernel's code objects answers.
    answers: Vec<Position>,
}

/// One entry of an archive's table of contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ArchiveEntry {
    /// The kernel's number in the catalog.
    pub kernel: u32,
    /// A target that the archive lists.
    pub target: TargetId,
    /// The code object that answers.
    pub code: CodeId,
}

impl Archive {
    /// The processor, or the target ID in the layout per target; the part of the file name that the loader puts in
    /// place of `@GFXARCH@`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The targets that the archive lists, in order. Never empty.
    pub fn targets(&self) -> &[TargetId] {
        &self.targets
    }

    /// The entries, by kernel and then by target. `catalog` is the one that planned this archive.
    pub fn entries<'a>(&'a self, catalog: &'a Catalog) -> impl Iterator<Item = ArchiveEntry> + 'a {
        let width = self.targets.len();
        catalog.kernels.iter().zip(0_u32..).flat_map(move |(&(list, first), kernel)| {
            // `list` and `first` are indices into vectors in memory, and so fit into usize.
            let row = (list as usize).saturating_mul(width);
            let answers = self.answers.get(row..row.saturating_add(width)).unwrap_or_default();
            self.targets.iter().zip(answers).filter(|&(_, &position)| position != NOTHING).filter_map(
                move |(&target, &position)| {
                    let code = *catalog.codes.get(first as usize + usize::from(position))?;
                    Some(ArchiveEntry { kernel, target, code })
                },
            )
        })
    }

    /// The code objects that the archive holds, ascending, each once.
    pub fn codes(&self, catalog: &Catalog) -> Vec<CodeId> {
        let mut codes: Vec<_> = self.entries(catalog).map(|entry| entry.code).collect();
        codes.sort_unstable();
        codes.dedup();
        codes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn processor(name: &str) -> Processor {
        Processor::parse(name).unwrap()
    }

    fn target(text: &str) -> TargetId {
        TargetId::parse(text).unwrap()
    }

    /// Part of the arch table.
    fn generic_of(name: Processor) -> Option<Processor> {
        let generic = match name.as_str() {
            "gfx900" | "gfx906" => "gfx9-generic",
            "gfx942" | "gfx950" => "gfx9-4-generic",
            "gfx1100" => "gfx11-generic",
            _ => return None,
        };
        Some(processor(generic))
    }

    type Kernel = Vec<(TargetId, CodeId)>;

    fn catalog(kernels: &[Kernel]) -> Catalog {
        let mut catalog = Catalog::new();
        for (number, kernel) in (0..).zip(kernels) {
            assert_eq!(catalog.add(kernel.iter().copied()).unwrap(), number);
        }
        catalog
    }

    /// Kernels with consecutive code objects.
    fn kernels(texts: &[&[&str]]) -> Vec<Kernel> {
        let mut codes = 0..;
        texts.iter().map(|texts| texts.iter().copied().map(target).zip(codes.by_ref()).collect()).collect()
    }

    /// An archive as the loader sees it.
    struct Loaded {
        name: String,
        arches: Vec<String>,
        entries: HashMap<(u32, String), CodeId>,
    }

    fn load(catalog: &Catalog, layout: Layout) -> Vec<Loaded> {
        let archives = catalog.archives(layout, generic_of);
        archives
            .iter()
            .map(|archive| {
                let entries: Vec<_> = archive.entries(catalog).collect();
                assert!(entries.is_sorted());
                Loaded {
                    name: archive.name().to_owned(),
                    arches: archive.targets().iter().map(TargetId::to_string).collect(),
                    entries: entries
                        .iter()
                        .map(|entry| ((entry.kernel, entry.target.to_string()), entry.code))
                        .collect(),
                }
            })
            .collect()
    }

    /// The subsets of an ISA by strings and bit masks, independently of [`Features::subsets`].
    fn subsets(isa: &str) -> Vec<String> {
        let parts: Vec<&str> = isa.split(':').collect();
        let count = parts.len() - 1;
        (0..1_usize << count)
            .rev()
            .map(|mask| {
                let kept = (0..count).filter(|at| mask & 1 << (count - 1 - at) != 0).map(|at| parts[at + 1]);
                std::iter::once(parts[0]).chain(kept).collect::<Vec<_>>().join(":")
            })
            .collect()
    }

    /// What the runtime asks for on a device: the exact ISA, then a generic with the same features.
    fn arch_list(isa: &str) -> Vec<String> {
        let (name, features) = isa.split_at(isa.find(':').unwrap_or(isa.len()));
        std::iter::once(isa.to_owned())
            .chain(generic_of(processor(name)).map(|generic| format!("{generic}{features}")))
            .collect()
    }

    /// The code object that a fat binary would have given this device.
    fn expected(kernel: &Kernel, isa: &str) -> Option<CodeId> {
        let find = |wanted: &String| kernel.iter().find(|(target, _)| &target.to_string() == wanted);
        arch_list(isa)
            .iter()
            .flat_map(|isa| subsets(isa))
            .find_map(|wanted| find(&wanted))
            .map(|&(_, code)| code)
    }

    /// The shipped loader: the first archive that lists a subset decides. `persistent` is its successor, which goes
    /// on after a miss.
    fn look_up(archives: &[Loaded], kernel: u32, isa: &str, persistent: bool) -> Option<CodeId> {
        let isas = arch_list(isa);
        let opened: Vec<&Loaded> = isas
            .iter()
            .flat_map(|isa| subsets(isa))
            .filter_map(|name| archives.iter().find(|archive| archive.name == name))
            .collect();
        for isa in &isas {
            for wanted in subsets(isa) {
                for archive in opened.iter().filter(|archive| archive.arches.contains(&wanted)) {
                    let found = archive.entries.get(&(kernel, wanted.clone())).copied();
                    if found.is_some() || !persistent {
                        return found;
                    }
                }
            }
        }
        None
    }

    const PROCESSORS: [&str; 8] = [
        "gfx900",
        "gfx906",
        "gfx9-generic",
        "gfx90a",
        "gfx942",
        "gfx950",
        "gfx9-4-generic",
        "gfx1250-strict",
    ];

    fn all_targets(names: &[&str]) -> Vec<TargetId> {
        let with_features = |name: &&str| {
            let processor = processor(name);
            Features::all().map(move |features| TargetId { processor, features })
        };
        names.iter().flat_map(with_features).collect()
    }

    fn check(kernels: &[Kernel]) -> Result<(), TestCaseError> {
        let archives = load(&catalog(kernels), Layout::PerProcessor);
        for isa in all_targets(&PROCESSORS) {
            let isa = isa.to_string();
            for (number, kernel) in (0..).zip(kernels) {
                let expected = expected(kernel, &isa);
                for persistent in [false, true] {
                    let found = look_up(&archives, number, &isa, persistent);
                    prop_assert_eq!(found, expected, "kernel {} on {} of {:?}", number, &isa, kernels);
                }
            }
        }
        Ok(())
    }

    #[test]
    fn sparse_feature_code_does_not_hide_the_rest() {
        // One binary for gfx90a:xnack+ and -, the others for gfx90a alone: how wheels break in the field.
        let kernels = kernels(&[&["gfx90a:xnack+", "gfx90a:xnack-"], &["gfx90a"], &["gfx90a", "gfx942"]]);
        let catalog = catalog(&kernels);
        let archives = catalog.archives(Layout::PerProcessor, generic_of);
        let [gfx90a, gfx942] = archives.as_slice() else { panic!("{archives:?}") };
        assert_eq!(gfx90a.name(), "gfx90a");
        let listed: Vec<_> = gfx90a.targets().iter().map(TargetId::to_string).collect();
        assert_eq!(listed, ["gfx90a", "gfx90a:xnack-", "gfx90a:xnack+"]);
        let entries: Vec<_> = gfx90a
            .entries(&catalog)
            .map(|entry| (entry.kernel, entry.target.to_string(), entry.code))
            .collect();
        let entry = |kernel, target: &str, code| (kernel, target.to_owned(), code);
        assert_eq!(
            entries,
            [
                entry(0, "gfx90a:xnack-", 1),
                entry(0, "gfx90a:xnack+", 0),
                entry(1, "gfx90a", 2),
                entry(1, "gfx90a:xnack-", 2),
                entry(1, "gfx90a:xnack+", 2),
                entry(2, "gfx90a", 3),
                entry(2, "gfx90a:xnack-", 3),
                entry(2, "gfx90a:xnack+", 3),
            ]
        );
        assert_eq!(gfx90a.codes(&catalog), [0, 1, 2, 3]);
        assert_eq!(gfx942.codes(&catalog), [4]);
        check(&kernels).unwrap();
    }

    #[test]
    fn generic_code_fills_the_holes_of_a_processor() {
        let kernels = kernels(&[&["gfx942"], &["gfx9-4-generic"], &["gfx942", "gfx9-4-generic"]]);
        let catalog = catalog(&kernels);
        let archives = catalog.archives(Layout::PerProcessor, generic_of);
        let held: Vec<_> = archives.iter().map(|archive| (archive.name(), archive.codes(&catalog))).collect();
        // gfx950 has no code of its own and is served by the generic's archive.
        assert_eq!(held, [("gfx9-4-generic", vec![1, 3]), ("gfx942", vec![0, 1, 2])]);
        check(&kernels).unwrap();
    }

    #[test]
    fn unions_are_listed() {
        let kernels = kernels(&[&["gfx90a:sramecc+"], &["gfx90a:xnack-"], &["gfx90a:sramecc+:xnack+"]]);
        let archives = catalog(&kernels).archives(Layout::PerProcessor, generic_of);
        let listed: Vec<_> = archives[0].targets().iter().map(TargetId::to_string).collect();
        assert_eq!(
            listed,
            ["gfx90a:xnack-", "gfx90a:sramecc+", "gfx90a:sramecc+:xnack-", "gfx90a:sramecc+:xnack+"]
        );
        check(&kernels).unwrap();
    }

    #[test]
    fn generic_code_is_only_copied_where_it_can_be_asked_for() {
        // An agent with xnack off goes to the generic's archive by itself.
        let kernels = kernels(&[&["gfx942:xnack+"], &["gfx9-4-generic:xnack-"]]);
        let catalog = catalog(&kernels);
        let archives = catalog.archives(Layout::PerProcessor, generic_of);
        assert_eq!(archives[1].name(), "gfx942");
        assert_eq!(archives[1].codes(&catalog), [0]);
        check(&kernels).unwrap();
    }

    #[test]
    fn per_target_is_the_old_layout() {
        let kernels = kernels(&[&["gfx90a:xnack-", "gfx90a"], &["gfx90a"], &["gfx9-4-generic"], &[]]);
        let catalog = catalog(&kernels);
        let archives = catalog.archives(Layout::PerTarget, generic_of);
        let held: Vec<_> = archives.iter().map(|archive| (archive.name(), archive.codes(&catalog))).collect();
        assert_eq!(held, [("gfx9-4-generic", vec![3]), ("gfx90a", vec![1, 2]), ("gfx90a:xnack-", vec![0])]);
        assert!(archives.iter().all(|archive| archive.targets().len() == 1));
    }

    #[test]
    fn two_code_objects_for_one_target_are_refused() {
        let fault = Catalog::new().add([(target("gfx942"), 0), (target("gfx942"), 1)]).unwrap_err();
        assert!(fault.message.contains("gfx942"));
    }

    #[test]
    fn a_huge_wheel_is_planned_in_no_time() {
        let names: Vec<String> = (0..30).map(|number| format!("gfx9{number:02x}")).collect();
        let mut catalog = Catalog::new();
        for kernel in 0..100_000_u32 {
            // Some lists differ.
            let skipped = if kernel % 1000 == 0 { kernel / 1000 % 30 } else { 30 };
            let list = (0..30).filter(|&number| number != skipped).map(|number| {
                let features = if number == 7 && kernel == 5 { ":xnack+" } else { "" };
                (target(&format!("{}{features}", names[number as usize])), kernel * 30 + number)
            });
            catalog.add(list).unwrap();
        }
        let start = std::time::Instant::now();
        let archives = catalog.archives(Layout::PerProcessor, generic_of);
        let entries: usize = archives.iter().map(|archive| archive.entries(&catalog).count()).sum();
        assert_eq!(archives.len(), 30);
        // gfx907 lists two targets: all its kernels twice, but kernel 5, which has no bare code, once.
        let holes: usize = (0..100).filter(|number| number % 30 == 7).count();
        assert_eq!(entries, 3_000_000 - 100 + (100_000 - 1 - holes));
        // A quadratic step would take minutes.
        assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
    }

    fn any_kernel() -> impl Strategy<Value = Vec<TargetId>> {
        // Few processors with many features make for the interesting cases.
        let targets = prop_oneof![
            Just(all_targets(&PROCESSORS)),
            Just(all_targets(&["gfx942", "gfx9-4-generic"])),
            Just(all_targets(&["gfx906", "gfx9-generic"])),
        ];
        targets.prop_flat_map(|targets: Vec<TargetId>| prop::sample::subsequence(targets, 0..6))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn the_loader_finds_what_the_runtime_would_pick(lists in proptest::collection::vec(any_kernel(), 1..5)) {
            let mut codes = 0..;
            let kernels: Vec<Kernel> =
                lists.into_iter().map(|list| list.into_iter().zip(codes.by_ref()).collect()).collect();
            check(&kernels)?;
        }

        #[test]
        fn nothing_is_lost(lists in proptest::collection::vec(any_kernel(), 1..5), per_target: bool) {
            let mut codes = 0..;
            let kernels: Vec<Kernel> =
                lists.into_iter().map(|list| list.into_iter().zip(codes.by_ref()).collect()).collect();
            let layout = if per_target { Layout::PerTarget } else { Layout::PerProcessor };
            let catalog = catalog(&kernels);
            let archives = catalog.archives(layout, generic_of);
            let held: BTreeSet<CodeId> = archives.iter().flat_map(|archive| archive.codes(&catalog)).collect();
            prop_assert_eq!(held, (0..codes.start).collect());
        }
    }
}

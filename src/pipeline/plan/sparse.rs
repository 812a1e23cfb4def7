//! Archives that have suspiciously little: what a wheel was not meant to have, or what hides the rest.
//!
//! - A processor that has code in very few units is often a leftover of another build, in a wheel that was meant for one
//!   family (rocm-systems 6362). On a machine with such a device beside a good one, every other unit fails.
//! - With one archive per target, the loader commits to the most specific one that exists, even if that lacks the unit
//!   (TheRock 7081). Complete archives, the default, have no such hole.

use std::collections::BTreeMap;

use super::archives::Archives;
use crate::options::KpackLayout;

/// A processor with code for less than one in so many of the units that the best one has code for is worth a word.
const FEW: usize = 20;

/// One warning for each of the two, if there is something to say.
pub fn warnings(archives: &Archives, layout: KpackLayout) -> Vec<String> {
    let mut units: BTreeMap<&str, usize> = BTreeMap::new();
    let mut of_processor: BTreeMap<&str, Vec<(&str, usize)>> = BTreeMap::new();
    for plan in archives.archives.iter().filter(|plan| plan.written) {
        let name = plan.archive.name();
        let mut kernels: Vec<u32> =
            plan.archive.entries(&archives.catalog).map(|entry| entry.kernel).collect();
        kernels.dedup();
        let processor = name.split_once(':').map_or(name, |(processor, _)| processor);
        let most = units.entry(processor).or_default();
        *most = (*most).max(kernels.len());
        of_processor.entry(processor).or_default().push((name, kernels.len()));
    }
    let mut warnings = Vec::new();
    let most = units.values().copied().max().unwrap_or_default();
    let few: Vec<String> = units
        .iter()
        .filter(|&(name, &count)| count > 0 && count * FEW < most && !name.ends_with("-generic"))
        .map(|(name, count)| format!("{name} ({count})"))
        .collect();
    if !few.is_empty() {
        warnings.push(format!(
            "few units have code for {}, others for {most}; if that is left over from another build, leave it out with \
             --archs",
            few.join(", ")
        ));
    }
    if layout == KpackLayout::PerTarget {
        let hiding: Vec<String> = of_processor
            .values()
            .filter_map(|targets| {
                let full = targets.iter().map(|&(_, count)| count).max()?;
                let sparse = targets.iter().filter(|&&(name, count)| name.contains(':') && count < full);
                let sparse: Vec<String> =
                    sparse.map(|(name, count)| format!("{name} ({count} of {full} units)")).collect();
                (!sparse.is_empty()).then(|| sparse.join(", "))
            })
            .collect();
        if !hiding.is_empty() {
            warnings.push(format!(
                "--kpack-layout per-target: the archives of {} hide fuller ones from loaders that do not go on after a \
                 miss; the default layout has no such holes",
                hiding.join(", ")
            ));
        }
    }
    warnings
}

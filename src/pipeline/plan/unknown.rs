//! Names of GPUs that the architecture table lacks, from binaries and file names alike, gathered so that one message
//! has all of them: whoever adds rows to the table wants to do it once.

use std::collections::BTreeMap;

use crate::arch::UnknownArch;
use crate::arch::table::{ArchTable, BundleLookup};
use crate::error::{Error, Result};
use crate::fault::Fault;

/// Where a name occurs.
#[derive(Debug, Default)]
struct Places<'i> {
    /// Fat binaries.
    binaries: Vec<&'i str>,
    /// Number of per-architecture files.
    files: usize,
    /// One of them, and the handler that took its name for that of a GPU.
    example: Option<(&'i str, String)>,
}

/// The names that were not found.
#[derive(Debug, Default)]
pub struct Unknown<'i> {
    /// Well-formed names of processors.
    processors: BTreeMap<String, Places<'i>>,
    /// Anything else.
    malformed: BTreeMap<String, Places<'i>>,
}

impl<'i> Unknown<'i> {
    /// Looks up the processor of code in `binary`. `None` if the name makes no sense, which [`report`](Self::report)
    /// will say.
    pub fn of_binary<'t>(
        &mut self,
        table: &'t ArchTable,
        name: &str,
        binary: &'i str,
    ) -> Option<BundleLookup<'t>> {
        let (lookup, places) = self.look_up(table, name);
        if let Some(places) = places
            && places.binaries.last() != Some(&binary)
        {
            places.binaries.push(binary);
        }
        lookup
    }

    /// The same for a file that `handler` has claimed.
    pub fn of_file<'t>(
        &mut self,
        table: &'t ArchTable,
        name: &str,
        file: &'i str,
        handler: &str,
    ) -> Option<BundleLookup<'t>> {
        let (lookup, places) = self.look_up(table, name);
        if let Some(places) = places {
            places.files += 1;
            places.example.get_or_insert_with(|| (file, handler.to_owned()));
        }
        lookup
    }

    fn look_up<'t>(
        &mut self,
        table: &'t ArchTable,
        name: &str,
    ) -> (Option<BundleLookup<'t>>, Option<&mut Places<'i>>) {
        match table.bundle_of(name) {
            Ok(lookup) if lookup.is_known() => (Some(lookup), None),
            Ok(lookup) => (Some(lookup), Some(self.processors.entry(name.to_owned()).or_default())),
            Err(_) => (None, Some(self.malformed.entry(name.to_owned()).or_default())),
        }
    }

    /// One error or one warning for the whole wheel.
    pub fn report(&self, policy: UnknownArch, warnings: &mut Vec<String>) -> Result<()> {
        const HINT: &str = "add rows with --arch-table FILE, or aliases for names in paths with --rules FILE";
        let lacks = list(&self.processors);
        if !self.malformed.is_empty() {
            let mut message = format!(
                "no names of GPUs, and not in the architecture table: {}; a processor is called gfx, major version, two \
                 hexadecimal digits",
                list(&self.malformed)
            );
            if policy == UnknownArch::Error && !self.processors.is_empty() {
                message.push_str(&format!("; it also lacks {lacks}"));
            }
            return Err(Error::from(Fault::malformed("GPU target", None, message))
                .with_hint(format!("{HINT}; or leave the handler out of --databases")));
        }
        if self.processors.is_empty() {
            return Ok(());
        }
        match policy {
            UnknownArch::Error => {
                let fault = Fault::unsupported("architecture table", None, format!("it lacks {lacks}"));
                Err(Error::from(fault).with_hint(format!("{HINT}; or use --unknown-arch package or host")))
            }
            UnknownArch::Package => {
                warnings.push(format!(
                    "the architecture table lacks {lacks}; each gets a device wheel of its own"
                ));
                Ok(())
            }
            UnknownArch::Host => {
                warnings.push(format!("the architecture table lacks {lacks}; they stay in the host wheel"));
                Ok(())
            }
        }
    }
}

/// `gfx803 (in a.so, b.so; 2 files, such as c_gfx803.co (rocblas)); ...`
fn list(names: &BTreeMap<String, Places<'_>>) -> String {
    let line = |(name, places): (&String, &Places<'_>)| {
        let mut parts = Vec::new();
        if !places.binaries.is_empty() {
            parts.push(format!("in {}", places.binaries.join(", ")));
        }
        if let Some((file, handler)) = &places.example {
            parts.push(format!("{} files that {handler} claims, such as {file}", places.files));
        }
        format!("{name} ({})", parts.join("; "))
    };
    names.iter().map(line).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_has_every_name_and_place() {
        let table = ArchTable::builtin().unwrap();
        let mut unknown = Unknown::default();
        assert!(unknown.of_binary(&table, "gfx942", "a.so").unwrap().is_known());
        for binary in ["a.so", "a.so", "b.so"] {
            assert!(!unknown.of_binary(&table, "gfx803", binary).unwrap().is_known());
        }
        for file in ["k1_gfx803.co", "k2_gfx803.co"] {
            unknown.of_file(&table, "gfx803", file, "rocblas");
        }
        unknown.of_file(&table, "gfx940", "k_gfx940.co", "rocblas");
        let mut warnings = Vec::new();
        unknown.report(UnknownArch::Package, &mut warnings).unwrap();
        let all = "the architecture table lacks gfx803 (in a.so, b.so; 2 files that rocblas claims, such as k1_gfx803.co); \
                   gfx940 (1 files that rocblas claims, such as k_gfx940.co); each gets a device wheel of its own";
        assert_eq!(warnings, [all]);
        let error = unknown.report(UnknownArch::Error, &mut warnings).unwrap_err().to_string();
        assert!(
            error.contains("it lacks gfx803 (in a.so, b.so") && error.contains("--arch-table"),
            "{error}"
        );

        assert!(unknown.of_file(&table, "gfx77xx", "x/gfx77xx/k", "mine").is_none());
        let error = unknown.report(UnknownArch::Error, &mut warnings).unwrap_err().to_string();
        for part in
            ["gfx77xx (1 files that mine claims, such as x/gfx77xx/k)", "also lacks gfx803", "--rules"]
        {
            assert!(error.contains(part), "{error}");
        }
        assert!(unknown.report(UnknownArch::Package, &mut warnings).is_err());
    }
}

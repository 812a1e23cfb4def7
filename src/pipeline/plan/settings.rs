//! What applies to the wheel that is split: the options, and where they say nothing, the rules file. Made as soon as
//! the wheel's name is known and before its bulk is read, so that a slip in an option costs no time.

use crate::arch::UnknownArch;
use crate::arch::table::{ArchRows, ArchTable};
use crate::error::{Error, Result};
use crate::options::SplitOptions;
use crate::wheel::archs::ArchFilter;
use crate::wheel::database::Selection;
use crate::wheel::rules::Wants;

/// Everything that the plan is told from outside, but for plain switches ([`SplitOptions`]).
#[derive(Debug)]
pub struct Settings {
    /// Names, and what moves.
    pub wants: Wants,
    /// Targets and bundles.
    pub table: ArchTable,
    /// Whose per-architecture files move.
    pub selection: Selection,
    /// Which device wheels are written; `None` if nobody has chosen.
    pub filter: Option<ArchFilter>,
}

impl Settings {
    /// What applies to `distribution`.
    ///
    /// # Errors
    /// Usage, if something of it makes no sense by itself.
    pub fn of(options: &SplitOptions, distribution: &str) -> Result<Self> {
        let usage = |fault: crate::fault::Fault| Error::usage(fault.to_string());
        let wants = options.wants(distribution);
        let mut table = ArchTable::builtin()?;
        if let Some(rules) = &options.rules {
            table.add(rules.rows.clone()).map_err(usage)?;
        }
        if let Some(rows) = &options.arch_table {
            let added = ArchRows::from_json(rows).and_then(|rows| table.add(rows));
            added.map_err(|fault| Error::usage(format!("--arch-table: {fault}")))?;
        }
        let custom = options.rules.as_ref().map_or(&[][..], |rules| &rules.handlers);
        let selection = Selection::new(&wants, custom).map_err(usage)?;
        let filter = wants.archs.as_ref().map(|list| ArchFilter::parse(list, &table)).transpose();
        Ok(Self { filter: filter.map_err(usage)?, wants, table, selection })
    }

    /// What becomes of processors that the table lacks.
    pub fn unknown_arch(&self) -> UnknownArch {
        self.wants.unknown_arch.unwrap_or_default()
    }
}

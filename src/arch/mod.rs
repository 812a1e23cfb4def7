//! AMD GPU architectures: the names that compilers, bundles and loaders give them ([`target_id`]), and the table
//! that says which device wheel serves which ([`table`]).

pub mod table;
pub mod target_id;

pub use target_id::{Features, Processor, TargetId};

/// What becomes of code for a processor that the table lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownArch {
    /// It gets a device wheel of its own, and a warning.
    #[default]
    Package,
    /// It is an error.
    Error,
    /// Binaries that have such code stay whole in the host wheel, with a warning.
    Host,
}

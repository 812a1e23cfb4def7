//! Bundle entry IDs: what one code object of an offload bundle is for.
//!
//! `<kind>-<triple>-<target ID>`, as clang-offload-bundler writes them. Sources: "Clang Offload Bundler" in clang's
//! documentation, and reports of compilers that spell the triple differently (ROCm/hip-tests issue 468,
//! llvm/llvm-project 139112):
//! - kind: `hip` or `hipv4` (the runtime takes both); `host...` marks the host's own, empty entry;
//! - triple: architecture `amdgcn`, `amdgpu` with or without a subarchitecture (`amdgpu9.42`), or `spirv64`; vendor
//!   `amd`; system `amdhsa`; environment empty, `unknown` or `llvm`. Bundlers before 2021 left the environment
//!   out together with its hyphen;
//! - target ID: see [`crate::arch::target_id`], or `amdgcnspirv`.
//!
//! Everything else is refused with the ID in the message: an entry that is skipped is code that is lost.

use std::fmt;

use crate::arch::TargetId;
use crate::fault::{Fault, Result};

/// The target ID of AMD's SPIR-V, which the runtime compiles for the GPU at hand.
const SPIRV_TARGET: &str = "amdgcnspirv";

/// What one entry of an offload bundle is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryId {
    /// The host's entry; of no use in a HIP fat binary, and empty there.
    Host,
    /// A code object for a GPU target.
    Device(TargetId),
    /// SPIR-V, which a kpack archive cannot serve.
    Spirv,
}

impl EntryId {
    /// Parses an entry ID.
    ///
    /// # Errors
    /// A [`Fault`] that quotes the ID: `Unsupported` for other offload kinds and triples, `Malformed` for a
    /// target ID that is none.
    pub fn parse(id: &str) -> Result<Self> {
        if id.starts_with("host") {
            return Ok(Self::Host);
        }
        let mut fields = id.splitn(5, '-');
        let [kind, arch, vendor, system] = [(); 4].map(|()| fields.next().unwrap_or_default());
        let rest = fields.next().unwrap_or_default();
        if !matches!(kind, "hip" | "hipv4") {
            return Err(unsupported(id, "its offload kind is neither hip nor hipv4"));
        }
        if !is_gpu_arch(arch) || vendor != "amd" || system != "amdhsa" {
            return Err(unsupported(id, "its triple is not one of an AMD GPU under amdhsa"));
        }
        let target = match rest.split_once('-') {
            Some(("" | "unknown" | "llvm", target)) => target,
            // No environment field: `amdhsa-gfx906`, and the hyphen belongs to the target ID itself.
            _ => rest,
        };
        if target == SPIRV_TARGET {
            return Ok(Self::Spirv);
        }
        if arch == "spirv64" {
            return Err(unsupported(id, "it is SPIR-V, but not for amdgcnspirv"));
        }
        TargetId::parse(target).map(Self::Device).map_err(|_| {
            Fault::malformed(
                "offload bundle entry ID",
                None,
                format!("{id:?} does not end in an AMD GPU target ID such as gfx942 or gfx90a:xnack+"),
            )
        })
    }

    /// The target, for device code that a kpack archive can serve.
    pub fn device(self) -> Option<TargetId> {
        match self {
            Self::Device(target) => Some(target),
            Self::Host | Self::Spirv => None,
        }
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Device(target) => write!(f, "{target}"),
            Self::Spirv => f.write_str(SPIRV_TARGET),
        }
    }
}

/// `amdgcn`, `spirv64`, `amdgpu` and `amdgpu<subarchitecture>`.
fn is_gpu_arch(arch: &str) -> bool {
    let is_subarch = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
    matches!(arch, "amdgcn" | "spirv64") || arch.strip_prefix("amdgpu").is_some_and(is_subarch)
}

fn unsupported(id: &str, why: &str) -> Fault {
    Fault::unsupported("offload bundle entry ID", None, format!("{id:?} is not understood: {why}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fault::FaultKind;

    #[test]
    fn known_spellings() {
        for (id, entry) in [
            ("host-x86_64-unknown-linux-gnu-", "host"),
            ("host-x86_64-pc-windows-msvc--", "host"),
            ("host-x86_64-unknown-linux", "host"),
            ("hipv4-amdgcn-amd-amdhsa--gfx942", "gfx942"),
            ("hip-amdgcn-amd-amdhsa--gfx906", "gfx906"),
            ("hip-amdgcn-amd-amdhsa-gfx906", "gfx906"),
            ("hip-amdgcn-amd-amdhsa-gfx908-xnack-", "gfx908:xnack-"),
            ("hip-amdgcn-amd-amdhsa-gfx9-4-generic", "gfx9-4-generic"),
            ("hip-amdgcn-amd-amdhsa-unknown-gfx950", "gfx950"),
            ("hipv4-amdgcn-amd-amdhsa-llvm-gfx1201", "gfx1201"),
            ("hipv4-amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-", "gfx90a:sramecc+:xnack-"),
            ("hipv4-amdgcn-amd-amdhsa-unknown-gfx11-generic", "gfx11-generic"),
            ("hipv4-amdgcn-amd-amdhsa--gfx1250-strict", "gfx1250-strict"),
            ("hipv4-amdgpu-amd-amdhsa--gfx90c", "gfx90c"),
            ("hipv4-amdgpu9.42-amd-amdhsa--gfx942", "gfx942"),
            ("hip-spirv64-amd-amdhsa--amdgcnspirv", "amdgcnspirv"),
            ("hip-spirv64-amd-amdhsa-unknown-amdgcnspirv", "amdgcnspirv"),
            ("hipv4-amdgcn-amd-amdhsa--amdgcnspirv", "amdgcnspirv"),
        ] {
            assert_eq!(EntryId::parse(id).unwrap().to_string(), entry, "{id}");
        }
    }

    #[test]
    fn everything_else_is_a_fault_that_names_the_id() {
        for (id, kind) in [
            ("", FaultKind::Unsupported),
            ("hip", FaultKind::Unsupported),
            ("openmp-amdgcn-amd-amdhsa--gfx942", FaultKind::Unsupported),
            ("hip-nvptx64-nvidia-cuda--sm_80", FaultKind::Unsupported),
            ("hip-amdgcn-amd-amdpal--gfx1100", FaultKind::Unsupported),
            ("hip-amdgcn-mesa-amdhsa--gfx1100", FaultKind::Unsupported),
            ("hip-amdgpu/9-amd-amdhsa--gfx942", FaultKind::Unsupported),
            ("hip-spirv64-amd-amdhsa--generic", FaultKind::Unsupported),
            ("hipv4-amdgcn-amd-amdhsa--", FaultKind::Malformed),
            ("hipv4-amdgcn-amd-amdhsa", FaultKind::Malformed),
            ("hipv4-amdgpu9.42-amd-amdhsa--", FaultKind::Malformed),
            ("hipv4-amdgcn-amd-amdhsa--gfxzzz", FaultKind::Malformed),
            ("hipv4-amdgcn-amd-amdhsa--gfx942:wgp+", FaultKind::Malformed),
            ("hipv4-amdgcn-amd-amdhsa-unknown--gfx942", FaultKind::Malformed),
            ("hipv4-amdgcn-amd-amdhsa-musl-gfx942", FaultKind::Malformed),
        ] {
            let fault = EntryId::parse(id).unwrap_err();
            assert!(fault.message.contains(&format!("{id:?}")), "{fault}");
            assert_eq!(fault.kind, kind, "{id}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(id in "(hip(v4)?-amdgcn-amd-amdhsa-)?\\PC{0,20}") {
            if let Ok(EntryId::Device(target)) = EntryId::parse(&id) {
                let canonical = format!("hipv4-amdgcn-amd-amdhsa--{target}");
                prop_assert_eq!(EntryId::parse(&canonical).unwrap(), EntryId::Device(target));
            }
        }
    }
}

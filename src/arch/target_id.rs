//! LLVM target IDs: `gfx90a`, `gfx90a:sramecc+:xnack-`, `gfx9-4-generic`.
//!
//! Source: "Target ID" in LLVM's "User Guide for AMDGPU Backend". The order in which the kpack loader tries the target
//! IDs that an agent accepts is told in [`crate::kpack::completeness`].
//!
//! A [`TargetId`] is a [`Processor`] and [`Features`]. All three are small plain values without heap memory,
//! because a wheel can have millions of (wrapper, target) pairs.
//!
//! Invariants:
//! - the processor's name is well formed (see [`Processor::parse`]); whether such a processor exists is the
//!   arch table's business;
//! - features are canonical: `sramecc` before `xnack`, as LLVM spells them and as the loader looks them up.
//!   Text in another order, or with hyphens (`gfx90a-xnack+`, in Tensile file names), is normalised.
//!
//! Refused: any other feature, a feature given twice, upper case, empty parts.

use std::fmt;

use crate::fault::{Fault, Result};

/// The longest well-formed name: `gfx12-5-generic` has 15 bytes.
const NAME_CAPACITY: usize = 15;

/// A processor: `gfx942`, `gfx1250-strict`, `gfx11-generic`. Ordered by name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Processor {
    /// The name, padded with zeros; zeros sort before every letter, so the derived order is the name's.
    name: [u8; NAME_CAPACITY],
    length: u8,
}

impl Processor {
    /// Takes a name of one of three forms, in lower case:
    /// - `gfx`, one or two decimal digits (major version), one hex digit (minor), one hex digit (stepping);
    /// - the same followed by `-strict`;
    /// - `gfxN-generic` or `gfxN-M-generic` with N of one or two decimal digits and M of one.
    ///
    /// # Errors
    /// A [`Fault`] of kind `Malformed` that quotes `text`, for everything else.
    pub fn parse(text: &str) -> Result<Self> {
        if !is_well_formed(text) {
            return Err(malformed(text, "is no AMD GPU processor name (gfx942, gfx90a, gfx9-4-generic)"));
        }
        let mut name = [0; NAME_CAPACITY];
        let length = u8::try_from(text.len()).ok().filter(|_| text.len() <= NAME_CAPACITY);
        let (Some(length), Some(place)) = (length, name.get_mut(..text.len())) else {
            return Err(malformed(text, "is too long for a processor name"));
        };
        place.copy_from_slice(text.as_bytes());
        Ok(Self { name, length })
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        let bytes = self.name.get(..usize::from(self.length)).unwrap_or_default();
        // Only ASCII gets through `parse`.
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

impl fmt::Display for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// See [`Processor::parse`].
fn is_well_formed(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("gfx") else { return false };
    let decimal = |part: &str, longest: usize| {
        (1..=longest).contains(&part.len())
            && part.bytes().all(|byte| byte.is_ascii_digit())
            && !part.starts_with('0')
    };
    if let Some(version) = rest.strip_suffix("-generic") {
        return match version.split_once('-') {
            // A minor version of 0 would be a well-formed number, but LLVM never writes it.
            Some((major, minor)) => decimal(major, 2) && decimal(minor, 1),
            None => decimal(version, 2),
        };
    }
    let version = rest.strip_suffix("-strict").unwrap_or(rest);
    let Some((major, rest)) = version.len().checked_sub(2).and_then(|at| version.split_at_checked(at)) else {
        return false;
    };
    decimal(major, 2) && rest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The feature part of a target ID. `None` means "any": such code runs with the feature on or off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Features {
    /// `:sramecc+` or `:sramecc-`.
    pub sramecc: Option<bool>,
    /// `:xnack+` or `:xnack-`.
    pub xnack: Option<bool>,
}

impl Features {
    /// No feature named.
    pub const NONE: Self = Self { sramecc: None, xnack: None };

    /// All nine combinations, in ascending order.
    pub fn all() -> impl Iterator<Item = Self> {
        let settings = [None, Some(false), Some(true)];
        settings
            .into_iter()
            .flat_map(move |sramecc| settings.into_iter().map(move |xnack| Self { sramecc, xnack }))
    }

    /// Takes every feature off the end of `text`, where each one is introduced by `separator`. Returns what
    /// is left in front.
    fn strip_from(text: &str, separator: char) -> Result<(&str, Self)> {
        let mut features = Self::NONE;
        let mut rest = text;
        loop {
            // The sign is cut off before the search, as it can be the separator itself.
            let (body, on) = match (rest.strip_suffix('+'), rest.strip_suffix('-')) {
                (Some(body), _) => (body, true),
                (_, Some(body)) => (body, false),
                _ => break,
            };
            let Some((front, name)) = body.rsplit_once(separator) else { break };
            let setting = match name {
                "sramecc" => &mut features.sramecc,
                "xnack" => &mut features.xnack,
                _ => return Err(malformed(text, &format!("has the unknown feature {name:?}"))),
            };
            if setting.replace(on).is_some() {
                return Err(malformed(text, &format!("names the feature {name} twice")));
            }
            rest = front;
        }
        Ok((rest, features))
    }

    /// Whether no feature is named.
    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }

    /// Whether code for these features runs on an agent with the features `agent`: all that is named here is
    /// named there with the same sign.
    pub fn is_subset_of(self, agent: Self) -> bool {
        let fits = |own: Option<bool>, other: Option<bool>| own.is_none() || own == other;
        fits(self.sramecc, agent.sramecc) && fits(self.xnack, agent.xnack)
    }

    /// The features named here or there, or `None` if one of them is on here and off there.
    pub fn union(self, other: Self) -> Option<Self> {
        let join = |own: Option<bool>, other: Option<bool>| match (own, other) {
            (Some(own), Some(other)) if own != other => None,
            (own, other) => Some(own.or(other)),
        };
        Some(Self { sramecc: join(self.sramecc, other.sramecc)?, xnack: join(self.xnack, other.xnack)? })
    }

    /// Every subset, most specific first, in the order in which the loader tries them: with both, `sramecc`
    /// alone, `xnack` alone, none.
    pub fn subsets(self) -> impl Iterator<Item = Self> {
        let sramecc = Self { xnack: None, ..self };
        let xnack = Self { sramecc: None, ..self };
        [
            Some(self),
            Some(sramecc).filter(|&subset| subset != self),
            Some(xnack).filter(|&subset| subset != self && subset != sramecc),
            Some(Self::NONE).filter(|&subset| subset != sramecc && subset != xnack),
        ]
        .into_iter()
        .flatten()
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, setting) in [("sramecc", self.sramecc), ("xnack", self.xnack)] {
            match setting {
                Some(true) => write!(f, ":{name}+")?,
                Some(false) => write!(f, ":{name}-")?,
                None => {}
            }
        }
        Ok(())
    }
}

/// A target ID. Ordered by processor, then by features.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetId {
    /// The processor.
    pub processor: Processor,
    /// The features that the code is specific to.
    pub features: Features,
}

impl TargetId {
    /// Parses `gfx90a:sramecc+:xnack-` or the hyphen form `gfx90a-sramecc+-xnack-`, features in any order.
    ///
    /// # Errors
    /// A [`Fault`] of kind `Malformed` that quotes `text`, for everything else.
    pub fn parse(text: &str) -> Result<Self> {
        let separator = if text.contains(':') { ':' } else { '-' };
        let (processor, features) = Features::strip_from(text, separator)?;
        match Processor::parse(processor) {
            Ok(processor) => Ok(Self { processor, features }),
            Err(_) => Err(malformed(text, "is no AMD GPU target ID (gfx942, gfx90a:xnack+, gfx9-4-generic)")),
        }
    }

    /// The target IDs that an agent with this ISA accepts, most specific first, in the loader's order.
    pub fn subsets(self) -> impl Iterator<Item = Self> {
        self.features.subsets().map(move |features| Self { features, ..self })
    }
}

impl fmt::Display for TargetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.processor.as_str(), self.features)
    }
}

impl fmt::Debug for TargetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for TargetId {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

fn malformed(text: &str, what: &str) -> Fault {
    Fault::malformed("target ID", None, format!("{text:?} {what}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn target(text: &str) -> TargetId {
        TargetId::parse(text).unwrap()
    }

    #[test]
    fn well_formed_processors() {
        for name in [
            "gfx801",
            "gfx90a",
            "gfx90c",
            "gfx942",
            "gfx1036",
            "gfx1171",
            "gfx1250",
            "gfx1250-strict",
            "gfx9-generic",
            "gfx11-generic",
            "gfx9-4-generic",
            "gfx12-5-generic",
        ] {
            assert_eq!(Processor::parse(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn malformed_processors() {
        for name in [
            "",
            "gfx",
            "gfx9",
            "gfx90",
            "gfxzzz",
            "gfx90A",
            "GFX90a",
            "gfx90g",
            "gfx11001",
            "gfx942130",
            "gfx-generic",
            "gfx9-4-1-generic",
            "gfx9--generic",
            "gfx9-a-generic",
            "gfx123-generic",
            "gfx90a-generic-strict",
            "gfx942-",
            "gfx012",
            "sm_80",
            "gfx9é",
            "gfx9\0",
            "amdgcnspirv",
        ] {
            assert!(Processor::parse(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn processors_sort_by_name() {
        let mut names = ["gfx942", "gfx11-generic", "gfx90a", "gfx9-4-generic", "gfx1100", "gfx90"];
        let mut processors: Vec<_> = names.iter().filter_map(|name| Processor::parse(name).ok()).collect();
        processors.sort();
        names.sort();
        let sorted: Vec<_> = processors.iter().map(Processor::as_str).collect();
        assert_eq!(sorted, names.iter().filter(|&&name| name != "gfx90").copied().collect::<Vec<_>>());
    }

    #[test]
    fn features_are_normalised() {
        for (text, canonical) in [
            ("gfx90a", "gfx90a"),
            ("gfx90a:xnack-", "gfx90a:xnack-"),
            ("gfx90a:xnack-:sramecc+", "gfx90a:sramecc+:xnack-"),
            ("gfx90a-xnack+", "gfx90a:xnack+"),
            ("gfx90a-xnack-", "gfx90a:xnack-"),
            ("gfx908-sramecc--xnack-", "gfx908:sramecc-:xnack-"),
            ("gfx9-4-generic:sramecc+", "gfx9-4-generic:sramecc+"),
            ("gfx9-4-generic-xnack-", "gfx9-4-generic:xnack-"),
            ("gfx1250-strict-xnack+", "gfx1250-strict:xnack+"),
        ] {
            assert_eq!(target(text).to_string(), canonical);
        }
    }

    #[test]
    fn malformed_target_ids() {
        for text in [
            "gfx90a:",
            "gfx90a:xnack",
            "gfx90a::xnack+",
            "gfx90a:xnack+:xnack+",
            "gfx90a:xnack+:xnack-",
            "gfx90a:wgp+",
            ":xnack+",
            "gfx90a-xnack+:sramecc+",
            "gfx90a xnack+",
            "gfx90a+",
            "gfx90a:+",
            "-",
            "+",
            ":",
        ] {
            let fault = TargetId::parse(text).unwrap_err();
            assert!(fault.message.contains(&format!("{text:?}")), "{fault}");
        }
    }

    #[test]
    fn subsets_in_the_loaders_order() {
        let subsets =
            |text: &str| target(text).subsets().map(|subset| subset.to_string()).collect::<Vec<_>>();
        assert_eq!(
            subsets("gfx90a:sramecc+:xnack-"),
            ["gfx90a:sramecc+:xnack-", "gfx90a:sramecc+", "gfx90a:xnack-", "gfx90a"]
        );
        assert_eq!(subsets("gfx90a:xnack+"), ["gfx90a:xnack+", "gfx90a"]);
        assert_eq!(subsets("gfx90a:sramecc-"), ["gfx90a:sramecc-", "gfx90a"]);
        assert_eq!(subsets("gfx1100"), ["gfx1100"]);
    }

    #[test]
    fn unions() {
        let features = |text: &str| target(&format!("gfx90a{text}")).features;
        let union = |a: &str, b: &str| features(a).union(features(b));
        assert_eq!(union(":sramecc+", ":xnack-"), Some(features(":sramecc+:xnack-")));
        assert_eq!(union(":xnack+", ""), Some(features(":xnack+")));
        assert_eq!(union(":xnack+", ":xnack-"), None);
        assert_eq!(union(":sramecc+:xnack+", ":xnack+"), Some(features(":sramecc+:xnack+")));
    }

    #[test]
    fn a_target_id_is_small() {
        assert!(size_of::<TargetId>() <= 18);
    }

    proptest! {
        #[test]
        fn subsets_are_exactly_the_subsets(index in 0_usize..9) {
            let agent = Features::all().nth(index).unwrap();
            let mut listed: Vec<_> = agent.subsets().collect();
            listed.sort();
            let subsets: Vec<_> = Features::all().filter(|features| features.is_subset_of(agent)).collect();
            prop_assert_eq!(listed, subsets);
        }

        #[test]
        fn parse_undoes_display(
            name in "gfx([1-9][0-9]?[0-9a-f]{2}(-strict)?|[1-9][0-9]?(-[1-9])?-generic)",
            index in 0_usize..9,
        ) {
            let id = TargetId { processor: Processor::parse(&name).unwrap(), features: Features::all().nth(index).unwrap() };
            prop_assert_eq!(target(&id.to_string()), id);
            prop_assert_eq!(target(&id.to_string().replace(':', "-")), id);
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "(gfx)?[0-9a-f:+xnackgeri-]{0,30}|\\PC{0,30}") {
            if let Ok(id) = TargetId::parse(&text) {
                prop_assert_eq!(target(&id.to_string()), id);
            }
        }
    }
}

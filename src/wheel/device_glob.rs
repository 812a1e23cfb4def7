//! `--device-files` patterns: globs with `{arch}`, such as `hsa/{arch}/*.co`.
//!
//! | pattern | matches |
//! |---|---|
//! | `*` | any characters but `/` |
//! | `?` | one character but `/` |
//! | `**/` at the start of a component | any number of directories, also none |
//! | `/**` at the end | everything below |
//! | `{arch}` | an architecture: `gfx[0-9]+[a-z]*`, maybe `-strict`, maybe `-xnack+` or `-xnack-` |
//! | `{co,hsaco}` | one of these |
//! | anything else | itself |
//!
//! The pattern has to match the whole path, which is relative to the overlay root. Where `{arch}` occurs more than
//! once, all have to be the same architecture. An architecture is never cut short to make a pattern match, except
//! that `-strict` and the feature may be left to the rest of the pattern.
//!
//! Not globset: it matches but does not capture, and the capture is the point.
//!
//! Cost: proportional to pattern length times path length for each architecture in the path.

use crate::fault::{Fault, Result};
use crate::wheel::database::arch_ends;

/// `{a,b}` multiplies patterns; more than this is surely a mistake.
const MAX_ALTERNATIVES: usize = 64;

/// A parsed pattern.
#[derive(Clone, Debug)]
pub struct DeviceGlob {
    /// One token list per combination of alternatives.
    alternatives: Vec<Vec<Token>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Byte(u8),
    /// `?`
    One,
    /// `*`
    Star,
    /// `**/`: nothing, or anything that ends in a slash.
    Directories,
    /// `**` at the end: everything.
    Rest,
    Arch,
}

impl DeviceGlob {
    /// Parses a pattern.
    ///
    /// # Errors
    /// Malformed without `{arch}` in every alternative, with unbalanced braces, with `**` that is not a component
    /// of its own, with `[` or `\` (which other globs give a meaning), or with too many alternatives.
    pub fn parse(pattern: &str) -> Result<Self> {
        let fail =
            |message: &str| Fault::malformed("--device-files", None, format!("{pattern:?}: {message}"));
        if pattern.contains(['[', '\\']) {
            return Err(fail("character classes and escapes are not supported"));
        }
        let mut expanded = vec![String::new()];
        let mut rest = pattern;
        while let Some((before, brace)) = rest.split_once('{') {
            let (inside, after) = brace.split_once('}').ok_or_else(|| fail("`{` without `}`"))?;
            if inside.contains('{') || before.contains('}') {
                return Err(fail("braces do not nest"));
            }
            // `{arch}` is marked by a byte that no path has.
            let choices: Vec<&str> = if inside == "arch" { vec!["\0"] } else { inside.split(',').collect() };
            expanded = expanded
                .iter()
                .flat_map(|start| choices.iter().map(move |choice| format!("{start}{before}{choice}")))
                .take(MAX_ALTERNATIVES + 1)
                .collect();
            if expanded.len() > MAX_ALTERNATIVES {
                return Err(fail("too many alternatives"));
            }
            rest = after;
        }
        if rest.contains('}') {
            return Err(fail("`}` without `{`"));
        }
        if pattern.contains('\0') {
            return Err(fail("a zero byte"));
        }
        let mut alternatives = Vec::new();
        for text in &expanded {
            let tokens = tokens(&format!("{text}{rest}")).map_err(fail)?;
            if !tokens.contains(&Token::Arch) {
                return Err(fail("no `{arch}`, so nothing says whose files these are"));
            }
            alternatives.push(tokens);
        }
        Ok(Self { alternatives })
    }

    /// The architecture of `path`, as written there, if the pattern matches.
    pub fn capture<'p>(&self, path: &'p str) -> Option<&'p str> {
        let mut tried: Vec<&str> = Vec::new();
        for (start, _) in path.match_indices("gfx") {
            let rest = path.get(start..)?;
            for arch in arch_ends(rest).filter_map(|end| rest.get(..end)) {
                if tried.contains(&arch) {
                    continue;
                }
                tried.push(arch);
                if self.alternatives.iter().any(|tokens| matches(tokens, path.as_bytes(), arch.as_bytes())) {
                    return Some(arch);
                }
            }
        }
        None
    }
}

fn tokens(pattern: &str) -> Result<Vec<Token>, &'static str> {
    let mut tokens = Vec::new();
    let mut rest = pattern;
    while let Some(byte) = rest.bytes().next() {
        let component_start = matches!(tokens.last(), None | Some(Token::Byte(b'/') | Token::Directories));
        let (token, len) = match byte {
            b'*' if rest.starts_with("**") => match rest.get(2..) {
                Some("") if component_start => (Token::Rest, 2),
                Some(after) if component_start && after.starts_with('/') => (Token::Directories, 3),
                _ => return Err("`**` has to be a path component of its own"),
            },
            b'*' => (Token::Star, 1),
            b'?' => (Token::One, 1),
            0 => (Token::Arch, 1),
            byte => {
                // Bytes of a multi-byte character one by one: they only ever match themselves.
                let character = rest.chars().next().map_or(1, char::len_utf8);
                tokens.push(Token::Byte(byte));
                tokens.extend(rest.bytes().take(character).skip(1).map(Token::Byte));
                rest = rest.get(character..).unwrap_or_default();
                continue;
            }
        };
        tokens.push(token);
        rest = rest.get(len..).unwrap_or_default();
    }
    Ok(tokens)
}

/// True if `tokens` match all of `path`, with `arch` for `{arch}`. Keeps the set of path offsets that a prefix of
/// the pattern can reach, so that no pattern takes exponential time.
fn matches(tokens: &[Token], path: &[u8], arch: &[u8]) -> bool {
    let mut reached = vec![false; path.len() + 1];
    if let Some(start) = reached.first_mut() {
        *start = true;
    }
    for token in tokens {
        let mut next = vec![false; path.len() + 1];
        let mut set = |offset: usize| {
            if let Some(slot) = next.get_mut(offset) {
                *slot = true;
            }
        };
        let mut open = false;
        for (offset, is_reached) in reached.iter().enumerate() {
            let byte = path.get(offset).copied();
            match token {
                Token::Byte(expected) if *is_reached && byte == Some(*expected) => set(offset + 1),
                Token::One if *is_reached && byte.is_some_and(|byte| byte != b'/' && byte < 0x80) => {
                    set(offset + 1)
                }
                // One character, not one byte of it.
                Token::One if *is_reached && byte.is_some_and(|byte| byte >= 0xc0) => {
                    let tail = path.get(offset + 1..).unwrap_or_default();
                    set(offset + 1 + tail.iter().take_while(|byte| (0x80..0xc0).contains(*byte)).count());
                }
                Token::Arch
                    if *is_reached && path.get(offset..).is_some_and(|rest| rest.starts_with(arch)) =>
                {
                    set(offset + arch.len());
                }
                Token::Star => {
                    open |= is_reached;
                    if open {
                        set(offset);
                    }
                    open &= byte != Some(b'/');
                }
                Token::Directories => {
                    let after_slash = offset > 0 && path.get(offset - 1) == Some(&b'/');
                    if *is_reached || (open && after_slash) {
                        set(offset);
                    }
                    open |= is_reached;
                }
                Token::Rest => {
                    open |= is_reached;
                    if open {
                        set(offset);
                    }
                }
                _ => {}
            }
        }
        reached = next;
    }
    reached.last() == Some(&true)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn capture<'p>(pattern: &str, path: &'p str) -> Option<&'p str> {
        DeviceGlob::parse(pattern).unwrap().capture(path)
    }

    #[test]
    fn captures_the_architecture() {
        for (pattern, path, arch) in [
            ("hsa/{arch}/*.co", "hsa/gfx942/fmha.co", Some("gfx942")),
            ("hsa/{arch}/*.co", "hsa/gfx942/a/fmha.co", None),
            ("hsa/{arch}/*.co", "x/hsa/gfx942/fmha.co", None),
            ("hsa/{arch}/*.co", "hsa/gfx942/fmha.com", None),
            ("hsa/{arch}/**", "hsa/gfx942/a/b.csv", Some("gfx942")),
            ("**/{arch}/*.{co,hsaco}", "gfx90a/x.hsaco", Some("gfx90a")),
            ("**/{arch}/*.{co,hsaco}", "a/b/gfx90a/x.co", Some("gfx90a")),
            ("**/{arch}/*.{co,hsaco}", "a/bgfx90a/x.co", None),
            ("lib/*_{arch}.so", "lib/libx_gfx90a-xnack-.so", Some("gfx90a-xnack-")),
            ("lib/*_{arch}-xnack-.so", "lib/libx_gfx90a-xnack-.so", Some("gfx90a")),
            ("{arch}*", "gfx1250-strict_x", Some("gfx1250-strict")),
            // The architecture is what is there, never a part of it.
            ("{arch}?.co", "gfx942.co", None),
            ("{arch}/{arch}.co", "gfx942/gfx942.co", Some("gfx942")),
            ("{arch}/{arch}.co", "gfx942/gfx950.co", None),
            ("*/{arch}.co", "gfx942/gfx950.co", Some("gfx950")),
            ("?/{arch}", "\u{e9}/gfx942", Some("gfx942")),
            ("??/{arch}", "\u{e9}/gfx942", None),
            ("{arch}", "gfx", None),
        ] {
            assert_eq!(capture(pattern, path), arch, "{pattern} {path}");
        }
    }

    #[test]
    fn bad_patterns_are_refused() {
        for (pattern, why) in [
            ("hsa/*.co", "no `{arch}`"),
            ("{{arch},x}", "nest"),
            ("{{arch,x}/y", "nest"),
            ("{arch", "without `}`"),
            ("arch}{arch}", "nest"),
            ("{arch}}", "without `{`"),
            ("{arch}/a**", "component"),
            ("**a/{arch}", "component"),
            ("[ab]/{arch}", "classes"),
            ("{x,y}/\0", "zero byte"),
            ("{arch}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}", "too many"),
        ] {
            let fault = DeviceGlob::parse(pattern).unwrap_err();
            assert!(fault.message.contains(why), "{pattern}: {fault}");
        }
    }

    #[test]
    fn many_stars_stay_fast() {
        let pattern = format!("{}{{arch}}x", "*a".repeat(200));
        assert_eq!(capture(&pattern, &format!("{}gfx942", "a".repeat(2000))), None);
    }

    proptest! {
        /// The state set agrees with the obvious recursive definition.
        #[test]
        fn agrees_with_the_definition(pattern in "(\\*|\\?|a|/|\\*\\*/|\\{arch\\}){0,7}", path in "(a|/|gfx9){0,8}") {
            fn naive(tokens: &[Token], path: &[u8]) -> bool {
                let Some((token, rest)) = tokens.split_first() else { return path.is_empty() };
                match token {
                    Token::Byte(byte) => path.first() == Some(byte) && naive(rest, &path[1..]),
                    Token::One => path.first().is_some_and(|byte| *byte != b'/') && naive(rest, &path[1..]),
                    Token::Arch => path.starts_with(b"gfx9") && naive(rest, &path[4..]),
                    Token::Star => (0..=path.len())
                        .take_while(|len| !path[..*len].contains(&b'/'))
                        .any(|len| naive(rest, &path[len..])),
                    Token::Directories => (0..=path.len())
                        .filter(|len| *len == 0 || path[len - 1] == b'/')
                        .any(|len| naive(rest, &path[len..])),
                    Token::Rest => true,
                }
            }
            if let Ok(glob) = DeviceGlob::parse(&pattern) {
                prop_assert_eq!(
                    matches(&glob.alternatives[0], path.as_bytes(), b"gfx9"),
                    naive(&glob.alternatives[0], path.as_bytes())
                );
            }
        }
    }
}

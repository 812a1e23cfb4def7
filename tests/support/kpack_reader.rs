//! Reads kpack archives as the runtime does: MessagePack, frames, and the loader's search. Written from the format's
//! description, with no code of `fatwheel::kpack` in it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// A decoded archive.
#[derive(Clone, Debug)]
pub struct Kpack {
    pub toc: Value,
    /// Stored code objects by ordinal, decompressed.
    pub objects: Vec<Vec<u8>>,
}

impl Kpack {
    /// Decodes an archive and checks its structure: header, padding, frames that carry their size, nothing left over.
    pub fn parse(bytes: &[u8]) -> Self {
        assert_eq!(&bytes[..8], b"KPAK\x01\0\0\0");
        let toc_at = word(bytes, 8) as usize;
        assert!(bytes[16..64].iter().all(|&byte| byte == 0), "padding of the header");
        let (toc, rest) = unpack(&bytes[toc_at..]);
        assert!(rest.is_empty(), "{} bytes behind the table of contents", rest.len());
        assert_eq!(toc["format_version"], 1);
        let objects = match toc["compression_scheme"].as_str().unwrap() {
            "zstd-per-kernel" => {
                assert_eq!(toc["zstd_offset"], 64);
                let end = 64 + toc["zstd_size"].as_u64().unwrap() as usize;
                assert!(end <= toc_at);
                frames(&bytes[64..end])
            }
            "none" => {
                let blobs = toc["blobs"].as_array().unwrap();
                let range = |blob: &Value| {
                    let start = blob["offset"].as_u64().unwrap() as usize;
                    start..start + blob["size"].as_u64().unwrap() as usize
                };
                assert!(blobs.iter().all(|blob| range(blob).start >= 64 && range(blob).end <= toc_at));
                blobs.iter().map(|blob| bytes[range(blob)].to_vec()).collect()
            }
            other => panic!("compression scheme {other}"),
        };
        let kpack = Self { toc, objects };
        let mut used = vec![false; kpack.objects.len()];
        for targets in kpack.toc["toc"].as_object().unwrap().values() {
            for (target, entry) in targets.as_object().unwrap() {
                assert!(kpack.arches().contains(&target.as_str()), "{target} is not among the arches");
                assert_eq!(entry["type"], "hsaco");
                let ordinal = entry["ordinal"].as_u64().unwrap() as usize;
                assert_eq!(entry["original_size"], kpack.objects[ordinal].len());
                used[ordinal] = true;
            }
        }
        assert!(used.iter().all(|&used| used), "a code object that no entry names");
        kpack
    }

    pub fn arches(&self) -> Vec<&str> {
        self.toc["gfx_arches"].as_array().unwrap().iter().map(|arch| arch.as_str().unwrap()).collect()
    }

    /// Keys of the table of contents.
    pub fn keys(&self) -> Vec<&str> {
        self.toc["toc"].as_object().unwrap().keys().map(String::as_str).collect()
    }

    /// The code object for a key and a target, and its ordinal.
    pub fn get(&self, key: &str, target: &str) -> Option<(usize, &[u8])> {
        let ordinal = self.toc["toc"].get(key)?.get(target)?["ordinal"].as_u64()? as usize;
        Some((ordinal, &self.objects[ordinal]))
    }
}

fn frames(blob: &[u8]) -> Vec<Vec<u8>> {
    let count = u32::from_le_bytes(blob[..4].try_into().unwrap());
    let mut rest = &blob[4..];
    let objects = (0..count)
        .map(|ordinal| {
            let size = u32::from_le_bytes(rest[..4].try_into().unwrap()) as usize;
            let frame = &rest[4..4 + size];
            rest = &rest[4 + size..];
            let content = zstd::zstd_safe::get_frame_content_size(frame).unwrap();
            let content =
                content.unwrap_or_else(|| panic!("frame {ordinal} does not carry its content size"));
            assert_eq!(
                zstd::zstd_safe::find_frame_compressed_size(frame),
                Ok(size),
                "one frame per code object"
            );
            let object = zstd::decode_all(frame).unwrap();
            assert_eq!(object.len() as u64, content);
            object
        })
        .collect();
    assert!(rest.is_empty(), "zstd_size is {} bytes too large", rest.len());
    objects
}

/// Target IDs that an agent accepts, most specific first, in the order of the shipped loader.
pub fn accepted(isa: &str) -> Vec<String> {
    let parts: Vec<&str> = isa.split(':').collect();
    let features = &parts[1..];
    (0..1usize << features.len())
        .rev()
        .map(|mask| {
            let kept = features
                .iter()
                .enumerate()
                .filter(|(index, _)| mask >> (features.len() - 1 - index) & 1 == 1);
            kept.fold(parts[0].to_owned(), |id, (_, feature)| format!("{id}:{feature}"))
        })
        .collect()
}

/// What the shipped loader finds for an exact ISA: it opens the archives that exist under the names of the accepted
/// targets, and commits to the first one that lists an accepted target, even if the key is missing there.
pub fn shipped_loader<'k>(
    kpacks: &'k BTreeMap<String, Kpack>,
    prefix: &str,
    key: &str,
    isa: &str,
) -> Option<&'k [u8]> {
    let accepted = accepted(isa);
    let archives: Vec<&Kpack> =
        accepted.iter().filter_map(|target| kpacks.get(&format!("{prefix}_{target}.kpack"))).collect();
    for target in &accepted {
        if let Some(archive) = archives.iter().find(|archive| archive.arches().contains(&target.as_str())) {
            return archive.get(key, target).map(|(_, object)| object);
        }
    }
    None
}

/// What the newer loader finds: as above, but a missing key makes it go on.
pub fn newer_loader<'k>(
    kpacks: &'k BTreeMap<String, Kpack>,
    prefix: &str,
    key: &str,
    isa: &str,
) -> Option<&'k [u8]> {
    let accepted = accepted(isa);
    let archives: Vec<&Kpack> =
        accepted.iter().filter_map(|target| kpacks.get(&format!("{prefix}_{target}.kpack"))).collect();
    accepted
        .iter()
        .flat_map(|target| archives.iter().map(move |archive| (archive, target)))
        .find_map(|(archive, target)| archive.get(key, target).map(|(_, object)| object))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// The MessagePack value at the start of `bytes`, and what follows it. Only the types that kpack uses.
pub fn unpack(bytes: &[u8]) -> (Value, &[u8]) {
    let (&tag, rest) = bytes.split_first().unwrap();
    let number = |length: usize| {
        let value = rest[..length].iter().fold(0u64, |value, &byte| value << 8 | u64::from(byte));
        (value, &rest[length..])
    };
    let text = |(length, rest): (u64, &'_ [u8])| {
        let (text, _) = rest.split_at(length as usize);
        (Value::from(std::str::from_utf8(text).unwrap()), length as usize)
    };
    match tag {
        0..=0x7f => (tag.into(), rest),
        0x80..=0x8f => map(u64::from(tag & 15), rest),
        0x90..=0x9f => array(u64::from(tag & 15), rest),
        0xa0..=0xbf => {
            let (value, length) = text((u64::from(tag & 31), rest));
            (value, &rest[length..])
        }
        0xcc..=0xcf => {
            let (value, rest) = number(1 << (tag - 0xcc));
            (value.into(), rest)
        }
        0xd9..=0xdb => {
            let (length, rest) = number(1 << (tag - 0xd9));
            let (value, length) = text((length, rest));
            (value, &rest[length..])
        }
        0xdc | 0xdd => {
            let (count, rest) = number(2 << (tag - 0xdc));
            array(count, rest)
        }
        0xde | 0xdf => {
            let (count, rest) = number(2 << (tag - 0xde));
            map(count, rest)
        }
        _ => panic!("MessagePack tag {tag:#x}"),
    }
}

fn array(count: u64, mut rest: &[u8]) -> (Value, &[u8]) {
    let mut items = Vec::new();
    for _ in 0..count {
        let (item, after) = unpack(rest);
        items.push(item);
        rest = after;
    }
    (items.into(), rest)
}

fn map(count: u64, mut rest: &[u8]) -> (Value, &[u8]) {
    let mut items = Map::new();
    for _ in 0..count {
        let (key, after) = unpack(rest);
        let (value, after) = unpack(after);
        assert!(items.insert(key.as_str().unwrap().to_owned(), value).is_none(), "key {key} twice");
        rest = after;
    }
    (items.into(), rest)
}

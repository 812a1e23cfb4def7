//! Opens an output wheel and holds it to every rule that all outputs have to keep: strict zip structure, RECORD
//! complete and right, `.dist-info` last. The zip crate and a record parser of a few lines are the oracles.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::kpack_reader::Kpack;
use super::wheel_builder::record_hash;

/// A member of an output wheel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputMember {
    pub name: String,
    pub data: Vec<u8>,
    pub mode: u32,
    pub stored: bool,
    /// DOS date and time.
    pub when: (u16, u16),
    /// The bytes as they stand in the archive.
    pub packed: Vec<u8>,
}

/// An output wheel, checked.
#[derive(Clone, Debug)]
pub struct Wheel {
    pub path: PathBuf,
    pub bytes: Vec<u8>,
    pub members: Vec<OutputMember>,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

impl Wheel {
    /// Reads a wheel that need not be one of ours.
    pub fn read(path: &Path) -> Self {
        let bytes = fs::read(path).unwrap();
        let mut archive = zip::ZipArchive::new(std::io::Cursor::new(&bytes)).unwrap();
        let members = (0..archive.len())
            .map(|index| {
                let mut file = archive.by_index(index).unwrap();
                let mut data = Vec::new();
                file.read_to_end(&mut data).unwrap(); // checks the CRC
                let start = file.data_start().unwrap() as usize;
                let header = file.header_start() as usize;
                OutputMember {
                    name: file.name().unwrap().into_owned(),
                    data,
                    mode: file.unix_mode().unwrap_or(0),
                    stored: file.compression() == zip::CompressionMethod::Stored,
                    when: (u16_at(&bytes, header + 12), u16_at(&bytes, header + 10)),
                    packed: bytes[start..start + file.compressed_size() as usize].to_vec(),
                }
            })
            .collect();
        Self { path: path.to_owned(), bytes, members }
    }

    /// Reads a wheel that a split wrote, and checks it.
    pub fn open(path: &Path) -> Self {
        let wheel = Self::read(path);
        wheel.check_zip();
        wheel.check_record();
        wheel
    }

    pub fn file_name(&self) -> String {
        self.path.file_name().unwrap().to_str().unwrap().to_owned()
    }

    pub fn names(&self) -> Vec<&str> {
        self.members.iter().map(|member| member.name.as_str()).collect()
    }

    pub fn has(&self, name: &str) -> bool {
        self.members.iter().any(|member| member.name == name)
    }

    pub fn member(&self, name: &str) -> &OutputMember {
        let found = self.members.iter().find(|member| member.name == name);
        found.unwrap_or_else(|| panic!("{} has no {name}, but {:?}", self.file_name(), self.names()))
    }

    pub fn data(&self, name: &str) -> &[u8] {
        &self.member(name).data
    }

    pub fn text(&self, name: &str) -> String {
        String::from_utf8(self.data(name).to_vec()).unwrap()
    }

    pub fn dist_info(&self) -> String {
        let found: BTreeSet<&str> = self
            .members
            .iter()
            .filter_map(|member| member.name.split_once('/'))
            .map(|(top, _)| top)
            .filter(|top| top.ends_with(".dist-info"))
            .collect();
        assert_eq!(found.len(), 1, "{found:?}");
        found.into_iter().next().unwrap().to_owned()
    }

    /// A file of `.dist-info` as text.
    pub fn info(&self, name: &str) -> String {
        self.text(&format!("{}/{name}", self.dist_info()))
    }

    /// Its archives by path.
    pub fn kpacks(&self) -> BTreeMap<String, Kpack> {
        let archives = self.members.iter().filter(|member| member.name.ends_with(".kpack"));
        archives.map(|member| (member.name.clone(), Kpack::parse(&member.data))).collect()
    }

    /// Local headers: no gaps, no data descriptors, equal to the central ones, no superfluous ZIP64 field, names that
    /// can be installed, no name twice.
    fn check_zip(&self) {
        let bytes = &self.bytes;
        let end = bytes.len() - 22;
        assert_eq!(&bytes[end..end + 4], b"PK\x05\x06", "{}: end record, no comment", self.file_name());
        let count = u16_at(bytes, end + 10) as usize;
        assert_eq!(count, self.members.len());
        let directory = u32_at(bytes, end + 16) as usize;
        assert_eq!(directory + u32_at(bytes, end + 12) as usize, end, "no bytes behind the directory");
        let (mut local, mut central) = (0, directory);
        for member in &self.members {
            let name = &member.name;
            assert_eq!(&bytes[central..central + 4], b"PK\x01\x02", "{name}");
            assert_eq!(u32_at(bytes, central + 42) as usize, local, "{name}: a gap before it");
            assert_eq!(&bytes[local..local + 4], b"PK\x03\x04", "{name}");
            // Version, flags, method, time, date, CRC, sizes, name length.
            assert_eq!(
                bytes[local + 4..local + 28],
                bytes[central + 6..central + 30],
                "{name}: headers differ"
            );
            let flags = u16_at(bytes, local + 6);
            assert_eq!(flags, u16::from(!name.is_ascii()) << 11, "{name}: flags");
            let (name_len, extra_len) =
                (u16_at(bytes, local + 26) as usize, u16_at(bytes, local + 28) as usize);
            assert_eq!(&bytes[local + 30..local + 30 + name_len], name.as_bytes());
            for (extra, length) in [
                (local + 30 + name_len, extra_len),
                (central + 46 + name_len, u16_at(bytes, central + 30) as usize),
            ] {
                let mut at = extra;
                while at + 4 <= extra + length {
                    assert_ne!(u16_at(bytes, at), 1, "{name}: a ZIP64 field, although all sizes fit");
                    at += 4 + u16_at(bytes, at + 2) as usize;
                }
                assert_eq!(at, extra + length, "{name}: extra field");
            }
            local += 30 + name_len + extra_len + member.packed.len();
            let [extra_len, comment_len] = [30, 32].map(|at| u16_at(bytes, central + at) as usize);
            central += 46 + name_len + extra_len + comment_len;
            let parts: Vec<&str> = name.trim_end_matches('/').split('/').collect();
            // Only archives per target have a colon, and Windows wheels have none of those.
            let colon = name.contains(':') && !name.ends_with(".kpack");
            assert!(
                !parts.contains(&"..") && !parts.contains(&"") && !name.contains('\\') && !colon,
                "{name}"
            );
        }
        assert_eq!(local, directory, "a gap before the directory");
        let distinct: BTreeSet<&str> = self.names().into_iter().collect();
        assert_eq!(distinct.len(), self.members.len(), "a name occurs twice");
    }

    /// RECORD lists every file with its hash and size, and itself last; `.dist-info` ends the archive.
    fn check_record(&self) {
        let info = format!("{}/", self.dist_info());
        let record_path = format!("{info}RECORD");
        assert_eq!(self.names().last(), Some(&record_path.as_str()), "RECORD is not the last member");
        let first = self.members.iter().position(|member| member.name.starts_with(&info)).unwrap();
        assert!(
            self.members[first..].iter().all(|member| member.name.starts_with(&info)),
            ".dist-info is not last"
        );
        let record = self.text(&record_path);
        let mut listed = BTreeMap::new();
        for line in record.lines() {
            let (path, rest) = match line.strip_prefix('"') {
                Some(quoted) => quoted.split_once("\",").unwrap(),
                None => line.split_once(',').unwrap(),
            };
            assert!(
                listed.insert(path.replace("\"\"", "\""), rest.to_owned()).is_none(),
                "{path} is listed twice"
            );
        }
        for member in self.members.iter().filter(|member| !member.name.ends_with('/')) {
            let row = listed.remove(&member.name).unwrap_or_else(|| panic!("RECORD lacks {}", member.name));
            let right = format!("{},{}", record_hash(&member.data), member.data.len());
            assert_eq!(
                row,
                if member.name == record_path { ",".to_owned() } else { right },
                "{}",
                member.name
            );
        }
        assert!(listed.is_empty(), "RECORD lists {listed:?}");
    }
}

/// SHA-256 in hexadecimal, to compare large files in a message that can be read.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

//! Builds wheels: METADATA, WHEEL and RECORD by default as a packaging tool would, each replaceable by something else.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::zip_builder::{ZipMember, zip};

/// A wheel in the making.
#[derive(Clone, Debug)]
pub struct WheelBuilder {
    name: String,
    version: String,
    build: Option<String>,
    file_tag: String,
    tags: Vec<String>,
    metadata: Option<Vec<u8>>,
    wheel_file: Option<String>,
    members: Vec<ZipMember>,
    /// Members of `.dist-info` besides the three.
    info: Vec<ZipMember>,
    record: Record,
    comment: Vec<u8>,
}

#[derive(Clone, Debug)]
enum Record {
    Right,
    Absent,
    /// The given path's row is wrong.
    WrongFor(String),
    Verbatim(String),
}

/// URL-safe base64 without padding.
pub fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0u32, |word, &byte| word << 8 | u32::from(byte)) << (8 * (3 - chunk.len()));
        for index in 0..=chunk.len() {
            out.push(char::from(ALPHABET[(word >> (18 - 6 * index)) as usize & 63]));
        }
    }
    out
}

/// `sha256=...` as RECORD has it.
pub fn record_hash(bytes: &[u8]) -> String {
    format!("sha256={}", base64(&Sha256::digest(bytes)))
}

impl WheelBuilder {
    pub fn new(name: &str, version: &str) -> Self {
        Self {
            name: name.to_owned(),
            version: version.to_owned(),
            build: None,
            file_tag: "py3-none-linux_x86_64".to_owned(),
            tags: vec!["py3-none-linux_x86_64".to_owned()],
            metadata: None,
            wheel_file: None,
            members: Vec::new(),
            info: Vec::new(),
            record: Record::Right,
            comment: Vec::new(),
        }
    }

    /// Tag part of the file name, and the Tag lines.
    pub fn tags(mut self, file_tag: &str, tags: &[&str]) -> Self {
        file_tag.clone_into(&mut self.file_tag);
        self.tags = tags.iter().map(|&tag| tag.to_owned()).collect();
        self
    }

    pub fn build_tag(mut self, build: &str) -> Self {
        self.build = Some(build.to_owned());
        self
    }

    pub fn metadata(mut self, metadata: impl Into<Vec<u8>>) -> Self {
        self.metadata = Some(metadata.into());
        self
    }

    pub fn wheel_file(mut self, text: &str) -> Self {
        self.wheel_file = Some(text.to_owned());
        self
    }

    /// A file with mode 0644.
    pub fn file(self, path: &str, data: impl Into<Vec<u8>>) -> Self {
        self.member(ZipMember::new(path, data))
    }

    pub fn member(mut self, member: ZipMember) -> Self {
        self.members.push(member);
        self
    }

    /// One more file of `.dist-info`.
    pub fn info(mut self, name: &str, data: impl Into<Vec<u8>>) -> Self {
        let path = format!("{}/{name}", self.dist_info());
        self.info.push(ZipMember::new(&path, data));
        self
    }

    pub fn no_record(mut self) -> Self {
        self.record = Record::Absent;
        self
    }

    /// RECORD has a wrong hash for `path`.
    pub fn wrong_record_for(mut self, path: &str) -> Self {
        self.record = Record::WrongFor(path.to_owned());
        self
    }

    pub fn record(mut self, text: &str) -> Self {
        self.record = Record::Verbatim(text.to_owned());
        self
    }

    pub fn comment(mut self, comment: &[u8]) -> Self {
        comment.clone_into(&mut self.comment);
        self
    }

    pub fn dist_info(&self) -> String {
        format!("{}-{}.dist-info", self.name.replace('-', "_"), self.version)
    }

    pub fn file_name(&self) -> String {
        let build = self.build.as_ref().map(|build| format!("-{build}")).unwrap_or_default();
        format!("{}-{}{build}-{}.whl", self.name.replace('-', "_"), self.version, self.file_tag)
    }

    /// All members in order.
    pub fn members(&self) -> Vec<ZipMember> {
        let info = self.dist_info();
        let mut members = self.members.clone();
        let metadata = self.metadata.clone().unwrap_or_else(|| {
            format!("Metadata-Version: 2.1\nName: {}\nVersion: {}\n", self.name, self.version).into_bytes()
        });
        let wheel_file = self.wheel_file.clone().unwrap_or_else(|| {
            let tags: String = self.tags.iter().map(|tag| format!("Tag: {tag}\n")).collect();
            let build = self.build.as_ref().map(|build| format!("Build: {build}\n")).unwrap_or_default();
            format!("Wheel-Version: 1.0\nGenerator: wheel_builder\nRoot-Is-Purelib: false\n{tags}{build}")
        });
        members.push(ZipMember::new(&format!("{info}/METADATA"), metadata));
        members.push(ZipMember::new(&format!("{info}/WHEEL"), wheel_file));
        members.extend(self.info.clone());
        let record_path = format!("{info}/RECORD");
        let rows: String = members
            .iter()
            .filter(|member| !member.name.ends_with('/'))
            .map(|member| {
                let path = member.name.replace('\\', "/");
                let hashed: &[u8] = match &self.record {
                    Record::WrongFor(wrong) if *wrong == path => b"something else",
                    _ => &member.data,
                };
                let quoted = if path.contains(',') { format!("\"{path}\"") } else { path };
                format!("{quoted},{},{}\n", record_hash(hashed), member.data.len())
            })
            .collect();
        let record = match &self.record {
            Record::Absent => None,
            Record::Verbatim(text) => Some(text.clone()),
            Record::Right | Record::WrongFor(_) => Some(format!("{rows}{record_path},,\n")),
        };
        members.extend(record.map(|record| ZipMember::new(&record_path, record)));
        members
    }

    /// The wheel's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        zip(&self.members(), &self.comment)
    }

    /// Writes the wheel into `directory` under its name.
    pub fn write(&self, directory: &Path) -> PathBuf {
        let path = directory.join(self.file_name());
        fs::write(&path, self.bytes()).unwrap();
        path
    }

    /// Writes the members as files below `directory`, as an installer or `wheel unpack` would.
    #[cfg(unix)]
    pub fn unpack(&self, directory: &Path) {
        use std::os::unix::fs::PermissionsExt as _;
        for member in self.members() {
            let path = directory.join(&member.name);
            if member.name.ends_with('/') {
                fs::create_dir_all(path).unwrap();
                continue;
            }
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            if member.mode & 0o170_000 == 0o120_000 {
                std::os::unix::fs::symlink(String::from_utf8(member.data).unwrap(), path).unwrap();
                continue;
            }
            fs::write(&path, &member.data).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(member.mode & 0o777)).unwrap();
        }
    }
}

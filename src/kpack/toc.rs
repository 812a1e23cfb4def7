//! The table of contents of a kpack archive: a MessagePack map from the end of the blob area to the end of the file.
//!
//! `format_version` 1, `group_name`, `gfx_arch_family`, `gfx_arches`, `toc` {kernel key: {target: {`type`, `ordinal`,
//! `original_size`}}}, `compression_scheme`, then `zstd_offset` and `zstd_size` or `blobs`. Keys are strings, integers
//! have their shortest form, as Python's msgpack writes them.
//!
//! Deterministic: binaries in the order in which they were added, code-object indices ascending, targets as listed.
//!
//! Memory: 24 bytes for each entry; the encoded form is written as it is made, not kept.

use std::io::{self, Write};

use rmp::encode::{write_array_len, write_map_len, write_str, write_uint};

use super::format::{BlobArea, HEADER_LEN, Scheme, VERSION};
use super::kernel_key;
use crate::arch::TargetId;
use crate::fault::{Fault, Result};

/// One entry: the code object `ordinal` answers for a target of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    binary: u32,
    index: u32,
    /// Position in the listed targets.
    target: u32,
    ordinal: u32,
    original_size: u64,
}

impl Entry {
    fn kernel(&self) -> (u32, u32) {
        (self.binary, self.index)
    }
}

/// A table of contents in the making.
#[derive(Clone, Debug)]
pub struct Toc {
    group: String,
    family: String,
    targets: Vec<TargetId>,
    binaries: Vec<String>,
    entries: Vec<Entry>,
}

impl Toc {
    /// An empty one. `family` names the archive (`gfx90a`), `targets` are what it can answer for.
    pub fn new(group: impl Into<String>, family: impl Into<String>, targets: &[TargetId]) -> Self {
        Self {
            group: group.into(),
            family: family.into(),
            targets: targets.to_vec(),
            binaries: Vec::new(),
            entries: Vec::new(),
        }
    }

    /// Adds a binary by its path relative to the overlay root, with forward slashes, and returns its number. Each
    /// path is to be added once.
    pub fn add_binary(&mut self, kernel_name: impl Into<String>) -> u32 {
        self.binaries.push(kernel_name.into());
        // A wheel has fewer members than that.
        u32::try_from(self.binaries.len() - 1).unwrap_or(u32::MAX)
    }

    /// Adds an entry: for the wrapper with the code-object index `index` of `binary`, on `target`, the code object
    /// `ordinal` of `original_size` bytes. Any order will do; several entries may name one ordinal.
    ///
    /// # Errors
    /// A [`Fault`] if the archive does not list `target`: the loader would never ask for the entry.
    pub fn add(
        &mut self,
        binary: u32,
        index: u32,
        target: TargetId,
        ordinal: u32,
        original_size: u64,
    ) -> Result<()> {
        let position = self.targets.iter().position(|&listed| listed == target);
        let Some(position) = position.and_then(|position| u32::try_from(position).ok()) else {
            return Err(self.fault(format!("{target} is not among the targets that the archive lists")));
        };
        self.entries.push(Entry { binary, index, target: position, ordinal, original_size });
        Ok(())
    }

    /// Checks that the table is consistent with itself and with the code objects that were written, and puts it in
    /// order.
    ///
    /// # Errors
    /// A [`Fault`] that names the kernel, if an entry is there twice or names a binary or a code object that does
    /// not exist.
    pub fn finish(mut self, blobs: &BlobArea) -> Result<FinishedToc> {
        self.entries.sort_unstable();
        let odd = self.entries.iter().find(|entry| {
            entry.ordinal >= blobs.count()
                || self.binaries.len() <= usize::try_from(entry.binary).unwrap_or(usize::MAX)
        });
        if let Some(entry) = odd {
            let name = self.key(entry);
            let (ordinal, count) = (entry.ordinal, blobs.count());
            return Err(self.fault(format!("{name} names code object {ordinal}, the archive has {count}")));
        }
        let twice = self.entries.windows(2).find_map(|pair| match pair {
            [a, b] if (a.kernel(), a.target) == (b.kernel(), b.target) => Some(a),
            _ => None,
        });
        if let Some(entry) = twice {
            return Err(self.fault(format!("{} has two entries for one target", self.key(entry))));
        }
        let kernels = self.entries.chunk_by(|a, b| a.kernel() == b.kernel()).count();
        let kernels = u32::try_from(kernels).map_err(|_| self.fault("has too many kernels".into()))?;
        let blobs = Blobs { scheme: blobs.scheme(), len: blobs.len(), list: blobs.blobs().to_vec() };
        Ok(FinishedToc { toc: self, kernels, blobs })
    }

    fn key(&self, entry: &Entry) -> String {
        let binary = usize::try_from(entry.binary).ok().and_then(|binary| self.binaries.get(binary));
        kernel_key(binary.map_or("?", String::as_str), entry.index)
    }

    fn fault(&self, message: String) -> Fault {
        Fault::malformed(format!("table of contents of {}_{}.kpack", self.group, self.family), None, message)
    }
}

/// What a table of contents says about the blob area.
#[derive(Clone, Debug)]
struct Blobs {
    scheme: Scheme,
    len: u64,
    list: Vec<(u64, u64)>,
}

/// A table of contents that is complete and in order.
#[derive(Clone, Debug)]
pub struct FinishedToc {
    toc: Toc,
    /// Number of kernels with at least one entry.
    kernels: u32,
    blobs: Blobs,
}

impl FinishedToc {
    /// Number of kernels with at least one entry.
    pub fn kernels(&self) -> u32 {
        self.kernels
    }

    /// Writes the encoded table in many small pieces; give it a buffer.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { toc, blobs, .. } = self;
        write_map_len(out, if blobs.scheme == Scheme::None { 7 } else { 8 })?;
        write_str(out, "format_version")?;
        write_uint(out, u64::from(VERSION))?;
        write_str(out, "group_name")?;
        write_str(out, &toc.group)?;
        write_str(out, "gfx_arch_family")?;
        write_str(out, &toc.family)?;
        let targets: Vec<String> = toc.targets.iter().map(TargetId::to_string).collect();
        write_str(out, "gfx_arches")?;
        write_array_len(out, length(targets.len())?)?;
        for target in &targets {
            write_str(out, target)?;
        }
        write_str(out, "toc")?;
        self.write_kernels(out, &targets)?;
        write_str(out, "compression_scheme")?;
        write_str(out, blobs.scheme.as_str())?;
        match blobs.scheme {
            Scheme::ZstdPerKernel => {
                write_str(out, "zstd_offset")?;
                write_uint(out, HEADER_LEN)?;
                write_str(out, "zstd_size")?;
                write_uint(out, blobs.len)?;
            }
            Scheme::None => {
                write_str(out, "blobs")?;
                write_array_len(out, length(blobs.list.len())?)?;
                for &(offset, size) in &blobs.list {
                    write_map_len(out, 2)?;
                    write_str(out, "offset")?;
                    write_uint(out, offset)?;
                    write_str(out, "size")?;
                    write_uint(out, size)?;
                }
            }
        }
        Ok(())
    }

    fn write_kernels(&self, out: &mut impl Write, targets: &[String]) -> io::Result<()> {
        write_map_len(out, self.kernels)?;
        for kernel in self.toc.entries.chunk_by(|a, b| a.kernel() == b.kernel()) {
            let key = kernel.first().map(|entry| self.toc.key(entry)).unwrap_or_default();
            write_str(out, &key)?;
            write_map_len(out, length(kernel.len())?)?;
            for entry in kernel {
                let target = usize::try_from(entry.target).ok().and_then(|at| targets.get(at));
                write_str(out, target.map_or("", String::as_str))?;
                write_map_len(out, 3)?;
                write_str(out, "type")?;
                write_str(out, "hsaco")?;
                write_str(out, "ordinal")?;
                write_uint(out, u64::from(entry.ordinal))?;
                write_str(out, "original_size")?;
                write_uint(out, entry.original_size)?;
            }
        }
        Ok(())
    }
}

/// A length as MessagePack has it.
fn length(length: usize) -> io::Result<u32> {
    u32::try_from(length).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "too long for MessagePack"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(texts: &[&str]) -> Vec<TargetId> {
        texts.iter().map(|text| TargetId::parse(text).unwrap()).collect()
    }

    fn encode(toc: Toc, blobs: &BlobArea) -> Vec<u8> {
        let mut bytes = Vec::new();
        toc.finish(blobs).unwrap().write_to(&mut bytes).unwrap();
        bytes
    }

    /// An area with these stored sizes.
    fn area(scheme: Scheme, sizes: &[u64]) -> BlobArea {
        let mut area = BlobArea::new("x.kpack", scheme);
        for &size in sizes {
            area.place(size).unwrap();
        }
        area
    }

    #[test]
    fn golden_zstd() {
        let targets = targets(&["gfx90a", "gfx90a:xnack+"]);
        let mut toc = Toc::new("torch", "gfx90a", &targets);
        let binary = toc.add_binary("lib/a.so");
        toc.add(binary, 1, targets[0], 1, 70_000).unwrap();
        toc.add(binary, 0, targets[1], 0, 300).unwrap();
        toc.add(binary, 0, targets[0], 0, 300).unwrap();
        let bytes = encode(toc, &area(Scheme::ZstdPerKernel, &[100, 200]));
        let expected = b"\x88\xaeformat_version\x01\xaagroup_name\xa5torch\xafgfx_arch_family\xa6gfx90a\
            \xaagfx_arches\x92\xa6gfx90a\xadgfx90a:xnack+\
            \xa3toc\x82\
            \xaalib/a.so#0\x82\xa6gfx90a\x83\xa4type\xa5hsaco\xa7ordinal\x00\xadoriginal_size\xcd\x01\x2c\
            \xadgfx90a:xnack+\x83\xa4type\xa5hsaco\xa7ordinal\x00\xadoriginal_size\xcd\x01\x2c\
            \xaalib/a.so#1\x81\xa6gfx90a\x83\xa4type\xa5hsaco\xa7ordinal\x01\xadoriginal_size\xce\x00\x01\x11\x70\
            \xb2compression_scheme\xafzstd-per-kernel\xabzstd_offset\x40\xa9zstd_size\xcd\x01\x38";
        assert_eq!(bytes.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    #[test]
    fn golden_uncompressed() {
        let targets = targets(&["gfx1100"]);
        let mut toc = Toc::new("x", "gfx1100", &targets);
        let binary = toc.add_binary("_C.so");
        toc.add(binary, 0, targets[0], 1, 9).unwrap();
        let bytes = encode(toc, &area(Scheme::None, &[3, 9]));
        let expected = b"\x87\xaeformat_version\x01\xaagroup_name\xa1x\xafgfx_arch_family\xa7gfx1100\
            \xaagfx_arches\x91\xa7gfx1100\
            \xa3toc\x81\xa7_C.so#0\x81\xa7gfx1100\x83\xa4type\xa5hsaco\xa7ordinal\x01\xadoriginal_size\x09\
            \xb2compression_scheme\xa4none\xa5blobs\x92\
            \x82\xa6offset\x40\xa4size\x03\x82\xa6offset\xcc\x80\xa4size\x09";
        assert_eq!(bytes.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    #[test]
    fn order_of_additions_does_not_matter() {
        let targets = targets(&["gfx942", "gfx942:xnack+", "gfx942:sramecc+"]);
        let mut entries: Vec<_> = (0..300_u32).map(|at| (at / 150, at / 3 % 50, at % 3, at % 40)).collect();
        let encode = |entries: &[(u32, u32, u32, u32)]| {
            let mut toc = Toc::new("x", "gfx942", &targets);
            toc.add_binary("a");
            toc.add_binary("b");
            for &(binary, index, target, ordinal) in entries {
                toc.add(binary, index, targets[target as usize], ordinal, 1).unwrap();
            }
            encode(toc, &area(Scheme::ZstdPerKernel, &[1; 40]))
        };
        let forward = encode(&entries);
        entries.reverse();
        assert!(encode(&entries) == forward);
    }

    #[test]
    fn refusals() {
        let targets = targets(&["gfx942"]);
        let blobs = area(Scheme::ZstdPerKernel, &[1]);
        let mut toc = Toc::new("x", "gfx942", &targets);
        let other = TargetId::parse("gfx942:xnack+").unwrap();
        assert!(toc.add(0, 0, other, 0, 1).unwrap_err().message.contains("gfx942:xnack+ is not among"));
        toc.add(0, 3, targets[0], 0, 1).unwrap();
        assert!(toc.clone().finish(&blobs).unwrap_err().message.contains("?#3"));
        toc.add_binary("a");
        assert_eq!(toc.clone().finish(&blobs).unwrap().kernels(), 1);
        toc.add(0, 3, targets[0], 0, 1).unwrap();
        let fault = toc.clone().finish(&blobs).unwrap_err();
        assert_eq!(
            fault.to_string(),
            "table of contents of x_gfx942.kpack: a#3 has two entries for one target"
        );
        toc.add(0, 4, targets[0], 1, 1).unwrap();
        assert!(
            toc.finish(&blobs).unwrap_err().message.contains("a#4 names code object 1, the archive has 1")
        );
    }
}

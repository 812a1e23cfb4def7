//! RECORD: one CSV row `path,algorithm=digest,size` per file of a wheel (PEP 376 and PEP 427).
//!
//! Read tolerantly: CRLF, quoted paths, rows without digest or size, any algorithm, and the hexadecimal digests
//! that the Python splitter wrote. Written strictly: LF, `sha256=` and URL-safe base64 without padding, quotes
//! only where CSV needs them, RECORD's own row with empty fields and last.

use crate::fault::{Fault, Result};

/// Length of a SHA-256 digest in bytes.
pub const SHA256_LEN: usize = 32;

/// Signatures of RECORD beside it in `.dist-info`. They do not hold for a RECORD that is written anew, and have no
/// digest in it.
pub const SIGNATURES: [&str; 2] = ["RECORD.jws", "RECORD.p7s"];

/// One row as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Path relative to the wheel's top level, as written.
    pub path: String,
    /// Digest, if the row has one.
    pub hash: Option<Hash>,
    /// Size in bytes, if the row has one.
    pub size: Option<u64>,
}

/// A digest and its algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hash {
    /// Lower case: `sha256`, `sha384`, `sha512`, or whatever the row says.
    pub algorithm: String,
    /// The decoded digest, whether it was written as base64 or hexadecimal.
    pub digest: Vec<u8>,
}

/// Parses a RECORD file. A byte order mark at its start is ignored.
///
/// # Errors
/// Malformed, with the offset of the row: a path that is empty or no UTF-8, a hash that is not
/// `algorithm=digest` or does not decode, a size that is no number, more than three fields.
pub fn parse(bytes: &[u8]) -> Result<Vec<Row>> {
    // The CSV reader takes a quote that is never closed for a last field that is very long, and rows would be lost.
    if bytes.iter().filter(|&&byte| byte == b'"').count() % 2 == 1 {
        return Err(Fault::malformed("rows", None, "a quoted field is not closed"));
    }
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(bytes);
    let mut rows = Vec::new();
    let mut record = csv::ByteRecord::new();
    loop {
        let offset = reader.position().byte();
        let fault = |message: String| Fault::malformed("rows", offset, message);
        match reader.read_byte_record(&mut record) {
            Ok(true) => {}
            Ok(false) => return Ok(rows),
            Err(error) => return Err(fault(error.to_string())),
        }
        if record.len() > 3 {
            return Err(fault(format!("row of {} fields, expected path, hash and size", record.len())));
        }
        let field = |index: usize| {
            let bytes = record.get(index).unwrap_or_default();
            std::str::from_utf8(bytes).map_err(|_| fault(format!("field {} is no UTF-8", index + 1)))
        };
        let path = field(0)?;
        if path.is_empty() {
            return Err(fault("row without a path".into()));
        }
        let hash = field(1)?;
        let hash = if hash.is_empty() {
            None
        } else {
            let parsed = Hash::parse(hash);
            Some(parsed.ok_or_else(|| fault(format!("{path:?}: hash {hash:?}, expected algorithm=digest")))?)
        };
        let size = field(2)?;
        let size = if size.is_empty() {
            None
        } else {
            let parsed = size.parse().ok();
            Some(parsed.ok_or_else(|| fault(format!("{path:?}: size {size:?}, expected a number")))?)
        };
        rows.push(Row { path: path.to_owned(), hash, size });
    }
}

impl Hash {
    fn parse(text: &str) -> Option<Self> {
        let (algorithm, digest) = text.split_once('=')?;
        if algorithm.is_empty() || digest.is_empty() {
            return None;
        }
        let algorithm = algorithm.to_ascii_lowercase();
        let length = match algorithm.as_str() {
            "sha256" => Some(SHA256_LEN),
            "sha384" => Some(48),
            "sha512" => Some(64),
            _ => None,
        };
        // No base64 digest is as long as a hexadecimal one of the same algorithm, so the length decides.
        let digest = match length {
            Some(length) if digest.len() == 2 * length => hex_decode(digest)?,
            _ => base64_decode(digest)?,
        };
        if length.is_some_and(|length| length != digest.len()) {
            return None;
        }
        Some(Self { algorithm, digest })
    }
}

/// Collects the rows of a RECORD in the order in which files are written.
#[derive(Clone, Debug, Default)]
pub struct RecordWriter {
    text: String,
}

impl RecordWriter {
    /// A RECORD without rows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the row of a file of `size` bytes.
    pub fn push(&mut self, path: &str, sha256: &[u8; SHA256_LEN], size: u64) {
        self.push_path(path);
        self.text.push_str(",sha256=");
        base64_encode(sha256, &mut self.text);
        self.text.push_str(&format!(",{size}\n"));
    }

    /// Adds RECORD's own row and returns the file. `record_path` is its path in the wheel.
    pub fn finish(mut self, record_path: &str) -> Vec<u8> {
        self.push_path(record_path);
        self.text.push_str(",,\n");
        self.text.into_bytes()
    }

    fn push_path(&mut self, path: &str) {
        if path.contains([',', '"', '\r', '\n']) {
            self.text.push('"');
            self.text.push_str(&path.replace('"', "\"\""));
            self.text.push('"');
        } else {
            self.text.push_str(path);
        }
    }
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Appends URL-safe base64 without padding (RFC 4648 section 5).
fn base64_encode(bytes: &[u8], out: &mut String) {
    for chunk in bytes.chunks(3) {
        let group =
            chunk.iter().fold(0u32, |group, byte| group << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for index in 0..=chunk.len() {
            let sextet = group >> (18 - 6 * index) & 0x3f;
            out.extend(BASE64.get(sextet as usize).copied().map(char::from));
        }
    }
}

/// Decodes URL-safe or standard base64 with or without padding.
fn base64_decode(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    let mut out = Vec::with_capacity(text.len() * 3 / 4);
    for chunk in text.as_bytes().chunks(4) {
        let mut group = 0u32;
        for byte in chunk {
            let sextet = match byte {
                b'+' => 62,
                b'/' => 63,
                byte => u32::try_from(BASE64.iter().position(|known| known == byte)?).ok()?,
            };
            group = group << 6 | sextet;
        }
        group <<= 6 * (4 - chunk.len());
        // A single leftover character holds less than a byte.
        let bytes = chunk.len().checked_sub(1).filter(|bytes| *bytes > 0)?;
        out.extend_from_slice(group.to_be_bytes().get(1..=bytes)?);
    }
    Some(out)
}

fn hex_decode(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    text.as_bytes()
        .chunks(2)
        .map(|pair| match pair {
            [high, low] => Some(digit(high)? << 4 | digit(low)?),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn base64_test_vectors() {
        // RFC 4648 section 10, and both characters that differ from standard base64.
        for (bytes, text) in [
            (&b""[..], ""),
            (b"f", "Zg"),
            (b"fo", "Zm8"),
            (b"foo", "Zm9v"),
            (b"foob", "Zm9vYg"),
            (b"\xfb\xff\xbf", "-_-_"),
        ] {
            let mut out = String::new();
            base64_encode(bytes, &mut out);
            assert_eq!(out, text);
            assert_eq!(base64_decode(text).unwrap(), bytes);
        }
        assert_eq!(base64_decode("+/+/").unwrap(), b"\xfb\xff\xbf");
        assert_eq!(base64_decode("Zg==").unwrap(), b"f");
        assert_eq!(base64_decode("Z"), None);
        assert_eq!(base64_decode("Zg*="), None);
    }

    #[test]
    fn writes_the_digest_of_the_empty_file_as_everyone_does() {
        let mut record = RecordWriter::new();
        let empty: [u8; 32] = hex_decode("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
            .unwrap()
            .try_into()
            .unwrap();
        record.push("a/__init__.py", &empty, 0);
        record.push("a/x,\"y\".py", &empty, 5_000_000_000);
        assert_eq!(
            String::from_utf8(record.finish("a-1.dist-info/RECORD")).unwrap(),
            "a/__init__.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n\
             \"a/x,\"\"y\"\".py\",sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,5000000000\n\
             a-1.dist-info/RECORD,,\n"
        );
    }

    #[test]
    fn reads_what_is_in_the_wild() {
        let hex = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let sha384 = "OLBgp1GsljhM2TJ-sbHjaiH9txEUvgdDTAzHv2P24donTt6_529l-9Ua0vFImLlb";
        let text = format!(
            "a.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\r\n\
             \"b,\"\"c\"\".py\",sha256={hex},0\r\n\
             d.py,SHA384={sha384},0\r\ne.py,,1971\r\nf.py,md5=1B2M2Y8AsgTpgAmY7PhCfg==,0\r\nRECORD,,\r\n"
        );
        let rows = parse(text.as_bytes()).unwrap();
        let empty = base64_decode("47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU").unwrap();
        assert_eq!(rows.len(), 6);
        for row in &rows[..2] {
            assert_eq!(row.hash, Some(Hash { algorithm: "sha256".into(), digest: empty.clone() }));
        }
        assert_eq!(rows[1].path, "b,\"c\".py");
        let hash = rows[2].hash.as_ref().unwrap();
        assert_eq!((hash.algorithm.as_str(), hash.digest.len()), ("sha384", 48));
        assert_eq!((&rows[3].hash, rows[3].size), (&None, Some(1971)));
        assert_eq!(rows[4].hash.as_ref().unwrap().digest.len(), 16);
        assert_eq!(rows[5], Row { path: "RECORD".into(), hash: None, size: None });
    }

    #[test]
    fn bad_rows_are_named_with_their_offset() {
        for (row, why) in [
            (&b",,"[..], "without a path"),
            (b"a,sha256,1", "algorithm=digest"),
            (b"a,sha256=Zg,1", "algorithm=digest"),
            (b"a,sha256=*,1", "algorithm=digest"),
            (b"a,,x", "expected a number"),
            (b"a,,-1", "expected a number"),
            (b"a,,1,2", "4 fields"),
            (b"\xff,,", "UTF-8"),
        ] {
            let mut text = b"ok,,\n".to_vec();
            text.extend_from_slice(row);
            let fault = parse(&text).unwrap_err();
            assert!(fault.message.contains(why), "{fault}");
            assert_eq!(fault.offset, Some(5));
        }
    }

    proptest! {
        #[test]
        fn round_trip(rows in proptest::collection::vec(("[^\u{0}\u{feff}]{1,12}", any::<[u8; 32]>(), any::<u64>()), 0..8)) {
            let mut writer = RecordWriter::new();
            for (path, sha256, size) in &rows {
                writer.push(path, sha256, *size);
            }
            let parsed = parse(&writer.finish("x.dist-info/RECORD")).unwrap();
            prop_assert_eq!(parsed.len(), rows.len() + 1);
            for (row, (path, sha256, size)) in parsed.iter().zip(&rows) {
                prop_assert_eq!(&row.path, path);
                prop_assert_eq!(&row.hash.as_ref().unwrap().digest[..], &sha256[..]);
                prop_assert_eq!(row.size, Some(*size));
            }
        }

        #[test]
        fn no_input_panics(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse(&bytes);
        }
    }
}

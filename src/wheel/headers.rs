//! The header section of METADATA and WHEEL: `Field: value` lines as in an e-mail, up to the first empty line.
//!
//! It is read as Python's `email` package reads it, since that is what installers use: a line that starts with a
//! space or tab continues the line before; an empty line ends the section, and so does a line that is neither
//! field nor continuation (an unindented second line of a licence text, say), which already belongs to the body.
//! Lines end in LF, CRLF or a lone CR. A UTF-8 byte order mark at the start is skipped. Values stay bytes until someone
//! asks for text, so that a Latin-1 author does not stop a split.

use std::ops::Range;

/// One field, by its place in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Field {
    /// The bytes of the field's name.
    pub(super) name: Range<usize>,
    /// The bytes of the value, continuation lines included, without the white space around it.
    pub(super) value: Range<usize>,
}

/// The parsed header section of a file.
#[derive(Clone, Debug)]
pub(super) struct Headers<'a> {
    bytes: &'a [u8],
    fields: Vec<Field>,
    /// Offset just behind the last header line: the empty line, the stray body line or the end of the file.
    pub(super) end: usize,
    /// The line ending of the section: that of its last complete line, LF if there is none.
    pub(super) line_ending: &'static str,
    /// True if the last header line ends without a line ending, at the end of the file.
    pub(super) unterminated: bool,
}

impl<'a> Headers<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Self {
        let mut headers = Self { bytes, fields: Vec::new(), end: 0, line_ending: "\n", unterminated: false };
        if bytes.starts_with(b"\xef\xbb\xbf") {
            headers.end = 3;
        }
        while let Some(line) = headers.next_line() {
            let text = bytes.get(line.text.clone()).unwrap_or_default();
            if matches!(text.first(), Some(b' ' | b'\t')) {
                let value = trim(bytes, line.text);
                if let Some(field) = headers.fields.last_mut()
                    && !value.is_empty()
                {
                    if field.value.is_empty() {
                        field.value.start = value.start;
                    }
                    field.value.end = value.end;
                }
            } else if let Some(colon) = field_name_len(text) {
                let start = line.text.start;
                let value = trim(bytes, start + colon + 1..line.text.end);
                headers.fields.push(Field { name: start..start + colon, value });
            } else {
                break;
            }
            headers.end = line.end;
            match line.ending {
                Some(ending) => headers.line_ending = ending,
                None => headers.unterminated = true,
            }
        }
        headers
    }

    fn next_line(&self) -> Option<Line> {
        let rest = self.bytes.get(self.end..).filter(|rest| !rest.is_empty())?;
        let length = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')).unwrap_or(rest.len());
        let ending = match rest.get(length..) {
            Some([b'\r', b'\n', ..]) => Some("\r\n"),
            Some([b'\r', ..]) => Some("\r"),
            Some([b'\n', ..]) => Some("\n"),
            _ => None,
        };
        let text = self.end..self.end + length;
        let end = text.end + ending.map_or(0, str::len);
        Some(Line { text, end, ending })
    }

    /// The values of all fields called `name`; names are compared without regard to case.
    pub(super) fn all<'s>(&'s self, name: &'s str) -> impl Iterator<Item = String> + 's {
        self.places(name).map(|field| self.text(field.value.clone()))
    }

    /// The fields called `name`.
    pub(super) fn places<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s Field> + 's {
        self.fields.iter().filter(move |field| {
            self.bytes
                .get(field.name.clone())
                .is_some_and(|found| found.eq_ignore_ascii_case(name.as_bytes()))
        })
    }

    /// The bytes of `range` as text, line breaks and the indentation behind them folded into one space.
    fn text(&self, range: Range<usize>) -> String {
        let text = String::from_utf8_lossy(self.bytes.get(range).unwrap_or_default());
        if !text.contains(['\r', '\n']) {
            return text.into_owned();
        }
        text.split(['\r', '\n']).map(str::trim).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
    }
}

struct Line {
    text: Range<usize>,
    end: usize,
    ending: Option<&'static str>,
}

/// Length of the field name that `line` starts with: printable ASCII up to a colon. It may be empty: parsers skip
/// such a line, but the section goes on behind it.
fn field_name_len(line: &[u8]) -> Option<usize> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let name = line.get(..colon)?;
    name.iter().all(u8::is_ascii_graphic).then_some(colon)
}

/// `range` without the white space at its ends; empty ranges stay where they started.
fn trim(bytes: &[u8], range: Range<usize>) -> Range<usize> {
    let text = bytes.get(range.clone()).unwrap_or_default();
    let lead = text.len() - text.trim_ascii_start().len();
    let length = text.trim_ascii().len();
    if length == 0 { range.start..range.start } else { range.start + lead..range.start + lead + length }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(bytes: &[u8]) -> Vec<(String, String)> {
        let headers = Headers::parse(bytes);
        let text = |range: &Range<usize>| headers.text(range.clone());
        headers.fields.iter().map(|field| (text(&field.name), text(&field.value))).collect()
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.into(), value.into())
    }

    #[test]
    fn reads_fields_up_to_the_empty_line() {
        let text = b"Name: a\nTag:  b \nEmpty:\nname:c\n\nBody: no\n";
        assert_eq!(fields(text), [pair("Name", "a"), pair("Tag", "b"), pair("Empty", ""), pair("name", "c")]);
        let headers = Headers::parse(text);
        assert_eq!(headers.all("NAME").collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!(headers.end, text.len() - "\nBody: no\n".len());
    }

    #[test]
    fn unfolds_continuation_lines() {
        assert_eq!(
            fields(b"License: one\n\ttwo\n  three\nX: y"),
            [pair("License", "one two three"), pair("X", "y")]
        );
        assert_eq!(fields(b"Name:\n a\n"), [pair("Name", "a")]);
        assert_eq!(fields(b" stray\nName: a\r\n \r\n b\r\n"), [pair("Name", "a b")]);
    }

    #[test]
    fn finds_the_end_and_the_line_ending() {
        for (text, end, ending, unterminated) in [
            (&b""[..], 0, "\n", false),
            (b"A: 1", 4, "\n", true),
            (b"A: 1\r\nB: 2", 10, "\r\n", true),
            (b"A: 1\r\n\r\nbody\n", 6, "\r\n", false),
            (b"A: 1\rB: 2\r\rbody", 10, "\r", false),
            (b"A: 1\nB: 2\rbody\n", 10, "\r", false),
            (b"A: 1\nstray text\n\nbody", 5, "\n", false),
            (b"A: 1\n: no name\nB: 2\n\nbody", 20, "\n", false),
            (b"\nA: 1\n", 0, "\n", false),
            (b"\xef\xbb\xbfA: 1\n", 8, "\n", false),
        ] {
            let headers = Headers::parse(text);
            assert_eq!((headers.end, headers.line_ending, headers.unterminated), (end, ending, unterminated));
        }
    }

    #[test]
    fn a_byte_order_mark_and_odd_bytes_do_no_harm() {
        assert_eq!(
            fields(b"\xef\xbb\xbfName: a\nAuthor: Fran\xe7ois\n"),
            [pair("Name", "a"), pair("Author", "Fran\u{fffd}ois")]
        );
    }
}

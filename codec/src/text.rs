//! Displays foreign text, such as names in a file and paths, without letting it control the terminal.
//!
//! Data stay unchanged: only output for people goes through here.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::path::Path;

/// Whether a terminal or a text renderer interprets this character instead of displaying it: control characters (C0,
/// DEL, C1), separators of lines and paragraphs, and marks that change the direction of writing.
pub fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text in one line, with visible escapes for all characters that [`steers`] reports. Safe text is returned
/// unchanged.
///
/// ```
/// use wcodec::text::safe;
/// assert_eq!(safe("größe.層.weight"), "größe.層.weight");
/// assert_eq!(safe("a\x1b[31m\r\n\u{9b}b\u{202e}"), r"a\x1b[31m\r\n\x9bb\u{202e}");
/// assert_eq!(safe(&safe("\t")), r"\t");
/// ```
pub fn safe(text: &str) -> Cow<'_, str> {
    escaped(text, steers)
}

/// As [`safe`], for a text of several lines: line feeds and tabs stay.
///
/// ```
/// assert_eq!(wcodec::text::safe_lines("a\tb\nc\r"), "a\tb\nc\\r");
/// ```
pub fn safe_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| steers(c) && !matches!(c, '\n' | '\t'))
}

/// As [`safe`], for bytes that should be UTF-8, such as a file's name: each invalid byte becomes an escape of its own.
///
/// ```
/// assert_eq!(wcodec::text::safe_bytes(b"caf\xe9.wcodec"), r"caf\xe9.wcodec");
/// ```
pub fn safe_bytes(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return safe(text);
    }
    let mut out = String::with_capacity(bytes.len() + 16);
    for part in bytes.utf8_chunks() {
        out.push_str(&safe(part.valid()));
        for byte in part.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    Cow::Owned(out)
}

/// As [`safe`], for a path.
pub fn safe_path(path: &Path) -> Cow<'_, str> {
    safe_bytes(path.as_os_str().as_encoded_bytes())
}

fn escaped(text: &str, bad: impl Fn(char) -> bool) -> Cow<'_, str> {
    let Some(first) = text.find(&bad) else { return Cow::Borrowed(text) };
    let (head, tail) = text.split_at(first);
    let mut out = String::with_capacity(text.len() + 16);
    out.push_str(head);
    for c in tail.chars() {
        // Writing to a String cannot fail.
        let _ = match c {
            c if !bad(c) => out.write_char(c),
            '\n' => out.write_str("\\n"),
            '\r' => out.write_str("\\r"),
            '\t' => out.write_str("\\t"),
            c if u32::from(c) < 0x100 => write!(out, "\\x{:02x}", u32::from(c)),
            c => write!(out, "\\u{{{:x}}}", u32::from(c)),
        };
    }
    Cow::Owned(out)
}

/// A JSON document in printable ASCII: every other character, which can only be in a string, becomes `\uXXXX`. No
/// information is lost.
///
/// ```
/// use wcodec::text::ascii_json;
/// assert_eq!(ascii_json("{\n\"é\": \"\u{7f}😀\"\n}"), "{\n\"\\u00e9\": \"\\u007f\\ud83d\\ude00\"\n}");
/// ```
pub fn ascii_json(json: &str) -> Cow<'_, str> {
    let plain = |b: u8| matches!(b, b' '..=b'~' | b'\n');
    if json.bytes().all(plain) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + json.len() / 8);
    for c in json.chars() {
        if u8::try_from(c).is_ok_and(plain) {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    Cow::Owned(out)
}

/// A path as a JSON string, in printable ASCII: an invalid UTF-8 byte becomes `\udcXX`, as in Python's
/// `surrogateescape`.
///
/// ```
/// let path = std::path::Path::new("a\"é.wcodec");
/// assert_eq!(wcodec::text::path_json(path), r#""a\"\u00e9.wcodec""#);
/// ```
pub fn path_json(path: &Path) -> String {
    let mut out = String::from("\"");
    for part in path.as_os_str().as_encoded_bytes().utf8_chunks() {
        let quoted = serde_json::Value::from(part.valid()).to_string();
        out.push_str(&ascii_json(&quoted[1..quoted.len() - 1]));
        for byte in part.invalid() {
            let _ = write!(out, "\\udc{byte:02x}");
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_what_steers_is_escaped() {
        let directions = ['\u{61c}', '\u{200e}', '\u{200f}', '\u{202a}', '\u{202e}', '\u{2066}', '\u{2069}'];
        let separators = ['\u{2028}', '\u{2029}', '\u{85}'];
        let controls = ['\0', '\x07', '\t', '\n', '\r', '\x1b', '\x1f', '\x7f', '\u{80}', '\u{9b}', '\u{9f}'];
        for c in [&directions[..], &separators, &controls].concat() {
            let text = format!("a{c}b");
            let shown = safe(&text);
            assert!(shown.starts_with("a\\") && shown.ends_with('b') && shown.chars().all(|c| !steers(c)), "{c:?}");
            assert_eq!(safe(&shown), shown);
        }
        for c in ['a', ' ', '~', '\\', '\u{a0}', 'ß', '\u{200d}', '\u{2027}', '\u{202f}', '\u{2065}', '\u{206a}', '😀']
        {
            assert!(matches!(safe(c.encode_utf8(&mut [0; 4])), Cow::Borrowed(_)), "{c:?}");
        }
    }

    #[test]
    fn no_character_is_lost_in_json() {
        for c in (0..0x11_0000).filter_map(char::from_u32) {
            let text = format!("{c}x");
            let json = ascii_json(&serde_json::to_string(&text).unwrap()).into_owned();
            assert!(json.bytes().all(|b| matches!(b, b' '..=b'~')), "{c:?}");
            assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        }
    }

    #[cfg(unix)]
    #[test]
    fn bytes_that_are_no_text_are_told_apart() {
        use std::os::unix::ffi::OsStrExt;
        let path = Path::new(std::ffi::OsStr::from_bytes(b"\xff\x1bn\xc3\xa9\xe9"));
        assert_eq!(safe_path(path), "\\xff\\x1bn\u{e9}\\xe9");
        assert_eq!(path_json(path), r#""\udcff\u001bn\u00e9\udce9""#);
    }
}

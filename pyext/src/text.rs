//! Text for output: the crate's [`wcodec::text`], for Python's strings.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use wcodec::text;

/// The text in one line, with visible escapes for characters that a terminal would interpret.
#[pyfunction]
pub fn safe(text: &Bound<'_, PyString>) -> PyResult<String> {
    match text.to_cow() {
        Ok(text) => Ok(text::safe(&text).into_owned()),
        Err(_) => Ok(text::safe_bytes(bytes_of(text)?.as_bytes()).into_owned()),
    }
}

/// As `safe`, for a text of several lines, which stay lines.
#[pyfunction]
pub fn safe_lines(text: &Bound<'_, PyString>) -> PyResult<String> {
    match text.to_cow() {
        Ok(text) => Ok(text::safe_lines(&text).into_owned()),
        Err(_) => {
            let bytes = bytes_of(text)?;
            let lines = bytes.as_bytes().split(|&b| b == b'\n').map(text::safe_bytes);
            Ok(lines.collect::<Vec<_>>().join("\n"))
        }
    }
}

/// A JSON document in printable ASCII.
#[pyfunction]
pub fn ascii_json(text: &str) -> String {
    text::ascii_json(text).into_owned()
}

/// The bytes of a text that is not Unicode: surrogates that stand for bytes of a path become these bytes, others are
/// written out.
fn bytes_of<'py>(text: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyBytes>> {
    let py = text.py();
    let encode = |how| text.call_method1(intern!(py, "encode"), (intern!(py, "utf-8"), how));
    encode("surrogateescape").or_else(|_| encode("backslashreplace"))?.cast_into().map_err(Into::into)
}

//! Converts errors of the crate to exceptions of `wcodec._errors`.

use pyo3::prelude::*;
use wcodec::{Code, Error, ErrorKind};

/// The word for the kind that `wcodec._errors.from_native` expects.
fn kind_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Format => "format",
        ErrorKind::Corrupt => "corrupt",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::Input => "input",
        ErrorKind::Device => "device",
        ErrorKind::Io => "io",
        _ => "other",
    }
}

/// The exception for `error`. Python owns the class hierarchy: abi3 before Python 3.12 cannot subclass exceptions here.
pub fn to_py(py: Python<'_>, error: &Error) -> PyErr {
    let os = std::error::Error::source(error).and_then(|e| e.downcast_ref::<std::io::Error>());
    let make = || {
        let arguments = (
            kind_name(error.kind()),
            error.code().id(),
            error.without_code(),
            error.file_path(),
            error.tensor_name(),
            error.byte_offset(),
            os.and_then(std::io::Error::raw_os_error),
            os.map(|e| format!("{:?}", e.kind())),
        );
        py.import("wcodec._errors")?.getattr("from_native")?.call1(arguments)
    };
    make().map_or_else(|e| e, PyErr::from_value)
}

/// The catalogue of errors, for Python's own as well: identifier, kind, section, title, cause and remedy of each code.
#[pyfunction]
pub fn error_codes() -> Vec<[&'static str; 6]> {
    let row = |c: Code| [c.id(), kind_name(c.kind()), c.section(), c.title(), c.cause(), c.remedy()];
    Code::all().map(row).collect()
}

//! The inspector of the terminal.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the terminal inspector with a command line, the program's name first; the exit status.
///
/// The interpreter is free meanwhile. Python's handlers of signals stay: a SIGINT ends the inspector and raises when it has returned.
#[pyfunction]
pub fn tui_main(py: Python<'_>, args: Vec<OsString>) -> u8 {
    py.detach(|| wcodec_tui::run(args))
}

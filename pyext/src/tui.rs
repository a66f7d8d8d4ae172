//! The inspector of the terminal.

use std::ffi::OsString;
use std::path::PathBuf;

use pyo3::prelude::*;

/// Runs the terminal inspector with a command line, the program's name first; the exit status. nvCOMP is looked for in
/// `nvcomp_folders`, too.
///
/// The interpreter is free meanwhile. Python's handlers of signals stay: a SIGINT ends the inspector and raises when it has returned.
#[pyfunction]
pub fn tui_main(py: Python<'_>, args: Vec<OsString>, nvcomp_folders: Vec<PathBuf>) -> u8 {
    py.detach(|| wcodec_tui::run_with(args, nvcomp_folders))
}

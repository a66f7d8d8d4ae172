//! The terminal inspector.

use std::ffi::OsString;
use std::path::PathBuf;

use pyo3::prelude::*;

/// Runs the terminal inspector with a command line that begins with the program's name; returns the exit status. nvCOMP
/// is searched for in `nvcomp_folders`, too.
///
/// The interpreter is released meanwhile. Python's signal handlers stay in place: a SIGINT ends the inspector, and
/// raises once it has returned.
#[pyfunction]
pub fn tui_main(py: Python<'_>, args: Vec<OsString>, nvcomp_folders: Vec<PathBuf>) -> u8 {
    py.detach(|| wcodec_tui::run_with(args, nvcomp_folders))
}

//! The inspector, as a program of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(wcodec_tui::run(std::env::args_os()))
}

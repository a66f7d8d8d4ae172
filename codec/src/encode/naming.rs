//! Errors that name the tensor.

use std::path::Path;

use crate::error::Error;

/// Adds the tensor's name, and its file, to errors.
#[derive(Clone, Copy)]
pub struct Naming<'a> {
    /// The path of the source.
    pub source: Option<&'a Path>,
    pub output: &'a Path,
}

impl Naming<'_> {
    /// Adds the name of `tensor` to `e`.
    pub fn of(self, tensor: &str, e: Error) -> Error {
        match (e.file_path(), self.source) {
            // Errors of the output already name it, and arrive late: they are not about this tensor.
            (Some(file), _) if file == self.output => e,
            (_, Some(source)) => e.tensor(tensor).file(source),
            (_, None) => e.tensor(tensor),
        }
    }
}

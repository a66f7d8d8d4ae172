//! Errors that name the tensor.

use std::path::Path;

use crate::error::Error;

/// What adds to an error which tensor it is about.
#[derive(Clone, Copy)]
pub struct Naming<'a> {
    /// Where the tensors come from.
    pub source: Option<&'a Path>,
    pub output: &'a Path,
}

impl Naming<'_> {
    /// The error of that tensor.
    pub fn of(self, tensor: &str, e: Error) -> Error {
        match (e.file_path(), self.source) {
            // Errors of the output name it already, and come late: they are not about this tensor.
            (Some(file), _) if file == self.output => e,
            (_, Some(source)) => e.tensor(tensor).file(source),
            (_, None) => e.tensor(tensor),
        }
    }
}

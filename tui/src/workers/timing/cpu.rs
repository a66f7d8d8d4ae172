//! Decoding on the CPU.

use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;

use wcodec::DecodeOptions;

use super::Decoder;
use crate::model::FileModel;

/// Tensors of a file, by their places in it, and how to decode them.
pub struct CpuDecoder<'a> {
    file: &'a FileModel,
    places: Vec<usize>,
    options: DecodeOptions,
}

impl<'a> CpuDecoder<'a> {
    /// Nothing if there are no tensors.
    pub fn new(file: &'a FileModel, places: Vec<usize>, threads: usize) -> Option<Self> {
        let options = DecodeOptions { threads: Some(threads), verify: false, ..DecodeOptions::default() };
        (!places.is_empty()).then_some(Self { file, places, options })
    }
}

impl Decoder for CpuDecoder<'_> {
    fn group(&self) -> usize {
        1
    }

    fn decode(&mut self, tensors: Range<usize>, ms: &mut Vec<f64>) -> Result<(), String> {
        let container = self.file.container().map_err(|e| e.to_string())?;
        for slot in tensors {
            let tensor = self.places.get(slot).and_then(|&i| self.file.tensors.get(i));
            let tensor = tensor.ok_or("there is no such tensor")?;
            let start = Instant::now();
            let values = container.read(&tensor.name, &self.options);
            let took = start.elapsed();
            // Freed after the time was taken.
            black_box(values.map_err(|e| e.to_string())?);
            ms.push(took.as_secs_f64() * 1e3);
        }
        Ok(())
    }
}

/// Decodes a tensor with its hashes compared.
///
/// # Errors
/// What is wrong with it.
pub fn verify(file: &FileModel, place: usize, threads: usize) -> Result<(), String> {
    let tensor = file.tensors.get(place).ok_or("there is no such tensor")?;
    let options = DecodeOptions { threads: Some(threads), ..DecodeOptions::default() };
    file.container().and_then(|c| c.check(&tensor.name, &options)).map_err(|e| e.to_string())
}

//! Decoding on the CPU and on a GPU.

use std::hint::black_box;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use wcodec::gpu::nvcomp::Nvcomp;
use wcodec::gpu::{Device, GpuOptions, TimedDecoder};
use wcodec::{DecodeOptions, Dtype, ErrorKind};

use crate::model::FileModel;
use crate::timing::gb_per_s;

/// A device with tensors to decode, which are numbered from 0 on.
pub trait Decoder {
    /// Tensors that are decoded at once, before anybody is asked whether to stop.
    const GROUP: usize;

    /// Decodes tensors; the milliseconds of each are appended to `ms`.
    ///
    /// # Errors
    /// What is wrong: the file changed, or the device fails, since tensors were sound before the first round.
    fn decode(&mut self, tensors: Range<usize>, ms: &mut Vec<f64>) -> Result<(), String>;

    /// Speed of the copy to the device, 1e9 bytes a second, where there is one.
    fn copy(&mut self) -> Option<f64> {
        None
    }
}

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
    const GROUP: usize = 1;

    fn decode(&mut self, tensors: Range<usize>, ms: &mut Vec<f64>) -> Result<(), String> {
        let container = self.file.container().map_err(|e| e.to_string())?;
        for &place in &self.places[tensors] {
            let tensor = self.file.info(place).map_err(|e| e.to_string())?;
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
    let options = DecodeOptions { threads: Some(threads), ..DecodeOptions::default() };
    let check = |name: &str| file.container()?.check(name, &options);
    file.info(place).and_then(|tensor| check(&tensor.name)).map_err(|e| e.to_string())
}

/// Tensors whose compressed bytes are on a GPU.
pub struct GpuTimer {
    decoder: TimedDecoder,
    /// Whether the copy can be timed: memory for it may be missing.
    copies: bool,
}

/// Why there is no decoder.
#[derive(Debug)]
pub enum Refusal {
    /// The device cannot be used at all.
    Device(String),
    /// Without these, by their places in the list of tensors (ascending), it could be; and why not with each.
    Tensors(Vec<(usize, Arc<str>)>),
}

impl GpuTimer {
    /// Sends tensors of a file, by their places in it, to a GPU. Their hashes are compared.
    pub fn new(
        file: &FileModel,
        places: &[usize],
        ordinal: usize,
        nvcomp_folders: &[PathBuf],
    ) -> Result<Self, Refusal> {
        let text = |e: wcodec::Error| Refusal::Device(e.to_string());
        let device = Device::new(ordinal).map_err(text)?;
        let options = GpuOptions { nvcomp_folders: nvcomp_folders.to_vec(), ..GpuOptions::default() };
        let infos: Vec<_> = places.iter().filter_map(|&i| file.tensors.get(i)).collect();
        let zstd: Vec<usize> = (0..infos.len()).filter(|&slot| infos[slot].coder() == "zstd").collect();
        if !zstd.is_empty()
            && let Err(e) = Nvcomp::load_for(&device, None, &options.nvcomp_folders)
        {
            let why: Arc<str> = e.to_string().into();
            return Err(Refusal::Tensors(zstd.into_iter().map(|slot| (slot, why.clone())).collect()));
        }
        let names: Vec<String> = infos.iter().map(|t| t.name.clone()).collect();
        let made = TimedDecoder::new(&device, file.container().map_err(text)?, &names, Dtype::BF16, &options);
        let decoder = made.map_err(|e| {
            let slot = e.tensor_name().and_then(|name| names.iter().position(|n| n == name));
            match slot {
                // A full device is not the fault of the tensor that came last.
                Some(slot) if e.kind() != ErrorKind::Device => Refusal::Tensors(vec![(slot, e.to_string().into())]),
                _ => text(e),
            }
        })?;
        Ok(Self { decoder, copies: true })
    }

    /// Bytes that decoding a tensor writes.
    pub fn output_bytes(&self, slot: usize) -> u64 {
        self.decoder.output_bytes(slot) as u64
    }
}

impl Decoder for GpuTimer {
    const GROUP: usize = 64;

    fn decode(&mut self, tensors: Range<usize>, ms: &mut Vec<f64>) -> Result<(), String> {
        self.decoder.decode(tensors, ms).map_err(|e| e.to_string())
    }

    fn copy(&mut self) -> Option<f64> {
        if !self.copies {
            return None;
        }
        let copied = self.decoder.copy();
        self.copies = copied.is_ok();
        let (bytes, ms) = copied.ok()?;
        gb_per_s(bytes, ms)
    }
}

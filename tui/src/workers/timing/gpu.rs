//! Decoding on a GPU.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use wcodec::gpu::nvcomp::Nvcomp;
use wcodec::gpu::{Device, GpuOptions, TimedDecoder};
use wcodec::{Dtype, ErrorKind};

use super::Decoder;
use crate::model::FileModel;
use crate::timing::series::gb_per_s;

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
    fn group(&self) -> usize {
        64
    }

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

//! Timing of decoding on a device, for programs that show it: memory is its own, so that nothing here is unsafe to call.

use std::ops::Range;

use super::buffer::{DeviceBuffer, PinnedBuffer};
use super::decoder::{Batch, GpuDecoder};
use super::device::Device;
use super::options::GpuOptions;
use super::stream::{Event, Stream};
use super::work_item::DecodeItem;
use crate::decode::Container;
use crate::error::Result;
use crate::tensor::Dtype;

/// Tensors that are decoded without the host waiting in between.
const GROUP: usize = 64;
/// Bytes of pinned memory that copies are timed with, at most.
const STAGE: usize = 64 << 20;

/// Compressed tensors on a device that are decoded there again and again into memory of its own, which nobody reads.
///
/// Each tensor is one batch ([`prepare`](super::TensorDecoder::prepare)) between two events of the device: the time of
/// a small tensor is that of launching it. Many tensors in one batch take less.
///
/// ```
/// # fn main() -> wcodec::Result<()> {
/// use wcodec::gpu::{self, Device, GpuOptions, TimedDecoder};
/// use wcodec::{Checkpoint, Container, Dtype, EncodeOptions, encode};
/// # let dir = tempfile::tempdir().unwrap();
/// # let out = dir.path().join("model.wcodec");
/// # let model = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/doc-llama-3m");
/// # encode(&Checkpoint::open(&model)?, &out, &EncodeOptions::default(), &mut |_| Ok(()))?;
/// if gpu::available().is_err() {
///     return Ok(()); // this example needs a GPU
/// }
/// let device = Device::new(0)?;
/// let names = ["model.layers.0.mlp.up_proj.weight".to_owned()];
/// let mut decoder = TimedDecoder::new(&device, &Container::open(&out)?, &names, Dtype::BF16, &GpuOptions::default())?;
/// let mut ms = Vec::new();
/// decoder.decode(0..1, &mut ms)?;
/// println!("{:.3} GB/s", decoder.output_bytes(0) as f64 / ms[0] / 1e6);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TimedDecoder {
    stream: Stream,
    /// One for each tensor. They come before what they use, so that they are dropped before it.
    batches: Vec<Batch>,
    decoder: GpuDecoder,
    output_bytes: Vec<usize>,
    /// As large as the largest tensor: all are decoded to the same place, one after the other.
    output: DeviceBuffer,
    /// One before each tensor of a group, and one behind the last.
    events: Vec<Event>,
    stored_bytes: u64,
    stage: Option<(PinnedBuffer, DeviceBuffer)>,
}

impl TimedDecoder {
    /// Reads the tensors `names` (all that are there if empty), checks them and sends them to the device. Those of scheme `int8`
    /// are decoded to `dtype`, others to their own.
    ///
    /// # Errors
    /// As [`GpuDecoder::new`]; or a tensor cannot be had as `dtype`.
    pub fn new(
        device: &Device,
        container: &Container,
        names: &[String],
        dtype: Dtype,
        options: &GpuOptions,
    ) -> Result<Self> {
        let names = container.stored_names(names)?;
        let decoder = GpuDecoder::new(device, container, &names, options)?;
        let mut dtypes = Vec::with_capacity(names.len());
        let mut output_bytes = Vec::with_capacity(names.len());
        let mut stored_bytes = 0;
        for name in &names {
            let tensor = container.stored(name)?;
            let dtype = if tensor.scheme.makes_symbols() { dtype } else { tensor.dtype };
            dtypes.push(dtype);
            output_bytes.push(decoder.output_bytes(name, dtype)?);
            stored_bytes += tensor.stored_bytes;
        }
        let output = DeviceBuffer::new(device, output_bytes.iter().copied().max().unwrap_or(0))?;
        let batches = names
            .into_iter()
            .zip(dtypes)
            .map(|(name, dtype)| decoder.prepare(&[DecodeItem { name, out: output.ptr(), dtype, rows: None }]))
            .collect::<Result<Vec<_>>>()?;
        let events = (0..=batches.len().min(GROUP)).map(|_| Event::with_timing(device)).collect::<Result<Vec<_>>>()?;
        let stream = Stream::new(device)?;
        Ok(Self { stream, batches, decoder, output_bytes, output, events, stored_bytes, stage: None })
    }

    /// Decodes the tensors with these numbers, one after the other, and waits until that is done. The milliseconds of each are
    /// appended to `ms`.
    ///
    /// # Errors
    /// There are not so many tensors, or one is damaged.
    pub fn decode(&mut self, tensors: Range<usize>, ms: &mut Vec<f64>) -> Result<()> {
        let batches = self
            .batches
            .get(tensors.clone())
            .ok_or_else(|| coded!(INPUT_BUG, "tensors {tensors:?} of {}", self.batches.len()))?;
        for group in batches.chunks(GROUP) {
            let events = &self.events[..=group.len()];
            events[0].record(&self.stream)?;
            for (batch, done) in group.iter().zip(&events[1..]) {
                // SAFETY: the output has room for every tensor. It and the decoder are freed after the stream was waited for,
                // below or when this is dropped; all work is in this one stream.
                unsafe { batch.launch(&self.stream)? };
                done.record(&self.stream)?;
            }
            self.stream.synchronize()?;
            for pair in events.windows(2) {
                ms.push(f64::from(pair[1].elapsed_ms(&pair[0])?));
            }
        }
        self.decoder.check(&self.stream)
    }

    /// Copies as many bytes as the tensors take in the file from pinned memory to the device, in pieces of up to 64 MiB, 1 GiB at
    /// most, and waits until that is done. Returns how many bytes and milliseconds it were. The first call allocates.
    ///
    /// # Errors
    /// Memory is too small.
    pub fn copy(&mut self) -> Result<(u64, f64)> {
        let total = self.stored_bytes.min(1 << 30);
        let size = (total as usize).min(STAGE);
        if size == 0 {
            return Ok((0, 0.0));
        }
        if self.stage.is_none() {
            let device = self.decoder.device();
            self.stage = Some((PinnedBuffer::new(device, size)?, DeviceBuffer::new(device, size)?));
        }
        let (Some((from, to)), [start, .., end]) = (&self.stage, &self.events[..]) else { return Ok((0, 0.0)) };
        start.record(&self.stream)?;
        let mut left = total as usize;
        while left > 0 {
            let piece = left.min(size);
            // SAFETY: nothing is written to the pinned memory, and both are freed after the stream was waited for.
            unsafe { to.upload_async(0, from, 0..piece, &self.stream)? };
            left -= piece;
        }
        end.record(&self.stream)?;
        self.stream.synchronize()?;
        Ok((total, f64::from(end.elapsed_ms(start)?)))
    }

    /// Names of the tensors, in the order of their numbers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.decoder.names()
    }

    /// Bytes that decoding a tensor writes; 0 where there is none with that number.
    pub fn output_bytes(&self, tensor: usize) -> usize {
        self.output_bytes.get(tensor).copied().unwrap_or(0)
    }

    /// Bytes that the tensors take in the file, tables aside.
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// Device memory that it holds, in bytes.
    pub fn device_bytes(&self) -> usize {
        self.decoder.device_bytes() + self.output.len() + self.stage.as_ref().map_or(0, |(_, to)| to.len())
    }
}

impl Drop for TimedDecoder {
    fn drop(&mut self) {
        // After an error there may be work left that uses the memory.
        self.stream.synchronize().ok();
    }
}

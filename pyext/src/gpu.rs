//! Decoding on GPUs, into memory that the caller has.

mod info;
mod verify;

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use wcodec::Dtype;
use wcodec::gpu::{Device, Event, GpuOptions, Stream, Target};

use crate::container::Container;
use crate::errors::to_py;
use crate::progress::detached;

pub use info::{gpu_available, gpu_devices, gpu_driver, gpu_kernels, nvcomp_info};
pub use verify::verify_on_gpu;

/// How to decode on a GPU; the keys of the dictionary are the fields.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Options {
    threads: Option<usize>,
    verify: bool,
    zstd_scratch: Option<usize>,
    nvcomp: Option<PathBuf>,
    nvcomp_folders: Vec<PathBuf>,
}

impl Options {
    /// The crate's options.
    pub fn build(self) -> GpuOptions {
        GpuOptions {
            threads: self.threads,
            verify: self.verify,
            zstd_scratch: self.zstd_scratch,
            nvcomp: self.nvcomp,
            nvcomp_folders: self.nvcomp_folders,
            ..GpuOptions::default()
        }
    }
}

/// Compressed tensors on a GPU; `wcodec.GpuDecoder` is the class for users.
///
/// Streams and outputs come as the integers that torch has of them. The Python half vouches for them: streams are torch's of
/// this device, and outputs are tensors of this device, of the size that `output_bytes` tells, which torch is told not to
/// reuse before the stream is done with them.
#[pyclass(frozen, module = "wcodec._native")]
pub struct GpuDecoder {
    decoder: wcodec::gpu::GpuDecoder,
    path: Option<PathBuf>,
    /// Present where planes of coder `zstd` share scratch, so that work in different streams has to take turns.
    turn: Option<Mutex<Turn>>,
}

/// The last work that used the scratch.
struct Turn {
    done: Event,
    stream: Option<usize>,
}

impl Turn {
    /// Lets `stream` wait for the last work, if that was put into another one.
    fn begin(&mut self, stream: &Stream) -> wcodec::Result<()> {
        // What is captured cannot wait for what is not; before it captures, torch waits for everything.
        if self.stream.is_some_and(|last| last != stream.raw() as usize) && !stream.is_capturing()? {
            stream.wait(&self.done)?;
        }
        Ok(())
    }

    fn end(&mut self, stream: &Stream) -> wcodec::Result<()> {
        if !stream.is_capturing()? {
            self.done.record(stream)?;
            self.stream = Some(stream.raw() as usize);
        }
        Ok(())
    }
}

impl GpuDecoder {
    /// The caller's stream.
    fn stream(&self, raw: usize) -> Stream {
        // SAFETY: The Python half hands over torch's current stream of this device. Torch's streams live as long as the
        // process, and torch uses the primary context.
        unsafe { Stream::from_raw(self.decoder.device(), raw as *mut _) }
    }

    fn named(&self, e: wcodec::Error) -> wcodec::Error {
        match &self.path {
            Some(path) => e.file(path),
            None => e,
        }
    }
}

#[pymethods]
impl GpuDecoder {
    /// Reads the tensors `names` and sends them, compressed, to GPU `ordinal`.
    #[new]
    fn new(
        py: Python<'_>,
        container: &Bound<'_, Container>,
        names: Vec<String>,
        ordinal: usize,
        options: Options,
    ) -> PyResult<Self> {
        let container = container.get().inner();
        let options = options.build();
        detached(py, || {
            let device = Device::new(ordinal)?;
            let decoder = wcodec::gpu::GpuDecoder::new(&device, container, &names, &options)?;
            let coders = decoder.names().map(|n| Ok(container.info(n)?.coder)).collect::<wcodec::Result<Vec<_>>>()?;
            let turn = if coders.iter().any(|c| c == "zstd") {
                Some(Mutex::new(Turn { done: Event::new(&device)?, stream: None }))
            } else {
                None
            };
            Ok(Self { decoder, path: container.path().map(Into::into), turn })
        })
    }

    /// Puts the decoding of `targets` (name, address, dtype) into the stream.
    fn decode(&self, py: Python<'_>, targets: Vec<(String, u64, String)>, stream: usize) -> PyResult<()> {
        let targets = targets
            .into_iter()
            .map(|(name, out, dtype)| Ok(Target { name, out, dtype: Dtype::from_name(&dtype)?, rows: None }))
            .collect::<wcodec::Result<Vec<_>>>()
            .map_err(|e| to_py(py, &e))?;
        detached(py, || {
            let stream = self.stream(stream);
            let mut turn = self.turn.as_ref().map(|t| t.lock().unwrap_or_else(PoisonError::into_inner));
            if let Some(turn) = &mut turn {
                turn.begin(&stream)?;
            }
            // SAFETY: The Python half has checked device, shape and dtype of the outputs, and has told torch that the
            // stream uses them. Work that shares scratch takes turns.
            unsafe { self.decoder.decode(&targets, &stream) }.map_err(|e| self.named(e))?;
            turn.map_or(Ok(()), |mut turn| turn.end(&stream))
        })
    }

    /// Waits for the stream, and raises what was found damaged.
    fn check(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        detached(py, || self.decoder.check(&self.stream(stream)).map_err(|e| self.named(e)))
    }

    /// Names of the stored tensors.
    fn names(&self) -> Vec<&str> {
        self.decoder.names().collect()
    }

    /// Bytes that decoding `name` to `dtype` writes.
    fn output_bytes(&self, py: Python<'_>, name: &str, dtype: &str) -> PyResult<usize> {
        let bytes = Dtype::from_name(dtype).and_then(|d| self.decoder.output_bytes(name, d));
        bytes.map_err(|e| to_py(py, &e))
    }

    /// Bytes that it holds on the GPU.
    fn device_bytes(&self) -> usize {
        self.decoder.device_bytes()
    }
}

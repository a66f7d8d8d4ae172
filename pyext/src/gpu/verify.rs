//! Whether a GPU decodes what the CPU does.

use pyo3::prelude::*;
use serde_json::json;
use wcodec::gpu::{DecodeItem, Device, DeviceBuffer, GpuDecoder, GpuOptions, Stream};
use wcodec::{AlignedBytes, Container, DecodeOptions, Dtype, ErrorKind, ProgressEvent, Result, TensorInfo};

use super::Options;
use crate::progress::run;

/// The byte that memory of the GPU is filled with before it is decoded into, so that what was not written shows.
const POISON: u8 = 0xA5;

/// Decodes the tensors `names` on GPU `ordinal` and on the CPU, and compares; name, status and detail of each as JSON.
#[pyfunction]
pub fn verify_on_gpu(
    py: Python<'_>,
    container: &Bound<'_, crate::container::Container>,
    names: Vec<String>,
    ordinal: usize,
    options: Options,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let container = container.get().inner();
    run(py, progress.as_ref(), |progress, link| {
        let options = options.build(link.cancel());
        let device = Device::new(ordinal)?;
        let stream = Stream::new(&device)?;
        let infos = names.iter().map(|n| container.info(n)).collect::<Result<Vec<_>>>()?;
        let total = infos.iter().fold(0u64, |sum, t| sum.saturating_add(t.original_bytes));
        let mut done = 0u64;
        let mut records = Vec::new();
        for info in &infos {
            progress(&ProgressEvent { tensor: &info.name, done, total })?;
            let (status, detail) = match compare(container, info, &stream, &options) {
                Ok(None) => ("ok", String::new()),
                Ok(Some(difference)) => ("differs", difference),
                Err(e) => match e.kind() {
                    ErrorKind::Corrupt | ErrorKind::Format => ("damaged", e.to_string()),
                    ErrorKind::Unsupported => ("unsupported", e.to_string()),
                    _ => return Err(e),
                },
            };
            records.push(json!({"name": info.name, "status": status, "detail": detail}));
            done = done.saturating_add(info.original_bytes);
            progress(&ProgressEvent { tensor: &info.name, done, total })?;
        }
        Ok(json!(records).to_string())
    })
}

/// The first difference between what the two make of a tensor: of its symbols, where it has some, and of its bytes.
fn compare(container: &Container, info: &TensorInfo, stream: &Stream, options: &GpuOptions) -> Result<Option<String>> {
    let name = &info.name;
    let decoder = GpuDecoder::new(stream.device(), container, std::slice::from_ref(name), options)?;
    let cpu = DecodeOptions {
        threads: options.threads,
        verify: options.verify,
        cancel: options.cancel.clone(),
        ..DecodeOptions::default()
    };
    if info.makes_symbols {
        let symbols = in_shape(&container.symbols(name, &cpu)?, info);
        let decoded = decode(&decoder, name, Dtype::I8, stream)?;
        if let Some(difference) = first(&symbols, &decoded, 1, "symbols") {
            return Ok(Some(difference));
        }
    }
    let values = container.read(name, &cpu)?;
    let decoded = decode(&decoder, name, info.dtype, stream)?;
    let (size, what) = match usize::try_from(info.elements) {
        Ok(n) if n > 0 && info.makes_symbols => (values.len() / n, "values"),
        _ => (1, "bytes"),
    };
    Ok(first(&values, &decoded, size, what))
}

/// The GPU's decoding of a tensor.
fn decode(decoder: &GpuDecoder, name: &str, dtype: Dtype, stream: &Stream) -> Result<AlignedBytes> {
    let bytes = decoder.output_bytes(name, dtype)?;
    let buffer = DeviceBuffer::new(stream.device(), bytes)?;
    buffer.fill(POISON, stream)?;
    let item = DecodeItem { name: name.to_owned(), out: buffer.ptr(), dtype, rows: None };
    // SAFETY: The buffer has the size that the decoder tells. It is freed after `check` has waited for the work, and the
    // driver waits too.
    unsafe { decoder.decode(&[item], stream)? };
    decoder.check(stream)?;
    let mut bytes = AlignedBytes::zeroed(bytes)?;
    buffer.download(0, &mut bytes, stream)?;
    Ok(bytes)
}

/// Symbols as they lie in the tensor: those of a transposed matrix are decoded column by column.
fn in_shape(symbols: &[i8], info: &TensorInfo) -> Vec<u8> {
    let (rows, cols) = (info.rows, info.cols);
    if info.row_axis != 1 {
        return symbols.iter().map(|&s| s as u8).collect();
    }
    (0..cols).flat_map(|c| (0..rows).map(move |r| symbols[r * cols + c] as u8)).collect()
}

/// The first difference between two runs of elements of `size` bytes, and how many there are.
fn first(cpu: &[u8], gpu: &[u8], size: usize, what: &str) -> Option<String> {
    if cpu.len() != gpu.len() {
        return Some(format!("the GPU decodes {} bytes of {what}, the CPU {}", gpu.len(), cpu.len()));
    }
    let differs = |(a, b): (&[u8], &[u8])| a != b;
    let mut places = cpu.chunks(size).zip(gpu.chunks(size)).enumerate().filter(|(_, p)| differs(*p)).map(|(i, _)| i);
    let at = places.next()?;
    let (count, all) = (1 + places.count(), cpu.len() / size);
    Some(format!("GPU and CPU differ in {count} of {all} {what}, first at {at}"))
}

//! One case on the GPU.

use std::path::Path;

use serde_json::{Value, json};
use wcodec::gpu::nvcomp::{DeviceBatch, Nvcomp, status_name};
use wcodec::gpu::{Device, DeviceBuffer, Stream};

use super::{Result, cases};

/// Filled into everything, and looked for behind every output.
const FILLING: u8 = 0xA5;
const GUARD: usize = 256;

/// Prints what came of the case.
pub fn run(library: &Path, name: &str) -> Result<()> {
    let result = decode(library, name).unwrap_or_else(|e| json!({"outcome": "error", "error": e.to_string()}));
    println!("{result}");
    Ok(())
}

/// Bytes for the device, and where they will lie there.
#[derive(Default)]
struct Image {
    bytes: Vec<u8>,
}

impl Image {
    /// Room for `len` bytes at `shift` after a multiple of 256, with a guard behind.
    fn room(&mut self, len: usize, shift: usize) -> usize {
        let begin = self.bytes.len().next_multiple_of(GUARD) + shift;
        self.bytes.resize(begin + len + GUARD, FILLING);
        begin
    }

    fn put(&mut self, bytes: &[u8], shift: usize) -> usize {
        let begin = self.room(bytes.len(), shift);
        self.bytes[begin..begin + bytes.len()].copy_from_slice(bytes);
        begin
    }
}

fn decode(library: &Path, name: &str) -> Result<Value> {
    let mut case = cases::case(name)?;
    let tried = case.frames.len();
    // An ordinary frame last: does it suffer from its neighbour?
    case.frames.push(cases::neighbour()?);
    let device = Device::new(0)?;
    let stream = Stream::new(&device)?;
    device.bind()?;
    let nvcomp = Nvcomp::load_for(&device, Some(library), &[])?;

    let n = case.frames.len();
    let mut image = Image::default();
    let last = n - 1;
    let shift = |i: usize, by: usize| if i == last { 0 } else { by };
    let inputs: Vec<usize> = (0..n).map(|i| image.put(&case.frames[i].0, shift(i, case.input_shift))).collect();
    let outputs: Vec<usize> = (0..n).map(|i| image.room(case.frames[i].1.len(), shift(i, case.output_shift))).collect();
    let arrays: Vec<usize> = (0..6).map(|_| image.room(n * 8, 0)).collect();
    let max = case.frames.iter().map(|(_, content)| content.len()).max().unwrap_or(0);
    let total = case.frames.iter().map(|(_, content)| content.len()).sum();
    let temp_bytes = nvcomp.zstd_temp_bytes(n, max, total)?;
    let temp = DeviceBuffer::new(&device, temp_bytes.max(1))?;
    let memory = DeviceBuffer::new(&device, image.bytes.len())?;
    let at = |offset: usize| memory.ptr() + offset as u64;
    for i in 0..n {
        let (frame, content) = &case.frames[i];
        let words = [at(inputs[i]), frame.len() as u64, content.len() as u64, 0, at(outputs[i])];
        for (array, word) in arrays.iter().zip(words) {
            image.bytes[array + i * 8..][..8].copy_from_slice(&word.to_le_bytes());
        }
    }
    temp.fill(FILLING, &stream)?;
    memory.upload(0, &image.bytes, &stream)?;
    let batch = DeviceBatch {
        count: n,
        compressed: at(arrays[0]),
        compressed_bytes: at(arrays[1]),
        capacity: at(arrays[2]),
        actual: at(arrays[3]),
        output: at(arrays[4]),
        statuses: at(arrays[5]),
    };
    // SAFETY: context, arrays and scratch are as the function wants them, and stay. Not all frames are: what happens then
    // is the question, and this process does nothing else.
    unsafe { nvcomp.zstd_decompress(&batch, temp.ptr(), temp_bytes, stream.raw())? };
    stream.synchronize()?;
    let mut after = vec![0; image.bytes.len()];
    memory.download(0, &mut after, &stream)?;

    let word =
        |array: usize, i: usize| u64::from_le_bytes(after[arrays[array] + i * 8..][..8].try_into().expect("8 bytes"));
    let status = |i: usize| i32::from_le_bytes(after[arrays[5] + i * 4..][..4].try_into().expect("4 bytes"));
    let good = |i: usize| {
        let content = &case.frames[i].1;
        status(i) == 0 && word(3, i) == content.len() as u64 && after[outputs[i]..][..content.len()] == content[..]
    };
    // The one to report: the first that failed, or the first.
    let i = (0..tried).find(|&i| !good(i)).unwrap_or(0);
    let (frame, content) = &case.frames[i];
    let same = after[outputs[i]..][..content.len()].iter().zip(content).take_while(|(a, b)| a == b).count();
    let outcome = match (status(i), word(3, i) == content.len() as u64) {
        (0, true) if good(i) => "ok",
        (0, true) => "wrong bytes",
        (0, false) => "wrong length",
        _ => "status",
    };
    let overrun = (0..n).any(|i| after[outputs[i] + case.frames[i].1.len()..][..GUARD].iter().any(|&b| b != FILLING));
    Ok(json!({
        "outcome": outcome,
        "status": status(i),
        "status_name": status_name(status(i)),
        "frame_bytes": frame.len(),
        "expected": content.len(),
        "actual": word(3, i),
        "same_bytes": same,
        "failed_frames": (0..tried).filter(|&i| !good(i)).count(),
        "frames": tried,
        "neighbour_ok": good(last),
        "wrote_behind_output": overrun,
        "temp_bytes": temp_bytes,
    }))
}

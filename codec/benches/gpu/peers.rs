//! Peers in the same run: nvCOMP's ANS on the same symbols, nvCOMP's zstd on the same frames, and the copy to the
//! device that decoding there saves.
//!
//! nvCOMP compresses for its ANS itself, on the device. Its stored bytes count 8 for each chunk, the offset that a file
//! would need to find it.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::json;
use wcodec::gpu::nvcomp::{AnsMode, CompressBatch, DeviceBatch, Family, Nvcomp};
use wcodec::gpu::{DeviceBuffer, PinnedBuffer};
use wcodec::{
    Coder, Container, DecodeOptions, Dtype, EncodeOptions, Error, Layout, MemorySource, Result, encode_to_vec,
};

use super::data::{self, Shape};
use super::graph::{Graph, median, time};
use super::{Bench, many};

/// Bytes of a copy from the host.
const PIECE: usize = 64 << 20;
/// Copies from the host that are timed together.
const PIECES: usize = 16;
/// Compressed chunks begin at multiples of this, which suits every version.
const ALIGN: usize = 256;
/// Bytes of an offset in a file of ANS chunks.
const OFFSET: u64 = 8;

/// Measures all available peers.
pub fn run(b: &mut Bench) -> Result<()> {
    if b.wants("pinned copy") {
        pinned(b)?;
    }
    let nvcomp = match Nvcomp::load(None, &[], Some(b.device.driver_version())) {
        Ok(nvcomp) => nvcomp,
        Err(e) => {
            println!("without nvCOMP: {e}");
            return Ok(());
        }
    };
    println!("nvCOMP {}", nvcomp.version());
    // Up to 4.x it works in the current context.
    b.device.bind()?;
    let bulk = if b.quick { 32 } else { 128 };
    ans(b, &nvcomp, "1 GB of 4096 x 2048", &many("w", bulk, 4096, 2048), bulk, 1)?;
    for (rows, copies) in [(256, 128), (2048, 32), (5632, 16)] {
        ans(b, &nvcomp, &format!("one {rows} x 2048"), &many("w", copies, rows, 2048), 1, 2)?;
    }
    let blocks: Vec<Shape> = (0..8).flat_map(|i| data::block(&format!("layers.{i}"))).collect();
    ans(b, &nvcomp, "TinyLlama block", &blocks, 7, 3)?;
    zstd(b, &nvcomp, "256 MB of 4096 x 2048", &many("w", 32, 4096, 2048), 32, 4)?;
    zstd(b, &nvcomp, "TinyLlama block", &blocks[..28], 7, 3)
}

/// Bandwidth of copies from pinned memory of the host.
fn pinned(b: &mut Bench) -> Result<()> {
    let (from, to) = (PinnedBuffer::new(&b.device, PIECE)?, DeviceBuffer::new(&b.device, PIECE)?);
    let copies = || {
        // SAFETY: `time` waits for the copies; both buffers outlive it, and nothing changes them.
        (0..PIECES).try_for_each(|_| unsafe { to.upload_async(0, &from, 0..PIECE, &b.stream) })
    };
    let (ms, spread) = median(&time(&b.stream, 1, 11, &copies)?);
    b.add("pinned copy to the device", "64 MiB pieces", "GB/s", (PIECES * PIECE) as f64 / ms / 1e6, spread, json!({}));
    Ok(())
}

/// The symbols of a container's tensors, one after the other, and the number of tensors that one call decodes.
struct Case<'a> {
    name: &'a str,
    symbols: Vec<u8>,
    lengths: Vec<usize>,
    group: usize,
}

impl<'a> Case<'a> {
    fn new(name: &'a str, container: &Container, group: usize) -> Result<Self> {
        let (mut symbols, mut lengths) = (Vec::new(), Vec::new());
        for tensor in container.names() {
            let all = container.symbols(tensor, &DecodeOptions::default())?;
            symbols.extend_from_slice(bytemuck::cast_slice(&all));
            lengths.push(all.len());
        }
        Ok(Self { name, symbols, lengths, group })
    }
}

/// nvCOMP's ANS on tensors of these shapes, in calls of `group`.
fn ans(b: &mut Bench, nvcomp: &Nvcomp, name: &str, shapes: &[Shape], group: usize, seed: u64) -> Result<()> {
    if !b.wants(name) {
        return Ok(());
    }
    let container = data::container(shapes, &data::weights(shapes, seed), Coder::Huffman, Layout::Pair, None)?;
    let case = Case::new(name, &container, group)?;
    let symbols = DeviceBuffer::new(&b.device, case.symbols.len())?;
    symbols.upload(0, &case.symbols, &b.stream)?;
    for (mode, called) in [(AnsMode::Standard, ""), (AnsMode::Specialised, " specialised")] {
        if mode == AnsMode::Specialised && nvcomp.family() != Family::C {
            continue;
        }
        for chunk in [64 << 10, 256 << 10] {
            let chunks = compress(b, nvcomp, mode, chunk, &case, &symbols)?;
            let stored = chunks.places.iter().map(|p| p.stored + OFFSET).sum();
            let what = format!("nvCOMP ANS {}K{called}", chunk >> 10);
            peer(b, &Calls::new(b, nvcomp, Format::Ans(mode), &chunks)?, &case, &what, stored)?;
        }
    }
    Ok(())
}

/// nvCOMP's zstd on the frames of a container, in calls of `group` tensors, beside our decoder of that container.
fn zstd(b: &mut Bench, nvcomp: &Nvcomp, name: &str, shapes: &[Shape], group: usize, seed: u64) -> Result<()> {
    if !b.wants(name) {
        return Ok(());
    }
    let weights = data::weights(shapes, seed);
    let mut source = MemorySource::new();
    for ((tensor, rows, cols), bytes) in shapes.iter().zip(&weights) {
        source.push(tensor.clone(), Dtype::BF16, vec![*rows, *cols], Cow::Borrowed(bytes))?;
    }
    let options = EncodeOptions { coder: Coder::Zstd, ..Default::default() };
    let (file, _) = encode_to_vec(&source, &options, &mut |_| Ok(()))?;
    let container = Container::from_bytes(file.clone())?;
    let case = Case::new(name, &container, group)?;
    let bulk = group == shapes.len();
    if bulk {
        b.bulk(&container, name, "zstd to int8", Dtype::I8, case.symbols.len())?;
    } else {
        b.latency(&container, name, "zstd to int8", Dtype::I8, group)?;
    }
    let ours = b.rows.last().expect("a row was added").value;
    let (chunks, stored) = frames(b, &container, &file, group)?;
    let direct = peer(b, &Calls::new(b, nvcomp, Format::Zstd, &chunks)?, &case, "nvCOMP zstd, direct", stored)?;
    // Speeds are compared, even if times were measured.
    let ratio = if bulk { ours / direct } else { direct / ours };
    b.add("zstd, ours / direct", name, "x", ratio, 0.0, json!({}));
    Ok(())
}

/// ProductOutput the decompression by `calls` and compares the result with the symbols: all at once, or one call of several in
/// a graph.
fn peer(b: &mut Bench, calls: &Calls<'_>, case: &Case<'_>, what: &str, stored: u64) -> Result<f64> {
    let n = calls.chunks.calls.len();
    calls.out.fill(0xA5, &b.stream)?;
    let launch = || calls.launch(b);
    let times = if n == 1 {
        time(&b.stream, 3, if b.quick { 7 } else { 21 }, &launch)?
    } else {
        launch()?;
        b.stream.synchronize()?;
        let graph = Graph::capture(&b.stream, launch)?;
        time(&b.stream, 3, if b.quick { 9 } else { 31 }, &|| graph.launch(&b.stream))?
    };
    let mut got = vec![0u8; case.symbols.len()];
    calls.out.download(0, &mut got, &b.stream)?;
    assert!(got == case.symbols, "{what} of {} gives other symbols", case.name);
    let (ms, spread) = median(&times);
    let bits = (stored as f64 * 8.0 / case.symbols.len() as f64 * 1e4).round() / 1e4;
    let (unit, value, more) = if n == 1 {
        ("G/s", case.symbols.len() as f64 / ms / 1e6, json!({"bits_per_weight": bits}))
    } else {
        ("us", ms * 1e3 / n as f64, json!({"bits_per_weight": bits, "launches": n}))
    };
    b.add(what, case.name, unit, value, spread, more);
    Ok(value)
}

/// A compressed chunk: its address on the device, and its bytes before and after it is decompressed.
struct Place {
    at: u64,
    stored: u64,
    decoded: u64,
}

/// Compressed chunks on the device, in the order of their decoded bytes.
struct Chunks {
    places: Vec<Place>,
    /// The range of chunks of each call.
    calls: Vec<Range<usize>>,
    /// The memory that the addresses point to.
    _data: DeviceBuffer,
}

/// The largest values over all calls: the number of chunks, the size of the largest chunk, and the total size.
fn bounds(places: &[Place], calls: &[Range<usize>]) -> (usize, usize, usize) {
    calls.iter().fold((0, 0, 0), |(count, largest, total), call| {
        let lengths = || places[call.clone()].iter().map(|p| p.decoded as usize);
        (count.max(call.len()), largest.max(lengths().max().unwrap_or(0)), total.max(lengths().sum()))
    })
}

/// The frames of the container in `file`, and the bytes of their segments.
fn frames(b: &Bench, container: &Container, file: &[u8], group: usize) -> Result<(Chunks, u64)> {
    let data = DeviceBuffer::new(&b.device, file.len())?;
    data.upload(0, file, &b.stream)?;
    let (mut places, mut calls, mut stored) = (Vec::new(), Vec::new(), 0);
    for tensors in container.infos()?.chunks(group) {
        let first = places.len();
        for t in tensors {
            assert!(t.coder() == "zstd" && t.planes[0].filter == "none", "{} is coded otherwise", t.name);
            let [offsets, frames] = ["offsets", "data"].map(|role| {
                let s = t.segments.iter().find(|s| s.role == role).expect("a segment of coder zstd");
                stored += s.length;
                s.offset as usize..(s.offset + s.length) as usize
            });
            for &pair in file[offsets].as_chunks::<8>().0 {
                let [at, length]: [u32; 2] = bytemuck::cast(pair);
                let at = frames.start + at as usize * 8;
                let frame = &file[at..at + length as usize];
                let decoded = zstd::zstd_safe::get_frame_content_size(frame).ok().flatten();
                let decoded = decoded.ok_or_else(|| Error::corrupt("a frame without its length"))?;
                places.push(Place { at: data.ptr() + at as u64, stored: length.into(), decoded });
            }
        }
        calls.push(first..places.len());
    }
    Ok((Chunks { places, calls, _data: data }, stored))
}

/// Addresses of consecutive pieces from `start` on.
fn addresses(start: u64, lengths: &[u64]) -> Vec<u64> {
    let next = |at: &mut u64, length: &u64| Some(std::mem::replace(at, *at + length));
    lengths.iter().scan(start, next).collect()
}

/// An array on the device.
fn array(b: &Bench, values: &[u64]) -> Result<DeviceBuffer> {
    let to = DeviceBuffer::new(&b.device, size_of_val(values))?;
    to.upload(0, bytemuck::cast_slice(values), &b.stream)?;
    Ok(to)
}

/// Makes nvCOMP compress the case's `symbols`, each tensor in chunks of `chunk` bytes.
fn compress(
    b: &Bench,
    nvcomp: &Nvcomp,
    mode: AnsMode,
    chunk: usize,
    case: &Case<'_>,
    symbols: &DeviceBuffer,
) -> Result<Chunks> {
    let (mut lengths, mut calls) = (Vec::new(), Vec::new());
    for tensors in case.lengths.chunks(case.group) {
        let first = lengths.len();
        lengths.extend(tensors.iter().flat_map(|&n| (0..n).step_by(chunk).map(move |at| (n - at).min(chunk) as u64)));
        calls.push(first..lengths.len());
    }
    let count = lengths.len();
    let room = nvcomp.ans_compress_bound(chunk, mode)?.next_multiple_of(ALIGN);
    let data = DeviceBuffer::new(&b.device, count * room)?;
    let places = addresses(data.ptr(), &vec![room as u64; count]);
    let [input, input_bytes, output] = [&addresses(symbols.ptr(), &lengths), &lengths, &places].map(|v| array(b, v));
    let (input, input_bytes, output) = (input?, input_bytes?, output?);
    let (output_bytes, statuses) = (array(b, &vec![0; count])?, array(b, &vec![0; count])?);
    // A bound on a batch's chunks needs at least the scratch of the batch.
    let temp_bytes = nvcomp.ans_compress_temp_bytes(count, chunk, count * chunk, mode)?;
    let temp = DeviceBuffer::new(&b.device, temp_bytes)?;
    let batch = CompressBatch {
        count,
        max_chunk: chunk,
        input: input.ptr(),
        input_bytes: input_bytes.ptr(),
        output: output.ptr(),
        output_bytes: output_bytes.ptr(),
        statuses: statuses.ptr(),
    };
    // SAFETY: the context is current since `run`; arrays, chunks and scratch have their sizes and stay until `download`
    // has waited for the work.
    unsafe { nvcomp.ans_compress(&batch, mode, temp.ptr(), temp_bytes, b.stream.raw())? };
    let mut stored = vec![0u64; count];
    output_bytes.download(0, bytemuck::cast_slice_mut(&mut stored), &b.stream)?;
    let place = |((at, stored), decoded)| Place { at, stored, decoded };
    Ok(Chunks { places: places.into_iter().zip(stored).zip(lengths).map(place).collect(), calls, _data: data })
}

/// The format of the chunks that nvCOMP decompresses.
#[derive(Clone, Copy)]
enum Format {
    Zstd,
    Ans(AnsMode),
}

/// Calls that decompress chunks into `out`, which has room for all of them, one after the other.
struct Calls<'a> {
    nvcomp: &'a Nvcomp,
    format: Format,
    chunks: &'a Chunks,
    /// A batch of all chunks; each call takes its part of the arrays.
    all: DeviceBatch,
    out: DeviceBuffer,
    temp: DeviceBuffer,
    /// The arrays that the addresses in `all` point to.
    _arrays: [DeviceBuffer; 5],
}

impl<'a> Calls<'a> {
    fn new(b: &Bench, nvcomp: &'a Nvcomp, format: Format, chunks: &'a Chunks) -> Result<Self> {
        let column = |f: fn(&Place) -> u64| chunks.places.iter().map(f).collect::<Vec<u64>>();
        let decoded = column(|p| p.decoded);
        let (count, largest, total) = bounds(&chunks.places, &chunks.calls);
        let temp_bytes = match format {
            Format::Zstd => nvcomp.zstd_temp_bytes(count, largest, total)?,
            Format::Ans(mode) => nvcomp.ans_temp_bytes(count, largest, total, mode)?,
        };
        let out = DeviceBuffer::new(&b.device, decoded.iter().sum::<u64>() as usize)?;
        let arrays = [
            array(b, &column(|p| p.at))?,
            array(b, &column(|p| p.stored))?,
            array(b, &decoded)?,
            array(b, &addresses(out.ptr(), &decoded))?,
            // Lengths and statuses, which are written.
            DeviceBuffer::new(&b.device, decoded.len() * 12)?,
        ];
        let [compressed, compressed_bytes, capacity, output, actual] = arrays.each_ref().map(DeviceBuffer::ptr);
        let all = DeviceBatch {
            count: decoded.len(),
            compressed,
            compressed_bytes,
            capacity,
            actual,
            output,
            statuses: actual + 8 * decoded.len() as u64,
        };
        let temp = DeviceBuffer::new(&b.device, temp_bytes)?;
        Ok(Self { nvcomp, format, chunks, all, out, temp, _arrays: arrays })
    }

    /// Puts all calls into the stream. `self` must outlive their work, and graphs of it.
    fn launch(&self, b: &Bench) -> Result<()> {
        let (temp, temp_bytes, stream) = (self.temp.ptr(), self.temp.len(), b.stream.raw());
        for call in &self.chunks.calls {
            let at = |array: u64| array + 8 * call.start as u64;
            let batch = DeviceBatch {
                count: call.len(),
                compressed: at(self.all.compressed),
                compressed_bytes: at(self.all.compressed_bytes),
                capacity: at(self.all.capacity),
                actual: at(self.all.actual),
                output: at(self.all.output),
                statuses: self.all.statuses + 4 * call.start as u64,
            };
            // SAFETY: the context is current since `run`; arrays and outputs have room for these chunks, which encoders
            // made, the scratch is that of the largest call, and `peer` waits for the work before any of it is dropped.
            unsafe {
                match self.format {
                    Format::Zstd => self.nvcomp.zstd_decompress(&batch, temp, temp_bytes, stream)?,
                    Format::Ans(mode) => self.nvcomp.ans_decompress(&batch, mode, temp, temp_bytes, stream)?,
                }
            }
        }
        Ok(())
    }
}

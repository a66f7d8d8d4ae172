//! Speed of decoding on a GPU, beside copies on the device and nvCOMP in the same run. `make bench-gpu` runs it and
//! writes `target/bench/gpu.json`.
//!
//! Throughput counts decoded weights (1 byte each as int8). "us in a graph" is the time of one launch of a CUDA graph
//! divided by the number of launches in it, over copies that together exceed the device's L2 cache.

#[path = "gpu/data.rs"]
mod data;
#[path = "gpu/graph.rs"]
mod graph;
#[path = "gpu/peers.rs"]
mod peers;

use cudarc::driver::sys;
use data::Shape;
use graph::{Graph, median, time};
use serde_json::{Value, json};
use wcodec::gpu::{Batch, DecodeItem, Device, DeviceBuffer, GpuDecoder, GpuOptions, HostDecoder, Stream};
use wcodec::{Coder, Container, DecodeOptions, Dtype, Layout, Result};

/// Bytes of a copy on the device.
const COPY: usize = 4 << 30;

/// One measurement.
struct Row {
    what: String,
    case: String,
    unit: &'static str,
    value: f64,
    spread: f64,
    more: Value,
}

struct Bench {
    device: Device,
    stream: Stream,
    rows: Vec<Row>,
    quick: bool,
    overlap: bool,
    /// A substring of the names of the cases to run.
    only: Option<String>,
}

impl Bench {
    fn add(&mut self, what: &str, case: &str, unit: &'static str, value: f64, spread: f64, more: Value) {
        println!("{case:<28} {what:<28} {value:>10.2} {unit:<10} +- {:.1} %  {more}", spread * 100.0);
        self.rows.push(Row { what: what.into(), case: case.into(), unit, value, spread, more });
    }

    /// A decoder of all tensors, an output for each, and the launches that fill them.
    fn decoder(&self, container: &Container, dtype: Dtype) -> Result<(GpuDecoder, Vec<DeviceBuffer>, Vec<DecodeItem>)> {
        let decoder =
            GpuDecoder::new(&self.device, container, &[], &GpuOptions { overlap: self.overlap, ..Default::default() })?;
        let names: Vec<String> = decoder.names().map(str::to_owned).collect();
        let mut buffers = Vec::new();
        let mut items = Vec::new();
        for name in names {
            let out = DeviceBuffer::new(&self.device, decoder.output_bytes(&name, dtype)?)?;
            out.fill(0xA5, &self.stream)?;
            items.push(DecodeItem { name, out: out.ptr(), dtype, rows: None });
            buffers.push(out);
        }
        Ok((decoder, buffers, items))
    }

    /// Compares the decoded tensors with the scalar CPU decoder.
    fn compare(
        &self,
        container: &Container,
        decoder: &GpuDecoder,
        out: &[DeviceBuffer],
        items: &[DecodeItem],
    ) -> Result<()> {
        decoder.check(&self.stream)?;
        let step = if items.len() > 16 { items.len() / 8 } else { 1 };
        for (out, t) in out.iter().zip(items).step_by(step) {
            let mut got = vec![0u8; out.len()];
            out.download(0, &mut got, &self.stream)?;
            let want = match t.dtype {
                Dtype::I8 => bytemuck::cast_slice(&container.symbols(&t.name, &DecodeOptions::default())?).to_vec(),
                d => container.read_as(&t.name, d, &DecodeOptions::default())?.to_vec(),
            };
            assert!(got == want, "{} differs from the CPU's", t.name);
        }
        Ok(())
    }

    /// Bandwidth of a copy on the device, bytes read and bytes written.
    fn copy(&mut self) -> Result<()> {
        let (from, to) = (DeviceBuffer::new(&self.device, COPY)?, DeviceBuffer::new(&self.device, COPY)?);
        from.fill(1, &self.stream)?;
        let copy = || {
            // SAFETY: both buffers have that many bytes and outlive the copy.
            let code = unsafe { sys::cuMemcpyDtoDAsync_v2(to.ptr(), from.ptr(), COPY, self.stream.raw().cast()) };
            code.result().map_err(|e| wcodec::Error::device(format!("cuMemcpyDtoDAsync: {e}")))
        };
        self.device.bind()?;
        let (ms, spread) = median(&time(&self.stream, 3, 11, &copy)?);
        self.add("device copy", "4 GiB, read and written", "GB/s", 2.0 * COPY as f64 / ms / 1e6, spread, json!({}));
        Ok(())
    }

    fn wants(&self, case: &str) -> bool {
        self.only.as_ref().is_none_or(|part| case.contains(part.as_str()))
    }

    /// Throughput of decoding everything repeatedly.
    fn bulk(&mut self, container: &Container, case: &str, what: &str, dtype: Dtype, weights: usize) -> Result<()> {
        let (decoder, out, items) = self.decoder(container, dtype)?;
        let batch = decoder.prepare(&items)?;
        // SAFETY: the outputs and the decoder outlive the work.
        let work = || unsafe { batch.launch(&self.stream) };
        let times = time(&self.stream, 3, if self.quick { 7 } else { 21 }, &work)?;
        self.compare(container, &decoder, &out, &items)?;
        let (ms, spread) = median(&times);
        let bits = container.file_len() as f64 * 8.0 / weights as f64;
        self.add(
            what,
            case,
            "G/s",
            weights as f64 / ms / 1e6,
            spread,
            json!({"bits_per_weight": (bits * 1e4).round() / 1e4}),
        );
        Ok(())
    }

    /// Rate at which compressed bytes are copied from pinned memory and decoded at the same time.
    fn host(&mut self, container: &Container, case: &str, what: &str) -> Result<()> {
        let decoder = HostDecoder::new(&self.device, container, &[], &GpuOptions::default())?;
        let mut out = Vec::new();
        let mut items = Vec::new();
        for name in decoder.names() {
            let buffer = DeviceBuffer::new(&self.device, decoder.output_bytes(name, Dtype::I8)?)?;
            items.push(DecodeItem { name: name.to_owned(), out: buffer.ptr(), dtype: Dtype::I8, rows: None });
            out.push(buffer);
        }
        // SAFETY: the outputs and the decoder outlive the work.
        let work = || unsafe { decoder.decode(&items, &self.stream) };
        let (ms, spread) = median(&time(&self.stream, 2, 11, &work)?);
        decoder.check(&self.stream)?;
        let ring = decoder.device_bytes();
        self.add(what, case, "GB/s", decoder.host_bytes() as f64 / ms / 1e6, spread, json!({"device_bytes": ring}));
        Ok(())
    }

    /// Microseconds of decoding one of several groups of tensors, in one graph over all of them.
    fn latency(&mut self, container: &Container, case: &str, what: &str, dtype: Dtype, group: usize) -> Result<()> {
        let (decoder, out, items) = self.decoder(container, dtype)?;
        let batches: Vec<Batch> = items.chunks(group).map(|g| decoder.prepare(g)).collect::<Result<_>>()?;
        // SAFETY: the outputs and the decoder outlive the graph.
        let all = || batches.iter().try_for_each(|b| unsafe { b.launch(&self.stream) });
        all()?;
        self.stream.synchronize()?;
        let graph = Graph::capture(&self.stream, all)?;
        let times = time(&self.stream, 3, if self.quick { 9 } else { 31 }, &|| graph.launch(&self.stream))?;
        self.compare(container, &decoder, &out, &items)?;
        let (ms, spread) = median(&times);
        self.add(what, case, "us", ms * 1e3 / batches.len() as f64, spread, json!({"launches": batches.len()}));
        Ok(())
    }
}

fn many(name: &str, n: usize, rows: usize, cols: usize) -> Vec<Shape> {
    (0..n).map(|i| (format!("{name}.{i}"), rows, cols)).collect()
}

fn main() -> Result<()> {
    // Cargo's own arguments are ignored.
    let args: Vec<String> = std::env::args().collect();
    let flag = |name: &str| args.iter().any(|a| a == name);
    let value = |name: &str| args.iter().skip_while(|a| *a != name).nth(1).cloned();
    let quick = flag("--quick");
    let device = Device::new(0)?;
    let stream = Stream::new(&device)?;
    let mut b =
        Bench { device, stream, rows: Vec::new(), quick, overlap: !flag("--no-overlap"), only: value("--only") };
    println!("{}", b.device.name());

    if b.wants("device copy") {
        b.copy()?;
    }
    let tile = value("--tile").map(|w| w.parse().expect("a number of columns"));
    let coders = [(Coder::Rans, Layout::Pair, "rans"), (Coder::Huffman, Layout::Pair, "huffman")];
    let bytes = [(Coder::Rans, Layout::Byte, "rans byte"), (Coder::Huffman, Layout::Byte, "huffman byte")];
    if b.wants("1 GB") {
        let shapes = many("w", if quick { 32 } else { 128 }, 4096, 2048);
        let n: usize = shapes.iter().map(|s| s.1 * s.2).sum();
        let weights = data::weights(&shapes, 1);
        let one = vec![("w".to_owned(), shapes.len() * 4096, 2048)];
        let one_weights = vec![weights.concat()];
        for (coder, layout, what) in coders {
            let c = data::container(&one, &one_weights, coder, layout, tile)?;
            b.bulk(&c, "1 GB, one matrix", &format!("{what} to int8"), Dtype::I8, n)?;
            b.bulk(&c, "1 GB, one matrix", &format!("{what} to bf16"), Dtype::BF16, n)?;
        }
        for (coder, layout, what) in coders.into_iter().chain(bytes) {
            let c = data::container(&shapes, &weights, coder, layout, tile)?;
            b.bulk(&c, "1 GB of 4096 x 2048", &format!("{what} to int8"), Dtype::I8, n)?;
            if layout == Layout::Pair {
                b.host(&c, "1 GB of 4096 x 2048", &format!("{what}, copied and decoded"))?;
            }
            if layout == Layout::Pair {
                b.bulk(&c, "1 GB of 4096 x 2048", &format!("{what} to bf16"), Dtype::BF16, n)?;
            }
        }
    }
    // All bits of bf16: 2 bytes per weight are written, and 1.3 read.
    if b.wants("lossless") {
        let shapes = many("w", if quick { 32 } else { 128 }, 4096, 2048);
        let n: usize = shapes.iter().map(|s| s.1 * s.2).sum();
        let weights = data::normal(&shapes, 5);
        let one = vec![("w".to_owned(), shapes.len() * 4096, 2048)];
        let one_weights = vec![weights.concat()];
        let small = many("w", 32, 2048, 2048);
        let small_weights = data::normal(&small, 6);
        for (coder, what) in [(Coder::Rans, "rans"), (Coder::Huffman, "huffman")] {
            let what = format!("{what} lossless bf16");
            let c = data::lossless(&one, &one_weights, coder, tile)?;
            b.bulk(&c, "lossless, 1 GB, one matrix", &what, Dtype::BF16, n)?;
            let c = data::lossless(&shapes, &weights, coder, tile)?;
            b.bulk(&c, "lossless, 1 GB of 4096 x 2048", &what, Dtype::BF16, n)?;
            let c = data::lossless(&small, &small_weights, coder, tile)?;
            b.latency(&c, "lossless, one 2048 x 2048", &what, Dtype::BF16, 1)?;
        }
    }
    // Few bits per weight, beside int8 of the same weights in as many launches.
    if b.wants("rate") {
        let shapes = many("w", if quick { 16 } else { 64 }, 4096, 2048);
        let n: usize = shapes.iter().map(|s| s.1 * s.2).sum();
        let weights = data::weights(&shapes, 7);
        let small = many("w", 32, 2048, 2048);
        let small_weights = data::weights(&small, 8);
        let cases = ["rate, many of 4096 x 2048", "rate, one 2048 x 2048"];
        let mut both = |what: &str, many: &Container, one: &Container| {
            for dtype in [Dtype::I8, Dtype::BF16] {
                let what = format!("{what} to {}", if dtype == Dtype::I8 { "int8" } else { "bf16" });
                b.bulk(many, cases[0], &what, dtype, n)?;
                b.latency(one, cases[1], &what, dtype, 1)?;
            }
            Ok::<(), wcodec::Error>(())
        };
        for (coder, layout, name) in coders {
            let many = data::container(&shapes, &weights, coder, layout, tile)?;
            both(&format!("{name} int8"), &many, &data::container(&small, &small_weights, coder, layout, tile)?)?;
            for (bits, trellis) in [(4.0, false), (4.0, true), (3.0, false), (3.0, true)] {
                let many = data::rate(&shapes, &weights, coder, bits, trellis, tile)?;
                let one = data::rate(&small, &small_weights, coder, bits, trellis, tile)?;
                both(&format!("{name} {bits} bits{}", if trellis { " trellis" } else { "" }), &many, &one)?;
            }
        }
    }
    for (rows, copies) in [(256, 128), (2048, 32), (5632, 16)] {
        if !b.wants(&format!("one {rows} x 2048")) {
            continue;
        }
        let shapes = many("w", copies, rows, 2048);
        let weights = data::weights(&shapes, 2);
        for (coder, layout, what) in coders {
            let c = data::container(&shapes, &weights, coder, layout, tile)?;
            let case = format!("one {rows} x 2048");
            b.latency(&c, &case, &format!("{what} to int8"), Dtype::I8, 1)?;
            b.latency(&c, &case, &format!("{what} to bf16"), Dtype::BF16, 1)?;
        }
    }
    if b.wants("TinyLlama block") {
        let shapes: Vec<Shape> = (0..8).flat_map(|i| data::block(&format!("layers.{i}"))).collect();
        let weights = data::weights(&shapes, 3);
        for (coder, layout, what) in coders {
            let c = data::container(&shapes, &weights, coder, layout, tile)?;
            b.latency(&c, "TinyLlama block", &format!("{what} to int8"), Dtype::I8, 7)?;
            b.latency(&c, "TinyLlama block", &format!("{what} to bf16"), Dtype::BF16, 7)?;
        }
    }
    peers::run(&mut b)?;
    let results: Vec<Value> = b
        .rows
        .iter()
        .map(|r| json!({"what": r.what, "case": r.case, "unit": r.unit, "value": r.value, "spread": r.spread, "more": r.more}))
        .collect();
    let report = json!({"device": b.device.info(), "results": results});
    let out =
        std::env::var_os("WCODEC_BENCH_OUT").map_or_else(|| "target/bench/gpu.json".into(), std::path::PathBuf::from);
    if let Some(folder) = out.parent() {
        std::fs::create_dir_all(folder).map_err(|e| wcodec::Error::io("create the folder", folder, e))?;
    }
    std::fs::write(&out, format!("{report:#}\n")).map_err(|e| wcodec::Error::io("write", &out, e))?;
    println!("written to {}", out.display());
    Ok(())
}

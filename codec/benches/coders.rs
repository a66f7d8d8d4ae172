//! Speed of the coders on one core, beside libzstd on the same data in the same run.
//!
//! `make bench` runs this and turns criterion's estimates into a table and a JSON file (`codec/benches/report.py`).
//! Throughput is counted in decoded int8 bytes.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use rand::{SeedableRng, rngs::StdRng};
use rand_distr::{Distribution, StudentT};
use serde_json::json;
use wcodec::coder::histogram::{count_bytes, entropy};
use wcodec::coder::plane::{Coding, EncodedPlane, Filters, Plane, PlaneOptions, Scratch, SymbolMatrices, encode};
use wcodec::coder::tile::MAX_TILE;
use wcodec::coder::{TILE_ROWS, filter};
use wcodec::scheme::int8::{Granularity, quantize_with};
use wcodec::{Cancel, Coder, Filter, Isa, Layout, Pool};

/// Rows of the plane that is timed: 8 MiB.
const ROWS: usize = 4096;
/// Rows of the smallest plane whose size has a target: 512 KiB.
const FEW_ROWS: usize = 256;
const COLS: usize = 2048;
/// Frames of the peer: 64 KiB at level 3.
const ZSTD_FRAME: usize = 64 << 10;

fn options(coder: Coder, layout: Layout) -> PlaneOptions {
    PlaneOptions {
        coder,
        layout,
        table_bits: 12,
        patch_rare: false,
        changes: false,
        tile: None,
        zstd_level: 3,
        zstd_chunk: Some(ZSTD_FRAME),
        filters: Filters::None,
    }
}

fn benches(c: &mut Criterion) {
    // Rows of Student-t with six degrees of freedom: tails like those of trained weights.
    let (mut rng, t) = (StdRng::seed_from_u64(6), StudentT::new(6.0f32).expect("valid"));
    let weights = ndarray::Array2::from_shape_fn((ROWS, COLS), |_| t.sample(&mut rng));
    let pool = Pool::new(Some(1)).expect("one thread");
    let go = Cancel::new();
    let quantized = quantize_with(weights.view(), Granularity::Row, &pool, &go).expect("finite");
    let data = quantized.symbols.as_slice().expect("contiguous");
    let bytes = Throughput::Bytes(data.len() as u64);
    let symbols_of =
        |rows: usize| SymbolMatrices { count: 1, rows, cols: COLS, data: &data[..rows * COLS], beside: &[] };
    let symbols = symbols_of(ROWS);

    let (mut planes, mut sizes) = (Vec::new(), Vec::new());
    for (coder, layout) in [
        (Coder::Rans, Layout::Pair),
        (Coder::Rans, Layout::Byte),
        (Coder::Huffman, Layout::Pair),
        (Coder::Huffman, Layout::Byte),
        (Coder::Zstd, Layout::Byte),
    ] {
        let name = if coder == Coder::Zstd { coder.to_string() } else { format!("{coder}-{layout}") };
        let encode = |rows| encode(&symbols_of(rows), &options(coder, layout), &pool, &go);
        for rows in [FEW_ROWS, ROWS] {
            sizes.push(size(&name, symbols_of(rows).data, &encode(rows).expect("valid")));
        }
        planes.push((name, coder, layout, encode(ROWS).expect("valid")));
    }
    let names = planes.iter().flat_map(|(name, coder, ..)| {
        let decode = isas(*coder).into_iter().map(move |isa| format!("decode/{name}/{isa}"));
        decode.chain([format!("encode/{name}")])
    });
    let filters = Isa::available().into_iter().map(|isa| format!("{FILTER}/{isa}"));
    write_facts(&sizes, names.chain([QUANTIZE.to_owned()]).chain(filters).collect());

    let mut group = c.benchmark_group("decode");
    group.throughput(bytes.clone());
    let mut out = vec![0i8; data.len()];
    for (name, coder, _, plane) in &planes {
        for isa in isas(*coder) {
            let decoder = Plane::new(plane.source(&symbols), isa).expect("valid");
            let mut scratch = Scratch::default();
            let mut run = |out: &mut [i8]| {
                for i in 0..decoder.pieces() {
                    decoder.decode_piece(i, &mut out[decoder.piece(i)], &mut scratch).expect("valid");
                }
                black_box(&out);
            };
            out.fill(0x55);
            run(&mut out);
            assert!(out == data, "{name} {isa}");
            group.bench_function(format!("{name}/{isa}"), |b| b.iter(|| run(&mut out)));
        }
    }
    group.finish();

    let mut group = c.benchmark_group("encode");
    group.throughput(bytes.clone());
    for (name, coder, layout, _) in &planes {
        group.bench_function(name, |b| {
            b.iter_batched(
                || (),
                |()| encode(&symbols, &options(*coder, *layout), &pool, &go).expect("valid"),
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();

    // The strip stays in the cache, where decoding leaves it; its content does not matter.
    let (group, undo) = FILTER.split_once('/').expect("group and name");
    let mut group = c.benchmark_group(group);
    group.throughput(bytes.clone());
    let strip = &mut out[..TILE_ROWS * COLS];
    for isa in Isa::available() {
        group.bench_function(format!("{undo}/{isa}"), |b| {
            b.iter(|| {
                for col in (0..ROWS / TILE_ROWS).flat_map(|_| (0..COLS).step_by(MAX_TILE)) {
                    filter::undo(Filter::Trellis, black_box(&mut strip[col..]), COLS, MAX_TILE, isa);
                }
            });
        });
    }
    group.finish();

    let (group, quantize_rows) = QUANTIZE.split_once('/').expect("group and name");
    let mut group = c.benchmark_group(group);
    group.throughput(bytes);
    group.bench_function(quantize_rows, |b| {
        b.iter(|| black_box(quantize_with(weights.view(), Granularity::Row, &pool, &go).expect("finite")));
    });
    group.finish();
}

const QUANTIZE: &str = "scheme/quantize-int8-row";
const FILTER: &str = "filter/undo-trellis";

/// Instruction sets of this machine for which `coder` has its own decoders.
fn isas(coder: Coder) -> Vec<Isa> {
    let differ = |isa: &Isa| match coder {
        Coder::Rans => true,
        // There is one fast decoder, which AVX2 enables.
        Coder::Huffman => *isa != Isa::Avx512,
        // libzstd chooses its own instruction set.
        _ => *isa == Isa::Scalar,
    };
    Isa::available().into_iter().filter(differ).collect()
}

/// Width of a plane's tiles; `None` if it is not tiled.
fn tile_of(plane: &EncodedPlane) -> Option<usize> {
    match plane.form.coding {
        Coding::Tiles(tiling) => Some(tiling.tile),
        _ => None,
    }
}

/// Size of a plane beside the order-0 entropy of its symbols, printed and for the report. Scales are not counted.
fn size(name: &str, data: &[i8], plane: &EncodedPlane) -> serde_json::Value {
    let entropy = entropy(&count_bytes(bytemuck::cast_slice(data)));
    let (stored, tile) = (plane.stored_bytes(), tile_of(plane));
    let over = stored as f64 / (entropy / 8.0 * data.len() as f64) - 1.0;
    println!("size {name} of {} KiB: {stored} bytes, {:+.2} % over order-0 entropy", data.len() >> 10, over * 100.0);
    json!({ "name": name, "bytes": data.len(), "stored": stored, "tile": tile, "entropy": entropy, "over": over })
}

/// Writes the facts that `report.py` cannot read from criterion's files. Written before any of those, so that older
/// files are recognized as another run's.
fn write_facts(sizes: &[serde_json::Value], benchmarks: Vec<String>) {
    let zstd = zstd::zstd_safe::version_string();
    let versions = json!({ "wcodec": env!("CARGO_PKG_VERSION"), "zstd": zstd });
    let facts = json!({ "versions": versions, "sizes": sizes, "benchmarks": benchmarks });
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("coders.json");
    std::fs::write(&path, facts.to_string()).expect("the target folder can be written");
}

criterion_group! {
    name = coders;
    config = Criterion::default().sample_size(20).warm_up_time(std::time::Duration::from_secs(1)).measurement_time(std::time::Duration::from_secs(4));
    targets = benches
}
criterion_main!(coders);

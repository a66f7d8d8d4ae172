//! Speed of the coders on one core, beside libzstd on the same data in the same run.
//!
//! `make bench` runs this and turns criterion's estimates into a table and a JSON file (`codec/benches/report.py`).
//! Throughput is counted in decoded int8 bytes.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use rand::{SeedableRng, rngs::StdRng};
use rand_distr::{Distribution, StudentT};
use wcodec::coder::histogram::{count_bytes, entropy};
use wcodec::coder::plane::{
    EncodedPlane, Plane, PlaneOptions, PlaneSource, Scratch, Symbols, TableChoice, TileFields, encode,
};
use wcodec::scheme::int8::{Granularity, quantize};
use wcodec::{Coder, Isa, Layout, Pool};

const ROWS: usize = 4096;
const COLS: usize = 2048;
/// Frames of the peer: 64 KiB at level 3.
const ZSTD_FRAME: usize = 64 << 10;

fn options(coder: Coder, layout: Layout) -> PlaneOptions {
    PlaneOptions {
        coder,
        layout,
        table_bits: 12,
        tile: None,
        zstd_level: 3,
        zstd_chunk: Some(ZSTD_FRAME),
        filters: false,
    }
}

fn source<'a>(symbols: &Symbols<'_>, plane: &'a EncodedPlane) -> PlaneSource<'a> {
    PlaneSource {
        coder: plane.coder,
        filter: plane.filter,
        matrix: (symbols.count, symbols.rows, symbols.cols),
        data: &plane.data,
        offsets: &plane.offsets,
        zstd_chunk: plane.zstd_chunk.unwrap_or(0),
        max_chunk: plane.max_chunk,
        tiles: plane.tiles.as_ref().map(|t| TileFields {
            layout: t.layout,
            shift: t.shift,
            tile: t.tile,
            side: &t.side,
            table: match &t.table {
                TableChoice::New(t) => t,
                TableChoice::Known(_) => unreachable!("no tables are offered"),
            },
        }),
    }
}

fn benches(c: &mut Criterion) {
    // Rows of Student-t with six degrees of freedom: tails like those of trained weights.
    let (mut rng, t) = (StdRng::seed_from_u64(6), StudentT::new(6.0f32).expect("valid"));
    let weights = ndarray::Array2::from_shape_fn((ROWS, COLS), |_| t.sample(&mut rng));
    let pool = Pool::new(Some(1)).expect("one thread");
    let quantized = pool.run(|| quantize(weights.view(), Granularity::Row)).expect("finite");
    let data = quantized.symbols.as_slice().expect("contiguous");
    let symbols = Symbols { count: 1, rows: ROWS, cols: COLS, data };
    let bound = entropy(&count_bytes(bytemuck::cast_slice(data))) / 8.0;
    let bytes = Throughput::Bytes(data.len() as u64);

    let mut planes = Vec::new();
    for (coder, layout) in [
        (Coder::Rans, Layout::Pair),
        (Coder::Rans, Layout::Byte),
        (Coder::Huffman, Layout::Pair),
        (Coder::Huffman, Layout::Byte),
        (Coder::Zstd, Layout::Byte),
    ] {
        let plane = encode(&symbols, &options(coder, layout), &[], &pool, &mut |_| Ok(())).expect("valid");
        let name = if coder == Coder::Zstd { coder.to_string() } else { format!("{coder}-{layout}") };
        let size = plane.stored_bytes() as f64 / data.len() as f64;
        println!(
            "size {name} {size:.5} of the int8 bytes, {:+.2} % over order-0 entropy",
            (size / bound - 1.0) * 100.0
        );
        planes.push((name, coder, layout, plane));
    }

    let mut group = c.benchmark_group("decode");
    group.throughput(bytes.clone());
    let mut out = vec![0i8; data.len()];
    for (name, coder, _, plane) in &planes {
        for isa in Isa::available() {
            // libzstd chooses for itself, and huffman has one fast decoder.
            let alike = match coder {
                Coder::Zstd => Isa::Scalar,
                Coder::Huffman => isa.min_fast(),
                _ => isa,
            };
            if alike != isa {
                continue;
            }
            let decoder = Plane::new(source(&symbols, plane), isa).expect("valid");
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
                |()| {
                    pool.run(|| encode(&symbols, &options(*coder, *layout), &[], &pool, &mut |_| Ok(())))
                        .expect("valid")
                },
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();

    let mut group = c.benchmark_group("scheme");
    group.throughput(bytes);
    group.bench_function("quantize-int8-row", |b| {
        b.iter(|| black_box(pool.run(|| quantize(weights.view(), Granularity::Row)).expect("finite")));
    });
    group.finish();
}

/// Which instruction sets differ for `huffman`: the reference and one fast decoder.
trait MinFast {
    fn min_fast(self) -> Isa;
}

impl MinFast for Isa {
    fn min_fast(self) -> Isa {
        match self {
            Isa::Scalar => Isa::Scalar,
            _ => Isa::Avx2,
        }
    }
}

criterion_group! {
    name = coders;
    config = Criterion::default().sample_size(20).warm_up_time(std::time::Duration::from_secs(1)).measurement_time(std::time::Duration::from_secs(4));
    targets = benches
}
criterion_main!(coders);

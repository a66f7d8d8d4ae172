//! The kernels themselves against the oracle, on the CPU: the emulator runs the plans and the launches that a device runs.

use std::ops::Range;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wcodec_kernels::Module;
use wcodec_kernels::abi::{self, OutputKind, Parameters};
use wcodec_kernels::emulate::{Buffer, Launch, Range as Memory};

use super::packed_rows::PackedRows;
use super::plan::{Limits, Method, PlaneAddresses, TensorPlan, TilesItem, tiles_launches};
use super::table::{Form, device_table};
use super::work_item::{UTIL_THREADS, WorkItem, bits_batches, bits_item, elements_of, symbols_batch, symbols_item};
use crate::coder::plane::{Coding, Plane, Scratch};
use crate::decode::{PlaneBytes, TensorBytes};
use crate::{
    Coder, Container, DecodeOptions, Dtype, EncodeOptions, Granularity, Isa, Layout, MemorySource, Optimize, Scheme,
    Source,
};

mod disk;
mod files;
mod lookup;
mod lossless;
mod norm;
mod product;
mod quantize;
mod rate;
mod residency;
mod route;

/// A small device, so that blocks of threads have several chunks and cross from one plane into the next.
const LIMITS: Limits =
    Limits { multiprocessors: 2, shared_per_block: 40 << 10, shared_per_multiprocessor: 64 << 10, many: false };

const POISON: u8 = 0xA5;
const GUARD: usize = 256;

/// A poisoned buffer of so many bytes, with a guard on each side.
fn guarded(bytes: usize) -> Buffer {
    let mut buffer = Buffer::new(bytes + 2 * GUARD);
    buffer.fill(POISON);
    buffer
}

/// Its bytes; nothing was written around them.
fn inside(buffer: &Buffer) -> &[u8] {
    let end = buffer.len() - GUARD;
    assert!(buffer[..GUARD].iter().chain(&buffer[end..]).all(|&b| b == POISON), "it writes elsewhere");
    &buffer[GUARD..end]
}

/// A tensor in memory that the emulator reads, with its tables.
struct Loaded {
    plan: TensorPlan,
    packed: Buffer,
    places: Vec<PlaneAddresses>,
    /// The table of each plane.
    tables: Vec<Vec<u32>>,
    status: Vec<u32>,
    /// The decoded bytes of planes that are not in tiles, which are nvCOMP's work.
    symbols: Vec<Buffer>,
}

impl Loaded {
    /// Nothing where kernels of ours have no work, or only that of scales.
    fn new(parts: &TensorBytes) -> Option<Self> {
        let loaded = Self::any(parts);
        let others = matches!(loaded.plan.planes[0], Method::Zstd { bits: None, .. } | Method::Raw { bits: None });
        (!others).then_some(loaded)
    }

    /// Any tensor.
    fn any(parts: &TensorBytes) -> Self {
        let plan = TensorPlan::new(parts).unwrap();
        let mut packed = Buffer::new(plan.packed.len);
        plan.packed.fill(parts, 0, &mut packed);
        let table = |method: &Method| match method {
            Method::Tiles(t) => device_table(&t.table, Form::of(&t.tiling)),
            _ => Vec::new(),
        };
        let tables = plan.planes.iter().map(table).collect();
        let symbols = (0..plan.planes.len()).map(|i| match plan.planes[i] {
            Method::Tiles(_) => Buffer::new(0),
            _ => Buffer::from(&symbols_of(parts, i).expect("it is intact")[..]),
        });
        let symbols = symbols.collect();
        let (places, status) = (plan.packed.at(packed.address()), vec![abi::STATUS_GOOD; plan.planes.len()]);
        Self { packed, places, tables, status, symbols, plan }
    }

    /// Decoding rows of a plane to `out`.
    fn item(&self, plane: usize, rows: Range<usize>, out: u64, kind: OutputKind) -> WorkItem<'_> {
        WorkItem {
            plan: &self.plan,
            method: &self.plan.planes[plane],
            addresses: self.places[plane],
            table: self.tables[plane].as_ptr().expose_provenance() as u64,
            status: self.status[plane..].as_ptr().expose_provenance() as u64,
            out,
            kind,
            rows,
            product: None,
        }
    }

    /// Decoding strips of a plane that is in tiles, to no place yet.
    fn in_tiles(&self, plane: usize, strips: Range<usize>, kind: OutputKind) -> TilesItem<'_> {
        let Method::Tiles(tiles) = &self.plan.planes[plane] else { panic!("{} is not in tiles", self.plan.name()) };
        let rows = self.plan.first_row(strips.start)..self.plan.first_row(strips.end);
        self.item(plane, rows, 0, kind).in_tiles(tiles)
    }

    /// Decodes rows from a packed tensor of a piece of the tensor, to their places in `out`.
    fn decode_piece(&self, piece: &PackedRows, packed: Buffer, rows: Range<usize>, out: &mut [u8]) {
        let plan = &self.plan;
        let mut part = Self {
            plan: plan.clone(),
            places: piece.at(packed.address()),
            packed,
            tables: self.tables.clone(),
            status: self.status.clone(),
            symbols: Vec::new(),
        };
        let strips = plan.strip_of(rows.start)..plan.strip_of(rows.end);
        let part = run(std::slice::from_mut(&mut part), OutputKind::F32, &|_| strips.clone(), 7).remove(0);
        assert_eq!(part.status, None);
        let (row, column) = plan.strides();
        let elements = rows.len() * plan.matrix.2;
        for (r, c) in (0..elements).map(|e| (e / plan.matrix.2, e % plan.matrix.2)) {
            let at = 4 * (r * row + c * column);
            let to = 4 * ((rows.start + r) * row + c * column);
            out[to..to + 4].copy_from_slice(&part.bytes[at..at + 4]);
        }
    }
}

/// The result of decoding one tensor.
struct Decoded {
    /// The output without its guards.
    bytes: Vec<u8>,
    /// The first damaged chunk.
    status: Option<u32>,
}

/// Decodes strips of all `tensors` to `kind` in as few launches as the plans allow; outputs are poisoned and guarded.
fn run(tensors: &mut [Loaded], kind: OutputKind, strips: &dyn Fn(usize) -> Range<usize>, seed: u64) -> Vec<Decoded> {
    run_at(tensors, kind, strips, seed, 0)
}

/// Decodes as [`run`] does, to addresses that are `off` bytes behind a multiple of 256.
fn run_at(
    tensors: &mut [Loaded],
    kind: OutputKind,
    strips: &dyn Fn(usize) -> Range<usize>,
    seed: u64,
    off: usize,
) -> Vec<Decoded> {
    let rows = |t: &TensorPlan| {
        let s = strips(t.strips());
        t.first_row(s.start)..t.first_row(s.end)
    };
    let sizes: Vec<usize> = tensors
        .iter()
        .map(|t| {
            let (row, column) = t.plan.strides();
            ((rows(&t.plan).len() - 1) * row + (t.plan.matrix.2 - 1) * column + 1) * kind.bytes()
        })
        .collect();
    let mut outputs: Vec<Buffer> = sizes.iter().map(|n| Buffer::new(n + 2 * GUARD + off)).collect();
    outputs.iter_mut().for_each(|o| o.fill(POISON));
    let (mut items, mut element_bits, mut symbols): (Vec<TilesItem<'_>>, _, _) = (Vec::new(), Vec::new(), Vec::new());
    for (t, out) in tensors.iter().zip(&outputs) {
        for (i, method) in t.plan.planes.iter().enumerate() {
            let item = t.item(i, rows(&t.plan), out.address() + (GUARD + off) as u64, kind);
            match method {
                Method::Tiles(tiles) => items.push(item.in_tiles(tiles)),
                Method::Zstd { bits, .. } | Method::Raw { bits } => {
                    let decoded = symbols_item(&item, t.symbols[i].address(), elements_of(&item));
                    match *bits {
                        Some(bits) => element_bits.push(bits_item(bits, kind, decoded)),
                        None => symbols.push(decoded),
                    }
                }
            }
        }
    }
    items.sort_by_key(TilesItem::key);
    let launches: Vec<_> =
        items.chunk_by(|a, b| a.key() == b.key()).flat_map(|items| tiles_launches(items, LIMITS).unwrap()).collect();
    let element_bits = bits_batches(element_bits, LIMITS);
    let symbols = (!symbols.is_empty()).then(|| symbols_batch(&symbols, LIMITS));
    let mut lent: Vec<&mut Vec<u32>> = Vec::new();
    let mut memory = Vec::new();
    for t in tensors.iter_mut() {
        memory.push(Memory::read::<u8>(&t.packed));
        memory.extend(t.tables.iter().map(|table| Memory::read::<u32>(table)));
        memory.extend(t.symbols.iter().map(|symbols| Memory::read::<u8>(symbols)));
        lent.push(&mut t.status);
    }
    memory.extend(lent.into_iter().map(|s| Memory::write::<u32>(s)));
    memory.extend(outputs.iter_mut().map(|o| Memory::write::<u8>(o)));
    for l in &launches {
        Launch::new(l.module, &l.kernel)
            .grid(l.grid)
            .threads(l.threads)
            .shared(l.shared)
            .seed(seed)
            .overlaps(true)
            .run(l.params.as_bytes(), &memory)
            .unwrap_or_else(|e| panic!("{}: {e}", l.kernel));
    }
    for (batch, grid) in &element_bits {
        Launch::new(Module::Util, "wcodec_fields")
            .grid(*grid)
            .threads(UTIL_THREADS)
            .seed(seed)
            .overlaps(true)
            .run(batch.as_bytes(), &memory)
            .unwrap_or_else(|e| panic!("wcodec_fields: {e}"));
    }
    if let Some((batch, grid)) = &symbols {
        Launch::new(Module::Util, "wcodec_dequantize")
            .grid(*grid)
            .threads(UTIL_THREADS)
            .seed(seed)
            .overlaps(true)
            .run(batch.as_bytes(), &memory)
            .unwrap_or_else(|e| panic!("wcodec_dequantize: {e}"));
    }
    drop(memory);
    let mut results = Vec::new();
    for ((t, out), n) in tensors.iter_mut().zip(&outputs).zip(sizes) {
        let begin = GUARD + off;
        assert!(out[..begin].iter().chain(&out[begin + n..]).all(|&b| b == POISON), "{}: wrote around", t.plan.name());
        let status = *t.status.iter().min().expect("there are planes");
        t.status.fill(abi::STATUS_GOOD);
        let bytes = out[begin..begin + n].to_vec();
        results.push(Decoded { bytes, status: (status != abi::STATUS_GOOD).then_some(status) });
    }
    results
}

fn oracle() -> DecodeOptions {
    DecodeOptions { isa: Some(Isa::Scalar), ..Default::default() }
}

/// Compares every tensor in tiles of a container with what the CPU makes of it, in every kind of output.
fn check_container(bytes: Vec<u8>, what: &str) -> usize {
    let container = Container::from_bytes(bytes).unwrap();
    let names: Vec<String> = container.infos().unwrap().into_iter().map(|i| i.name).collect();
    let parts: Vec<TensorBytes> = names.iter().filter_map(|n| container.bytes_of(n, &oracle()).ok()).collect();
    let mut tensors: Vec<Loaded> = parts.iter().filter_map(Loaded::new).collect();
    for kind in OutputKind::ALL {
        let dtype = match kind {
            OutputKind::Int8 => Dtype::I8,
            OutputKind::F16 => Dtype::F16,
            OutputKind::BF16 => Dtype::BF16,
            OutputKind::F32 => Dtype::F32,
        };
        let (mut some, others): (Vec<_>, Vec<_>) = tensors.into_iter().partition(|t| match t.plan.tensor.is_joined() {
            true => t.plan.output(t.plan.tensor.dtype).unwrap() == kind,
            false => kind == OutputKind::Int8 || t.plan.output(dtype).is_ok(),
        });
        let results = run_all(&mut some, kind);
        for (t, got) in some.iter().zip(results) {
            let want = match kind {
                _ if t.plan.tensor.is_joined() => container.read(t.plan.name(), &oracle()).unwrap().to_vec(),
                OutputKind::Int8 => symbols_as_stored(&container, &t.plan),
                _ => container.read_as(t.plan.name(), dtype, &oracle()).unwrap().to_vec(),
            };
            assert_eq!(got.status, None, "{what}: {} as {kind:?}", t.plan.name());
            let differs = got.bytes.iter().zip(&want).position(|(a, b)| a != b);
            assert!(got.bytes == want, "{what}: {} as {kind:?} differs at byte {differs:?}", t.plan.name());
        }
        tensors = some.into_iter().chain(others).collect();
    }
    tensors.len()
}

fn run_all(tensors: &mut [Loaded], kind: OutputKind) -> Vec<Decoded> {
    run(tensors, kind, &|n| 0..n, 0)
}

/// Symbols in the order of the tensor's elements, which is not that of the matrix where it is transposed.
fn symbols_as_stored(container: &Container, plan: &TensorPlan) -> Vec<u8> {
    symbols_as_stored_by(container, plan, &oracle())
}

fn symbols_as_stored_by(container: &Container, plan: &TensorPlan, options: &DecodeOptions) -> Vec<u8> {
    let symbols = container.symbols(plan.name(), options).unwrap();
    let symbols: Vec<u8> = symbols.into_iter().map(|q| q as u8).collect();
    let (_, rows, cols) = plan.matrix;
    if !plan.tensor.transposed() {
        return symbols;
    }
    (0..cols).flat_map(|c| (0..rows).map(move |r| (r, c))).map(|(r, c)| symbols[r * cols + c]).collect()
}

/// Weights whose rows have tails, as those of models have.
fn weights(rng: &mut StdRng, n: usize) -> Vec<f32> {
    (0..n)
        .map(|_| {
            let bell = (0..4).map(|_| rng.random_range(-1.0f32..1.0)).sum::<f32>();
            if rng.random_range(0..40) == 0 { bell * 4.0 } else { bell * 0.3 }
        })
        .collect()
}

/// Matrices of these shapes, of several dtypes, and one stack.
fn sample(rng: &mut StdRng, shapes: &[Vec<usize>]) -> MemorySource<'static> {
    let mut source = MemorySource::new();
    for (i, shape) in shapes.iter().enumerate() {
        let w = weights(rng, shape.iter().product());
        let (dtype, bytes): (_, Vec<u8>) = match i % 3 {
            0 => (Dtype::BF16, w.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect()),
            1 => (Dtype::F32, w.iter().flat_map(|v| v.to_le_bytes()).collect()),
            _ => (Dtype::F16, w.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect()),
        };
        source.push(format!("w{i}"), dtype, shape.clone(), bytes.into()).unwrap();
    }
    source
}

/// Options with factors for the columns of all matrices of a sample; they differ as the sizes of a model's inputs do.
fn with_columns(rng: &mut StdRng, source: &MemorySource<'_>, options: &EncodeOptions) -> EncodeOptions {
    let transposed = |name: &str| options.transpose.iter().any(|t| t == "w*" || t == name);
    let matrices = source.tensors().iter().map(|t| match t.shape[..] {
        [cols, _] if transposed(&t.name) => (&t.name, cols),
        [_, cols] => (&t.name, cols),
        [count, _, cols] => (&t.name, count * cols),
        _ => panic!("{:?} is no matrix", t.shape),
    });
    let mut factors = |n: usize| (0..n).map(|_| 2f32.powf(rng.random_range(-4.0..4.0))).collect();
    let columns = matrices.map(|(name, n)| (name.to_string(), factors(n))).collect();
    EncodeOptions { columns, ..options.clone() }
}

fn encode(source: &MemorySource<'_>, options: &EncodeOptions) -> Vec<u8> {
    crate::encode_to_vec(source, options, &mut |_| Ok(())).unwrap().0
}

/// Every coder and layout that the kernels decode, with every granularity and some widths of tiles.
fn options() -> Vec<EncodeOptions> {
    let mut all = Vec::new();
    for (i, (coder, layout)) in [Coder::Rans, Coder::Huffman]
        .into_iter()
        .flat_map(|c| Layout::choices(c).iter().map(move |&l| (c, l)))
        .enumerate()
    {
        let granularities = [Granularity::Row, Granularity::Tensor, Granularity::Block(64), Granularity::Block(16)];
        for (j, granularity) in granularities.into_iter().enumerate() {
            let tile = [Some(64), Some(192), None, Some(512)][(i + j) % 4];
            let table_bits = if j == 3 { 11 } else { 12 };
            all.push(EncodeOptions {
                scheme: Scheme::Int8(granularity),
                coder,
                layout: Some(layout),
                tile,
                table_bits: Some(table_bits),
                ..Default::default()
            });
        }
    }
    all
}

#[test]
fn every_coder_layout_shape_and_output_equals_the_oracle() {
    let mut rng = StdRng::seed_from_u64(1);
    let shapes: Vec<Vec<usize>> = [
        &[112, 512][..],
        &[15, 640],
        &[81, 1130],
        &[1, 9000],
        &[33, 2000],
        &[3, 36, 192],
        &[16, 64],
        &[300, 65],
        &[1, 64],
    ]
    .iter()
    .map(|s| s.to_vec())
    .collect();
    let mut tensors = 0;
    for o in options() {
        let what = format!("{} {:?} {:?} tile {:?}", o.coder, o.layout, o.scheme, o.tile);
        tensors += check_container(encode(&sample(&mut rng, &shapes), &o), &what);
    }
    // Those that would not be smaller are stored raw.
    assert!(tensors > 60, "{tensors}");
}

#[test]
fn transposed_matrices_and_bytes_equal_the_oracle() {
    let mut rng = StdRng::seed_from_u64(2);
    for coder in [Coder::Rans, Coder::Huffman] {
        let mut source = sample(&mut rng, &[vec![130, 96], vec![64, 48]]);
        let codes: Vec<u8> = (0..64 * 300).map(|_| (rng.random_range(0..6) * rng.random_range(0..6)) as u8).collect();
        source.push("codes".into(), Dtype::U8, vec![64, 300], codes.into()).unwrap();
        // Rows that repeat, and rows that rise: the filters pay.
        for (name, up) in [("up", true), ("left", false)] {
            let at = |i: usize| if up { (i % 200) * 37 + i / 200 } else { i % 200 + (i / 200) * 37 };
            let bytes: Vec<u8> = (0..64 * 200).map(|i| (at(i) + rng.random_range(0..3)) as u8).collect();
            source.push(name.into(), Dtype::U8, vec![64, 200], bytes.into()).unwrap();
        }
        let o = EncodeOptions { coder, transpose: vec!["w*".into()], ..Default::default() };
        for &layout in Layout::choices(coder) {
            let bytes = encode(&source, &EncodeOptions { layout: Some(layout), ..o.clone() });
            let filters: Vec<_> = Container::from_bytes(bytes.clone()).unwrap().infos().unwrap();
            assert!(filters.len() == 5);
            let n = check_container(bytes, &format!("{coder} {layout}"));
            // Quads have no filters, without which some do not pay.
            let least = if layout == Layout::Quad { 2 } else { 3 };
            assert!(n >= least, "{coder} {layout}: {n} tensors in tiles");
        }
    }
}

#[test]
fn golden_files_equal_the_oracle() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/golden");
    let mut tensors = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "wcodec") {
            tensors += check_container(std::fs::read(&path).unwrap(), &path.display().to_string());
        }
    }
    assert!(tensors > 40, "{tensors}");
}

#[test]
fn slices_of_rows_are_those_of_the_whole() {
    let mut rng = StdRng::seed_from_u64(3);
    for o in options() {
        let container =
            Container::from_bytes(encode(&sample(&mut rng, &[vec![70, 200], vec![3, 20, 128]]), &o)).unwrap();
        let parts = ["w0", "w1"].map(|n| container.bytes_of(n, &oracle()).unwrap());
        let mut tensors: Vec<Loaded> = parts.iter().filter_map(Loaded::new).collect();
        let whole: Vec<Vec<u8>> = run_all(&mut tensors, OutputKind::F32).into_iter().map(|d| d.bytes).collect();
        for t in &mut tensors {
            // Only what is needed for these rows is there, packed, as in a slot of a ring.
            let strips = t.plan.strips();
            let piece = PackedRows::of(&t.plan, &t.packed, &(t.plan.first_row(1)..t.plan.first_row(strips - 1)));
            let mut packed = Buffer::new(piece.len);
            packed.fill(POISON);
            for (range, place) in &piece.copies {
                packed[*place..place + range.len()].copy_from_slice(&t.packed[range.clone()]);
            }
            assert!(piece.len < t.packed.len());
            t.places = piece.at(packed.address());
            t.packed = packed;
        }
        let slices = run(&mut tensors, OutputKind::F32, &|n| 1..n - 1, 5);
        for ((t, slice), whole) in tensors.iter().zip(slices).zip(whole) {
            let row = t.plan.matrix.2 * 4;
            let (first, last) = (t.plan.first_row(1), t.plan.first_row(t.plan.strips() - 1));
            assert_eq!(slice.bytes, whole[first * row..last * row], "{}", t.plan.name());
        }
    }
}

#[test]
fn pieces_of_a_tensor_cover_it_and_decode_to_the_whole() {
    let mut rng = StdRng::seed_from_u64(6);
    for (i, o) in options().into_iter().chain(rate::options().into_iter().step_by(5)).enumerate() {
        let o = EncodeOptions { transpose: if i % 2 == 0 { vec!["w0".into()] } else { Vec::new() }, ..o };
        let source = sample(&mut rng, &[vec![134, 150], vec![3, 20, 128]]);
        let o = with_columns(&mut rng, &source, &o);
        let bytes = encode(&source, &o);
        let container = Container::from_bytes(bytes).unwrap();
        for name in ["w0", "w1"] {
            let parts = container.bytes_of(name, &oracle()).unwrap();
            let Some(mut whole) = Loaded::new(&parts) else { continue };
            let want = run_all(std::slice::from_mut(&mut whole), OutputKind::F32).remove(0).bytes;
            let plan = &whole.plan;
            let least = PackedRows::bound_of_strip(&parts.tensor);
            assert!(PackedRows::fitting(plan, &whole.packed, &(0..plan.rows()), 128).is_none());
            for capacity in [least, least + rng.random_range(0..whole.packed.len()), whole.packed.len()] {
                let mut got = vec![POISON; want.len()];
                let mut left = 0..plan.rows();
                let mut pieces = 0;
                while !left.is_empty() {
                    let (rows, piece) = PackedRows::fitting(plan, &whole.packed, &left, capacity).unwrap();
                    assert!(rows.start == left.start && !rows.is_empty() && piece.len <= capacity);
                    (left.start, pieces) = (rows.end, pieces + 1);
                    let mut packed = Buffer::new(piece.len);
                    packed.fill(POISON);
                    for (range, place) in &piece.copies {
                        packed[*place..place + range.len()].copy_from_slice(&whole.packed[range.clone()]);
                    }
                    whole.decode_piece(&piece, packed, rows, &mut got);
                }
                assert_eq!(pieces == 1, capacity >= whole.packed.len(), "{name}: {pieces} pieces in {capacity}");
                assert!(got == want, "{name}: {} {:?} in pieces of {capacity}", o.coder, o.layout);
            }
        }
    }
}

/// Flips, overwrites or shuffles some bytes of the stored parts.
fn damage(rng: &mut StdRng, bytes: &mut [u8]) {
    if bytes.is_empty() {
        return;
    }
    for _ in 0..rng.random_range(1..4) {
        let at = rng.random_range(0..bytes.len());
        match rng.random_range(0..4) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8),
            1 => bytes[at] = rng.random(),
            2 => {
                let end = (at + rng.random_range(1..64)).min(bytes.len());
                rng.fill(&mut bytes[at..end]);
            }
            _ => {
                let end = (at + rng.random_range(1..64)).min(bytes.len());
                bytes[at..end].fill([0, 0xFF][rng.random_range(0..2)]);
            }
        }
    }
}

/// The oracle's result for a plane's bytes that may be damaged: the decoded bytes, or nothing where it noticed.
fn symbols_of(bytes: &TensorBytes, plane: usize) -> Option<Vec<u8>> {
    let (stored, source) = (&bytes.tensor.planes[plane], &bytes.planes[plane]);
    let plane = Plane::new(source.source(stored.form), Isa::Scalar).ok()?;
    let size = plane.element_bytes();
    let mut out = vec![0i8; plane.elements() * size];
    for i in 0..plane.pieces() {
        let piece = plane.piece(i);
        plane.decode_piece(i, &mut out[piece.start * size..piece.end * size], &mut Scratch::default()).ok()?;
    }
    Some(out.into_iter().map(|q| q as u8).collect())
}

fn copy_of(bytes: &TensorBytes) -> TensorBytes {
    let copy = |part: &[u8]| crate::AlignedBytes::copy_of(part).unwrap();
    let plane = |p: &PlaneBytes| PlaneBytes {
        table: p.table.clone(),
        offsets: copy(&p.offsets),
        data: copy(&p.data),
        side: copy(&p.side),
    };
    TensorBytes {
        tensor: bytes.tensor.clone(),
        scales: copy(&bytes.scales),
        planes: bytes.planes.iter().map(plane).collect(),
    }
}

/// Damaged parts, hashes bypassed: nothing is touched that must not be (the emulator would say so), what the oracle notices is
/// reported, and what it does not notice decodes to the same.
#[test]
fn damaged_chunks_are_found_as_the_oracle_finds_them() {
    let cases: usize = std::env::var("WCODEC_CORRUPTIONS").map_or(1500, |n| n.parse().unwrap());
    let mut rng = StdRng::seed_from_u64(4);
    let mut noticed = 0;
    let mut sets: Vec<Vec<u8>> = Vec::new();
    for o in options() {
        let o = EncodeOptions { tile: Some(128), ..o };
        sets.push(encode(&sample(&mut rng, &[vec![40, 200]]), &o));
    }
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/golden");
    for entry in std::fs::read_dir(&golden).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "wcodec") {
            sets.push(std::fs::read(path).unwrap());
        }
    }
    let mut all: Vec<TensorBytes> = Vec::new();
    for bytes in sets {
        let container = Container::from_bytes(bytes).unwrap();
        for info in container.infos().unwrap() {
            if let Ok(p) = container.bytes_of(&info.name, &oracle())
                && matches!(p.tensor.plane().form.coding, Coding::Tiles(_))
            {
                all.push(p);
            }
        }
    }
    for case in 0..cases {
        let parts = &all[case % all.len()];
        let coding = parts.tensor.plane().form.coding;
        let mut damaged = copy_of(parts);
        let plane = &mut damaged.planes[0];
        match rng.random_range(0..8) {
            0 => damage(&mut rng, &mut plane.offsets),
            1 => damage(&mut rng, &mut plane.side),
            _ => damage(&mut rng, &mut plane.data),
        }
        let Some(loaded) = Loaded::new(&damaged) else { continue };
        let mut tensors = [loaded];
        let kind = if parts.tensor.scheme.makes_symbols() { OutputKind::ALL[case % 4] } else { OutputKind::Int8 };
        let got = run(&mut tensors, kind, &|n| 0..n, case as u64).remove(0);
        match symbols_of(&damaged, 0) {
            None => {
                noticed += 1;
                assert!(got.status.is_some(), "case {case}: {coding:?} not reported");
            }
            Some(want) => {
                assert_eq!(got.status, None, "case {case}: {coding:?} reported");
                if kind == OutputKind::Int8 && !parts.tensor.transposed() {
                    assert!(got.bytes == want, "case {case}: {coding:?} differs");
                }
            }
        }
    }
    assert!(noticed > cases / 3, "{noticed} of {cases} were noticed");
}

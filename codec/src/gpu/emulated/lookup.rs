//! Rows whose numbers lie in memory: what an embedding looks up.

use std::collections::BTreeSet;

use super::*;
use crate::gpu::plan::{LookupLaunch, can_look_up};
use crate::gpu::work_item::RowIds;

/// Numbers of rows of a matrix of `rows`, some of which it has not.
pub fn some_ids(rng: &mut StdRng, rows: usize) -> Vec<i64> {
    let strange = [-1, i64::MIN, i64::MAX, rows as i64, 1 << 32, (1 << 32) + 1, i64::from(i32::MIN)];
    (0..rng.random_range(1..30))
        .map(|_| match rng.random_range(0..8) {
            0 => strange[rng.random_range(0..strange.len())],
            1 => rows as i64 - 1,
            _ => rng.random_range(0..rows as i64),
        })
        .collect()
}

/// The expected output: rows of the whole, and NaN where there are none.
pub fn wanted(whole: &[u8], ids: &[i64], kind: OutputKind, cols: usize) -> Vec<u8> {
    let row = cols * kind.bytes();
    let rows = whole.len() / row;
    let each = ids.iter().map(|&id| match usize::try_from(id) {
        Ok(id) if id < rows => whole[id * row..(id + 1) * row].to_vec(),
        _ => nan(kind).repeat(cols),
    });
    each.collect::<Vec<_>>().concat()
}

fn nan(kind: OutputKind) -> Vec<u8> {
    match kind {
        OutputKind::F16 => 0x7E00u16.to_le_bytes().to_vec(),
        OutputKind::BF16 => 0x7FC0u16.to_le_bytes().to_vec(),
        _ => 0x7FC0_0000u32.to_le_bytes().to_vec(),
    }
}

/// Looks rows up, in memory that is poisoned and guarded; of numbers of 64 bits, or those that 32 bits have of them.
fn look_up(t: &mut Loaded, kind: OutputKind, ids: &[i64], wide: bool, seed: u64, off: usize) -> Decoded {
    let bytes = ids.len() * t.plan.matrix.2 * kind.bytes();
    let mut out = Buffer::new(bytes + 2 * GUARD + off);
    out.fill(POISON);
    let numbers: Vec<u8> = match wide {
        true => ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
        false => ids.iter().flat_map(|&id| (id as i32).to_le_bytes()).collect(),
    };
    let mut numbers = Buffer::from(&numbers[..]);
    let place = RowIds { ptr: numbers.address(), count: ids.len(), wide };
    let strips = t.plan.strips();
    let mut items: Vec<_> = (0..t.plan.planes.len()).map(|i| t.in_tiles(i, 0..strips, kind)).collect();
    items.sort_by_key(TilesItem::key);
    let launches: Vec<_> = items.iter().map(|item| LookupLaunch::new(item, LIMITS).unwrap()).collect();
    let mut memory = vec![Memory::read::<u8>(&t.packed)];
    memory.extend(t.tables.iter().map(|table| Memory::read::<u32>(table)));
    memory.push(Memory::write::<u32>(&mut t.status));
    // A launch before this one may write them.
    memory.push(Memory::write::<u8>(&mut numbers));
    let to = out.address() + (GUARD + off) as u64;
    memory.push(Memory::write::<u8>(&mut out));
    for launch in &launches {
        let (params, grid, threads, shared) = launch.at(place, to).unwrap();
        assert!(shared <= launch.most_shared());
        Launch::new(launch.module, &launch.kernel)
            .grid(grid)
            .threads(threads)
            .shared(shared)
            .seed(seed)
            .overlaps(true)
            .run(params.as_bytes(), &memory)
            .unwrap_or_else(|e| panic!("{}: {e}", launch.kernel));
    }
    drop(memory);
    let begin = GUARD + off;
    assert!(out[..begin].iter().chain(&out[begin + bytes..]).all(|&b| b == POISON), "{}: wrote around", t.plan.name());
    let status = *t.status.iter().min().expect("there are planes");
    t.status.fill(abi::STATUS_GOOD);
    Decoded { bytes: out[begin..begin + bytes].to_vec(), status: (status != abi::STATUS_GOOD).then_some(status) }
}

/// The kinds that rows of a tensor can be looked up as.
fn kinds(plan: &TensorPlan) -> Vec<OutputKind> {
    if plan.tensor.is_joined() {
        return vec![plan.output(plan.tensor.dtype).unwrap()];
    }
    vec![OutputKind::F16, OutputKind::BF16, OutputKind::F32]
}

/// Sources of every form that has kernels for it, and their options.
fn samples(rng: &mut StdRng, shapes: &[Vec<usize>]) -> Vec<Container> {
    let mut all = Vec::new();
    for o in options().into_iter().chain(rate::options()) {
        all.push(encode(&sample(rng, shapes), &o));
    }
    for o in rate::options().into_iter().step_by(5) {
        let source = sample(rng, shapes);
        let o = with_columns(rng, &source, &o);
        all.push(encode(&source, &o));
    }
    let shapes: Vec<&[usize]> = shapes.iter().map(|s| &s[..]).collect();
    for coder in [Coder::Rans, Coder::Huffman] {
        for (tile, table_bits) in [(None, 12), (Some(64), 11)] {
            all.push(encode(&lossless::sources(rng, &shapes), &lossless::options(coder, tile, table_bits)));
        }
    }
    all.into_iter().map(|bytes| Container::from_bytes(bytes).unwrap()).collect()
}

#[test]
fn rows_are_those_of_the_whole() {
    let mut rng = StdRng::seed_from_u64(60);
    let shapes: Vec<Vec<usize>> =
        [&[112, 512][..], &[81, 1130], &[300, 65], &[40, 200], &[5, 9001], &[17, 999], &[703, 33]]
            .iter()
            .map(|s| s.to_vec())
            .collect();
    let (mut seen, mut joined) = (BTreeSet::new(), BTreeSet::new());
    for container in samples(&mut rng, &shapes) {
        for info in container.infos().unwrap() {
            let parts = container.bytes_of(&info.name, &oracle()).unwrap();
            let mut t = Loaded::any(&parts);
            if can_look_up(&t.plan).is_some() {
                continue;
            }
            for kind in kinds(&t.plan) {
                let whole = match kind {
                    _ if t.plan.tensor.is_joined() => container.read(&info.name, &oracle()).unwrap().to_vec(),
                    OutputKind::F16 => container.read_as(&info.name, Dtype::F16, &oracle()).unwrap().to_vec(),
                    OutputKind::BF16 => container.read_as(&info.name, Dtype::BF16, &oracle()).unwrap().to_vec(),
                    _ => container.read_as(&info.name, Dtype::F32, &oracle()).unwrap().to_vec(),
                };
                let (rows, cols) = (t.plan.matrix.1, t.plan.matrix.2);
                let mut ids = some_ids(&mut rng, rows);
                let wide: bool = rng.random();
                if !wide {
                    ids.iter_mut().for_each(|id| *id = i64::from(*id as i32));
                }
                let off = [0, 0, kind.bytes(), 8][rng.random_range(0..4)];
                let got = look_up(&mut t, kind, &ids, wide, rng.random(), off);
                assert_eq!(got.status, None);
                assert!(got.bytes == wanted(&whole, &ids, kind, cols), "{} as {kind:?}: {ids:?}", info.name);
            }
            let Method::Tiles(tiles) = &t.plan.planes[0] else { unreachable!() };
            seen.insert(format!("{:?} {:?}", tiles.tiling.coder, tiles.mode()));
            if t.plan.tensor.is_joined() {
                joined.insert(t.plan.planes.len());
            }
        }
    }
    for coder in ["Rans", "Huffman"] {
        for mode in ["Byte", "Pair", "Low", "Trellis", "General", "Split"] {
            assert!(seen.contains(&format!("{coder} {mode}")), "{coder} {mode} in {seen:?}");
        }
    }
    assert!(seen.contains("Huffman Quad") && seen.contains("Huffman QuadTrellis"), "{seen:?}");
    assert!(joined.contains(&1) && joined.last() > Some(&1), "planes of joined tensors: {joined:?}");
}

/// Looks up rows of a tensor that may be damaged, and compares them with what decoding each strip gives; whether all were sound.
pub fn sound_or_nan(t: &mut Loaded, kind: OutputKind, ids: &[i64], seed: u64, what: &str) -> bool {
    // Each strip by itself: what is decoded of it, and whether it is sound.
    let mut whole = Vec::new();
    let mut sound = Vec::new();
    for strip in 0..t.plan.strips() {
        let part = run(std::slice::from_mut(t), kind, &|_| strip..strip + 1, seed).remove(0);
        whole.extend(part.bytes);
        sound.push(part.status.is_none());
    }
    let got = look_up(t, kind, ids, true, seed, 0);
    let all_sound = ids.iter().all(|&id| sound[id as usize / 16]);
    assert_eq!(got.status.is_none(), all_sound, "{what}: {ids:?} of {sound:?}");
    let row = t.plan.matrix.2 * kind.bytes();
    for (i, &id) in ids.iter().enumerate() {
        let (is, is_whole) = (&got.bytes[i * row..(i + 1) * row], &whole[id as usize * row..][..row]);
        if sound[id as usize / 16] {
            assert!(is == is_whole, "{what}: row {id}");
            continue;
        }
        // The chunk is NaN; other chunks of the strip are as they are.
        let elements = is.chunks_exact(kind.bytes()).zip(is_whole.chunks_exact(kind.bytes()));
        let nans = elements.clone().filter(|(e, _)| files::is_nan(kind, e)).count();
        assert!(nans > 0, "{what}: row {id} is not NaN anywhere");
        assert!(elements.clone().all(|(e, w)| files::is_nan(kind, e) || e == w), "{what}: row {id}");
    }
    all_sound
}

/// Damaged tensors give the rows that decoding all of them gives, and NaN where that reports; rows that are not looked up are not reported.
#[test]
fn damaged_chunks_give_nan_in_the_rows_that_want_them() {
    let cases: usize = std::env::var("WCODEC_CORRUPTIONS").map_or(600, |n| n.parse().unwrap());
    let mut rng = StdRng::seed_from_u64(61);
    let mut all = Vec::new();
    for container in samples(&mut rng, &[vec![70, 200], vec![40, 320]]) {
        for info in container.infos().unwrap() {
            let parts = container.bytes_of(&info.name, &oracle()).unwrap();
            let plan = TensorPlan::new(&parts).unwrap();
            if can_look_up(&plan).is_none() {
                all.push(parts);
            }
        }
    }
    let (mut reported, mut missed) = (0, 0);
    for case in 0..cases {
        let mut damaged = copy_of(&all[case % all.len()]);
        let planes = damaged.planes.len();
        let plane = &mut damaged.planes[rng.random_range(0..planes)];
        match rng.random_range(0..6) {
            0 => damage(&mut rng, &mut plane.offsets),
            1 => damage(&mut rng, &mut plane.side),
            _ => damage(&mut rng, &mut plane.data),
        }
        let mut t = Loaded::any(&damaged);
        let what = format!("case {case}: {}", t.plan.name());
        let all_kinds = kinds(&t.plan);
        let kind = all_kinds[rng.random_range(0..all_kinds.len())];
        let rows = t.plan.matrix.1 as i64;
        let ids: Vec<i64> = (0..rng.random_range(1..6)).map(|_| rng.random_range(0..rows)).collect();
        if sound_or_nan(&mut t, kind, &ids, case as u64, &what) { missed += 1 } else { reported += 1 }
    }
    assert!(reported > cases / 8 && missed > cases / 8, "{reported} reported, {missed} not");
}

/// A work item for the first plane of a tensor, which is in tiles, at addresses that nothing reads.
fn of_first_plane(plan: &TensorPlan, kind: OutputKind) -> TilesItem<'_> {
    let Method::Tiles(tiles) = &plan.planes[0] else { panic!("no tiles") };
    let addresses = plan.packed.at(0)[0];
    TilesItem { tensor: plan, tiles, addresses, table: 0, status: 0, out: 0, kind, strips: (0, 0) }
}

#[test]
fn what_no_kernel_looks_up_is_refused() {
    let mut rng = StdRng::seed_from_u64(62);
    let mut source = sample(&mut rng, &[vec![48, 64], vec![3, 32, 64], vec![80, 96]]);
    let conv = weights(&mut rng, 1001 * 63).iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
    source.push("conv".into(), Dtype::F32, vec![1001, 3, 21], conv.into()).unwrap();
    source.push("bytes".into(), Dtype::F8_E4M3, vec![64, 256], vec![0x31; 64 * 256].into()).unwrap();
    let of = |o: EncodeOptions, name: &str| {
        let container = Container::from_bytes(encode(&source, &o)).unwrap();
        TensorPlan::new(&container.bytes_of(name, &oracle()).unwrap()).unwrap()
    };
    let huffman = EncodeOptions { coder: Coder::Huffman, layout: Some(Layout::Pair), ..Default::default() };
    assert_eq!(can_look_up(&of(huffman.clone(), "w0")), None);
    let turned = EncodeOptions { transpose: vec!["w2".into()], ..huffman.clone() };
    assert_eq!(can_look_up(&of(turned, "w2")).as_deref(), Some("stored transposed"));
    assert_eq!(can_look_up(&of(huffman.clone(), "w1")).as_deref(), Some("no matrix"));
    // Its rows are those of one matrix, but not of one of two dimensions.
    assert_eq!(of(huffman.clone(), "conv").matrix, (1, 1001, 63));
    assert_eq!(can_look_up(&of(huffman.clone(), "conv")).as_deref(), Some("no matrix"));
    let zstd = EncodeOptions { coder: Coder::Zstd, ..Default::default() };
    assert_eq!(can_look_up(&of(zstd, "w0")).as_deref(), Some("coder zstd"));
    let raw = EncodeOptions { scheme: Scheme::Raw, coder: Coder::Raw, ..Default::default() };
    assert_eq!(can_look_up(&of(raw, "w0")).as_deref(), Some("coder raw"));
    let plan = of(EncodeOptions { scheme: Scheme::Lossless, ..huffman.clone() }, "bytes");
    assert_eq!(can_look_up(&plan).as_deref(), Some("elements of F8_E4M3"));
    let e = LookupLaunch::new(&of_first_plane(&plan, OutputKind::Int8), LIMITS).unwrap_err();
    assert_eq!((e.kind(), e.tensor_name()), (crate::ErrorKind::Input, Some("bytes")));
    // Numbers and outputs that a launch cannot take.
    let plan = of(huffman, "w0");
    let launch = LookupLaunch::new(&of_first_plane(&plan, OutputKind::F32), LIMITS).unwrap();
    let ids = RowIds { ptr: 256, count: 5, wide: true };
    assert!(launch.at(ids, 256).is_ok());
    for (ids, out) in [
        (RowIds { ptr: 260, ..ids }, 256),
        (ids, 258),
        (RowIds { ptr: 258, wide: false, ..ids }, 256),
        (RowIds { count: usize::MAX, ..ids }, 256),
        (RowIds { count: 1 << 31, ..ids }, 256),
    ] {
        let e = launch.at(ids, out).unwrap_err();
        assert_eq!((e.kind(), e.tensor_name()), (crate::ErrorKind::Input, Some("w0")), "{ids:?} {out}");
    }
}

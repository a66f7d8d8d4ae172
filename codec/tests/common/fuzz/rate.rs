//! Scheme `rate` and filter `trellis`: weights of any bits through the encoder and all decoders, and damage to the
//! result.

use half::{bf16, f16};
use wcodec::coder::filter::trellis;
use wcodec::{Bits, Coder, Container, Dtype, EncodeOptions, ErrorKind, Isa, Layout, Levels, MemorySource, Rate};
use wcodec::{Scheme, encode_to_vec, verify};

use super::mutate::mutate_from;
use super::{Target, container};
use crate::common::image::{Image, reseal_header, reseal_segments};
use crate::common::newer::Chosen;
use crate::common::{Rng, checked, options, read_everywhere, samples, text};

pub const TARGET: Target = Target { name: "rate", body, seeds, mutate };

/// The most weights: each input is encoded, and decoded in many ways.
const MOST: usize = 5 << 10;
/// The most weights if steps are searched, which takes many encodings.
const SEARCHED: usize = 1 << 10;
/// Bytes that choose the case.
const HEAD: usize = 16;
/// Flags of the first byte, besides the coder.
const BYTES: u8 = 0x04;
const TRELLIS: u8 = 0x08;
const TRANSPOSED: u8 = 0x40;
const STACKED: u8 = 0x80;
/// Flags of the second byte, besides the tile width.
const ANY_BITS: u8 = 0x10;
const GIVEN: u8 = 0x20;
const SEARCH: u8 = 0x40;
const DAMAGED: u8 = 0x80;
/// A flag of the byte that chooses the operation on the file.
const FACTORS: u8 = 0x80;

fn body(input: &[u8]) {
    exercise(input);
}

/// The parameters of an input.
struct Case {
    coder: Coder,
    layout: Layout,
    dtype: Dtype,
    tile: usize,
    trellis: bool,
    transposed: bool,
    /// Matrices, rows of each, columns.
    matrix: (usize, usize, usize),
    step: f32,
    bits: Bits,
    flags: u8,
    /// Whether columns have factors.
    factors: bool,
}

impl Case {
    fn new(head: &[u8; HEAD]) -> Option<Self> {
        let short = |i: usize| usize::from(u16::from_le_bytes([head[i], head[i + 1]]));
        let (rows, cols, flags) = (short(2), short(4), head[1]);
        // A 3-D shape counts as a stack only from 64 columns on.
        let count = if head[0] & STACKED != 0 && cols >= 64 { 2 } else { 1 };
        let most = if flags & SEARCH == 0 { MOST } else { SEARCHED };
        let case = Self {
            coder: Coder::ALL[usize::from(head[0] & 3)],
            layout: if head[0] & BYTES == 0 { Layout::Pair } else { Layout::Byte },
            dtype: [Dtype::BF16, Dtype::F16, Dtype::F32][usize::from(head[0] >> 4 & 3) % 3],
            tile: (usize::from(flags & 15) + 1) * 64,
            trellis: head[0] & TRELLIS != 0,
            transposed: head[0] & TRANSPOSED != 0 && count == 1,
            matrix: (count, rows, cols),
            step: f32::from_le_bytes([head[6], head[7], head[8], head[9]]),
            bits: Bits::new(1.0 + f64::from(head[10]) * 7.0 / 255.0).unwrap(),
            flags,
            factors: head[13] & FACTORS != 0,
        };
        (rows > 0 && cols > 0 && case.elements() <= most).then_some(case)
    }

    fn elements(&self) -> usize {
        self.matrix.0 * self.matrix.1 * self.matrix.2
    }

    fn shape(&self) -> Vec<usize> {
        let (count, rows, cols) = self.matrix;
        match (count, self.transposed) {
            (1, false) => vec![rows, cols],
            (1, true) => vec![cols, rows],
            _ => vec![count, rows, cols],
        }
    }

    fn options(&self, bytes: &[u8]) -> EncodeOptions {
        EncodeOptions {
            columns: self.factors(bytes).map(|factors| ("w".to_owned(), factors)).into_iter().collect(),
            scheme: Scheme::Rate(Rate { bits: self.bits, trellis: self.trellis }),
            step: (self.flags & SEARCH == 0).then_some(self.step),
            tile: Some(self.tile),
            transpose: if self.transposed { vec!["w".to_owned()] } else { Vec::new() },
            ..samples::encode_options(self.coder, self.layout, Scheme::Raw)
        }
    }

    /// Elements with these bits, repeated with other offsets; finite ones, unless any bits are allowed.
    fn weights(&self, bytes: &[u8]) -> Vec<u8> {
        let size = self.dtype.size();
        let mut out = cycled(bytes, self.elements() * size);
        if self.flags & ANY_BITS == 0 {
            // An exponent whose bits are all 1 loses one of them.
            let (high, all, lost) = match self.dtype {
                Dtype::F16 => (size - 1, 0x7C, 0x40),
                _ => (size - 1, 0x7F, 0x40),
            };
            let full = |w: &[u8]| w[high] & all == all && (self.dtype == Dtype::F16 || w[high - 1] & 0x80 != 0);
            out.chunks_exact_mut(size).filter(|w| full(w)).for_each(|w| w[high] &= !lost);
        }
        out
    }

    /// Factors of columns, if there are to be some: of any bits, or such as differ by up to 2^16.
    fn factors(&self, bytes: &[u8]) -> Option<Vec<f32>> {
        let bits = cycled(&bytes[bytes.len() / 3..], self.matrix.0 * self.matrix.2 * 2);
        let factor = |b: &[u8; 2]| match self.flags & ANY_BITS {
            0 => f32::from(1 + u16::from(b[0] & 0x7F) * 2) * f32::from(b[1] & 15).exp2() / 4096.0,
            _ => bf16::from_le_bytes(*b).to_f32(),
        };
        self.factors.then(|| bits.as_chunks().0.iter().map(factor).collect())
    }

    /// Levels and scales of any bits, or valid ones: paths if requested, and finite scales.
    fn levels(&self, bytes: &[u8]) -> Levels {
        let (count, rows, cols) = self.matrix;
        let mut symbols: Vec<i8> = bytemuck::cast_vec(cycled(bytes, self.elements()));
        let mut scales = cycled(&bytes[bytes.len() / 2..], count * rows * 2);
        if self.flags & ANY_BITS == 0 {
            scales.chunks_exact_mut(2).for_each(|s| s[1] &= if s[0] & 0x80 == 0 { 0x7F } else { 0x3F });
            let tiles = symbols.chunks_mut(cols).flat_map(|row| row.chunks_mut(self.tile));
            tiles.filter(|_| self.trellis).for_each(trellis::levels_of);
        }
        let scales = scales.as_chunks().0.iter().map(|s| bf16::from_le_bytes(*s).to_f32()).collect();
        Levels {
            symbols,
            scales,
            columns: self.factors(bytes),
            trellis: self.trellis,
            tile: self.trellis.then_some(self.tile),
        }
    }
}

/// `count` bytes: the given ones, repeated each time with another number added.
fn cycled(bytes: &[u8], count: usize) -> Vec<u8> {
    let rounds =
        (0..=255u8).cycle().flat_map(|round| bytes.iter().map(move |b| b.wrapping_add(round.wrapping_mul(29))));
    let mut out: Vec<u8> = if bytes.is_empty() { Vec::new() } else { rounds.take(count).collect() };
    out.resize(count, 0);
    out
}

/// Encodes, and compares the result with the weights; returns whether there was a result.
///
/// 0: coder (bits 0, 1), layout (2), trellis (3), dtype (4, 5), transposed (6), two matrices (7); 1: tile / 64 - 1 (0
/// to 3), whether floats and scales have arbitrary bits (4), whether levels are given (5), or steps searched for (6),
/// whether the file is damaged afterwards (7); 2, 3: rows; 4, 5: columns; 6 to 9: the step, an f32 of any bits; 10:
/// bits; 11, 12: how many of the following bytes are weights and levels; 13: the operation on the file, and whether
/// columns have factors (7). The other bytes define damage: an offset (u16) and a byte.
pub fn exercise(input: &[u8]) -> bool {
    let Some((head, rest)) = input.split_first_chunk::<HEAD>() else { return false };
    let Some(case) = Case::new(head) else { return false };
    let length = usize::from(u16::from_le_bytes([head[11], head[12]]));
    let (bytes, damage) = rest.split_at(length.min(rest.len()));
    let weights = case.weights(bytes);
    let mut source = MemorySource::new();
    source.push("w".to_owned(), case.dtype, case.shape(), weights.clone().into()).unwrap();
    let given = (case.flags & GIVEN != 0).then(|| case.levels(bytes));
    let chosen;
    let whole: &dyn wcodec::Source = match &given {
        Some(levels) => {
            chosen = Chosen(source, levels.clone());
            &chosen
        }
        None => &source,
    };
    let file = match encode_to_vec(whole, &case.options(bytes), &mut |_| Ok(())) {
        Ok((file, _)) => file,
        Err(e) => {
            refused_rightly(&case, given.as_ref(), &floats(case.dtype, &weights), &e);
            return false;
        }
    };
    let opened = Container::from_bytes(file.clone()).unwrap();
    if opened.info("w").unwrap().scheme == "rate" {
        assert!(given.is_some() || floats(case.dtype, &weights).iter().all(|w| w.is_finite()));
        is_what_it_says(&opened, &case, given.as_ref(), &weights);
        let report = verify(&opened, Some(whole), &checked(true), &mut |_| Ok(())).unwrap();
        assert!(report.ok(), "{report:?}");
        paths_are_by_the_page(&file, &opened);
    } else {
        assert!(opened.read("w", &checked(true)).unwrap()[..] == weights[..], "what is stored raw");
    }
    let question = (head[13] & !FACTORS) % container::QUESTIONS;
    container::ask(&opened, question);
    if case.flags & DAMAGED != 0
        && let Ok(opened) = Container::from_bytes(damaged(file, damage))
    {
        container::ask(&opened, question);
    }
    true
}

/// Checks that there was a reason to refuse this.
fn refused_rightly(case: &Case, given: Option<&Levels>, weights: &[f32], e: &wcodec::Error) {
    let message = text(e);
    assert_eq!(e.kind(), ErrorKind::Input, "{message}");
    let searched = case.flags & SEARCH != 0;
    let has_tiles = matches!(case.coder, Coder::Rans | Coder::Huffman);
    let reason = if case.factors && case.flags & ANY_BITS != 0 && message.contains("factor of column") {
        "factor of column"
    } else if !searched && (!case.step.is_finite() || case.step <= 0.0) {
        "a step of"
    } else if searched && message.contains("cannot be reached") {
        "bits per weight cannot be reached"
    } else if case.trellis && !has_tiles && message.contains("a trellis") {
        "a trellis with coder"
    } else if weights.iter().any(|w| !w.is_finite()) && !message.contains("the scale of row") {
        if message.contains("none that the trellis") { "level" } else { " at " }
    } else {
        match given {
            // Arbitrary bits may have any fault.
            Some(_) if case.flags & ANY_BITS != 0 => "",
            Some(_) => "levels become values that are not finite, or weights of 0 others",
            None => panic!("refused without a reason: {message}"),
        }
    };
    let of_all = ["a step of", "bits per weight cannot be reached"].contains(&reason);
    assert!(of_all || message.contains("'w'"), "no name: {message}");
    assert!(message.contains(reason), "{message}");
}

fn floats(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::F32 => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        Dtype::F16 => bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        _ => bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
    }
}

/// Checks that values are the products, that symbols and scales satisfy the rules of FORMAT.md for writers, and that
/// the error is the stated one.
fn is_what_it_says(container: &Container, case: &Case, given: Option<&Levels>, weights: &[u8]) {
    let (_, rows, cols) = case.matrix;
    let (symbols, scales) = (container.symbols("w", &checked(true)).unwrap(), container.scales("w").unwrap());
    let factors = container.columns("w").unwrap();
    assert_eq!(factors.is_some(), case.factors);
    if let Some(levels) = given {
        assert!(symbols == levels.symbols && scales == levels.scales, "not the levels that were given");
        assert_eq!(factors, levels.columns);
    } else {
        assert!(symbols.iter().all(|q| (-127..=126).contains(q)));
        assert!(scales.iter().all(|&s| s == 0.0 || s >= f32::MIN_POSITIVE), "{scales:?}");
    }
    let place = |i: usize| if case.transposed { i % cols * rows + i / cols } else { i };
    let decoded = read_everywhere(container, "w", true).unwrap();
    let values = floats(case.dtype, &decoded);
    for (i, &q) in symbols.iter().enumerate() {
        let factor = factors.as_ref().map_or(1.0, |factors| factors[i / cols / rows * cols + i % cols]);
        let exact = (f32::from(q) + 0.5) * scales[i / cols] * factor;
        let want = match case.dtype {
            Dtype::F32 => exact,
            Dtype::F16 => f16::from_f32(exact).to_f32(),
            _ => bf16::from_f32(exact).to_f32(),
        };
        let got = values[place(i)];
        assert!(got.to_bits() == want.to_bits() && got.is_finite(), "element {i}: {got}, not {want}");
    }
    let (mut errors, mut squares) = (0.0, 0.0);
    for (value, weight) in values.iter().zip(floats(case.dtype, weights)) {
        errors += (f64::from(*value) - f64::from(weight)).powi(2);
        squares += f64::from(weight).powi(2);
    }
    let found = if errors == 0.0 { 0.0 } else { (errors / squares).sqrt() };
    let stated = container.info("w").unwrap().error.unwrap();
    assert!(found <= stated * (1.0 + 1e-9) && stated <= found * 1.002, "the error is {found}, and {stated} is stated");
}

/// Checks that the levels of a trellis are those that FORMAT.md, section 4, computes from the plane's bytes, column by
/// column.
fn paths_are_by_the_page(file: &[u8], container: &Container) {
    let info = container.info("w").unwrap();
    let plane = &info.planes[0];
    if plane.filter != "trellis" {
        return;
    }
    let mut image = Image::new(file);
    image.index["tensors"][0]["planes"][0].as_object_mut().unwrap().remove("filter");
    let plain = Container::from_bytes(image.seal()).unwrap();
    let levels = container.symbols("w", &checked(true)).unwrap();
    for isa in Isa::available() {
        let bytes = plain.symbols("w", &options(isa, false)).unwrap();
        for (bytes, levels) in bytes.chunks(info.cols).zip(levels.chunks(info.cols)) {
            for (bytes, levels) in bytes.chunks(plane.tile.unwrap()).zip(levels.chunks(plane.tile.unwrap())) {
                for (j, (&q, &level)) in bytes.iter().zip(levels).enumerate() {
                    let before = (0..j).rev().step_by(2).fold(0, |sum, k| sum ^ (bytes[k] & 1));
                    assert_eq!(
                        level,
                        ((q as u8 & 0x80) | ((2 * i32::from(q)) as u8 & 0x7E)) as i8 | before,
                        "column {j}"
                    );
                }
            }
        }
    }
}

/// The file with some bytes of its segments replaced, and all hashes of stored bytes correct.
fn damaged(mut file: Vec<u8>, damage: &[u8]) -> Vec<u8> {
    let end = u64::from_le_bytes(file[16..24].try_into().unwrap()) as usize;
    for change in damage.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
        if end > 64 {
            file[64 + at % (end - 64)] = change[2];
        }
    }
    reseal_segments(&mut file);
    reseal_header(&mut file);
    file
}

/// All coders, dtypes and kinds of steps, with weights that compress well and some of any bits.
fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    let mut add = |first: u8, second: u8, (rows, cols): (u16, u16), step: f32, data: &[u8]| {
        let mut seed = vec![first, second];
        seed.extend_from_slice(&rows.to_le_bytes());
        seed.extend_from_slice(&cols.to_le_bytes());
        seed.extend_from_slice(&step.to_le_bytes());
        seed.push(150);
        seed.extend_from_slice(&(data.len() as u16).to_le_bytes());
        seed.push(seeds.len() as u8);
        seed.resize(HEAD, 0);
        seed.extend_from_slice(data);
        // Damage to apply.
        seed.extend_from_slice(&[0x40, 0x01, 0x5A, 0x00, 0x03, 0xFF, 0x81, 0x02, 0x00]);
        seeds.push(seed);
    };
    let plain: Vec<f32> = samples::weights(600, 71).iter().map(|w| w * 0.1).collect();
    let odd = [0.0, -0.0, f32::MIN_POSITIVE, 1e-40, -1e-45, f32::MAX, -f32::MAX, 65504.0, 1e4, 6e-8, 3.4e38, 1.0];
    let not_finite = [1.0, f32::NAN, 0.5, f32::INFINITY, -1.0, f32::NEG_INFINITY];
    for coder in 0..4u8 {
        // Other coders do not support one, which the last seed of each requests.
        let tiled = matches!(Coder::ALL[usize::from(coder)], Coder::Rans | Coder::Huffman);
        let path = if tiled { TRELLIS } else { 0 };
        for (d, bytes) in [samples::as_bf16, samples::as_f16, samples::as_bytes::<f32>].into_iter().enumerate() {
            let first = coder | (d as u8) << 4;
            add(first, 0, (21, 130), 0.4, &bytes(&plain));
            add(first | BYTES | STACKED, 1, (16, 70), 0.1, &bytes(&plain));
            add(first | path, DAMAGED, (33, 120), 0.3, &bytes(&plain));
            add(first | path | TRANSPOSED | BYTES, DAMAGED | 1, (16, 200), 0.15, &bytes(&plain));
            add(first | path, SEARCH, (16, 64), 0.0, &bytes(&plain));
            add(first | path, GIVEN, (20, 100), 1.0, &bytes(&plain[..200]));
            add(first, GIVEN | ANY_BITS, (20, 100), 1.0, &bytes(&plain[..100]));
            add(first | path, 0, (17, 64), 0.2, &bytes(&odd));
            add(first, 0, (17, 64), 1e-30, &bytes(&odd));
            add(first, 0, (17, 64), 1e30, &bytes(&plain[..64]));
            add(first | path, ANY_BITS, (17, 64), 0.2, &bytes(&not_finite));
            add(first, 0, (17, 64), [f32::NAN, f32::INFINITY, 0.0, -1.0][usize::from(coder)], &bytes(&plain[..16]));
            add(first | TRELLIS, 0, (16, 64), 0.2, &bytes(&plain));
            add(first | path, 0, (16, 64), 0.2, &[]);
        }
    }
    seeds
}

fn mutate(rng: &mut Rng, seed: &[u8], other: &[u8]) -> Vec<u8> {
    let mut out = mutate_from(rng, seed, other, HEAD);
    // Sensible steps and sizes rarely occur by chance.
    if out.len() >= HEAD {
        match rng.below(6) {
            0 => out[6..10].copy_from_slice(&(2f32.powi(rng.below(24) as i32 - 12)).to_le_bytes()),
            1 => out[2..6].copy_from_slice(&[rng.below(40) as u8, 0, rng.below(200) as u8, rng.below(2) as u8]),
            2 => out[0] = rng.next() as u8,
            3 => out[1] = rng.next() as u8,
            _ => {}
        }
    }
    out
}

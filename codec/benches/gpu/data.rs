//! The benchmark's data: Student-t rows (6 degrees of freedom) of 2,048 weights, int8 per row, in the codec's default
//! tiles; for scheme `lossless` normal weights with a deviation of 0.02. Scheme `rate` takes the former, with steps
//! that are searched for the bits.

use std::borrow::Cow;

use half::bf16;
use rand::{SeedableRng, rngs::StdRng};
use rand_distr::{Distribution, Normal, StudentT};
use rayon::prelude::*;
use wcodec::scheme::rate::{Bits, Rate};
use wcodec::{Coder, Container, Dtype, EncodeOptions, Layout, MemorySource, Optimize, Result, Scheme, encode_to_vec};

/// A tensor: name, rows, columns.
pub type Shape = (String, usize, usize);

/// Weights of all `shapes`, as bf16.
pub fn weights(shapes: &[Shape], seed: u64) -> Vec<Vec<u8>> {
    drawn(shapes, seed, StudentT::new(6.0f32).expect("valid"))
}

/// Normal weights for scheme `lossless`, whose size depends on their distribution.
pub fn normal(shapes: &[Shape], seed: u64) -> Vec<Vec<u8>> {
    drawn(shapes, seed, Normal::new(0.0, 0.02f32).expect("valid"))
}

fn drawn(shapes: &[Shape], seed: u64, of: impl Distribution<f32> + Sync) -> Vec<Vec<u8>> {
    shapes
        .iter()
        .enumerate()
        .map(|(i, &(_, rows, cols))| {
            let mut bytes = vec![0u8; rows * cols * 2];
            bytes.par_chunks_mut(cols * 2).enumerate().for_each(|(row, out)| {
                let mut rng = StdRng::seed_from_u64(seed << 40 | (i as u64) << 24 | row as u64);
                for b in out.as_chunks_mut::<2>().0 {
                    *b = bf16::from_f32(of.sample(&mut rng)).to_le_bytes();
                }
            });
            bytes
        })
        .collect()
}

/// A container of these weights, in tiles of `tile` columns or the default ones.
pub fn container(
    shapes: &[Shape],
    weights: &[Vec<u8>],
    coder: Coder,
    layout: Layout,
    tile: Option<usize>,
) -> Result<Container> {
    encoded(shapes, weights, EncodeOptions { coder, layout: Some(layout), tile, ..Default::default() })
}

/// A container of scheme `lossless`, in tiles of `tile` columns or the default ones.
pub fn lossless(shapes: &[Shape], weights: &[Vec<u8>], coder: Coder, tile: Option<usize>) -> Result<Container> {
    encoded(shapes, weights, EncodeOptions { scheme: Scheme::Lossless, coder, tile, ..Default::default() })
}

/// A container of scheme `rate` with `bits` bits per weight.
pub fn rate(
    shapes: &[Shape],
    weights: &[Vec<u8>],
    coder: Coder,
    bits: f64,
    trellis: bool,
    tile: Option<usize>,
) -> Result<Container> {
    let scheme = Scheme::Rate(Rate { bits: Bits::new(bits)?, trellis });
    encoded(shapes, weights, EncodeOptions { scheme, coder, tile, ..EncodeOptions::of(Optimize::Size) })
}

fn encoded(shapes: &[Shape], weights: &[Vec<u8>], options: EncodeOptions) -> Result<Container> {
    let mut source = MemorySource::new();
    for ((name, rows, cols), bytes) in shapes.iter().zip(weights) {
        source.push(name.clone(), Dtype::BF16, vec![*rows, *cols], Cow::Borrowed(bytes))?;
    }
    Container::from_bytes(encode_to_vec(&source, &options, &mut |_| Ok(()))?.0)
}

/// The seven linear layers of a decoder block of TinyLlama-1.1B.
pub fn block(prefix: &str) -> Vec<Shape> {
    [
        ("q", 2048, 2048),
        ("k", 256, 2048),
        ("v", 256, 2048),
        ("o", 2048, 2048),
        ("gate", 5632, 2048),
        ("up", 5632, 2048),
        ("down", 2048, 5632),
    ]
    .into_iter()
    .map(|(name, rows, cols)| (format!("{prefix}.{name}"), rows, cols))
    .collect()
}

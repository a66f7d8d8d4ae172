//! Helpers of the tests of scheme `rate`.

use half::{bf16, f16};
use rand::{SeedableRng, rngs::StdRng};
use rand_distr::{Distribution, StandardNormal};
use wcodec::{
    Coder, Container, Dtype, EncodeOptions, EncodeReport, MemorySource, Optimize, Result, Source, encode_to_vec,
};

use crate::common::newer::rate;

pub fn options(bits: f64, trellis: bool, coder: Coder) -> EncodeOptions {
    EncodeOptions { scheme: rate(bits, trellis), coder, ..EncodeOptions::of(Optimize::Size) }
}

/// Weights of rows of different sizes.
pub fn weights(rows: usize, cols: usize, seed: u64) -> Vec<f32> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut draw = || <StandardNormal as Distribution<f32>>::sample(&StandardNormal, &mut rng);
    (0..rows)
        .flat_map(|_| {
            let size = 0.02 * (0.5 * draw()).exp();
            (0..cols).map(|_| size * draw()).collect::<Vec<_>>()
        })
        .collect()
}

pub fn bytes_of(dtype: Dtype, weights: &[f32]) -> Vec<u8> {
    let bytes = |w: &f32| match dtype {
        Dtype::F32 => w.to_le_bytes().to_vec(),
        Dtype::F16 => f16::from_f32(*w).to_le_bytes().to_vec(),
        _ => bf16::from_f32(*w).to_le_bytes().to_vec(),
    };
    weights.iter().flat_map(bytes).collect()
}

pub fn floats(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::F32 => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        Dtype::F16 => bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        _ => bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
    }
}

pub fn source(tensors: &[(&str, Dtype, &[usize], &[f32])]) -> MemorySource<'static> {
    let mut source = MemorySource::new();
    for (name, dtype, shape, weights) in tensors {
        source.push((*name).into(), *dtype, shape.to_vec(), bytes_of(*dtype, weights).into()).unwrap();
    }
    source
}

pub fn encoded(source: &dyn Source, options: &EncodeOptions) -> Result<(Container, EncodeReport)> {
    let (bytes, report) = encode_to_vec(source, options, &mut |_| Ok(()))?;
    Ok((Container::from_bytes(bytes)?, report))
}

/// Bits per weight of the tensors of scheme `rate`, everything counted.
pub fn bits_of(report: &EncodeReport) -> f64 {
    let tensors = || report.tensors.iter().filter(|t| t.scheme == "rate");
    8.0 * tensors().map(|t| t.stored_bytes).sum::<u64>() as f64 / tensors().map(|t| t.elements).sum::<u64>() as f64
}

pub fn relative_error(decoded: &[f32], source: &[f32]) -> f64 {
    let squares = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>();
    let differences = &mut decoded.iter().zip(source).map(|(a, b)| f64::from(*a) - f64::from(*b));
    (squares(differences) / squares(&mut source.iter().map(|w| f64::from(*w)))).sqrt()
}

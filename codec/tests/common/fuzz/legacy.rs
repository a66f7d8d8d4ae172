//! Legacy blobs.

use wcodec::legacy::{HEADER_BYTES, MAGIC, decode, encode};

use super::mutate::mutate_from;
use super::{LARGEST, Target, files};
use crate::common::{Rng, samples};

pub const TARGET: Target = Target { name: "legacy", body, seeds, mutate };

/// Flags of the first byte: parts that are left unchanged.
const HEADER: u8 = 1;
const SIZES: u8 = 2;
/// Whether the decoded symbols are encoded again.
const AGAIN: u8 = 4;

/// The first byte decides whether magic, dtype and the length of the payload (bit 0), and the uncompressed size (bit
/// 1), are left unchanged, and whether the result is encoded again (bit 2). The rest is the blob.
fn body(input: &[u8]) {
    let Some((&first, blob)) = input.split_first() else { return };
    let mut blob = blob.to_vec();
    if blob.len() >= HEADER_BYTES {
        let field = |i: usize| u32::from_le_bytes(blob[4 * i..][..4].try_into().unwrap());
        let (product, length) = (field(1).wrapping_mul(field(2)), blob.len() - HEADER_BYTES);
        if first & HEADER == 0 {
            blob[..4].copy_from_slice(&MAGIC.to_le_bytes());
            blob[16..20].copy_from_slice(&(length as u32).to_le_bytes());
            blob[20] = 0;
        }
        if first & SIZES == 0 {
            blob[12..16].copy_from_slice(&product.to_le_bytes());
        }
    }
    // The blob's own claim, by which a few bytes may become many.
    let claim = blob.get(12..16).map_or(0, |b| u32::from_le_bytes(b.try_into().unwrap()));
    if u64::from(claim) > LARGEST {
        return;
    }
    let Ok(layer) = decode(&blob) else { return };
    assert_eq!(layer.symbols.len() as u64, u64::from(layer.rows) * u64::from(layer.cols));
    if first & AGAIN != 0 {
        let again = encode(&layer.symbols, layer.rows, layer.cols, 1).unwrap();
        assert_eq!(decode(&again).unwrap(), layer);
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let shapes = [(0u32, 5u32, 1.0), (1, 1, 9.0), (16, 64, 30.0), (40, 60, 127.0), (16, 64, 0.0)];
    let made = shapes.into_iter().zip([1, 3, 19, -5, 3]).map(|((rows, cols, spread), level)| {
        encode(&samples::symbols((rows * cols) as usize, spread, 3), rows, cols, level).unwrap()
    });
    let blobs: Vec<_> = made.chain(files("golden").into_iter().filter(|f| wcodec::legacy::is_legacy(f))).collect();
    [0, AGAIN, HEADER | SIZES]
        .iter()
        .flat_map(|&flags| blobs.iter().map(move |b| [&[flags], &b[..]].concat()))
        .collect()
}

fn mutate(rng: &mut Rng, seed: &[u8], other: &[u8]) -> Vec<u8> {
    mutate_from(rng, seed, other, 1 + HEADER_BYTES)
}

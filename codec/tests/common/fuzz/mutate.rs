//! Mutations that are aware of numbers, including those in JSON.

use super::Rng;

/// Numbers at which size computations go wrong.
const HOSTILE: &[u64] = &[0, 1, 15, 64, 255, 1 << 16, 1 << 31, u32::MAX as u64, 1 << 32, 1 << 53, 1 << 63, u64::MAX];

/// A mutation of `seed`, sometimes with a piece of `other`: cut, spliced, bits flipped, integers replaced.
pub fn mutate(rng: &mut Rng, seed: &[u8], other: &[u8]) -> Vec<u8> {
    let mut out = seed.to_vec();
    for _ in 0..=rng.below(3) {
        if out.is_empty() {
            break;
        }
        let at = rng.below(out.len());
        match rng.below(8) {
            0 => out.truncate(at),
            1 if !other.is_empty() => {
                let from = rng.below(other.len());
                let n = rng.below(64).min(other.len() - from);
                out.splice(at..(at + n).min(out.len()), other[from..from + n].iter().copied());
            }
            2 => {
                let n = rng.below(32).min(out.len() - at);
                out.drain(at..at + n);
            }
            3 => out.insert(at, rng.next() as u8),
            4 | 5 => out[at] ^= 1 << rng.below(8),
            6 => {
                let number = HOSTILE[rng.below(HOSTILE.len())].to_le_bytes();
                let n = [1, 2, 4, 8][rng.below(4)].min(out.len() - at);
                out[at..at + n].copy_from_slice(&number[..n]);
            }
            _ => digits(rng, &mut out, at),
        }
    }
    out
}

/// [`mutate`] for an input; every other time only the part from `from` on is changed.
pub fn mutate_from(rng: &mut Rng, seed: &[u8], other: &[u8], from: usize) -> Vec<u8> {
    if rng.below(2) == 0 || seed.len() <= from {
        return mutate(rng, seed, other);
    }
    let (head, rest) = seed.split_at(from);
    [head, &mutate(rng, rest, &other[other.len() / 2..])].concat()
}

/// Replaces the decimal number at or after `at`, which reaches the sizes in JSON.
fn digits(rng: &mut Rng, out: &mut Vec<u8>, at: usize) {
    let Some(begin) = out[at..].iter().position(u8::is_ascii_digit).map(|i| at + i) else { return };
    let n = out[begin..].iter().position(|b| !b.is_ascii_digit()).unwrap_or(out.len() - begin);
    let number = match rng.below(4) {
        0 => (rng.next() % 300).to_string(),
        1 => format!("-{}", rng.below(9)),
        2 => format!("{}.5", rng.below(9)),
        _ => HOSTILE[rng.below(HOSTILE.len())].to_string(),
    };
    out.splice(begin..begin + n, number.into_bytes());
}

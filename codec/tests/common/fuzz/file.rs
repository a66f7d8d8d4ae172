//! Files as a whole, of all versions of the format: one or several things in a valid container are changed, hashes are
//! corrected, and every reader runs every operation.

use super::{Rng, Target, files, mutate};

pub mod choices;
pub mod draft;
mod entries;
mod forms;
pub mod mutation;
pub mod readers;
pub mod seeds;
mod stored;

pub const TARGET: Target = Target { name: "file", body, seeds, mutate: mutate_input };

/// The first byte of an input that is a file; all others drive a mutation.
const PLAIN: u8 = 0xFF;

fn body(input: &[u8]) {
    exercise(input);
}

/// Runs all readers on the file that `input` stands for.
pub fn exercise(input: &[u8]) -> readers::Events {
    readers::all(&file_of(input), turn_of(input))
}

/// The file of an input: itself, or a mutation driven by its bytes.
pub fn file_of(input: &[u8]) -> Vec<u8> {
    match input.split_first() {
        Some((&PLAIN, file)) => file.to_vec(),
        _ => mutation::file(input),
    }
}

/// A number derived from an input that decides which readers run.
pub fn turn_of(input: &[u8]) -> u64 {
    choices::Choices::new(input).then.0 >> 8
}

/// Bytes that drive mutations, and the files in `tests/data` that found defects.
fn seeds() -> Vec<Vec<u8>> {
    let mut rng = Rng(90);
    let mut seeds: Vec<Vec<u8>> = (0..256).map(|_| random(&mut rng)).collect();
    let found = files("corrupt").into_iter().filter(|file| file.len() < 4096);
    seeds.extend(found.map(|file| [&[PLAIN], &file[..]].concat()));
    seeds
}

/// An input as campaigns use them: short, and continued by random numbers derived from it.
pub fn random(rng: &mut Rng) -> Vec<u8> {
    let mut input: Vec<u8> = [rng.next(), rng.next()].iter().flat_map(|n| n.to_le_bytes()).collect();
    input[0] &= 0x7F;
    input
}

fn mutate_input(rng: &mut Rng, seed: &[u8], other: &[u8]) -> Vec<u8> {
    if rng.below(4) == 0 { random(rng) } else { mutate(rng, seed, other) }
}

//! Joins the outputs of pieces of work into segments.

use crate::cancel::Cancel;
use crate::error::Result;
use crate::pool::Pool;
use crate::tensor::{out_of_memory, try_vec};

/// Bytes that are put together as one piece of work.
const COPY_PIECE: usize = 4 << 20;

/// Consecutive chunks.
#[derive(Default)]
pub struct ChunkRun {
    pub data: Vec<u8>,
    pub side: Vec<u8>,
    /// Length of each chunk, bytes.
    pub lengths: Vec<usize>,
}

/// An empty vector with a capacity of `bytes`.
pub fn reserved(bytes: usize) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    out.try_reserve_exact(bytes).map_err(|_| out_of_memory(bytes))?;
    Ok(out)
}

/// `parts` one after the other.
pub fn joined(parts: impl Iterator<Item = Vec<u8>>, pool: &Pool, cancel: &Cancel) -> Result<Vec<u8>> {
    let parts: Vec<Vec<u8>> = parts.collect();
    if parts.len() == 1 {
        return Ok(parts.into_iter().next().expect("one"));
    }
    let mut out: Vec<u8> = try_vec(parts.iter().map(Vec::len).sum())?;
    let mut rest = &mut out[..];
    // Several in one piece of work, because they may be short.
    let mut pieces: Vec<Vec<(Vec<u8>, &mut [u8])>> = Vec::new();
    let mut size = COPY_PIECE;
    for part in parts {
        if size >= COPY_PIECE {
            pieces.push(Vec::new());
            size = 0;
        }
        size += part.len();
        let place = rest.split_off_mut(..part.len()).expect("counted above");
        pieces.last_mut().expect("pushed above").push((part, place));
    }
    pool.each(pieces, cancel, |parts| {
        parts.into_iter().for_each(|(part, place)| place.copy_from_slice(&part));
        Ok(())
    })?;
    Ok(out)
}

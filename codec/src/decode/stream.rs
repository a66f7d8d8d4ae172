//! Decoding a plane from its beginning to its end with memory for some pieces of it, however large it is.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use super::options::DecodeOptions;
use super::tensor::OpenPlane;
use crate::coder::TILE_ROWS;
use crate::coder::plane::{Plane, Scratch};
use crate::coder::zstd::MAX_CHUNK;
use crate::container::Hasher;
use crate::error::Result;
use crate::tensor::{reserve, split};

/// Symbols that are decoded at once, at least: enough work for every core, and little memory.
const BATCH: usize = 4 << 20;
/// And pieces, at most: a hostile file's may have a byte each.
const PIECES: usize = 1 << 16;

/// Takes symbols (or bytes) in order: the place of the first one in the plane, and some that follow each other.
pub type Sink<'a> = dyn FnMut(usize, &[i8]) -> Result<()> + Send + 'a;

/// What is decoded at once.
enum Batch {
    /// Pieces.
    Pieces(Range<usize>),
    /// Columns of a row, where a strip is too wide to be held.
    Row(usize, Range<usize>),
}

/// Takes what several planes decode to, in order: the place of the first elements, and as many of each plane.
pub type PlanesSink<'a> = dyn FnMut(usize, &[&[i8]]) -> Result<()> + Send + 'a;

/// A plane whose segments were read, and its structure.
pub type Opened<'a> = (&'a OpenPlane<'a>, &'a Plane<'a>);

/// Decodes planes of one tensor, which are cut alike, and gives all of them to `sink`, in order; while that is at work, what follows is
/// decoded. With [`verify`](DecodeOptions::verify) the planes' hashes are compared, which are known after the end.
pub fn stream_planes(planes: &[Opened<'_>], options: &DecodeOptions, sink: &mut PlanesSink<'_>) -> Result<()> {
    let mut hashers: Vec<Hasher> = planes.iter().map(|_| Hasher::default()).collect();
    let mut take = |begin: usize, symbols: &[&[i8]]| {
        options.cancel.check()?;
        if options.verify {
            hashers.iter_mut().zip(symbols).for_each(|(hasher, symbols)| hasher.update(bytemuck::cast_slice(symbols)));
        }
        sink(begin, symbols)
    };
    match planes.iter().find(|(_, plane)| plane.stored().is_none()) {
        Some(&(_, leader)) => decode_batches(planes, leader, options, &mut take)?,
        None => {
            let length = planes.first().map_or(0, |(_, plane)| plane.elements());
            for begin in (0..length).step_by(BATCH) {
                let end = (begin + BATCH).min(length);
                let stored = planes.iter().filter_map(|(_, plane)| plane.stored());
                take(begin, &stored.map(|all| &all[begin..end]).collect::<Vec<_>>())?;
            }
        }
    }
    if options.verify {
        planes.iter().zip(hashers).try_for_each(|((opened, _), hasher)| opened.compare(hasher.hash()))?;
    }
    Ok(())
}

/// Decodes what is coded, in batches of pieces of `leader`.
fn decode_batches(
    planes: &[Opened<'_>],
    leader: &Plane<'_>,
    options: &DecodeOptions,
    take: &mut PlanesSink<'_>,
) -> Result<()> {
    let scratches = Mutex::default();
    // Where a batch begins, and how much it is.
    let decode = |batch: Batch, out: &mut [Vec<i8>]| -> Result<Range<usize>> {
        let held = batch.elements(leader);
        for ((opened, plane), out) in planes.iter().zip(out).filter(|((_, plane), _)| plane.stored().is_none()) {
            opened.decode_batch(plane, &batch, out, &scratches, options)?;
        }
        Ok(held)
    };
    let mut batches = batches(leader);
    let buffers = || vec![Vec::new(); planes.len()];
    let (mut current, mut next) = (buffers(), buffers());
    let mut ready = batches.next().map(|batch| decode(batch, &mut current)).transpose()?;
    while let Some(held) = ready {
        let following = batches.next();
        let symbols: Vec<&[i8]> = planes
            .iter()
            .zip(&current)
            .map(|((_, p), own)| p.stored().map_or(&own[..], |all| &all[held.clone()]))
            .collect();
        let (taken, decoded) =
            rayon::join(|| take(held.start, &symbols), || following.map(|batch| decode(batch, &mut next)).transpose());
        taken?;
        ready = decoded?;
        std::mem::swap(&mut current, &mut next);
    }
    Ok(())
}

impl Batch {
    /// Which symbols of the plane, row by row, it holds.
    fn elements(&self, plane: &Plane<'_>) -> Range<usize> {
        match self {
            Batch::Pieces(pieces) => plane.piece(pieces.start).start..plane.piece(pieces.end - 1).end,
            Batch::Row(row, cols) => {
                let begin = row * plane.geometry().map_or(0, |g| g.cols());
                begin + cols.start..begin + cols.end
            }
        }
    }
}

impl OpenPlane<'_> {
    /// As [`stream_planes`], of a plane by itself.
    pub fn stream(&self, plane: &Plane<'_>, options: &DecodeOptions, sink: &mut Sink<'_>) -> Result<()> {
        stream_planes(&[(self, plane)], options, &mut |begin, symbols| sink(begin, symbols[0]))
    }

    /// Decodes a batch into `out`, which takes its length.
    fn decode_batch(
        &self,
        plane: &Plane<'_>,
        batch: &Batch,
        out: &mut Vec<i8>,
        scratches: &Mutex<Vec<Scratch>>,
        options: &DecodeOptions,
    ) -> Result<()> {
        match batch {
            Batch::Pieces(pieces) => {
                let lengths = pieces.clone().map(|i| plane.piece(i).len() * plane.element_bytes());
                reserve(out, lengths.clone().sum())?;
                let idle = || scratches.lock().unwrap_or_else(PoisonError::into_inner);
                split(out, lengths).into_par_iter().zip(pieces.clone()).try_for_each(|(out, i)| {
                    options.cancel.check()?;
                    let mut scratch = idle().pop().unwrap_or_default();
                    let decoded = plane.decode_piece(i, out, &mut scratch);
                    idle().push(scratch);
                    decoded.map_err(|e| self.at_data(e))
                })
            }
            Batch::Row(row, cols) => {
                reserve(out, cols.len() * plane.element_bytes())?;
                plane.decode_row(*row, cols.clone(), out, &options.cancel).map_err(|e| self.at_data(e))
            }
        }
    }
}

/// Whether a strip of so many columns is too wide to be held, that is, larger than the largest frame of `zstd`: then its rows are
/// decoded one after the other, each anew. Writers make no such matrices but those of one row.
pub fn is_wide(cols: usize) -> bool {
    cols.saturating_mul(TILE_ROWS) > MAX_CHUNK
}

/// A plane in batches, in order.
fn batches<'a>(plane: &'a Plane<'_>) -> Box<dyn Iterator<Item = Batch> + Send + 'a> {
    if let Some(g) = plane.geometry().filter(|g| is_wide(g.cols())) {
        let starts = move || (0..g.cols()).step_by(BATCH);
        let row = move |row| starts().map(move |col| Batch::Row(row, col..(col + BATCH).min(g.cols())));
        return Box::new((0..g.count() * g.rows()).flat_map(row));
    }
    let mut next = 0;
    Box::new(std::iter::from_fn(move || {
        let begin = next;
        let mut length = 0;
        while next < plane.pieces() && next - begin < PIECES && length < BATCH {
            length += plane.piece(next).len();
            next += 1;
        }
        (next > begin).then_some(Batch::Pieces(begin..next))
    }))
}

//! Decodes a plane from beginning to end with memory for some of its pieces, however large it is.

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

/// The fewest symbols that are decoded at once: enough work for every core, and little memory.
const BATCH: usize = 4 << 20;
/// The most pieces that are decoded at once: a hostile file's may have a byte each.
const PIECES: usize = 1 << 16;

/// Receives symbols (or bytes) in order: the index in the plane of the first one, and a run of them.
pub type Sink<'a> = dyn FnMut(usize, &[i8]) -> Result<()> + Send + 'a;

/// A unit of decoding.
enum Batch {
    /// Pieces.
    Pieces(Range<usize>),
    /// Columns of a row, if a strip is too wide to hold in memory.
    Row(usize, Range<usize>),
}

/// Receives the decoded planes in order: the index of the first elements, and equally many elements of each plane.
pub type PlanesSink<'a> = dyn FnMut(usize, &[&[i8]]) -> Result<()> + Send + 'a;

/// A plane whose segments have been read, and its checked structure.
pub type Opened<'a> = (&'a OpenPlane<'a>, &'a Plane<'a>);

/// Decodes planes of one tensor, which are cut alike, and passes all their elements to `sink`, in order. The next batch
/// is decoded while the sink runs. With [`verify`](DecodeOptions::verify) the planes' hashes are compared at the end.
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

/// Decodes coded planes, in batches of pieces of `leader`.
fn decode_batches(
    planes: &[Opened<'_>],
    leader: &Plane<'_>,
    options: &DecodeOptions,
    take: &mut PlanesSink<'_>,
) -> Result<()> {
    let scratches = Mutex::default();
    // Returns the elements of the batch.
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
    /// The symbols of the plane, in row-major order, that it holds.
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
    /// As [`stream_planes`], for a single plane.
    pub fn stream(&self, plane: &Plane<'_>, options: &DecodeOptions, sink: &mut Sink<'_>) -> Result<()> {
        stream_planes(&[(self, plane)], options, &mut |begin, symbols| sink(begin, symbols[0]))
    }

    /// Decodes a batch into `out`, which is resized to fit.
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

/// Whether a strip of so many columns is too wide to hold in memory, that is, larger than the largest `zstd` frame. Its
/// rows are then decoded one by one, decoding the strip's tiles again for each. Writers make such matrices only with a
/// single row.
pub fn is_wide(cols: usize) -> bool {
    cols.saturating_mul(TILE_ROWS) > MAX_CHUNK
}

/// The batches of a plane, in order.
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

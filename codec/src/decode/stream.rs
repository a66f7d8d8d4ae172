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

impl OpenPlane<'_> {
    /// Decodes the plane and gives all of it to `sink`, in order; while that is at work, what follows is decoded. With
    /// [`verify`](DecodeOptions::verify) the plane's hash is compared, which is known after the end.
    pub fn stream(&self, plane: &Plane<'_>, options: &DecodeOptions, sink: &mut Sink<'_>) -> Result<()> {
        let mut hasher = Hasher::default();
        let mut take = |begin: usize, symbols: &[i8]| {
            options.cancel.check()?;
            if options.verify {
                hasher.update(bytemuck::cast_slice(symbols));
            }
            sink(begin, symbols)
        };
        match plane.stored() {
            Some(all) => all.chunks(BATCH).enumerate().try_for_each(|(i, symbols)| take(i * BATCH, symbols))?,
            None => self.decode_batches(plane, options, &mut take)?,
        }
        if options.verify { self.compare(hasher.hash()) } else { Ok(()) }
    }

    fn decode_batches(&self, plane: &Plane<'_>, options: &DecodeOptions, take: &mut Sink<'_>) -> Result<()> {
        let scratches = Mutex::default();
        let decode = |batch: Batch, out: &mut Vec<i8>| self.decode_batch(plane, &batch, out, &scratches, options);
        let mut batches = batches(plane);
        let (mut current, mut next) = (Vec::new(), Vec::new());
        let mut ready = batches.next().map(|batch| decode(batch, &mut current)).transpose()?;
        while let Some(begin) = ready {
            let following = batches.next();
            let (taken, decoded) =
                rayon::join(|| take(begin, &current), || following.map(|batch| decode(batch, &mut next)).transpose());
            taken?;
            ready = decoded?;
            std::mem::swap(&mut current, &mut next);
        }
        Ok(())
    }

    /// Decodes a batch into `out`, which takes its length, and returns where in the plane it begins.
    fn decode_batch(
        &self,
        plane: &Plane<'_>,
        batch: &Batch,
        out: &mut Vec<i8>,
        scratches: &Mutex<Vec<Scratch>>,
        options: &DecodeOptions,
    ) -> Result<usize> {
        match batch {
            Batch::Pieces(pieces) => {
                let lengths = pieces.clone().map(|i| plane.piece(i).len());
                reserve(out, lengths.clone().sum())?;
                let idle = || scratches.lock().unwrap_or_else(PoisonError::into_inner);
                split(out, lengths).into_par_iter().zip(pieces.clone()).try_for_each(|(out, i)| {
                    options.cancel.check()?;
                    let mut scratch = idle().pop().unwrap_or_default();
                    let decoded = plane.decode_piece(i, out, &mut scratch);
                    idle().push(scratch);
                    decoded.map_err(|e| self.at_data(e))
                })?;
                Ok(plane.piece(pieces.start).start)
            }
            Batch::Row(row, cols) => {
                reserve(out, cols.len())?;
                plane.decode_row(*row, cols.clone(), out, &options.cancel).map_err(|e| self.at_data(e))?;
                Ok(row * self.stored.form.matrix.2 + cols.start)
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

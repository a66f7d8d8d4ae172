//! Encodes planes of zstd: chooses frames and filters, and makes the frames.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::filters;
use super::parts::{ChunkRun, joined, reserved};
use crate::cancel::Cancel;
use crate::coder::plane::encoded::{EncodedPlane, Filters, PlaneOptions, SymbolMatrices};
use crate::coder::plane::form::{Coding, PlaneForm};
use crate::coder::{Filter, zstd};
use crate::error::Result;
use crate::pool::Pool;
use crate::tensor::out_of_memory;

/// Bytes that are compressed to zstd frames as one piece of work: high levels take long.
const ZSTD_PIECE: usize = 1 << 17;

/// The decisions on encoding a plane of zstd frames.
pub struct ZstdDraft {
    /// Decoded bytes of a frame.
    chunk: usize,
    level: i32,
    /// The filters to try, the unfiltered attempt first.
    filters: Vec<Filter>,
}

/// Refuses frames of so many decoded bytes that none has.
pub fn check_zstd_chunk(chunk: usize) -> Result<()> {
    zstd::check_chunk(chunk).map_err(|e| coded!(BAD_CODING_NUMBER, e.message()).advice("leave frame out"))
}

impl ZstdDraft {
    pub fn new(symbols: &SymbolMatrices<'_>, options: &PlaneOptions, pool: &Pool, cancel: &Cancel) -> Result<Self> {
        let default = || zstd::default_chunk(symbols.data.len(), symbols.cols);
        let chunk = options.zstd_chunk.unwrap_or_else(default);
        check_zstd_chunk(chunk)?;
        let mut filters = vec![Filter::None];
        filters.extend(filters::worth_trying(symbols, options.filters == Filters::Tried, pool, cancel)?);
        filters.retain(|&f| zstd::filter_allowed(f, chunk, symbols.cols));
        Ok(Self { chunk, level: options.zstd_level, filters })
    }

    /// Encodes `symbols` in every way that is to be tried. Only the first attempt counts towards `done`: further
    /// attempts are no progress.
    pub fn encode(
        self,
        symbols: &SymbolMatrices<'_>,
        pool: &Pool,
        cancel: &Cancel,
        done: &AtomicUsize,
    ) -> Result<Option<EncodedPlane>> {
        let again = AtomicUsize::new(0);
        filters::best(self.filters.iter().enumerate().map(|(i, &filter)| {
            let done = if i == 0 { done } else { &again };
            self.frames(symbols, filter, pool, cancel, done)
        }))
    }

    fn frames(
        &self,
        symbols: &SymbolMatrices<'_>,
        filter: Filter,
        pool: &Pool,
        cancel: &Cancel,
        done: &AtomicUsize,
    ) -> Result<EncodedPlane> {
        let Self { chunk, level, .. } = *self;
        let step = (ZSTD_PIECE / chunk).max(1) * chunk;
        let total = symbols.data.len();
        let mut parts = pool.each(symbols.data.chunks(step).enumerate(), cancel, |(i, bytes)| {
            let mut run = ChunkRun::default();
            run.data.try_reserve(bytes.len()).map_err(|_| out_of_memory(bytes.len()))?;
            let mut compressor = zstd::Compressor::new(level)?;
            for (j, frame) in bytes.chunks(chunk).enumerate() {
                let frame = compressor.chunk(frame, i * step + j * chunk, symbols.cols, filter, cancel)?;
                run.lengths.push(frame.len());
                run.data.resize(run.data.len().next_multiple_of(zstd::ALIGN), 0);
                run.data.extend_from_slice(&frame);
            }
            let end = i * step + bytes.len();
            if end < total {
                run.data.resize(run.data.len().next_multiple_of(zstd::ALIGN), 0);
            }
            done.fetch_add(bytes.len(), Ordering::Relaxed);
            Ok(run)
        })?;
        let frames = total.div_ceil(chunk);
        let mut offsets = reserved(8 * frames)?;
        let (mut at, mut longest) = (0usize, 0);
        for length in parts.iter().flat_map(|p| &p.lengths) {
            at = at.next_multiple_of(zstd::ALIGN);
            offsets.extend_from_slice(&zstd::frame_entry(at, *length)?);
            at += length;
            longest = longest.max(*length);
        }
        let coding = Coding::Zstd { chunk, filter };
        Ok(EncodedPlane {
            form: PlaneForm { matrix: symbols.matrix(), coding, max_chunk: longest },
            table: None,
            offsets,
            data: joined(parts.iter_mut().map(|p| std::mem::take(&mut p.data)), pool, cancel)?,
            side: Vec::new(),
        })
    }
}

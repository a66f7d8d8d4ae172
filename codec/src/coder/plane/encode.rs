//! Encodes a plane in four steps: symbols are counted, a table is made for them, a table is chosen (in the order of the
//! file), and chunks are encoded. Several planes can be in any step but the third at once.
//!
//! Options are read in the first step, each by the coding that it is for; the draft holds the result.

use std::sync::atomic::AtomicUsize;

use self::tiles::TilesDraft;
use self::zstd::ZstdDraft;
use super::encoded::{EncodedPlane, PlaneOptions, SymbolMatrices};
use crate::cancel::Cancel;
use crate::coder::Coder;
use crate::coder::table::Table;
use crate::error::Result;
use crate::pool::Pool;

mod filters;
mod parts;
mod tables;
mod tiles;
mod zstd;

pub use tiles::{check_table_bits, check_tile_width};
pub use zstd::check_zstd_chunk;

/// Encodes `symbols`, or returns a raw plane if coding does not make them smaller.
///
/// # Errors
/// The format does not allow the options, the plane is too large, memory is short, or `cancel` was used.
///
/// ```
/// use wcodec::coder::plane::{Filters, PlaneOptions, SymbolMatrices, encode};
/// use wcodec::{Cancel, Coder, Layout, Pool};
/// let data: Vec<i8> = (0..64 * 256).map(|i| (i * i % 7) as i8).collect();
/// let symbols = SymbolMatrices { count: 1, rows: 64, cols: 256, data: &data, beside: &[] };
/// let (coder, layout, tile) = (Coder::Rans, Layout::Pair, None);
/// let (patch_rare, changes, filters) = (false, false, Filters::Tried);
/// let options =
///     PlaneOptions { coder, layout, table_bits: 12, patch_rare, changes, tile, zstd_level: 3, zstd_chunk: None, filters };
/// let plane = encode(&symbols, &options, &Pool::new(None)?, &Cancel::new())?;
/// assert!(plane.stored_bytes() < data.len() / 2);
/// # Ok::<(), wcodec::Error>(())
/// ```
pub fn encode(
    symbols: &SymbolMatrices<'_>,
    options: &PlaneOptions,
    pool: &Pool,
    cancel: &Cancel,
) -> Result<EncodedPlane> {
    let mut draft = Draft::new(symbols, options, pool, cancel)?;
    draft.choose(&mut Vec::new());
    draft.encode(symbols, pool, cancel, &AtomicUsize::new(0))
}

/// The decisions on encoding a plane, made before it is encoded.
pub struct Draft(DraftKind);

enum DraftKind {
    Raw,
    Zstd(ZstdDraft),
    Tiles(TilesDraft),
}

impl Draft {
    /// Analyses `symbols`.
    ///
    /// # Errors
    /// Those of [`encode`].
    pub fn new(symbols: &SymbolMatrices<'_>, options: &PlaneOptions, pool: &Pool, cancel: &Cancel) -> Result<Self> {
        Ok(Self(match options.coder {
            _ if symbols.data.is_empty() => DraftKind::Raw,
            Coder::Raw => DraftKind::Raw,
            Coder::Zstd => DraftKind::Zstd(ZstdDraft::new(symbols, options, pool, cancel)?),
            Coder::Rans | Coder::Huffman => {
                TilesDraft::new(symbols, options, pool, cancel)?.map_or(DraftKind::Raw, DraftKind::Tiles)
            }
        }))
    }

    /// Makes tables for the symbols, which are a sample of a plane that is `factor` times as large: a table's bytes weigh that
    /// much less. [`choose`](Self::choose) makes them where this did not.
    ///
    /// # Errors
    /// `cancel` was used, or the system refuses threads.
    pub(crate) fn make_tables(&mut self, factor: f64, pool: &Pool, cancel: &Cancel) -> Result<()> {
        match &mut self.0 {
            DraftKind::Tiles(tiles) => tiles.make_tables(factor, pool, cancel),
            DraftKind::Raw | DraftKind::Zstd(_) => Ok(()),
        }
    }

    /// Chooses tables: one of `shared`, which earlier planes added, if that is smaller than a table of the plane's own,
    /// which then joins them. Must be called in the order of the file, so that the choice depends on nothing else.
    pub fn choose(&mut self, shared: &mut Vec<Table>) {
        if let DraftKind::Tiles(tiles) = &mut self.0 {
            tiles.choose(shared);
        }
    }

    /// Encodes the symbols that the draft was made of. A plane that is not coded has its symbols alone. `done` counts
    /// the symbols encoded so far.
    ///
    /// # Errors
    /// Those of [`encode`].
    pub fn encode(
        self,
        symbols: &SymbolMatrices<'_>,
        pool: &Pool,
        cancel: &Cancel,
        done: &AtomicUsize,
    ) -> Result<EncodedPlane> {
        let coded = match self.0 {
            DraftKind::Raw => None,
            DraftKind::Zstd(zstd) => zstd.encode(symbols, pool, cancel, done)?,
            DraftKind::Tiles(tiles) => tiles.encode(symbols, pool, cancel, done)?,
        };
        Ok(coded.filter(|c| c.stored_bytes() < symbols.bytes()).unwrap_or_else(|| EncodedPlane::raw(symbols)))
    }
}

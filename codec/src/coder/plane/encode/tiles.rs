//! Encodes planes of tiles: geometry, the filters and shifts to try, and the chunks.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::filters;
use super::parts::{ChunkRun, joined, reserved};
use super::tables::{Counts, OwnTable, TableKind};
use crate::cancel::Cancel;
use crate::coder::chunk::ChunkEncoder;
use crate::coder::chunk_format::ChunkFormat;
use crate::coder::filter;
use crate::coder::histogram::{HighPairs, PairHistogram, count_bytes_with, entropy, entropy_of};
use crate::coder::plane::encoded::{EncodedPlane, Filters, PlaneOptions, SymbolMatrices, TableChoice};
use crate::coder::plane::form::{Coding, PlaneForm, Tiling};
use crate::coder::quad::{self, ESCAPE, MOST_SHIFT, QuadCounts};
use crate::coder::table::{LEAST_BITS, Table, check_bits};
use crate::coder::tile::{OFFSET_UNIT, TileGeometry, default_tile};
use crate::coder::{Coder, Filter, Layout, TILE_ROWS, rare};
use crate::error::{Code, Result};
use crate::pool::Pool;

/// The padding factor above which tiles are not tried: they could not win, and would take many times the memory and the
/// time.
const MOST_PADDING: usize = 4;

/// Advice for a table size that the coder does not support.
const TABLE_ADVICE: &str = "leave table_bits out, or use coder huffman for small tables";

/// The decisions on encoding a plane of tiles.
pub struct TilesDraft {
    geometry: TileGeometry,
    kind: TableKind,
    /// The attempts to make, the unfiltered one first.
    attempts: Vec<Attempt>,
}

/// One way to encode tiles.
struct Attempt {
    filter: Filter,
    /// Whether patches store changes.
    changes: bool,
    /// The best shift, and one that needs no patches, in case too many of them make a chunk reject the first. Layout `quad`
    /// counts for the second only when it is needed.
    tries: Vec<Try>,
}

struct Try {
    shift: u32,
    counts: Counts,
    /// The value of elements beyond the matrix.
    padding: i8,
    table: TryTable,
}

/// The table of a try, step by step.
enum TryTable {
    Missing,
    Made(OwnTable),
    Chosen(TableChoice),
}

/// Refuses tables of so many bits where `coder` has none.
pub fn check_table_bits(coder: Coder, bits: u32) -> Result<()> {
    check_bits(coder, bits).map_err(|e| coded!(BAD_CODING_NUMBER, e.message()).advice(TABLE_ADVICE))
}

/// Refuses a width that no tile has.
pub fn check_tile_width(tile: usize) -> Result<()> {
    TileGeometry::new(1, 1, 1, tile)
        .map(drop)
        .map_err(|e| coded!(BAD_CODING_NUMBER, e.message()).advice("leave tile out"))
}

impl TilesDraft {
    /// Counts symbols for the tables; `None` if tiles could not win.
    pub fn new(
        symbols: &SymbolMatrices<'_>,
        options: &PlaneOptions,
        pool: &Pool,
        cancel: &Cancel,
    ) -> Result<Option<Self>> {
        let PlaneOptions { coder, layout, table_bits, changes, .. } = *options;
        let tile = options.tile.unwrap_or_else(|| default_tile(coder, layout, symbols.rows, symbols.cols));
        if !layout.is_of(coder) {
            return Err(coded!(CODER_CONFLICT, "layout {layout} with coder {coder}")
                .advice("use coder huffman, or leave layout out"));
        }
        check_table_bits(coder, table_bits)?;
        let kind = TableKind { coder, layout, bits: table_bits };
        let patch_rare = coder == Coder::Huffman && (options.patch_rare || table_bits < LEAST_BITS);
        let advice = if options.tile.is_some() { "leave tile out" } else { "use coder raw for this tensor" };
        let geometry = TileGeometry::new(symbols.count, symbols.rows, symbols.cols, tile).map_err(|e| {
            let code = if e.code() == Code::BAD_SIZES { Code::TOO_LARGE } else { Code::BAD_CODING_NUMBER };
            code.error(e.message()).advice(advice)
        })?;
        if geometry.padded_elements() / MOST_PADDING > symbols.data.len() {
            return Ok(None);
        }
        let mut attempts = Vec::new();
        let mut filters = match options.filters {
            Filters::Trellis => vec![Filter::Trellis],
            _ => vec![Filter::None],
        };
        filters.extend(filters::worth_trying(
            symbols,
            options.filters == Filters::Tried && layout.is_predicted(),
            pool,
            cancel,
        )?);
        for filter in filters {
            let data = filtered(symbols, &geometry, filter, pool, cancel)?;
            let tries = tries(symbols, &data, &geometry, kind, patch_rare, pool, cancel)?;
            attempts.push(Attempt { filter, changes: changes || layout.always_has_changes(), tries });
        }
        Ok(Some(Self { geometry, kind, attempts }))
    }

    /// Makes tables; see [`Draft::make_tables`](super::Draft::make_tables).
    pub fn make_tables(&mut self, factor: f64, pool: &Pool, cancel: &Cancel) -> Result<()> {
        let kind = self.kind;
        let tries = self.attempts.iter_mut().flat_map(|attempt| &mut attempt.tries);
        pool.each(tries, cancel, |one| {
            one.table = TryTable::Made(kind.make(&one.counts, factor));
            Ok(())
        })?;
        Ok(())
    }

    /// Chooses tables; see [`Draft::choose`](super::Draft::choose).
    pub fn choose(&mut self, shared: &mut Vec<Table>) {
        let known = shared.len();
        for (attempt, tries) in self.attempts.iter_mut().map(|a| &mut a.tries).enumerate() {
            for (i, one) in tries.iter_mut().enumerate() {
                let own = match std::mem::replace(&mut one.table, TryTable::Missing) {
                    TryTable::Made(own) => own,
                    _ => self.kind.make(&one.counts, 1.0),
                };
                let mut choice = self.kind.choose(&one.counts, own, &shared[..known]);
                // A table that is unlikely to be used is not shared.
                if choice.is_new && (attempt, i) == (0, 0) {
                    choice.place = Some(shared.len());
                    shared.push(choice.table.clone());
                }
                one.table = TryTable::Chosen(choice);
            }
        }
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
        let Self { geometry, kind, attempts } = self;
        let again = AtomicUsize::new(0);
        filters::best(attempts.into_iter().enumerate().map(|(i, attempt)| {
            let done = if i == 0 { done } else { &again };
            attempt.encode(symbols, &geometry, kind, pool, cancel, done)
        }))
    }
}

impl Attempt {
    /// Encodes `symbols` with the first shift whose patches fit.
    fn encode(
        self,
        symbols: &SymbolMatrices<'_>,
        geometry: &TileGeometry,
        kind: TableKind,
        pool: &Pool,
        cancel: &Cancel,
        done: &AtomicUsize,
    ) -> Result<EncodedPlane> {
        let TableKind { coder, layout, .. } = kind;
        let Self { filter, changes, tries } = self;
        let last = tries.last().map_or(MOST_SHIFT, |one| one.shift);
        // Made only where the shifts before it do not fit.
        let safe = std::iter::once_with(|| safe_quad_try(symbols, geometry, filter, kind, pool, cancel))
            .filter(|_| layout == Layout::Quad && last != MOST_SHIFT);
        for one in tries.into_iter().map(Ok).chain(safe) {
            let Try { shift, table, padding, .. } = one?;
            let TryTable::Chosen(table) = table else { unreachable!("chosen before") };
            let tiling = Tiling { coder, layout, shift, tile: geometry.tile(), filter, changes };
            let format = tiling.chunk_format();
            let tiles = Tiles { symbols, geometry, filter, format, padding, table: &table.table };
            if let Some(mut parts) = tiles.encode(pool, cancel, done)? {
                let mut offsets = reserved(4 * (geometry.chunks() + 1))?;
                offsets.extend_from_slice(&[0; 4]);
                let (mut end, mut longest) = (0, 0);
                for &length in parts.iter().flat_map(|p| &p.lengths) {
                    longest = longest.max(length);
                    end += length / OFFSET_UNIT;
                    let end = u32::try_from(end).map_err(|_| {
                        coded!(TOO_LARGE, "a plane of more than 16 GiB").advice("split the tensor, or use coder raw")
                    })?;
                    offsets.extend_from_slice(&end.to_le_bytes());
                }
                let side = joined(parts.iter_mut().map(|p| std::mem::take(&mut p.side)), pool, cancel)?;
                let data = joined(parts.iter_mut().map(|p| std::mem::take(&mut p.data)), pool, cancel)?;
                let form = PlaneForm { matrix: symbols.matrix(), coding: Coding::Tiles(tiling), max_chunk: longest };
                return Ok(EncodedPlane { form, table: Some(table), offsets, data, side });
            }
        }
        unreachable!("the last shift has no patches")
    }
}

/// The symbols as `filter` leaves them.
fn filtered<'a>(
    symbols: &SymbolMatrices<'a>,
    geometry: &TileGeometry,
    filter: Filter,
    pool: &Pool,
    cancel: &Cancel,
) -> Result<Cow<'a, [i8]>> {
    if filter == Filter::None {
        return Ok(Cow::Borrowed(symbols.data));
    }
    filters::filtered_tiles(symbols, geometry, filter, pool, cancel).map(Cow::Owned)
}

/// Counts of coded symbols at the shifts worth trying, best first and a safe one last.
fn tries(
    symbols: &SymbolMatrices<'_>,
    data: &[i8],
    geometry: &TileGeometry,
    kind: TableKind,
    patch_rare: bool,
    pool: &Pool,
    cancel: &Cancel,
) -> Result<Vec<Try>> {
    if kind.layout == Layout::Quad {
        return quad_tries(data, geometry, kind, pool, cancel);
    }
    let padding = (geometry.padded_elements() - data.len()) as u64;
    if kind.layout != Layout::Pair {
        let mut histogram = count_bytes_with(bytemuck::cast_slice(data), pool, cancel)?;
        // The commonest symbol is the cheapest; for quantized weights that is 0.
        let commonest = (0..histogram.len()).max_by_key(|&s| histogram[s]).unwrap_or(0);
        let symbol = if kind.layout == Layout::Split { commonest } else { 0 };
        histogram[symbol] += padding;
        let shift = 8 * symbols.beside.len() as u32;
        let counts = Counts::Symbols(Box::new(histogram));
        return Ok(vec![Try { shift, counts, padding: symbol as u8 as i8, table: TryTable::Missing }]);
    }
    let mut pairs = PairHistogram::count(data, geometry.cols(), pool, cancel)?;
    let counted = data.len() / geometry.cols().max(1) * geometry.cols().div_ceil(2);
    pairs.add_padding((geometry.padded_elements() / 2 - counted) as u64);
    // For each shift: the bits stored besides the symbols and their patches, and a lower bound of the bits that these
    // take.
    let mut shifts: Vec<(f64, f64, u32, HighPairs)> = (0..4)
        .map(|shift| {
            let highs = pairs.highs(shift);
            let lists = if shift < 3 { geometry.chunks() as f64 } else { 0.0 };
            let side = f64::from(shift + 1) * geometry.padded_elements() as f64;
            let histogram = highs.symbols();
            let n: u64 = histogram.iter().sum();
            let least = entropy(&histogram) * n as f64 + side + 32.0 * (highs.escapes() as f64 + lists);
            (least, side + 32.0 * lists, shift, highs)
        })
        .collect();
    shifts.sort_by(|a, b| a.0.total_cmp(&b.0));
    let new = |shift, counts| Try { shift, counts, padding: 0, table: TryTable::Missing };
    if !patch_rare {
        let best = shifts[0].2;
        let kept = shifts.into_iter().filter(|(_, _, shift, _)| [best, 3].contains(shift));
        let tries = kept.map(|(_, _, shift, highs)| new(shift, Counts::Symbols(Box::new(highs.symbols()))));
        return Ok(tries.take(if best == 3 { 1 } else { 2 }).collect());
    }
    // The actual code lengths decide, because entropies are only a lower bound.
    let safe = shifts.remove(shifts.iter().position(|(_, _, shift, _)| *shift == 3).expect("of four"));
    let histogram = safe.3.symbols();
    let table = Table::from_histogram(kind.coder, kind.bits, &histogram);
    let mut bits = safe.1 + table.cost(&histogram).expect("made for it");
    let mut best = None;
    for (least, fixed, shift, highs) in shifts {
        if least >= bits {
            continue;
        }
        let table = rare::table(kind.bits, &highs);
        let cost = fixed + rare::cost(&table, &highs) as f64;
        if cost < bits {
            bits = cost;
            best = Some(new(shift, Counts::Pairs(highs, table)));
        }
    }
    Ok(best.into_iter().chain([new(3, Counts::Symbols(Box::new(histogram)))]).collect())
}

/// Bits that a patch counts as, besides its own, where the shift of layout `quad` is chosen. Kernels mend patches one by
/// one. On an H200 products of 8 to 32 vectors with weights of SmolLM2-135M take 0.78 of the time at shift 2, which has
/// a tenth of the patches of shift 1 for 0.02 bits per weight more.
const DELAY: u32 = 16;

/// As [`tries`], for layout `quad`: shifts are judged by counts of single elements, taken as independent, and quads are
/// counted for the best shift only.
fn quad_tries(data: &[i8], geometry: &TileGeometry, kind: TableKind, pool: &Pool, cancel: &Cancel) -> Result<Vec<Try>> {
    let padded = geometry.padded_elements();
    let mut histogram = count_bytes_with(bytemuck::cast_slice(data), pool, cancel)?;
    histogram[0] += (padded - data.len()) as u64;
    // The bits stored besides the symbols and their patches, and a lower bound of the bits that these take.
    let mut shifts: Vec<(f64, f64, u32)> = (0..=MOST_SHIFT)
        .map(|shift| {
            let single = quad::single(&histogram, shift);
            let side = f64::from(shift + 1) * padded as f64;
            (entropy_of(&single) * padded as f64 + side + 32.0 * single[ESCAPE] as f64, side, shift)
        })
        .collect();
    shifts.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut best = (f64::INFINITY, MOST_SHIFT);
    for (least, side, shift) in shifts {
        if least < best.0 {
            let expected = QuadCounts::expected(&histogram, padded as f64 / 4.0, shift);
            let table = quad::choose(kind.bits, &expected);
            let cost = side + quad::cost_of_patches(&table, &expected, quad::PATCH + DELAY) as f64;
            best = if cost < best.0 { (cost, shift) } else { best };
        }
    }
    Ok(vec![quad_try(data, geometry, best.1, pool, cancel)?])
}

/// Counts for layout `quad` at `shift`.
fn quad_try(data: &[i8], geometry: &TileGeometry, shift: u32, pool: &Pool, cancel: &Cancel) -> Result<Try> {
    let counted = data.len() / geometry.cols().max(1) * geometry.cols().div_ceil(4);
    let mut quads = QuadCounts::count(data, geometry.cols(), shift, pool, cancel)?;
    quads.add_padding((geometry.padded_elements() / 4 - counted) as u64);
    Ok(Try { shift, counts: Counts::Quads(quads), padding: 0, table: TryTable::Missing })
}

/// Counts, and a table of the plane's own, for the largest shift of layout `quad`. It has no escapes, and so always fits.
fn safe_quad_try(
    symbols: &SymbolMatrices<'_>,
    geometry: &TileGeometry,
    filter: Filter,
    kind: TableKind,
    pool: &Pool,
    cancel: &Cancel,
) -> Result<Try> {
    let data = filtered(symbols, geometry, filter, pool, cancel)?;
    let mut one = quad_try(&data, geometry, MOST_SHIFT, pool, cancel)?;
    let own = pool.run(|| kind.make(&one.counts, 1.0))?;
    one.table = TryTable::Chosen(kind.choose(&one.counts, own, &[]));
    Ok(one)
}

/// Tiles to encode.
struct Tiles<'a> {
    symbols: &'a SymbolMatrices<'a>,
    geometry: &'a TileGeometry,
    filter: Filter,
    format: ChunkFormat,
    /// The value of elements beyond the matrix.
    padding: i8,
    table: &'a Table,
}

impl Tiles<'_> {
    /// Encodes all chunks; `None` where the patches of one do not fit.
    fn encode(&self, pool: &Pool, cancel: &Cancel, done: &AtomicUsize) -> Result<Option<Vec<ChunkRun>>> {
        let chunks = self.geometry.chunks();
        let step = (pool.piece(self.geometry.padded_elements()) / (TILE_ROWS * self.geometry.tile())).max(1);
        let hopeless = AtomicBool::new(false);
        let parts = pool.each((0..chunks).step_by(step), cancel, |first| {
            if hopeless.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let run = self.encode_run(first..chunks.min(first + step), done)?;
            hopeless.fetch_or(run.is_none(), Ordering::Relaxed);
            Ok(run)
        })?;
        Ok(parts.into_iter().collect())
    }

    fn encode_run(&self, chunks: std::ops::Range<usize>, done: &AtomicUsize) -> Result<Option<ChunkRun>> {
        let Self { symbols, geometry, filter, format, .. } = *self;
        let most = chunks.len() * TILE_ROWS * geometry.tile();
        let mut run = ChunkRun {
            data: reserved(most)?,
            side: reserved((most / 2).max(most * symbols.beside.len()))?,
            lengths: Vec::new(),
        };
        let mut encoder = ChunkEncoder::new(format, self.table);
        let mut tile = Vec::new();
        let mut beside = vec![Vec::new(); symbols.beside.len()];
        for chunk in chunks {
            let position = geometry.position(chunk);
            let strip = geometry.strip_elements(position.strip);
            let cols = (position.col + position.width).min(geometry.cols()) - position.col;
            let lines = strip.len() / geometry.cols();
            let cut = |plane: &[i8], padding: i8, tile: &mut Vec<i8>| {
                tile.clear();
                tile.resize(TILE_ROWS * position.width, padding);
                let rows = plane[strip.clone()].chunks_exact(geometry.cols());
                for (to, from) in tile.chunks_exact_mut(position.width).zip(rows) {
                    to[..cols].copy_from_slice(&from[position.col..position.col + cols]);
                }
            };
            cut(symbols.data, self.padding, &mut tile);
            for (plane, tile) in symbols.beside.iter().zip(&mut beside) {
                cut(plane, 0, tile);
            }
            filter::apply(filter, &mut tile[..lines * position.width], position.width, cols);
            let begin = run.data.len();
            if !encoder.encode(&tile, &beside, position.width, &mut run.data, &mut run.side) {
                return Ok(None);
            }
            run.lengths.push(run.data.len() - begin);
            done.fetch_add(lines * cols, Ordering::Relaxed);
        }
        Ok(Some(run))
    }
}

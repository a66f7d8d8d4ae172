//! Encoding a plane, in three steps: what its symbols are is counted, a table is chosen, in the order of the file, and chunks are
//! encoded. Several planes can be in the first and in the last step at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::{Coding, EncodedPlane, PlaneForm, PlaneOptions, SymbolMatrices, TableChoice, Tiling};
use crate::cancel::Cancel;
use crate::coder::chunk::ChunkEncoder;
use crate::coder::chunk_format::ChunkFormat;
use crate::coder::filter;
use crate::coder::histogram::{Histogram, PairHistogram, count_bytes_with, entropy};
use crate::coder::table::Table;
use crate::coder::tile::{OFFSET_UNIT, TileGeometry, default_tile};
use crate::coder::{Coder, Filter, Layout, TILE_ROWS, zstd};
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::tensor::{out_of_memory, try_vec};

/// How many of the latest tables are tried before a plane gets its own.
const TABLES_TRIED: usize = 16;
/// Strips that are looked at to decide whether a filter may pay, bytes of one that are, and the gain in bits per symbol that is worth
/// a try. A filter costs every decoder, so it is used only where it makes the plane smaller by a real share.
const FILTER_SAMPLE: usize = 16;
const FILTER_SAMPLE_BYTES: usize = 1 << 20;
const FILTER_GAIN: f64 = 0.1;
const FILTER_SHARE: f64 = 0.99;
/// Padding beyond which tiles are not tried: they could not win, and would take many times the memory and the time.
const MOST_PADDING: usize = 4;
/// Bytes that are compressed to frames of zstd as one piece of work: high levels take long.
const ZSTD_PIECE: usize = 1 << 17;
/// Bytes that are put together as one piece of work.
const COPY_PIECE: usize = 4 << 20;

/// Encodes `symbols`, or answers with a raw plane where coding them does not make them smaller.
///
/// # Errors
/// Options that the format does not allow, too large a plane, memory that is not there, or `cancel` was used.
///
/// ```
/// use wcodec::coder::plane::{PlaneOptions, SymbolMatrices, encode};
/// use wcodec::{Cancel, Coder, Layout, Pool};
/// let data: Vec<i8> = (0..64 * 256).map(|i| (i * i % 7) as i8).collect();
/// let symbols = SymbolMatrices { count: 1, rows: 64, cols: 256, data: &data };
/// let (coder, layout, tile) = (Coder::Rans, Layout::Pair, None);
/// let options =
///     PlaneOptions { coder, layout, table_bits: 12, tile, zstd_level: 3, zstd_chunk: None, filters: true };
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

/// How a plane is going to be encoded.
pub struct Draft {
    options: PlaneOptions,
    form: Form,
}

enum Form {
    Raw,
    /// Decoded bytes of a frame, and the filters to try.
    Zstd(usize, Vec<Filter>),
    /// What to try, without a filter first.
    Tiles(TileGeometry, Vec<Attempt>),
}

/// One way to encode tiles.
struct Attempt {
    filter: Filter,
    /// The best shift, and one that has no patches: too many of them make a chunk decline the first.
    tries: Vec<Try>,
}

struct Try {
    shift: u32,
    histogram: Histogram,
    table: Option<TableChoice>,
}

impl Draft {
    /// Looks at `symbols`.
    ///
    /// # Errors
    /// As for [`encode`].
    pub fn new(symbols: &SymbolMatrices<'_>, options: &PlaneOptions, pool: &Pool, cancel: &Cancel) -> Result<Self> {
        let draft = |form| Ok(Self { options: options.clone(), form });
        if symbols.data.is_empty() || options.coder == Coder::Raw {
            return draft(Form::Raw);
        }
        if options.coder == Coder::Zstd {
            let default = || zstd::default_chunk(symbols.data.len(), symbols.cols);
            let chunk = options.zstd_chunk.unwrap_or_else(default);
            zstd::check_chunk(chunk).map_err(|e| Error::input(e.message().to_owned()).advice("leave frame out"))?;
            let mut filters = vec![Filter::None];
            filters.extend(filters_worth_trying(symbols, options, pool, cancel)?);
            filters.retain(|&f| zstd::filter_allowed(f, chunk, symbols.cols));
            return draft(Form::Zstd(chunk, filters));
        }
        let tile = options.tile.unwrap_or_else(|| default_tile(options.coder, symbols.rows, symbols.cols));
        if !matches!(options.table_bits, 11 | 12) {
            return Err(Error::input(format!("tables have 11 or 12 bits, not {}", options.table_bits))
                .advice("leave table_bits out"));
        }
        let advice = if options.tile.is_some() { "leave tile out" } else { "use coder raw for this tensor" };
        let geometry = TileGeometry::new(symbols.count, symbols.rows, symbols.cols, tile)
            .map_err(|e| Error::input(e.message().to_owned()).advice(advice))?;
        if geometry.padded_elements() / MOST_PADDING > symbols.data.len() {
            return draft(Form::Raw);
        }
        let mut attempts = Vec::new();
        for filter in [Filter::None].into_iter().chain(filters_worth_trying(symbols, options, pool, cancel)?) {
            let filtered;
            let mut data = symbols.data;
            if filter != Filter::None {
                filtered = filter_tiles(symbols, &geometry, filter, pool, cancel)?;
                data = &filtered;
            }
            attempts.push(Attempt { filter, tries: tries(data, &geometry, options.layout, pool, cancel)? });
        }
        draft(Form::Tiles(geometry, attempts))
    }

    /// Chooses tables: one of `shared`, which planes before this one wanted, where that is smaller than a table of its own, which
    /// then joins them. To be called in the order of the file, which so depends on nothing else.
    pub fn choose(&mut self, shared: &mut Vec<Table>) {
        let Form::Tiles(_, attempts) = &mut self.form else { return };
        let known = shared.len();
        for (attempt, tries) in attempts.iter_mut().map(|a| &mut a.tries).enumerate() {
            for (i, one) in tries.iter_mut().enumerate() {
                let mut choice = choose_table(&self.options, &one.histogram, &shared[..known]);
                // What is unlikely to be used is nothing to share.
                if choice.is_new && (attempt, i) == (0, 0) {
                    choice.place = Some(shared.len());
                    shared.push(choice.table.clone());
                }
                one.table = Some(choice);
            }
        }
    }

    /// Encodes the symbols that the draft was made of. `done` counts those that are encoded.
    ///
    /// # Errors
    /// As for [`encode`].
    pub fn encode(
        self,
        symbols: &SymbolMatrices<'_>,
        pool: &Pool,
        cancel: &Cancel,
        done: &AtomicUsize,
    ) -> Result<EncodedPlane> {
        // Further attempts are no progress.
        let again = AtomicUsize::new(0);
        let mut best: Option<EncodedPlane> = None;
        let mut offer = |plane: EncodedPlane| match &best {
            Some(b) if plane.stored_bytes() as f64 >= b.stored_bytes() as f64 * FILTER_SHARE => {}
            _ => best = Some(plane),
        };
        match self.form {
            Form::Raw => {}
            Form::Zstd(chunk, filters) => {
                for (i, filter) in filters.into_iter().enumerate() {
                    let done = if i == 0 { done } else { &again };
                    offer(encode_zstd(symbols, filter, chunk, self.options.zstd_level, pool, cancel, done)?);
                }
            }
            Form::Tiles(geometry, attempts) => {
                for (i, attempt) in attempts.into_iter().enumerate() {
                    let done = if i == 0 { done } else { &again };
                    offer(encode_tiles(symbols, &geometry, &self.options, attempt, pool, cancel, done)?);
                }
            }
        }
        Ok(best.filter(|b| b.stored_bytes() < symbols.data.len()).unwrap_or_else(|| EncodedPlane::raw(symbols)))
    }
}

/// Filters that make the entropy of a sample of strips smaller.
fn filters_worth_trying(
    symbols: &SymbolMatrices<'_>,
    options: &PlaneOptions,
    pool: &Pool,
    cancel: &Cancel,
) -> Result<Vec<Filter>> {
    if !options.filters {
        return Ok(Vec::new());
    }
    let strip = TILE_ROWS * symbols.cols;
    let step = symbols.data.len().div_ceil(strip).div_ceil(FILTER_SAMPLE);
    let entropies = pool.each([Filter::None, Filter::Left, Filter::Up], cancel, |f| {
        let mut h: Histogram = [0; 256];
        for rows in symbols.data.chunks(strip).step_by(step) {
            cancel.check()?;
            // Of long rows, the beginning.
            let rows = rows.chunks(symbols.cols).take((FILTER_SAMPLE_BYTES / symbols.cols).max(1));
            let mut rows =
                rows.flat_map(|row| &row[..row.len().min(FILTER_SAMPLE_BYTES)]).copied().collect::<Vec<i8>>();
            filter::apply(f, &mut rows, symbols.cols, symbols.cols);
            rows.iter().for_each(|&q| h[q as u8 as usize] += 1);
        }
        Ok(entropy(&h))
    })?;
    let pays = |&(i, _): &(usize, Filter)| entropies[i] < entropies[0] - FILTER_GAIN;
    Ok([Filter::None, Filter::Left, Filter::Up].into_iter().enumerate().filter(pays).map(|(_, f)| f).collect())
}

fn filter_tiles(
    symbols: &SymbolMatrices<'_>,
    geometry: &TileGeometry,
    filter: Filter,
    pool: &Pool,
    cancel: &Cancel,
) -> Result<Vec<i8>> {
    let mut data: Vec<i8> = try_vec(symbols.data.len())?;
    let mut rest = &mut data[..];
    let strips: Vec<(usize, &mut [i8])> = (0..geometry.strips())
        .map(|strip| {
            let elements = geometry.strip_elements(strip);
            (elements.start, rest.split_off_mut(..elements.len()).expect("strips fill the plane"))
        })
        .collect();
    pool.each(strips, cancel, |(begin, rows)| {
        rows.copy_from_slice(&symbols.data[begin..begin + rows.len()]);
        for col in (0..symbols.cols).step_by(geometry.tile()) {
            let width = geometry.tile().min(symbols.cols - col);
            filter::apply(filter, &mut rows[col..], symbols.cols, width);
        }
        Ok(())
    })?;
    Ok(data)
}

/// Counts of coded symbols at the shifts worth trying, best first and a safe one last.
fn tries(data: &[i8], geometry: &TileGeometry, layout: Layout, pool: &Pool, cancel: &Cancel) -> Result<Vec<Try>> {
    let padding = (geometry.padded_elements() - data.len()) as u64;
    if layout == Layout::Byte {
        let mut histogram = count_bytes_with(bytemuck::cast_slice(data), pool, cancel)?;
        histogram[0] += padding;
        return Ok(vec![Try { shift: 0, histogram, table: None }]);
    }
    let mut pairs = PairHistogram::count(data, geometry.cols(), pool, cancel)?;
    let counted = data.len() / geometry.cols().max(1) * geometry.cols().div_ceil(2);
    pairs.add_padding((geometry.padded_elements() / 2 - counted) as u64);
    let mut choices: Vec<(f64, Try)> = (0..4)
        .map(|shift| {
            let (histogram, patches) = pairs.symbols(shift);
            let n: u64 = histogram.iter().sum();
            let lists = if shift < 3 { geometry.chunks() as f64 } else { 0.0 };
            let side = f64::from(shift + 1) * geometry.padded_elements() as f64;
            let cost = entropy(&histogram) * n as f64 + side + 32.0 * (patches as f64 + lists);
            (cost, Try { shift, histogram, table: None })
        })
        .collect();
    choices.sort_by(|a, b| a.0.total_cmp(&b.0));
    let best = choices[0].1.shift;
    let kept = choices.into_iter().map(|c| c.1).filter(|t| t.shift == best || t.shift == 3);
    Ok(kept.take(if best == 3 { 1 } else { 2 }).collect())
}

fn choose_table(options: &PlaneOptions, histogram: &Histogram, tables: &[Table]) -> TableChoice {
    let exact = Table::from_histogram(options.coder, options.table_bits, histogram);
    let shareable =
        Table::from_histogram(options.coder, options.table_bits, &with_neighbours(options.layout, histogram));
    let table_bits = exact.to_bytes().len() as f64 * 8.0;
    let cost = |t: &Table| t.cost(histogram).expect("made for it");
    // Small planes are dominated by their table. A little more for this one lets the next ones do without.
    let own = if cost(&shareable) < cost(&exact) + table_bits / 4.0 { shareable } else { exact };
    let own_bits = cost(&own) + table_bits;
    tables
        .iter()
        .enumerate()
        .rev()
        .take(TABLES_TRIED)
        .filter(|(_, t)| t.coder() == options.coder && t.bits() == options.table_bits)
        .filter_map(|(i, t)| t.cost(histogram).map(|bits| (i, t, bits)))
        .min_by(|a, b| a.2.total_cmp(&b.2))
        .filter(|&(_, _, bits)| bits <= own_bits)
        .map_or(TableChoice { table: own, place: None, is_new: true }, |(i, table, _)| TableChoice {
            table: table.clone(),
            place: Some(i),
            is_new: false,
        })
}

/// `histogram` with symbols that did not occur but are no larger than those that did: the next plane may have them.
fn with_neighbours(layout: Layout, histogram: &Histogram) -> Histogram {
    let size = |s: usize| match layout {
        Layout::Byte => usize::from((s as u8 as i8).unsigned_abs()),
        Layout::Pair => (s & 15).max(s >> 4),
    };
    let largest = (0..256).filter(|&s| histogram[s] > 0).map(size).max().unwrap_or(0);
    std::array::from_fn(|s| if size(s) <= largest { histogram[s].max(1) } else { histogram[s] })
}

fn encode_zstd(
    symbols: &SymbolMatrices<'_>,
    filter: Filter,
    chunk: usize,
    level: i32,
    pool: &Pool,
    cancel: &Cancel,
    done: &AtomicUsize,
) -> Result<EncodedPlane> {
    let step = (ZSTD_PIECE / chunk).max(1) * chunk;
    let total = symbols.data.len();
    let mut parts = pool.each(symbols.data.chunks(step).enumerate(), cancel, |(i, bytes)| {
        let mut part = Part::default();
        part.data.try_reserve(bytes.len()).map_err(|_| out_of_memory(bytes.len()))?;
        let mut compressor = zstd::Compressor::new(level)?;
        for (j, frame) in bytes.chunks(chunk).enumerate() {
            let frame = compressor.chunk(frame, i * step + j * chunk, symbols.cols, filter, cancel)?;
            part.lengths.push(frame.len());
            part.data.resize(part.data.len().next_multiple_of(zstd::ALIGN), 0);
            part.data.extend_from_slice(&frame);
        }
        let end = i * step + bytes.len();
        if end < total {
            part.data.resize(part.data.len().next_multiple_of(zstd::ALIGN), 0);
        }
        done.fetch_add(bytes.len(), Ordering::Relaxed);
        Ok(part)
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

fn encode_tiles(
    symbols: &SymbolMatrices<'_>,
    geometry: &TileGeometry,
    options: &PlaneOptions,
    attempt: Attempt,
    pool: &Pool,
    cancel: &Cancel,
    done: &AtomicUsize,
) -> Result<EncodedPlane> {
    let (coder, layout, filter) = (options.coder, options.layout, attempt.filter);
    for Try { shift, table, .. } in attempt.tries {
        let table = table.expect("chosen before");
        let tiles =
            Tiles { symbols, geometry, filter, format: ChunkFormat { coder, layout, shift }, table: &table.table };
        if let Some(mut parts) = tiles.encode(pool, cancel, done)? {
            let mut offsets = reserved(4 * (geometry.chunks() + 1))?;
            offsets.extend_from_slice(&[0; 4]);
            let (mut end, mut longest) = (0, 0);
            for &length in parts.iter().flat_map(|p| &p.lengths) {
                longest = longest.max(length);
                end += length / OFFSET_UNIT;
                let end = u32::try_from(end).map_err(|_| {
                    Error::input("a plane of more than 16 GiB").advice("split the tensor, or use coder raw")
                })?;
                offsets.extend_from_slice(&end.to_le_bytes());
            }
            let side = joined(parts.iter_mut().map(|p| std::mem::take(&mut p.side)), pool, cancel)?;
            let data = joined(parts.iter_mut().map(|p| std::mem::take(&mut p.data)), pool, cancel)?;
            let tiling = Tiling { coder, layout, shift, tile: geometry.tile(), filter };
            let form = PlaneForm { matrix: symbols.matrix(), coding: Coding::Tiles(tiling), max_chunk: longest };
            return Ok(EncodedPlane { form, table: Some(table), offsets, data, side });
        }
    }
    unreachable!("the last shift has no patches")
}

/// Chunks that follow each other.
#[derive(Default)]
struct Part {
    data: Vec<u8>,
    side: Vec<u8>,
    lengths: Vec<usize>,
}

/// Tiles to encode.
struct Tiles<'a> {
    symbols: &'a SymbolMatrices<'a>,
    geometry: &'a TileGeometry,
    filter: Filter,
    format: ChunkFormat,
    table: &'a Table,
}

impl Tiles<'_> {
    /// Encodes all chunks; `None` where the patches of one do not fit.
    fn encode(&self, pool: &Pool, cancel: &Cancel, done: &AtomicUsize) -> Result<Option<Vec<Part>>> {
        let chunks = self.geometry.chunks();
        let step = (pool.piece(self.geometry.padded_elements()) / (TILE_ROWS * self.geometry.tile())).max(1);
        let hopeless = AtomicBool::new(false);
        let parts = pool.each((0..chunks).step_by(step), cancel, |first| {
            if hopeless.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let part = self.encode_part(first..chunks.min(first + step), done)?;
            hopeless.fetch_or(part.is_none(), Ordering::Relaxed);
            Ok(part)
        })?;
        Ok(parts.into_iter().collect())
    }

    fn encode_part(&self, chunks: std::ops::Range<usize>, done: &AtomicUsize) -> Result<Option<Part>> {
        let Self { symbols, geometry, filter, format, .. } = *self;
        let most = chunks.len() * TILE_ROWS * geometry.tile();
        let mut part = Part { data: reserved(most)?, side: reserved(most / 2)?, lengths: Vec::new() };
        let mut encoder = ChunkEncoder::new(format, self.table);
        let mut tile = Vec::new();
        for chunk in chunks {
            let position = geometry.position(chunk);
            let rows = &symbols.data[geometry.strip_elements(position.strip)];
            // Padding is 0, the commonest symbol of weights.
            tile.clear();
            tile.resize(TILE_ROWS * position.width, 0);
            let cols = (position.col + position.width).min(geometry.cols()) - position.col;
            let lines = rows.len() / geometry.cols();
            for (to, from) in tile.chunks_exact_mut(position.width).zip(rows.chunks_exact(geometry.cols())) {
                to[..cols].copy_from_slice(&from[position.col..position.col + cols]);
            }
            filter::apply(filter, &mut tile[..lines * position.width], position.width, cols);
            let begin = part.data.len();
            if !encoder.encode(&tile, position.width, &mut part.data, &mut part.side) {
                return Ok(None);
            }
            part.lengths.push(part.data.len() - begin);
            done.fetch_add(lines * cols, Ordering::Relaxed);
        }
        Ok(Some(part))
    }
}

/// An empty vector with room for so many bytes.
fn reserved(bytes: usize) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    out.try_reserve_exact(bytes).map_err(|_| out_of_memory(bytes))?;
    Ok(out)
}

/// `parts` one after the other.
fn joined(parts: impl Iterator<Item = Vec<u8>>, pool: &Pool, cancel: &Cancel) -> Result<Vec<u8>> {
    let parts: Vec<Vec<u8>> = parts.collect();
    if parts.len() == 1 {
        return Ok(parts.into_iter().next().expect("one"));
    }
    let mut out: Vec<u8> = try_vec(parts.iter().map(Vec::len).sum())?;
    let mut rest = &mut out[..];
    // Several in one piece of work: they may be short.
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

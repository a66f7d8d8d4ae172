//! Encoding a plane.

use rayon::prelude::*;

use super::{EncodedPlane, EncodedTiles, PlaneOptions, Symbols, TableChoice};
use crate::coder::chunk::{ChunkEncoder, ChunkFormat};
use crate::coder::filter;
use crate::coder::histogram::{Histogram, PairHistogram, count_bytes, entropy};
use crate::coder::table::Table;
use crate::coder::tile::{OFFSET_UNIT, TileGeometry, default_tile};
use crate::coder::{Coder, Filter, Layout, TILE_ROWS, zstd};
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::tensor::out_of_memory;

/// Told how many symbols have been encoded since it was last called; its error stops the work.
pub type Tick<'a> = dyn FnMut(usize) -> Result<()> + 'a;

/// Symbols that one task encodes, and symbols between two ticks.
const TASK: usize = 1 << 20;
const BATCH: usize = 32 << 20;
/// How many of the latest tables are tried before a plane gets its own.
const TABLES_TRIED: usize = 16;
/// Strips that are looked at to decide whether a filter may pay, and the gain in bits per symbol that is worth a try. A
/// filter costs every decoder, so it is used only where it makes the plane smaller by a real share.
const FILTER_SAMPLE: usize = 16;
const FILTER_GAIN: f64 = 0.1;
const FILTER_SHARE: f64 = 0.99;
/// Padding beyond which tiles are not tried: they could not win, and would take many times the memory and the time.
const MOST_PADDING: usize = 4;

/// Encodes `symbols`, or answers with a raw plane where coding them does not make them smaller.
///
/// `tables` are those the file has already: a plane uses one of them where that is smaller than a table of its own.
///
/// # Errors
/// Options that the format does not allow, too large a plane, or an error of `tick`.
pub fn encode(
    symbols: &Symbols<'_>,
    options: &PlaneOptions,
    tables: &[Table],
    pool: &Pool,
    tick: &mut Tick<'_>,
) -> Result<EncodedPlane> {
    if symbols.data.is_empty() {
        return Ok(EncodedPlane::raw());
    }
    let mut best = encode_filtered(symbols, Filter::None, options, tables, pool, tick)?;
    if best.coder == Coder::Raw {
        return Ok(best);
    }
    let mut filters = if options.filters { pool.run(|| filters_worth_trying(symbols))? } else { Vec::new() };
    if options.coder == Coder::Zstd {
        filters.retain(|&f| zstd::filter_allowed(f, zstd_chunk(symbols, options), symbols.cols));
    }
    for filter in filters {
        let other = encode_filtered(symbols, filter, options, tables, pool, &mut |_| tick(0))?;
        if (other.stored_bytes() as f64) < best.stored_bytes() as f64 * FILTER_SHARE {
            best = other;
        }
    }
    if best.stored_bytes() < symbols.data.len() { Ok(best) } else { Ok(EncodedPlane::raw()) }
}

/// Filters that make the entropy of a sample of strips smaller.
fn filters_worth_trying(symbols: &Symbols<'_>) -> Vec<Filter> {
    let strip = TILE_ROWS * symbols.cols;
    let step = symbols.data.len().div_ceil(strip).div_ceil(FILTER_SAMPLE);
    let sample = |f: Filter| {
        let mut h: Histogram = [0; 256];
        for rows in symbols.data.chunks(strip).step_by(step) {
            let mut rows = rows.to_vec();
            filter::apply(f, &mut rows, symbols.cols, symbols.cols);
            rows.iter().for_each(|&q| h[q as u8 as usize] += 1);
        }
        entropy(&h)
    };
    let plain = sample(Filter::None);
    [Filter::Left, Filter::Up].into_iter().filter(|&f| sample(f) < plain - FILTER_GAIN).collect()
}

fn encode_filtered(
    symbols: &Symbols<'_>,
    filter: Filter,
    options: &PlaneOptions,
    tables: &[Table],
    pool: &Pool,
    tick: &mut Tick<'_>,
) -> Result<EncodedPlane> {
    match options.coder {
        Coder::Raw => Ok(EncodedPlane::raw()),
        Coder::Zstd => encode_zstd(symbols, filter, options, pool, tick),
        Coder::Rans | Coder::Huffman => encode_tiles(symbols, filter, options, tables, pool, tick),
    }
}

/// Decoded bytes of a frame: as asked, or by shape.
fn zstd_chunk(symbols: &Symbols<'_>, options: &PlaneOptions) -> usize {
    options.zstd_chunk.unwrap_or_else(|| zstd::default_chunk(symbols.data.len(), symbols.cols))
}

fn encode_zstd(
    symbols: &Symbols<'_>,
    filter: Filter,
    options: &PlaneOptions,
    pool: &Pool,
    tick: &mut Tick<'_>,
) -> Result<EncodedPlane> {
    let chunk = zstd_chunk(symbols, options);
    zstd::check_chunk(chunk).map_err(|e| Error::input(e.message().to_owned()).advice("leave frame out"))?;
    let mut plane = EncodedPlane { coder: Coder::Zstd, filter, zstd_chunk: Some(chunk), ..EncodedPlane::raw() };
    let batch_bytes = BATCH.next_multiple_of(chunk);
    for (b, batch) in symbols.data.chunks(batch_bytes).enumerate() {
        let compress = |(i, bytes): (usize, &[i8])| {
            zstd::compress(bytes, b * batch_bytes + i * chunk, symbols.cols, filter, options.zstd_level)
        };
        let frames: Vec<Vec<u8>> =
            pool.run(|| batch.par_chunks(chunk).enumerate().map(compress).collect::<Result<_>>()).flatten()?;
        for frame in &frames {
            plane.chunks += 1;
            plane.max_chunk = plane.max_chunk.max(frame.len());
            zstd::append(frame, &mut plane.data, &mut plane.offsets)?;
        }
        tick(batch.len())?;
    }
    Ok(plane)
}

fn encode_tiles(
    symbols: &Symbols<'_>,
    filter: Filter,
    options: &PlaneOptions,
    tables: &[Table],
    pool: &Pool,
    tick: &mut Tick<'_>,
) -> Result<EncodedPlane> {
    let (coder, layout) = (options.coder, options.layout);
    let tile = options.tile.unwrap_or_else(|| default_tile(coder, symbols.rows, symbols.cols));
    if !matches!(options.table_bits, 11 | 12) {
        return Err(Error::input(format!("tables have 11 or 12 bits, not {}", options.table_bits))
            .advice("leave table_bits out"));
    }
    let advice = if options.tile.is_some() { "leave tile out" } else { "use coder raw for this tensor" };
    let geometry = TileGeometry::new(symbols.count, symbols.rows, symbols.cols, tile)
        .map_err(|e| Error::input(e.message().to_owned()).advice(advice))?;
    if geometry.padded_elements() / MOST_PADDING > symbols.data.len() {
        return Ok(EncodedPlane::raw());
    }
    let filtered;
    let mut data = symbols.data;
    if filter != Filter::None {
        filtered = filter_tiles(symbols, &geometry, filter);
        data = &filtered;
    }
    let (histograms, shifts) = pool.run(|| histograms(data, &geometry, layout))?;
    // A smaller shift is declined by a chunk with too many patches; the largest one has none.
    for (shift, histogram) in shifts.into_iter().zip(&histograms) {
        let table = choose_table(options, histogram, tables);
        let format = ChunkFormat { coder, layout, shift };
        let used = match &table {
            TableChoice::Known(i) => &tables[*i],
            TableChoice::New(t) => t,
        };
        if let Some(chunks) = encode_chunks(data, &geometry, format, used, pool, tick)? {
            return Ok(EncodedPlane {
                coder,
                filter,
                tiles: Some(EncodedTiles { layout, shift, tile, table, side: chunks.side }),
                zstd_chunk: None,
                chunks: geometry.chunks(),
                max_chunk: chunks.longest,
                offsets: bytemuck::cast_slice(&chunks.offsets.iter().map(|o| o.to_le()).collect::<Vec<u32>>()).to_vec(),
                data: chunks.data,
            });
        }
    }
    unreachable!("the last shift has no patches")
}

/// Counts of coded symbols at the shifts worth trying, best first and a safe one last.
fn histograms(data: &[i8], geometry: &TileGeometry, layout: Layout) -> (Vec<Histogram>, Vec<u32>) {
    let padding = (geometry.padded_elements() - data.len()) as u64;
    if layout == Layout::Byte {
        let mut h = count_bytes(bytemuck::cast_slice(data));
        h[0] += padding;
        return (vec![h], vec![0]);
    }
    let mut pairs = PairHistogram::count(data, geometry.cols());
    let counted = data.len() / geometry.cols().max(1) * geometry.cols().div_ceil(2);
    pairs.add_padding((geometry.padded_elements() / 2 - counted) as u64);
    let mut choices: Vec<(f64, u32, Histogram)> = (0..4)
        .map(|shift| {
            let (h, patches) = pairs.symbols(shift);
            let n: u64 = h.iter().sum();
            let lists = if shift < 3 { geometry.chunks() as f64 } else { 0.0 };
            let side = f64::from(shift + 1) * geometry.padded_elements() as f64;
            let cost = entropy(&h) * n as f64 + side + 32.0 * (patches as f64 + lists);
            (cost, shift, h)
        })
        .collect();
    choices.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut kept = vec![choices[0]];
    if kept[0].1 != 3 {
        kept.extend(choices.iter().find(|c| c.1 == 3));
    }
    (kept.iter().map(|c| c.2).collect(), kept.iter().map(|c| c.1).collect())
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
        .filter_map(|(i, t)| t.cost(histogram).map(|bits| (i, bits)))
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .filter(|&(_, bits)| bits <= own_bits)
        .map_or(TableChoice::New(own), |(i, _)| TableChoice::Known(i))
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

fn filter_tiles(symbols: &Symbols<'_>, geometry: &TileGeometry, filter: Filter) -> Vec<i8> {
    let mut data = symbols.data.to_vec();
    for strip in 0..geometry.strips() {
        let rows = &mut data[geometry.strip_elements(strip)];
        for col in (0..symbols.cols).step_by(geometry.tile()) {
            let width = geometry.tile().min(symbols.cols - col);
            filter::apply(filter, &mut rows[col..], symbols.cols, width);
        }
    }
    data
}

struct Chunks {
    data: Vec<u8>,
    side: Vec<u8>,
    offsets: Vec<u32>,
    longest: usize,
}

/// Encodes all chunks; `None` where the patches of one do not fit.
fn encode_chunks(
    data: &[i8],
    geometry: &TileGeometry,
    format: ChunkFormat,
    table: &Table,
    pool: &Pool,
    tick: &mut Tick<'_>,
) -> Result<Option<Chunks>> {
    let strip_elements = TILE_ROWS * geometry.padded_cols();
    let strips_per_task = (TASK / strip_elements).max(1);
    let tasks_per_batch = (BATCH / (strips_per_task * strip_elements)).max(1);
    let strips: Vec<usize> = (0..geometry.strips()).collect();
    // Room for what the symbols take: pages that stay unused cost nothing, growing would copy.
    let mut all = Chunks { data: Vec::new(), side: Vec::new(), offsets: vec![0], longest: 0 };
    let side = format.side_bytes(geometry.padded_cols()) * geometry.strips();
    all.data.try_reserve(data.len()).map_err(|_| out_of_memory(data.len()))?;
    all.side.try_reserve(side).map_err(|_| out_of_memory(side))?;
    for batch in strips.chunks(strips_per_task * tasks_per_batch) {
        let encode = |strips: &[usize]| encode_strips(data, geometry, format, table, strips);
        let parts: Vec<Option<Part>> = pool.run(|| batch.par_chunks(strips_per_task).map(encode).collect())?;
        for part in parts {
            let Some(part) = part else { return Ok(None) };
            all.data.extend_from_slice(&part.data);
            all.side.extend_from_slice(&part.side);
            for length in part.lengths {
                all.longest = all.longest.max(length);
                let end = all.offsets.last().map_or(0, |&o| o as usize) + length / OFFSET_UNIT;
                all.offsets.push(u32::try_from(end).map_err(|_| {
                    Error::input("a plane of more than 16 GiB").advice("split the tensor, or use coder raw")
                })?);
            }
        }
        tick(batch.iter().map(|&s| geometry.strip_elements(s).len()).sum())?;
    }
    Ok(Some(all))
}

#[derive(Default)]
struct Part {
    data: Vec<u8>,
    side: Vec<u8>,
    lengths: Vec<usize>,
}

fn encode_strips(
    data: &[i8],
    geometry: &TileGeometry,
    format: ChunkFormat,
    table: &Table,
    strips: &[usize],
) -> Option<Part> {
    let mut part = Part::default();
    let mut encoder = ChunkEncoder::new(format, table);
    let mut tile = Vec::new();
    for &strip in strips {
        let rows = &data[geometry.strip_elements(strip)];
        for t in 0..geometry.tiles() {
            let position = geometry.position(strip * geometry.tiles() + t);
            // Padding is 0, the commonest symbol of weights.
            tile.clear();
            tile.resize(TILE_ROWS * position.width, 0);
            let end = (position.col + position.width).min(geometry.cols());
            for (to, from) in tile.chunks_exact_mut(position.width).zip(rows.chunks_exact(geometry.cols())) {
                to[..end - position.col].copy_from_slice(&from[position.col..end]);
            }
            let begin = part.data.len();
            if !encoder.encode(&tile, position.width, &mut part.data, &mut part.side) {
                return None;
            }
            part.lengths.push(part.data.len() - begin);
        }
    }
    Some(part)
}

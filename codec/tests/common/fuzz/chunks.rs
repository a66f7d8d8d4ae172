//! Planes without a container: every coder, layout and filter, comparing all instruction sets.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;

use wcodec::coder::filter::trellis;
use wcodec::coder::histogram::count_bytes;
use wcodec::coder::plane::{
    Coding, Draft, Filters, Plane, PlaneForm, PlaneOptions, PlaneSource, Scratch, SymbolMatrices, Tiling,
};
use wcodec::coder::table::{QuadTable, Table};
use wcodec::coder::tile::{OFFSET_UNIT, TileGeometry};
use wcodec::{Cancel, Coder, Filter, Isa, Layout, Pool};

use super::Target;
use super::mutate::mutate_from;
use crate::common::{Rng, samples};

pub const TARGET: Target = Target { name: "chunks", body, seeds, mutate };

/// The most symbols that are decoded, padding included: every instruction set decodes all of them.
const SYMBOLS: usize = 32 << 10;
/// Bytes that choose the form of the plane.
const HEAD: usize = 16;
/// Flags of the first byte.
const AS_IT_IS: u8 = 0x20;
const STORED_TABLE: u8 = 0x40;
const BITS_12: u8 = 0x80;
/// Flag of the second byte.
const CHANGES: u8 = 0x80;
/// The shift from which on layout `pair` is `quad`.
const QUAD: u32 = 8;
/// Bit position in the third byte.
const SMALLER: u32 = 6;

fn body(input: &[u8]) {
    decode(input);
}

/// Decodes a plane: the first 16 bytes choose its form and the division of the rest into segments.
///
/// 0: coder (bits 0, 1), layout (2), filter (3, 4), whether offsets, side plane and data are left unchanged (5) or
/// fitted to each other, whether the table is in its stored form (6), bits of the table (7); 1: shift, where 8, 16 and
/// 24 make layout `split` of `byte`, and those from 8 on `quad` of `pair`, with the excess over 8 as shift (0 to 6),
/// whether patches store changes (7); 2: tile / 64 - 1 (0 to 5), by how many bits a table of `huffman` is smaller (6,
/// 7); 3: count; 4, 5: rows; 6, 7: columns; 8, 9: bytes of offsets; 10, 11: bytes of side plane; 12 to 15: chunk of
/// zstd. Then the table (or 256 symbol counts of one byte), offsets, side plane and data. Returns for each piece
/// whether it could be decoded; nothing if the parts do not fit each other.
pub fn decode(input: &[u8]) -> Vec<bool> {
    let Some((head, rest)) = input.split_first_chunk::<HEAD>() else { return Vec::new() };
    let short = |i: usize| usize::from(u16::from_le_bytes([head[i], head[i + 1]]));
    let coder = Coder::ALL[usize::from(head[0] & 3)];
    let shift = u32::from(head[1] & !CHANGES);
    let (layout, shift) = match (head[0] >> 2 & 1, shift) {
        (0, 8 | 16 | 24) => (Layout::Split, shift),
        (0, _) => (Layout::Byte, shift),
        (_, QUAD..16) => (Layout::Quad, shift - QUAD),
        (_, _) => (Layout::Pair, shift),
    };
    let filter = Filter::ALL[usize::from(head[0] >> 3 & 3)];
    let matrix = (usize::from(head[3]), short(4), short(6));
    let fitted = head[0] & AS_IT_IS == 0;
    let Some((table, rest)) = table(coder, layout, head[0], head[2] >> SMALLER, rest) else { return Vec::new() };
    let (offsets, rest) = rest.split_at(short(8).min(rest.len()));
    let (side, data) = rest.split_at(short(10).min(rest.len()));
    let mut parts = Segments { offsets: offsets.to_vec(), side: side.to_vec(), data: data.to_vec() };
    let tile = (usize::from(head[2] & ((1 << SMALLER) - 1)) + 1) * 64;
    if let Ok(geometry) = TileGeometry::new(matrix.0, matrix.1, matrix.2, tile) {
        if geometry.padded_elements() > SYMBOLS {
            return Vec::new();
        }
        if fitted && table.is_some() {
            parts.fit(&geometry, coder, layout, shift);
        }
    }
    let coding = match coder {
        Coder::Raw => Coding::Raw,
        Coder::Zstd => {
            let chunk = u32::from_le_bytes([head[12], head[13], head[14], head[15]]) as usize;
            Coding::Zstd { chunk, filter }
        }
        Coder::Rans | Coder::Huffman => {
            let changes = head[1] & CHANGES != 0;
            Coding::Tiles(Tiling { coder, layout, shift, tile, filter, changes })
        }
    };
    let source = PlaneSource {
        form: PlaneForm { matrix, coding, max_chunk: longest_chunk(coder, &parts.offsets) },
        data: &parts.data,
        offsets: &parts.offsets,
        side: &parts.side,
        table: table.as_ref(),
    };
    let outcomes: Vec<_> = Isa::available().into_iter().map(|isa| all_pieces(source, isa)).collect();
    assert!(outcomes.windows(2).all(|w| w[0] == w[1]), "{coder} {layout} {filter}: instruction sets disagree");
    outcomes.into_iter().next().flatten().map_or_else(Vec::new, |(good, _)| good)
}

/// For each piece of a plane whether it decodes, and the decoded bytes.
fn all_pieces(source: PlaneSource<'_>, isa: Isa) -> Option<(Vec<bool>, Vec<i8>)> {
    let plane = Plane::new(source, isa).ok().filter(|p| p.elements() <= SYMBOLS)?;
    let bytes = plane.element_bytes();
    let mut out = vec![0x55i8; plane.elements() * bytes];
    let mut scratch = Scratch::default();
    let held = |i: usize| plane.piece(i).start * bytes..plane.piece(i).end * bytes;
    let piece = |i: usize| plane.decode_piece(i, &mut out[held(i)], &mut scratch).is_ok();
    let good: Vec<bool> = (0..plane.pieces()).map(piece).collect();
    // The output of a piece that cannot be decoded is unspecified, so it is not compared.
    good.iter().enumerate().filter(|(_, good)| !**good).for_each(|(i, _)| out[held(i)].fill(0));
    row_is_of_its_piece(&plane, source.form.matrix.2, &good, &out);
    Some((good, out))
}

/// Checks that a row decoded alone, tile by tile, equals that row of its strip.
fn row_is_of_its_piece(plane: &Plane<'_>, cols: usize, good: &[bool], out: &[i8]) {
    let Some(i) = good.iter().rposition(|&good| good).filter(|_| plane.geometry().is_some() && cols > 0) else {
        return;
    };
    let row = plane.piece(i).end / cols - 1;
    let (range, bytes) = (cols / 3..cols, plane.element_bytes());
    let mut alone = vec![0x55; range.len() * bytes];
    let decoded = Pool::new(None).unwrap().run(|| plane.decode_row(row, range.clone(), &mut alone, &Cancel::new()));
    decoded.flatten().unwrap();
    assert!(alone == out[(row * cols + range.start) * bytes..(row * cols + range.end) * bytes], "row {row} by itself");
}

/// The table at the start of `rest`, if the coder has one, and the bytes after it.
fn table(coder: Coder, layout: Layout, first: u8, smaller: u8, rest: &[u8]) -> Option<(Option<Table>, &[u8])> {
    // Coder `rans` has no table for quads: planes must refuse its ordinary one.
    let quads = (layout == Layout::Quad && coder == Coder::Huffman).then_some(Layout::Quad);
    let (_, most) = Table::stored_bytes(coder, quads);
    if most == 0 {
        return Some((None, rest));
    }
    let most_bits = if first & BITS_12 == 0 { 11 } else { 12 };
    let bits = most_bits - if coder == Coder::Huffman { u32::from(smaller) } else { 0 };
    if first & STORED_TABLE == 0 {
        let (counts, rest) = rest.split_first_chunk::<256>()?;
        if quads.is_some() {
            return Some((Some(few_quads(bits, counts)), rest));
        }
        let stored = if coder == Coder::Rans { frequencies(bits, counts) } else { lengths(bits, counts) };
        let table = Table::from_bytes(coder, None, bits, &stored).unwrap();
        return Some((Some(table), rest));
    }
    let length = if quads.is_some() { quads_length(bits, rest) } else { most as usize };
    let (stored, rest) = rest.split_at_checked(length)?;
    Some((Some(Table::from_bytes(coder, quads, bits, stored).ok()?), rest))
}

/// Bytes of the table of quads at the start of `rest`, according to its counts.
fn quads_length(bits: u32, rest: &[u8]) -> usize {
    let counts = rest.as_chunks().0.iter().take(bits as usize).map(|n| usize::from(u16::from_le_bytes(*n)));
    2 * (bits as usize + counts.sum::<usize>())
}

/// A table of at most `most` quads, built by 256 decisions, as in [`lengths`].
fn few_quads(bits: u32, decisions: &[u8; 256]) -> Table {
    let quad = |i: u16| i & 3 | (i & 0x0C) << 2 | (i & 0x30) << 4 | (i & 0xC0) << 6;
    let codes = (0..).map(quad).zip(lengths(bits, decisions)).filter(|&(_, length)| length > 0);
    Table::Quads(QuadTable::from_lengths(bits, codes))
}

/// A table of `rans` with frequencies roughly proportional to `counts`: far from optimal, but computed fast.
fn frequencies(bits: u32, counts: &[u8; 256]) -> Vec<u8> {
    let total: u32 = counts.iter().map(|&n| u32::from(n)).sum();
    // At least two symbols have a slot.
    let mut slots = counts.map(|n| ((u32::from(n) << bits) / (total + 1)) as u16);
    slots[1] += 1;
    slots[0] += (1 << bits) - slots.iter().sum::<u16>();
    slots.iter().flat_map(|n| n.to_le_bytes()).collect()
}

/// A table of `huffman`, built by 256 decisions: a code is assigned to the next symbol, or split into two codes that
/// are a bit longer.
fn lengths(bits: u32, decisions: &[u8; 256]) -> Vec<u8> {
    let mut open = VecDeque::from([1, 1]);
    let (mut lengths, mut taken) = (vec![0; 256], 0);
    for decision in decisions {
        let Some(length) = open.pop_front() else { break };
        if decision & 1 == 1 && u32::from(length) < bits && taken + open.len() + 2 <= 256 {
            open.extend([length + 1; 2]);
        } else {
            lengths[taken] = length;
            taken += 1;
        }
    }
    lengths.iter_mut().skip(taken).zip(open).for_each(|(to, length)| *to = length);
    lengths
}

struct Segments {
    offsets: Vec<u8>,
    side: Vec<u8>,
    data: Vec<u8>,
}

impl Segments {
    /// Gives all segments the lengths that the plane needs, and puts offsets into order.
    fn fit(&mut self, geometry: &TileGeometry, coder: Coder, layout: Layout, shift: u32) {
        let widths = || (0..geometry.chunks()).map(|i| geometry.position(i).width);
        // FORMAT.md, section 3.
        let last_word = if coder == Coder::Rans { 128 } else { 0 };
        let side_bytes = |width: usize| match layout {
            Layout::Byte => 0,
            Layout::Pair => 128 * width / 64 * (shift as usize + 1) - last_word,
            Layout::Split => 128 * width / 64 * shift as usize - last_word,
            Layout::Quad => 128 * width / 64 * (shift as usize + 1),
        };
        self.side.resize(widths().map(side_bytes).sum(), 0);
        let said: Vec<u32> = self.offsets.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        let mut end = 0;
        self.offsets = vec![0; OFFSET_UNIT];
        for (i, width) in widths().enumerate() {
            let there = (self.data.len() / OFFSET_UNIT) as u32;
            let tails = if layout == Layout::Split { last_word } else { 0 };
            let most = end + ((16 * width + tails) / OFFSET_UNIT) as u32;
            end = said.get(i + 1).copied().unwrap_or(there).clamp(end, most);
            self.offsets.extend_from_slice(&end.to_le_bytes());
        }
        self.data.resize(end as usize * OFFSET_UNIT, 0);
    }
}

/// The longest chunk according to `offsets`, as an index would state it, so that the input need not contain it.
fn longest_chunk(coder: Coder, offsets: &[u8]) -> usize {
    let words: Vec<u32> = offsets.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
    let longest = match coder {
        Coder::Zstd => words.chunks_exact(2).map(|w| w[1] as usize).max(),
        _ => words.windows(2).map(|w| w[1].saturating_sub(w[0]) as usize * OFFSET_UNIT).max(),
    };
    longest.unwrap_or(0)
}

/// Planes that decode, of all coders, layouts, shifts and filters, with their own tables and with shared ones; with and
/// without padding.
fn seeds() -> Vec<Vec<u8>> {
    let kinds = [
        (Coder::Rans, Layout::Byte, Filters::Tried, 12),
        (Coder::Rans, Layout::Byte, Filters::Trellis, 12),
        (Coder::Rans, Layout::Pair, Filters::Tried, 12),
        (Coder::Rans, Layout::Pair, Filters::Trellis, 12),
        (Coder::Rans, Layout::Split, Filters::Tried, 12),
        (Coder::Huffman, Layout::Byte, Filters::Tried, 12),
        (Coder::Huffman, Layout::Byte, Filters::Trellis, 12),
        (Coder::Huffman, Layout::Pair, Filters::Tried, 12),
        (Coder::Huffman, Layout::Pair, Filters::Tried, 9),
        (Coder::Huffman, Layout::Pair, Filters::Trellis, 10),
        (Coder::Huffman, Layout::Split, Filters::Tried, 12),
        (Coder::Huffman, Layout::Quad, Filters::None, 12),
        (Coder::Huffman, Layout::Quad, Filters::None, 8),
        (Coder::Huffman, Layout::Quad, Filters::Trellis, 11),
        (Coder::Zstd, Layout::Byte, Filters::Tried, 12),
    ];
    let mut seeds = Vec::new();
    for (coder, layout, filters, table_bits) in kinds {
        let options = PlaneOptions {
            coder,
            layout,
            table_bits,
            patch_rare: false,
            changes: table_bits < 11 || filters == Filters::Trellis || layout == Layout::Quad,
            tile: Some(64),
            zstd_level: 3,
            zstd_chunk: Some(640),
            filters,
        };
        let (pool, cancel) = (Pool::new(None).unwrap(), Cancel::new());
        // Each symbol has an uncoded byte of noise.
        let planes = usize::from(layout == Layout::Split);
        let beside = |n: usize| vec![(0..n).map(|i| (i * i / 7) as i8).collect::<Vec<i8>>(); planes];
        let encoded = |rows, cols, data: &[i8], tables: &mut Vec<Table>| {
            let symbols = SymbolMatrices { count: 1, rows, cols, data, beside: &beside(data.len()) };
            let mut draft = Draft::new(&symbols, &options, &pool, &cancel).unwrap();
            draft.choose(tables);
            draft.encode(&symbols, &pool, &cancel, &AtomicUsize::new(0)).unwrap()
        };
        for (_, mut large) in samples::layer_symbols(48, 192) {
            if filters == Filters::Trellis {
                // Paths are made of arbitrary symbols.
                large.chunks_mut(64).for_each(trellis::levels_of);
            }
            // Large planes make the table, and small ones share it.
            let mut tables = Vec::new();
            encoded(48, 192, &large, &mut tables);
            for (rows, cols) in [(16, 64), (21, 130)] {
                let small: Vec<i8> = large.chunks_exact(192).take(rows).flat_map(|row| &row[..cols]).copied().collect();
                let plane = encoded(rows, cols, &small, &mut tables);
                let source = plane.source(&SymbolMatrices { count: 1, rows, cols, data: &small, beside: &[] });
                seeds.extend([input(&source, true), input(&source, false)]);
            }
        }
    }
    seeds.sort();
    seeds.dedup();
    seeds
}

/// Input for a plane, with its own table or with one-byte counts, which any bytes can be decoded with.
fn input(source: &PlaneSource<'_>, stored_table: bool) -> Vec<u8> {
    let place = |found: Option<usize>| found.unwrap() as u8;
    let PlaneForm { matrix, coding, .. } = source.form;
    let mut first = place(Coder::ALL.iter().position(|c| *c == coding.coder()));
    first |= place(Filter::ALL.iter().position(|f| *f == coding.filter())) << 3;
    let (mut shift, mut tile, mut smaller, mut table) = (0, 64, 0, Vec::new());
    if let (Coding::Tiles(t), Some(own)) = (coding, source.table) {
        let paired = matches!(t.layout, Layout::Pair | Layout::Quad);
        first |= u8::from(paired) << 2 | BITS_12;
        let from = if t.layout == Layout::Quad { QUAD } else { 0 };
        (shift, tile, smaller) = ((from + t.shift) as u8, t.tile, 12 - own.bits());
        shift |= if t.changes { CHANGES } else { 0 };
        table = count_bytes(source.data).map(|n| n.clamp(1, 255) as u8).to_vec();
        if stored_table {
            first |= STORED_TABLE;
            table = own.to_bytes();
        }
    }
    let (count, rows, cols) = matrix;
    let zstd_chunk = if let Coding::Zstd { chunk, .. } = coding { chunk } else { 0 };
    let mut out = vec![first, shift, (tile / 64 - 1) as u8 | (smaller << SMALLER) as u8, count as u8];
    for n in [rows, cols, source.offsets.len(), source.side.len()] {
        out.extend_from_slice(&(n as u16).to_le_bytes());
    }
    out.extend_from_slice(&(zstd_chunk as u32).to_le_bytes());
    [&out, &table[..], source.offsets, source.side, source.data].concat()
}

/// Half of the mutations affect the bytes after the table, or near it.
fn mutate(rng: &mut Rng, seed: &[u8], other: &[u8]) -> Vec<u8> {
    let table = [256, 512][rng.below(2)];
    mutate_from(rng, seed, other, HEAD + table)
}

// Lookup (gather) of rows of a matrix by indices in device memory, as for embeddings: the chunks of each row's strip
// are decoded, and the row's elements are written. The host need not know the indices.
//
// The main loop counts chunks by the position of the index, and for each index by tile. A strip with several of the rows is
// decoded for each.
#pragma once
#include "join.h"
#include "chunk_epilogue.h"
#include "mainloop.h"

// The index of no row.
#define NO_ROW 0xFFFFFFFFu

// The row index at `place` in the list of indices.
DEVICE u32 row_at(const RowsBatch& batch, u32 place) {
  // Preceding kernels may have written the indices.
  if (batch.wide) {
    const u64 row = load64((const u64*)batch.ids + place);
    return row < batch.tiles.rows ? (u32)row : NO_ROW;
  }
  const u32 row = load32((const u32*)batch.ids + place);
  return row < batch.tiles.rows ? row : NO_ROW;
}

// Maps a count to a chunk of the plane. For an index out of range it is the first chunk: none of it is written, and it
// is reported only if it is damaged.
struct OfRows {
  enum : bool { PICKS = true };
  const RowsBatch& batch;
  DEVICE_MEMBER u32 operator()(u32 number) const {
    const Tiles& t = batch.tiles;
    const u32 place = divide(number, t.by_tiles), row = row_at(batch, place);
    return (row == NO_ROW ? 0 : row / TILE_ROWS * t.tiles) + number - place * t.tiles;
  }
};

DEVICE u32 element_bytes(u32 kind) { return kind == OUT_F32 ? 4 : 2; }

// A warp's state for the row whose chunk it decodes.
struct RowState {
  const RowsBatch& batch;
  u32 row;
  u8* out;  // its first element

  DEVICE_MEMBER void take(const Tiles& t, u32 number) {
    const u32 place = divide(number, t.by_tiles);
    row = row_at(batch, place);
    out = (u8*)t.output.out + (u64)place * t.output.row_stride * element_bytes(batch.kind);
  }
  DEVICE_MEMBER void end(const Tiles& t, const Chunk& c, u32 lane, bool) {
    if (row == NO_ROW) lost(t, c, lane);
  }
  // Writes NaN to all of the chunk's columns.
  DEVICE_MEMBER void lost(const Tiles& t, const Chunk& c, u32 lane) {
    // Other lanes have stored there.
    syncwarp();
    const u32 end = end_col(t, c) < t.cols ? end_col(t, c) : t.cols;
#pragma unroll 1
    for (u32 col = c.tile * t.blocks * BLOCK_COLS + lane; col < end; col += LANES) {
      if (batch.kind == OUT_F32) stg32(out + (u64)col * 4, 0x7FC00000);
      else stg16(out + (u64)col * 2, batch.kind == OUT_F16 ? 0x7E00 : 0x7FC0);
    }
  }
};

// The destination of a lane's elements of the row, in place of `Cells`.
struct RowCells {
  typedef RowState State;

  const Tiles& t;
  u8* to;   // the lane's first column, in the next block
  u32 col;  // that column
  u32 half_of_row;  // the half of a block that has the row among the lane's; 2 if neither has

  DEVICE_MEMBER RowCells(const RowState& state, const Tiles& t, const Chunk& c, u32 lane, u32 bytes) : t(t) {
    col = c.tile * t.blocks * BLOCK_COLS + (lane & 3) * 16;
    half_of_row = state.row != NO_ROW && state.row % 8 == lane / 4 ? state.row / 8 % 2 : 2;
    to = state.out + (u64)col * bytes;
  }

  DEVICE_MEMBER u8* half(u32, u32) const { return to; }
  DEVICE_MEMBER u32 count(u32 half) const {
    if (half != half_of_row || col >= t.cols) return 0;
    return t.cols - col < 16 ? t.cols - col : 16;
  }

  DEVICE_MEMBER void next(u32 bytes) {
    to += bytes * BLOCK_COLS;
    col += BLOCK_COLS;
  }
};

// Writes `count` of 16 adjacent elements. `factors` are their columns', or 0.
template <u32 OUT>
DEVICE void put_some(u8* to, const u32* q, Steps s, u64 factors, u32 count, bool vector) {
  if (vector && count == 16) emit16<OUT>(to, q, s, factors);
  else emit_some<OUT>(to, q, s, factors, count, Element<OUT>::bytes());
}
// Writes the elements of a row's 16 columns from `col` on, as far as there are columns.
DEVICE_RARE void put_row(const Tiles& t, u8* to, Vec4 symbols, Steps s, u32 kind, u32 col) {
  const u32 q[4] = {symbols.x, symbols.y, symbols.z, symbols.w};
  const u64 factors = t.output.columns ? t.output.columns + (u64)col * 2 : 0;
  const u32 count = t.cols - col < 16 ? t.cols - col : 16;
  const bool vector = t.vector;
  if (kind == OUT_F16) put_some<OUT_F16>(to, q, s, factors, count, vector);
  else if (kind == OUT_BF16) put_some<OUT_BF16>(to, q, s, factors, count, vector);
  else put_some<OUT_F32>(to, q, s, factors, count, vector);
}

// Writes weights.
struct StoreRow {
  typedef RowState State;
  enum : bool { WAITS = false, OPERANDS = false, PREPARES = false, CHECKS = true, COPIES = false, CORRECTS = false, BESIDE = false, RAISED = false };

  const RowState& state;
  RowCells cells;

  DEVICE_MEMBER StoreRow(State& state, const Tiles& t, const Chunk& c, u32 lane)
      : state(state), cells(state, t, c, lane, element_bytes(state.batch.kind)) {}

  // A row is one of the sixteen that are decoded: the faster path for interior blocks would double the code.
  DEVICE_MEMBER bool takes_interior() const { return false; }
  DEVICE_MEMBER void begin_interior(u32) {}
  DEVICE_MEMBER void interior(const Block&) {}

  DEVICE_MEMBER void any(const Block& b) {
    const u32 kind = state.batch.kind;
    if (cells.half_of_row < 2 && cells.col < cells.t.cols) {
      const Output& o = cells.t.output;
      const Steps s = {steps_base<SCALES_ANY>(o), scale_at<SCALES_ANY>(o, state.row, cells.col)};
      const Vec4 lower = {b.q[0], b.q[1], b.q[2], b.q[3]}, upper = {b.q[4], b.q[5], b.q[6], b.q[7]};
      put_row(cells.t, cells.to, cells.half_of_row ? upper : lower, s, kind, cells.col);
    }
    cells.next(element_bytes(kind));
  }
};

// The whole launch.
template <class Tile, class Epilogue>
DEVICE void gather_rows(const RowsBatch& batch, typename Epilogue::State state) {
  const Tiles& t = batch.tiles;
  if (!table_fits()) {
    // As in `mainloop`.
    atomic_min((u32*)t.status, 0);
    return;
  }
  const u32 warp = thread_index() / LANES, warps = block_threads() / LANES;
  Warp w = make_warp<false>(batch);
  if (warp == 0) warp_copy(TABLE_AT, (const u8*)t.table, 4u << t.bits, batch.barriers, w.lane);
  // A preceding kernel may have written the indices, which select the chunks to decode.
  overlap_wait();
  overlap_start();
  const OfRows at = {batch};
  const u32 first = block_index() * warps + warp, last = batch.count * t.tiles;
  const u32 held = first < last ? load_arrival(t, at(first), w.lane) : 0;
  u32 table_parity = 0;
  bool waited = true;
  mainloop_of_plane<Tile, Epilogue>(state, batch, t, w, first, grid_blocks() * warps, last, held, TABLE_COPIED, table_parity, waited, at);
}

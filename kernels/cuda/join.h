// Elements that are joined: from a coded symbol and its uncoded bytes (layout `split`), or from bits of several planes.
// FORMAT.md sections 2 and 3, scheme `lossless`.
//
// These are the epilogues of split.h. They are epilogues as chunk_epilogue.h describes them, but get a block in two
// halves: for half h a lane holds 16 elements of row g + 8 h, four symbols per word (symbols.h), and for each of these
// words as many words of uncoded bytes ("rests") as elements have such bytes: `rests[r][j]` for word j and byte r, the
// most significant first.
//
//   interior(half, symbols, rests)   takes the next half of a block, all of whose elements are in the matrix. The epilogue may change the
//                                    symbols. The rests are those of the elements that the lane has after `exchange` (emit.h)
//   any(half, symbols, rests, rest)  takes the next half of any block; each symbol has `rest` uncoded bytes
//   next()                           called after both halves were passed to `any`
//
// An epilogue for elements of any kind has neither `interior` nor the members that go with it.
#pragma once
#include "chunk.h"
#include "emit.h"

// Joins four elements, given that the symbol is the exponent (OUT_BF16, OUT_F32) or the upper byte (OUT_F16): two or
// four words.
template <u32 OUT>
DEVICE void join4(u32 symbols, const u32* rest, u32* to) {
  if constexpr (OUT == OUT_F16) {
    to[0] = prmt(rest[0], symbols, 0x5140);
    to[1] = prmt(rest[0], symbols, 0x7362);
  } else {
    // The sign is the top bit of the byte after the exponent, whose lowest bit is the next byte's.
    const u32 upper = choose(0x80808080u, rest[0], symbols >> 1), lower = choose(0x80808080u, symbols << 7, rest[0]);
    const u32 first = prmt(lower, upper, 0x5140), second = prmt(lower, upper, 0x7362);
    if constexpr (OUT == OUT_BF16) {
      to[0] = first;
      to[1] = second;
    } else {
      const u32 low_first = prmt(rest[2], rest[1], 0x5140), low_second = prmt(rest[2], rest[1], 0x7362);
      to[0] = prmt(low_first, first, 0x5410);
      to[1] = prmt(low_first, first, 0x7632);
      to[2] = prmt(low_second, second, 0x5410);
      to[3] = prmt(low_second, second, 0x7632);
    }
  }
}

// The destination of a lane's elements in a whole output. The alternative in rows.h is for single rows.
struct Cells {
  struct State {
    DEVICE_MEMBER void end(const Tiles&, const Chunk&, u32, bool) {}
    DEVICE_MEMBER void lost(const Tiles&, const Chunk&, u32) {}
  };

  const Tiles& t;
  u8* to;    // element of row g and the lane's first column, in the next block
  u32 col;   // that column
  u32 rows;  // bit 0: row g is in the matrix; bit 1: row g + 8 is

  DEVICE_MEMBER Cells(const State&, const Tiles& t, const Chunk& c, u32 lane, u32 bytes) : t(t) {
    const u32 matrix = divide(c.strip, t.by_strips);
    const u32 in_matrix = (c.strip - matrix * t.strips) * TILE_ROWS + lane / 4;
    const u64 row = matrix * t.rows + in_matrix - t.output.row_begin;
    col = c.tile * t.blocks * BLOCK_COLS + (lane & 3) * 16;
    rows = (in_matrix < t.rows ? 1 : 0) | (in_matrix + 8 < t.rows ? 2 : 0);
    to = (u8*)t.output.out + (row * t.output.row_stride + (u64)col * t.output.column_stride) * bytes;
  }

  // The destination of the lane's elements in a half, of which there are `count`.
  DEVICE_MEMBER u8* half(u32 half, u32 bytes) const { return to + (u64)(half * 8) * t.output.row_stride * bytes; }
  DEVICE_MEMBER u32 count(u32 half) const {
    if (!(rows >> half & 1) || col >= t.cols) return 0;
    return t.cols - col < 16 ? t.cols - col : 16;
  }

  DEVICE_MEMBER void next(u32 bytes) {
    to += (u64)t.output.column_stride * (bytes * BLOCK_COLS);
    col += BLOCK_COLS;
  }
};

// Writes elements of the common kinds.
template <u32 OUT>
struct StoreJoined {
  typedef Cells::State State;
  enum : bool { WAITS = true, OPERANDS = false, PREPARES = false, CHECKS = true, COPIES = false, CORRECTS = false, BESIDE = false, RAISED = false };
  enum : u32 { BYTES = OUT == OUT_F32 ? 4 : 2, REST = BYTES - 1 };

  Cells cells;
  u32 lane;
  u32 row8;  // for interior blocks: bytes from row g to row g + 8

  DEVICE_MEMBER StoreJoined(State& state, const Tiles& t, const Chunk& c, u32 lane)
      : cells(state, t, c, lane, BYTES), lane(lane), row8(0) {}

  DEVICE_MEMBER bool takes_interior() const { return cells.t.vector; }

  DEVICE_MEMBER void begin_interior(u32) {
    row8 = 8 * cells.t.output.row_stride * BYTES;
    cells.to = cells.to - (lane & 3) * (16 * BYTES) + exchanged_place<OUT>(lane);
  }

  DEVICE_MEMBER void interior(u32 half, u32* symbols, const u32 (*rests)[4]) {
    exchange<OUT>(symbols, lane);
    u8* const to = cells.to + (half ? row8 : 0);
#pragma unroll
    for (u32 j = 0; j < 4; j += WORDS) {
      u32 e[4];
      join16(symbols, rests, j, e);
      stg128(to + (OUT == OUT_F32 ? 64 : 16) * j, {e[0], e[1], e[2], e[3]});
    }
    if (half) cells.to += BYTES * BLOCK_COLS;
  }

  DEVICE_MEMBER void any(u32 half, const u32* symbols, const u32 (*rests)[4], u32) {
    u8* const to = cells.half(half, BYTES);
    const u32 count = cells.count(half);
    const bool vector = cells.t.vector && count == 16;
    const u64 step = (u64)cells.t.output.column_stride * BYTES;
#pragma unroll
    for (u32 j = 0; j < 4; j += WORDS) {
      u32 e[4];
      join16(symbols, rests, j, e);
      if (vector) {
        stg128(to + 4 * BYTES * j, {e[0], e[1], e[2], e[3]});
      } else {
#pragma unroll
        for (u32 i = 0; i < 16 / BYTES; i++) {
          if (4 * j + i >= count) continue;
          if (OUT == OUT_F32) stg32(to + (4 * j + i) * step, e[i]);
          else stg16(to + (4 * j + i) * step, e[i / 2] >> (16 * (i % 2)) & 0xFFFF);
        }
      }
    }
  }

  DEVICE_MEMBER void next() { cells.next(BYTES); }

 private:
  enum : u32 { WORDS = 4 / BYTES };  // of symbols, for 16 bytes of elements

  static DEVICE_MEMBER void join16(const u32* symbols, const u32 (*rests)[4], u32 j, u32* e) {
#pragma unroll
    for (u32 i = 0; i < WORDS; i++) {
      u32 rest[REST];
#pragma unroll
      for (u32 r = 0; r < REST; r++) rest[r] = rests[r][j + i];
      join4<OUT>(symbols[j + i], rest, e + 2 * i);
    }
  }
};

// The bits of `N` elements that a plane holds as `stored`.
template <u32 N>
DEVICE void scatter(const Fields& fields, const u32* stored, u32* elements) {
#pragma unroll
  for (u32 i = 0; i < N; i++) elements[i] = 0;
#pragma unroll 1
  for (u32 n = 0; n < fields.count; n++) {
    const u32 run = fields.runs[n];
    const u32 lowest = run & 31, place = run >> 5 & 31, mask = ~0u >> (31 - (run >> 10 & 31));
#pragma unroll
    for (u32 i = 0; i < N; i++) elements[i] |= (stored[i] >> place & mask) << lowest;
  }
}

// Writes an element, or adds its bits to those already stored.
DEVICE void put(const Fields& fields, u8* to, u32 element) {
  if (fields.bytes == 4) {
    stg32(to, fields.adds ? load32(to) | element : element);
  } else if (fields.bytes == 2) {
    stg16(to, fields.adds ? load8(to) | load8(to + 1) << 8 | element : element);
  } else {
    stg8(to, fields.adds ? load8(to) | element : element);
  }
}

// As `put`, for four adjacent elements; `to` is a multiple of their size.
DEVICE void put4(const Fields& fields, u8* to, const u32* e) {
  u32 w[4] = {e[0], e[1], e[2], e[3]};
  if (fields.bytes == 4) {
    if (fields.adds) {
#pragma unroll
      for (u32 i = 0; i < 4; i++) w[i] |= load32(to + 4 * i);
    }
    stg128(to, {w[0], w[1], w[2], w[3]});
  } else if (fields.bytes == 2) {
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
      const u32 two = e[2 * i] | e[2 * i + 1] << 16;
      stg32(to + 4 * i, fields.adds ? load32(to + 4 * i) | two : two);
    }
  } else {
    const u32 four = e[0] | e[1] << 8 | e[2] << 16 | e[3] << 24;
    stg32(to, fields.adds ? load32(to) | four : four);
  }
}

// Writes elements of any kind of a plane, or adds the plane's bits to those stored by others.
template <class CELLS = Cells>
struct StoreFields {
  struct State : CELLS::State {
    const Fields& fields;
  };
  enum : bool { WAITS = true, OPERANDS = false, PREPARES = false, CHECKS = true, COPIES = false, CORRECTS = false, BESIDE = false, RAISED = false };

  const Fields& fields;
  CELLS cells;

  DEVICE_MEMBER StoreFields(State& state, const Tiles& t, const Chunk& c, u32 lane)
      : fields(state.fields), cells(state, t, c, lane, state.fields.bytes) {}

  DEVICE_MEMBER void any(u32 half, const u32* symbols, const u32 (*rests)[4], u32 rest) {
    u8* const to = cells.half(half, fields.bytes);
    const u32 count = cells.count(half);
    const bool vector = cells.t.vector && count == 16;
    const u64 step = (u64)cells.t.output.column_stride * fields.bytes;
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      u32 stored[4], e[4];
#pragma unroll
      for (u32 i = 0; i < 4; i++) {
        stored[i] = symbols[j] >> (8 * i) & 0xFF;
#pragma unroll
        for (u32 r = 0; r < 3; r++) {
          if (r < rest) stored[i] = stored[i] << 8 | (rests[r][j] >> (8 * i) & 0xFF);
        }
      }
      scatter<4>(fields, stored, e);
      if (vector) {
        put4(fields, to + 4 * j * fields.bytes, e);
      } else {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
          if (4 * j + i < count) put(fields, to + (4 * j + i) * step, e[i]);
        }
      }
    }
  }

  DEVICE_MEMBER void next() { cells.next(fields.bytes); }
};

// Decoding tiles of one coder (WCODEC_CODER: 0 rANS, 1 Huffman): to int8, or dequantized in the same pass.
//
// A block of threads takes a share of the launch's chunks, measured by cost; within it, warps take the chunks of an item
// in turn. Each warp copies its next chunk into shared memory while it decodes the one it has. Blocks change the table
// where their share crosses from one plane into another.
//
// Nothing that is read is trusted: offsets are checked before they are used, streams cannot leave their buffer, and what
// does not end as it must is reported in the plane's status.
#include "abi.h"
#include "coders.h"
#include "emit.h"
#include "symbols.h"

#define CODER WCODEC_CODER

// What the compiler may assume of a plane.
#define MODE_BYTE 0     // layout byte, no filter
#define MODE_PAIR 1     // layout pair with shift 3, no filter
#define MODE_GENERAL 2  // anything

#define BLOCK_COLS 64u
#define TILE_ROWS 16u

// One chunk: where it is and what it covers.
struct Chunk {
  u32 tile;
  u32 blocks;
  u32 strip;
};

DEVICE u32 divide(u32 n, Divisor by) { return mulhi(2 * n, by.factor) >> by.shift; }

DEVICE Chunk chunk_at(const Tiles& t, u32 index) {
  Chunk c;
  c.strip = divide(index, t.by_tiles);
  c.tile = index - c.strip * t.tiles;
  c.blocks = c.tile + 1 == t.tiles ? t.last_blocks : t.blocks;
  return c;
}

// Side words of a lane and block (shift + 1 of them).
template <u32 MODE>
DEVICE u32 side_words(const Tiles& t) {
  return MODE == MODE_PAIR ? 4 : t.layout == 1 ? t.shift + 1u : 0;
}

DEVICE const u8* side_at(const Tiles& t, const Chunk& c, u32 words) {
  // With rANS the last word of each lane and tile is its tail, and not here.
  const u32 tails = CODER == RANS && words > 0 ? 1 : 0;
  const u32 strip = ((t.tiles - 1) * t.blocks + t.last_blocks) * words - t.tiles * tails;
  return (const u8*)t.side + ((u64)c.strip * strip + c.tile * (t.blocks * words - tails)) * 128;
}

// Where a chunk lies in its plane.
struct Arrival {
  u32 from, to;  // units of 4 bytes
};

// Both ends in one register: even lanes hold the first, odd lanes the second.
DEVICE u32 load_arrival(const Tiles& t, u32 chunk, u32 lane) { return ldg32((const u32*)t.offsets + chunk + (lane & 1)); }
DEVICE Arrival arrival_of(u32 held) { return {shfl(held, 0), shfl(held, 1)}; }

// Whether a chunk lies inside its plane and fits a buffer.
DEVICE bool is_sound(const Tiles& t, Arrival a) {
  return a.from <= a.to && a.to <= t.data_units && a.to - a.from <= t.max_chunk / 4;
}

DEVICE void start(const Tiles& t, Arrival a, u32 buffer, u32 barrier, u32 lane) {
  // Whole 16 bytes around the chunk; an unsound chunk is not copied, but something must complete the barrier's phase.
  const u32 first = a.from & ~3u, last = (a.to + 3) & ~3u;
  const bool sound = is_sound(t, a) && first < last;
  warp_copy(buffer, (const u8*)t.data + (u64)(sound ? first : 0) * 4, sound ? (last - first) * 4 : 16, barrier, lane);
}

// A warp's state over all of its chunks.
struct Warp {
  u32 lane;
  u32 barrier;  // the first of its two
  u32 buffer;   // the first of its one or two
  u32 parity;   // bit b: parity of the next phase of barrier b
};

DEVICE u32 raw_body_bytes(u32 blocks, bool pair) {
  if (!pair) return blocks * 1024;
  return blocks * 512 + (CODER == RANS ? 128 : 0);
}

// Coded symbols of a lane and block, from a raw chunk: layout `byte` has the elements, `pair` the high parts.
template <bool PAIR>
DEVICE void raw_block(Block& b, u32 body, u32 block, u32 lane) {
#pragma unroll
  for (u32 half = 0; half < 2; half++) {
    if (PAIR) {
      const u32 at = body + block * 512 + half * 256 + lane * 8;
#pragma unroll
      for (u32 j = 0; j < 4; j++) b.q[half * 4 + j] = spread_pairs(prmt(lds16(at + 2 * j), 0, 0x1100));
    } else {
      const u32 at = body + block * 1024 + half * 512 + lane * 16;
#pragma unroll
      for (u32 j = 0; j < 4; j++) b.q[half * 4 + j] = lds32(at + 4 * j);
    }
  }
}

// Four elements of layout `byte`.
template <u32 BITS>
DEVICE u32 bytes4(Coder<CODER, BITS>& d) {
  u32 a, b, c, e;
  d.two(a, b);
  d.two(c, e);
  d.stay_inside();
  return prmt(prmt(a, b, 0x0073), prmt(c, e, 0x0073), 0x5410);
}

// High parts of elements 8j to 8j + 7 of layout `pair`.
template <u32 BITS>
DEVICE void pairs8(Coder<CODER, BITS>& d, u32& first, u32& second) {
  u32 a, b;
  d.two(a, b);
  first = high_parts<CODER>(a, b);
  d.two(a, b);
  second = high_parts<CODER>(a, b);
  d.stay_inside();
}

// Where a lane's elements of a chunk go.
struct Target {
  u8* to;    // element of row g and the lane's first column, in the block that comes next
  u32 row;   // row g, counted through all matrices
  u32 col;   // first column of the lane in the block that comes next
  u32 rows;  // bit 0: row g is one of the matrix; bit 1: row g + 8 is
};

template <u32 OUT>
DEVICE Target target_of(const Tiles& t, const Chunk& c, u32 lane) {
  const u32 matrix = divide(c.strip, t.by_strips);
  const u32 row = (c.strip - matrix * t.strips) * TILE_ROWS + lane / 4;
  Target r;
  r.row = matrix * t.rows + row;
  r.col = c.tile * t.blocks * BLOCK_COLS + (lane & 3) * 16;
  r.rows = (row < t.rows ? 1 : 0) | (row + 8 < t.rows ? 2 : 0);
  r.to = (u8*)t.output.out +
         ((r.row - t.row_begin) * t.output.row_stride + r.col * t.output.column_stride) * Element<OUT>::bytes();
  return r;
}

DEVICE float scale_at(const Tiles& t, u32 row, u32 col) {
  const float* scales = (const float*)t.output.scales;
  return bits_f32(ldg32(scales + (u64)row * t.output.scales_per_row + col / t.output.scale_columns));
}

// The scales of the lane's two rows, at its column.
DEVICE void load_scales(const Tiles& t, const Target& r, float& s, float& s8) {
  if (r.col >= t.cols) return;
  if (r.rows & 1) s = scale_at(t, r.row, r.col);
  if (r.rows & 2) s8 = scale_at(t, r.row + 8, r.col);
}

// Writes a block at the edge of the matrix, or where rows are not aligned.
template <u32 OUT>
DEVICE void emit_edge(const Tiles& t, const Target& r, const Block& b, float s, float s8) {
  if (r.col >= t.cols) return;
  const u32 count = t.cols - r.col < 16 ? t.cols - r.col : 16;
  const u64 column = t.output.column_stride * Element<OUT>::bytes();
  if (r.rows & 1) emit_some<OUT>(r.to, b.q, s, count, column);
  if (r.rows & 2) emit_some<OUT>(r.to + 8 * t.output.row_stride * Element<OUT>::bytes(), b.q + 4, s8, count, column);
}

// Writes a block and steps to the next.
template <u32 OUT>
DEVICE void emit_block(const Tiles& t, Target& r, const Block& b, float& s, float& s8) {
  if (OUT != OUT_INT8 && t.output.scales_per_row > 1) load_scales(t, r, s, s8);
  if (t.vector && r.col + 16 <= t.cols) {
    if (r.rows & 1) emit16<OUT>(r.to, b.q, s);
    if (r.rows & 2) emit16<OUT>(r.to + 8 * t.output.row_stride * Element<OUT>::bytes(), b.q + 4, s8);
  } else {
    emit_edge<OUT>(t, r, b, s, s8);
  }
  r.to += t.output.column_stride * (Element<OUT>::bytes() * BLOCK_COLS);
  r.col += BLOCK_COLS;
}

// Side words of a lane and block, layout `pair` with shift 3.
struct Side {
  u32 w[4];
};

// Side words on their way: loads run two blocks ahead of their use, across the end of a chunk into the next one of the warp.
struct Ahead {
  const u8* p;  // where the lane's words of the next block to load begin
  u32 blocks;   // from there to the end of their chunk
  bool valid;   // whether what was loaded is of the chunk that comes next
};

// With rANS the last word of the last block is not in the side plane: the one before it is loaded again.
DEVICE void load_side(Side& s, const u8* p, bool last) {
  s.w[0] = ldg32_stream(p);
  s.w[1] = ldg32_stream(p + 128);
  s.w[2] = ldg32_stream(p + 256);
  s.w[3] = ldg32_stream(p + (CODER == RANS && last ? 256 : 384));
}

// Patches of a chunk: elements to replace, in the order in which they are decoded.
struct Patches {
  u32 next, end, last;
};

DEVICE bool apply_patches(Patches& p, Block& b, u32 block, u32 lane) {
  bool good = true;
  while (p.next < p.end) {
    const u32 patch = lds32(p.next), place = patch & 0xFFFF;
    if (place >> 10 != block) {
      // Patches of blocks that are past, or out of order.
      if (place >> 10 < block) {
        p.next = p.end;
        return false;
      }
      break;
    }
    good = good && patch >> 24 == 0 && (p.last == ~0u || place > p.last);
    p.last = place;
    p.next += 4;
    if ((place >> 5 & 31) == lane) {
      const u32 shift = (place & 3) * 8;
#pragma unroll
      for (u32 j = 0; j < 8; j++) {
        if ((place >> 2 & 7) == j) b.q[j] = (b.q[j] & ~(0xFFu << shift)) | (patch >> 16 & 0xFF) << shift;
      }
    }
  }
  return good;
}

// Loads the side words of a chunk's first two blocks.
DEVICE void begin_side(const Tiles& t, const Chunk& c, u32 lane, Side& even, Side& odd, Ahead& ahead) {
  ahead = {side_at(t, c, 4) + lane * 4 + 1024, c.blocks - 2, true};
  load_side(even, ahead.p - 1024, false);
  load_side(odd, ahead.p - 512, c.blocks == 2);
}

// Decodes a chunk that is coded, lies inside the matrix and has an even number of blocks: layout `pair`, shift 3.
template <u32 OUT, u32 BITS>
DEVICE void decode_fast(const Tiles& t, const Chunk& c, Coder<CODER, BITS>& d, Body body, u32 lane, Side& even, Side& odd,
                        Ahead& ahead, const Chunk& following, bool more, Target& r, float s, float s8) {
  const u32 row8 = 8 * (u32)t.output.row_stride * Element<OUT>::bytes();
  const bool rescale = OUT != OUT_INT8 && t.output.scales_per_row > 1;
  r.to = r.to - (lane & 3) * (16 * Element<OUT>::bytes()) + exchanged_place<OUT>(lane);
  if (!ahead.valid) begin_side(t, c, lane, even, odd, ahead);
  // The words of a block are replaced by those of the block after the next.
  auto block = [&](Side& side, u32 place, bool last_ahead, bool last) {
    const Side w = side;
    load_side(side, ahead.p + place, last_ahead);
    Block b;
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      u32 h0, h1;
      pairs8(d, h0, h1);
      u32 word = w.w[j];
      if (CODER == RANS && j == 3 && last) word = d.tail(body);
      b.q[2 * j] = merge_shift3(h0, word);
      b.q[2 * j + 1] = merge_shift3(h1, fshl(word, word, 4));
    }
    exchange<OUT>(b.q, lane);
    exchange<OUT>(b.q + 4, lane);
    float scales[4] = {s, s, s, s}, scales8[4] = {s8, s8, s8, s8};
    if (rescale) {
      // Of the groups of 16 columns whose elements the lane has now: with 2 bytes those of its pair, with 4 bytes all four.
      const u32 col = r.col - (lane & (OUT == OUT_F32 ? 3 : 1)) * 16;
#pragma unroll
      for (u32 j = 0; j < (OUT == OUT_F32 ? 4 : 2); j++) {
        scales[j] = scale_at(t, r.row, col + 16 * j);
        scales8[j] = scale_at(t, r.row + 8, col + 16 * j);
      }
    }
    emit_exchanged<OUT>(r.to, b.q, scales);
    emit_exchanged<OUT>(r.to + row8, b.q + 4, scales8);
    r.to += Element<OUT>::bytes() * BLOCK_COLS;
    r.col += BLOCK_COLS;
  };
  ahead.valid = more && following.blocks % 2 == 0;
  // Behind this chunk: the next one of the warp, or, where there is none to go on with, this one's again.
  const Chunk& then = ahead.valid ? following : c;
  const u8* const then_p = side_at(t, then, 4) + lane * 4;
  const u32 then_blocks = then.blocks;
#pragma unroll 1
  for (u32 k = c.blocks; k != 0; k -= 2) {
    if (ahead.blocks == 0) {
      ahead.p = then_p;
      ahead.blocks = then_blocks;
    }
    block(even, 0, false, false);
    block(odd, 512, ahead.blocks == 2, k == 2);
    ahead.p += 1024;
    ahead.blocks -= 2;
  }
}

// Decodes any chunk.
template <u32 MODE, u32 OUT, u32 BITS>
DEVICE bool decode_any(const Tiles& t, const Chunk& c, Coder<CODER, BITS>& d, Body body, bool raw, Patches& patches, u32 lane,
                       Target& r, float s, float s8) {
  const bool pair = MODE == MODE_GENERAL ? t.layout == 1 : MODE == MODE_PAIR;
  const u32 words = side_words<MODE>(t);
  const u32 shift = MODE == MODE_PAIR ? 3 : t.shift;
  const u8* side = side_at(t, c, words);
  bool good = true;
  u32 carry = 0;
#pragma unroll 1
  for (u32 k = 0; k < c.blocks; k++) {
    Block b;
    const bool last = k + 1 == c.blocks;
    if (!pair) {
      if (raw) {
        raw_block<false>(b, body.begin, k, lane);
      } else {
#pragma unroll
        for (u32 j = 0; j < 7; j++) b.q[j] = bytes4(d);
        // With rANS the lane's last four elements are its tail.
        b.q[7] = CODER == RANS && last ? d.tail(body) : bytes4(d);
      }
    } else {
      u32 side_now[4] = {0, 0, 0, 0};
      const u8* p = side + k * words * 128;
      const bool with_tail = CODER == RANS && last;
#pragma unroll
      for (u32 j = 0; j < 4; j++) {
        if (j < words - with_tail) side_now[j] = ldg32(p + j * 128 + lane * 4);
      }
      if (raw) {
        raw_block<true>(b, body.begin, k, lane);
      } else {
#pragma unroll
        for (u32 j = 0; j < 4; j++) pairs8(d, b.q[2 * j], b.q[2 * j + 1]);
      }
      if (with_tail) {
        const u32 tail = raw ? lds32(body.begin + c.blocks * 512 + lane * 4) : d.tail(body);
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
          if (j + 1 == words) side_now[j] = tail;
        }
      }
#pragma unroll
      for (u32 j = 0; j < 8; j++) b.q[j] = merge_any(b.q[j], side_now, shift, j);
      if (MODE == MODE_GENERAL) good = apply_patches(patches, b, k, lane) && good;
    }
    if (MODE == MODE_GENERAL) {
      if (t.filter == FILTER_LEFT) unfilter_left(b, lane, carry);
      if (t.filter == FILTER_UP) unfilter_up(b, lane);
    }
    emit_block<OUT>(t, r, b, s, s8);
  }
  return good;
}

// Decodes the chunk that lies in `buffer` and writes it. Answers whether it was a valid one.
template <u32 MODE, u32 OUT>
DEVICE bool decode_chunk(const Tiles& t, const Chunk& c, Arrival a, u32 buffer, u32 lane, Side& even,
                         Side& odd, Ahead& ahead, const Chunk& following, bool more) {
  constexpr u32 BITS = MODE == MODE_GENERAL ? 0 : 12;
  const bool pair = MODE == MODE_GENERAL ? t.layout == 1 : MODE == MODE_PAIR;
  Body body = {buffer + (a.from & 3) * 4, buffer + (a.from & 3) * 4 + (a.to - a.from) * 4};
  Patches patches = {0, 0, ~0u};
  if (MODE == MODE_GENERAL && pair && t.shift < 3) {
    const u32 bytes = body.end - body.begin;
    const u32 count = bytes >= 4 ? lds32(body.begin) : ~0u;
    if (bytes < 4 || count > (bytes - 4) / 4) return false;
    patches.next = body.begin + 4;
    patches.end = patches.next + count * 4;
    body.begin = patches.end;
  }
  const u32 length = body.end - body.begin, raw_length = raw_body_bytes(c.blocks, pair);
  const bool raw = length == raw_length;
  if (length > raw_length || (!raw && !Coder<CODER, BITS>::has_header(body))) return false;
  Coder<CODER, BITS> d;
  if (!raw) d.begin(body, lane, t.bits);
  Target r = target_of<OUT>(t, c, lane);
  float s = 0, s8 = 0;
  if (OUT != OUT_INT8) load_scales(t, r, s, s8);
  bool good = true;
  // The same for all lanes: the tile's last row and column.
  const u32 first_row = (c.strip - divide(c.strip, t.by_strips) * t.strips) * TILE_ROWS, end_col = c.tile * t.blocks * BLOCK_COLS + c.blocks * BLOCK_COLS;
  const bool fast = MODE == MODE_PAIR && !raw && t.vector && c.blocks % 2 == 0 && first_row + TILE_ROWS <= t.rows && end_col <= t.cols;
  if (fast) {
    decode_fast<OUT, BITS>(t, c, d, body, lane, even, odd, ahead, following, more, r, s, s8);
  } else {
    ahead.valid = false;
    good = decode_any<MODE, OUT, BITS>(t, c, d, body, raw, patches, lane, r, s, s8);
  }
  return good && patches.next == patches.end && (raw || d.ended_well(body, lane));
}

// Every `step`th chunk of a plane, from `chunk` to `last`.
template <u32 MODE, u32 OUT>
DEVICE void decode_range(const TilesBatch& batch, const Tiles& t, Warp& w, u32 chunk, u32 step, u32 last, bool new_table,
                         u32& table_parity, bool& waited) {
  const bool two = batch.buffers_per_warp == 2;
  Side even, odd;
  Ahead ahead = {nullptr, 0, false};
  Arrival now = {0, 0};
  u32 next = 0;
  u32 which = 0;
  if (chunk < last) {
    now = arrival_of(load_arrival(t, chunk, w.lane));
    start(t, now, w.buffer, w.barrier, w.lane);
    if (chunk + step < last) next = load_arrival(t, chunk + step, w.lane);
    if (MODE == MODE_PAIR) {
      const Chunk c = chunk_at(t, chunk);
      if (c.blocks % 2 == 0) begin_side(t, c, w.lane, even, odd, ahead);
    }
  }
  if (new_table) {
    // The barriers were made, and nobody reads the table that was there.
    syncthreads();
#if defined(__CUDACC__) && !defined(COPY_BULK)
    if (thread_index() < LANES) warp_copy_wait(batch.barriers, table_parity, chunk < last);
    syncthreads();
#else
    warp_copy_wait(batch.barriers, table_parity, 0);
#endif
    table_parity ^= 1;
  }
  if (!waited) {
    overlap_wait();
    // Not before: the kernel after the next one would come too, and take the place of the next one's blocks.
    overlap_start();
    waited = true;
  }
#pragma unroll 1
  while (chunk < last) {
    const u32 after = chunk + step;
    const bool more = after < last;
    const u32 other = which ^ 1;
    if (two && more) start(t, arrival_of(next), w.buffer + other * batch.buffer_bytes, w.barrier + other * 8, w.lane);
    u32 later = 0;
    if (more && after + step < last) later = load_arrival(t, after + step, w.lane);
    warp_copy_wait(w.barrier + which * 8, w.parity >> which & 1, two && more);
    w.parity ^= 1u << which;
    const Chunk c = chunk_at(t, chunk), following = chunk_at(t, more ? after : chunk);
    const u32 buffer = w.buffer + which * batch.buffer_bytes;
    const bool good = is_sound(t, now) &&
                      decode_chunk<MODE, OUT>(t, c, now, buffer, w.lane, even, odd, ahead, following, more);
    if (!good) {
      ahead.valid = false;
      if (w.lane == 0) atomic_min((u32*)t.status, chunk);
    }
    // The buffer was read before the next copy into it.
    copy_fence();
    syncwarp();
    if (!two && more) start(t, arrival_of(next), w.buffer, w.barrier, w.lane);
    if (two) which = other;
    now = arrival_of(next);
    next = later;
    chunk = after;
  }
  // Every range begins with the first buffer, whose barrier has its own count of phases.
}

template <u32 MODE, u32 OUT>
DEVICE void decode(const TilesBatch& batch) {
  if (!table_fits()) {
    // The host does not launch on such devices. What nobody decodes must not pass for good.
    for (u32 i = 0; i < batch.count; i++) atomic_min((u32*)batch.items[i].status, batch.items[i].chunk_begin);
    return;
  }
  const u32 warp = thread_index() / LANES;
  Warp w;
  w.lane = thread_index() % LANES;
  const u32 barriers = batch.barriers;
  w.barrier = barriers + 8 + warp * 16;
  w.buffer = batch.buffers + warp * batch.buffers_per_warp * batch.buffer_bytes;
  w.parity = 0;
  u32 table_parity = 0;
  bool waited = false;
  if (w.lane == 0) {
    if (warp == 0) copy_init(barriers);
    copy_init(w.barrier);
    copy_init(w.barrier + 8);
    copy_fence();
  }
  syncwarp();
  const u32 begin = (u32)((u64)batch.cost * block_index() / grid_blocks());
  const u32 end = (u32)((u64)batch.cost * (block_index() + 1) / grid_blocks());
  u64 table = 0;
#pragma unroll 1
  for (u32 i = 0; i < batch.count; i++) {
    const Tiles& t = batch.items[i];
    if (t.cost_begin >= end) break;
    const u32 chunks = t.chunk_end - t.chunk_begin, warps = block_threads() / LANES;
    if (t.cost_begin + chunks * t.blocks <= begin) continue;
    u32 first, last, step = warps;
    if (t.block_begin <= block_index() && block_index() < t.block_end) {
      // Blocks that have nothing but this item share their chunks in turns: what all of them work on at a time lies close together.
      first = t.shared_begin + (block_index() - t.block_begin) * warps;
      last = t.shared_end;
      step *= t.block_end - t.block_begin;
    } else {
      // Rounded up at both ends, so that blocks which follow each other leave nothing out.
      first = begin > t.cost_begin ? (begin - t.cost_begin + t.blocks - 1) / t.blocks : 0;
      last = (end - t.cost_begin + t.blocks - 1) / t.blocks;
      if (first > chunks) first = chunks;
      if (last > chunks) last = chunks;
      first += t.chunk_begin;
      last += t.chunk_begin;
    }
    if (first >= last) continue;
    const bool new_table = t.table != table;
    if (new_table) {
      if (table != 0) syncthreads();
      if (warp == 0) warp_copy(TABLE_AT, (const u8*)t.table, 4u << t.bits, barriers, w.lane);
      table = t.table;
    }
    decode_range<MODE, OUT>(batch, t, w, first + warp, step, last, new_table, table_parity, waited);
  }
}

// 64 registers a thread: two blocks of 512 threads, or one of 1,024, fill a multiprocessor.
#define DECODE(name, mode, out) \
  KERNEL(name, 1024, 1, TilesBatch) { decode<mode, out>(params); }

#if WCODEC_CODER == RANS
#define NAME(mode, out) wcodec_rans_##mode##_##out
#else
#define NAME(mode, out) wcodec_huffman_##mode##_##out
#endif
#define ALL_OUTPUTS(mode, MODE)              \
  DECODE(NAME(mode, int8), MODE, OUT_INT8)   \
  DECODE(NAME(mode, f16), MODE, OUT_F16)     \
  DECODE(NAME(mode, bf16), MODE, OUT_BF16)   \
  DECODE(NAME(mode, f32), MODE, OUT_F32)

ALL_OUTPUTS(byte, MODE_BYTE)
ALL_OUTPUTS(pair, MODE_PAIR)
ALL_OUTPUTS(general, MODE_GENERAL)

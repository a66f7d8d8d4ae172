// Products of matrices with up to 128 vectors, from compressed weights of layout `quad`: y = W x.
//
// A thread block has a group of strips of one matrix, and one part of their columns or several: a warp for each strip and
// part, and four or eight warps more. All warps of a part are at the same columns, so that they read the vectors from one
// ring in shared memory, which all helpers but one fill. That one copies chunks and side words for all warps, each as soon
// as its warp has released the place.
//
// A cluster of thread blocks has the same strips, and each block its parts of their columns. Each block writes the results
// of some of the strips, and the others store their sums of these into its shared memory, where it adds them up in the
// order of the columns. So the order of all additions is a fact of the matrix, and no sum lies in global memory.
//
// Nothing is converted: the level of a symbol is a signed magnitude of eight bits, and a number whose bits are the
// magnitude below a sign is that magnitude times a power of two, since subnormal numbers and the first normal ones are
// equally spaced. In f16 it is 2^-24. In bf16 it is 2^-133, so that vectors are multiplied by 2^80 on their way into the
// ring; only vectors of 2^48 and more become infinite by that. Results are multiplied by what is left of the power. Tensor
// cores take such numbers exactly, as the host checks once on each device (`wcodec_many_selftest`).
//
// Up to MANY_MOST_MMA vectors are multiplied by `mma`; more by `wgmma`, where there is one, while the warp decodes the
// next block.
#pragma once
#include "async.h"
#include "product.h"

// Barriers, by address: of each slot of the rings, filled by all batches and empty again; of the table; and for each warp and each of
// its two places for what is copied, arrived and released. Behind them the ends of the two chunks of each warp.
#define MANY_FULL MANY_BARRIERS_AT
#define MANY_EMPTY (MANY_FULL + 8 * MANY_MOST_SLOTS)
#define MANY_TABLE (MANY_EMPTY + 8 * MANY_MOST_SLOTS)
#define MANY_ARRIVED (MANY_TABLE + 16)
#define MANY_RELEASED (MANY_ARRIVED + 16 * MANY_WARPS)
#define MANY_BODIES (MANY_RELEASED + 16 * MANY_WARPS)
static_assert(MANY_BODIES + 16 * MANY_WARPS <= MANY_RING_AT && TABLE_AT + (4u << 12) <= MANY_BARRIERS_AT, "they overlap");

// Warps of a block beside those that decode, and those of them that fill the ring.
DEVICE constexpr u32 many_helpers(u32 vectors) { return vectors > 64 ? MANY_MORE_HELPERS : MANY_HELPERS; }
DEVICE constexpr u32 many_stagers(u32 vectors) { return many_helpers(vectors) - 1; }
// The most vectors that are multiplied by `mma`.
#if HAS_WGMMA
#define MANY_MOST_MMA 16u
#else
#define MANY_MOST_MMA 128u
#endif
// Warps that multiply so many vectors take registers of helpers meanwhile, where that can be (`ManyRegisters`).
#if HAS_WGMMA && defined(__CUDACC__)
#define MANY_TAKES_REGISTERS(n) (n > 32)
#else
#define MANY_TAKES_REGISTERS(n) false
#endif
// Registers of each thread that a kernel is compiled for, and those that threads which decode, and helpers, have meanwhile.
template <u32 N>
struct ManyRegisters {
  enum : u32 { EACH = N <= 64 ? 96 : 128, DECODING = N <= 64 ? 104 : 160, HELPING = N <= 64 ? 64 : 96 };
};
// Factors of bf16 vectors, two of them.
#define MANY_UP 0x67806780u
// The bits of 2^47. Larger factors of columns are multiplied apart: from 2^48 on they would become infinite times that.
#define MANY_LARGE_FACTOR 0x5700u

// Whether blocks may have several parts of the columns: those of more vectors cannot load them fast enough.
DEVICE constexpr bool many_has_parts(u32 vectors) { return vectors <= MANY_PARTED_VECTORS; }
// Slots of the rings together.
DEVICE constexpr u32 many_slots(u32 vectors) {
  const u32 slots = MANY_RING_VECTORS / vectors;
  return slots < MANY_LEAST_SLOTS ? MANY_LEAST_SLOTS : slots < MANY_MOST_SLOTS ? slots : MANY_MOST_SLOTS;
}
// log2 of that.
DEVICE constexpr u32 many_slot_bits(u32 vectors) {
  u32 bits = 0;
  while (1u << bits < many_slots(vectors)) bits++;
  return bits;
}

// Devices without what the kernels need have none.
#if !defined(__CUDACC__) || __CUDA_ARCH__ >= 900

// The factor of sums: what operands and vectors leave of the power of two.
template <bool BF16>
DEVICE float many_down(bool half) {
  const float down = BF16 ? 9007199254740992.0f : 16777216.0f;
  return half ? down / 2 : down;
}

// The share of a thread block.
struct ManyShare {
  u32 window;              // of its shared memory
  u32 warps;               // that decode a part: as many as strips
  u32 part_bits;           // log2 of the number of parts
  u32 rank, ranks;         // in its cluster
  u32 tiles;               // of a strip
  u32 first_strip;         // of its group, counted through the plane
  u32 end_strip;           // one past the item's last strip
  u32 vectors;             // to multiply

  // `at`: number of the thread block, counted as the item's are.
  DEVICE_MEMBER ManyShare(const ProductBatch& batch, const Tiles& t, u32 at, u32 vectors, u32 helpers, bool parted) : vectors(vectors) {
    window = shared_window();
    part_bits = parted ? batch.corrections : 0;
    warps = (block_threads() / LANES - helpers) >> part_bits;
    ranks = batch.staged;
    tiles = t.tiles;
    const u32 block = at - t.block_begin, group = block / ranks;
    rank = block - group * ranks;
    first_strip = divide(t.chunk_begin, t.by_tiles) + group * warps;
    end_strip = divide(t.chunk_end, t.by_tiles);
  }
  // Warps that decode, and the part of one of them.
  DEVICE_MEMBER u32 decoders() const { return warps << part_bits; }
  DEVICE_MEMBER u32 part(u32 warp) const { return part_bits ? warp / warps : 0; }
  // The number of all parts of all blocks of the cluster, and the first tile of one of the block's own.
  DEVICE_MEMBER u32 pieces() const { return ranks << part_bits; }
  DEVICE_MEMBER u32 tile(u32 part) const { return tiles * ((rank << part_bits) + part) / pieces(); }
  // The strip of a warp. Warps that have none decode the last one, and nobody asks for their sums.
  DEVICE_MEMBER u32 strip(u32 warp) const {
    const u32 own = first_strip + warp - part(warp) * warps;
    return own < end_strip ? own : end_strip - 1;
  }
};

// Fills the rings with 64 columns of up to 32 vectors at a time, a batch. Steps are the blocks of a part's tiles, one after
// the other, times the factors of the columns if these have some; parts take turns. What lies beyond the matrix is 0.
template <u32 N, bool BF16, bool ROUTED>
struct VectorRing {
  enum : bool { MMA = N <= MANY_MOST_MMA };
  // Four vectors, 16 bytes a lane, are loaded at once; so many times in a batch, and so many batches, for which there are
  // registers: what is on its way together bounds the speed.
  enum : u32 {
    UNITS = N / 4,
    BATCH = UNITS < 8 ? UNITS : 8,
    BATCHES = UNITS / BATCH,
    GROUP = ROUTED ? 1 : 8 / BATCH,
    ROWS = ROUTED ? N / 4 : 1,
    STAGERS = many_stagers(N)
  };

  const ProductBatch& batch;
  const Tiles& t;
  u64 x;
  u32 lane, vectors;
  u32 part_bits, slot_bits;  // log2 of the numbers of parts, and of slots of each
  u32 begin;                 // the first block of the lane's part, counted through the matrix, or one past the last
  u32 held[GROUP][BATCH][4];
  u32 factors[GROUP];  // of two of the block's columns; other lanes get them from this one
  u32 rows[ROWS];      // numbers of the lane's vectors, where they are looked up

  DEVICE_MEMBER VectorRing(const ProductBatch& batch, const ProductItem& item, const ManyShare& share, u32 lane)
      : batch(batch), t(item.tiles), x(batch.x + (u64)item.vector * batch.x_stride * 2), lane(lane), vectors(share.vectors) {
    part_bits = share.part_bits, slot_bits = many_slot_bits(N) - part_bits;
    const u32 tile = share.tile(lane < 1u << part_bits ? lane : 1u << part_bits);
    begin = tile == t.tiles ? (t.tiles - 1u) * t.blocks + t.last_blocks : tile * t.blocks;
    if constexpr (ROUTED) {
      static_assert(BATCHES == 1, "an index of `rows` is known to the compiler");
#pragma unroll
      for (u32 i = 0; i < ROWS; i++) {
        rows[i] = which(i * 4 + lane / 8);
        if (batch.gain) rows[i] = load32((const u32*)batch.gain + item.vector + rows[i]);
      }
      if (batch.gain) x = batch.x;
    }
  }

  // Takes every STAGERS-th group from `first` on: batch `at` is batch `at % BATCHES` of a step of a part. It is in
  // registers before its slot is empty.
  DEVICE_MEMBER void fill(const ManyShare& share, u32 first) {
    // As many steps as the longest part has.
    u32 most = 0;
#pragma unroll 1
    for (u32 p = 0; p < 1u << part_bits; p++) {
      const u32 own = shfl(begin, p + 1) - shfl(begin, p);
      most = most < own ? own : most;
    }
    const u32 all = (most << part_bits) * BATCHES;
#pragma unroll 1
    for (u32 at = first * GROUP; at < all; at += STAGERS * GROUP) {
      ask(at, all);
#pragma unroll
      for (u32 j = 0; j < GROUP; j++) {
        const Place place = find(at + j, all);
        if (!place.there) continue;
        const u32 slot = (place.part << slot_bits) + (place.step & ((1u << slot_bits) - 1u)), use = place.step >> slot_bits;
        if (use) signal_wait(share.window + MANY_EMPTY + 8 * slot, (use - 1) & 1);
        lift(j);
        store(share.window + MANY_RING_AT + slot * (N * 128) + at % BATCHES * (BATCH * 512), held[j]);
        // `wgmma` reads through another way than stores take.
        if constexpr (!MMA) copy_fence();
        syncwarp();
        signal_arrive(share.window + MANY_FULL + 8 * slot, lane);
      }
    }
  }

 private:
  // A batch's part, the step there, its block, counted through the matrix, and whether the part has that.
  struct Place {
    u32 part, step, block;
    bool there;
  };
  DEVICE_MEMBER Place find(u32 at, u32 all) const {
    const u32 unit = at / BATCHES, part = many_has_parts(N) ? unit & ((1u << part_bits) - 1u) : 0, step = many_has_parts(N) ? unit >> part_bits : unit;
    const u32 own = shfl(begin, part), end = shfl(begin, part + 1);
    return {part, step, own + step, at < all && own + step < end};
  }
  // Places that have no vector get the last one's, and nobody asks for their sums.
  DEVICE_MEMBER u32 which(u32 place) const { return place < vectors ? place : vectors - 1; }

  // Asks for a group. Batches that are not there are those of the part's first block: so all loads follow each other, and none
  // waits for another one.
  DEVICE_MEMBER void ask(u32 at, u32 all) {
    u32 cols[GROUP];
    bool inside = batch.vector;
#pragma unroll
    for (u32 j = 0; j < GROUP; j++) {
      const Place place = find(at + j, all);
      cols[j] = (place.there ? place.block : place.block - place.step) * BLOCK_COLS;
      inside = inside && cols[j] + BLOCK_COLS <= t.cols;
    }
    if (t.output.columns) {
#pragma unroll
      for (u32 j = 0; j < GROUP; j++) factors[j] = two_factors(cols[j] + lane * 2);
    }
    if (inside) {
#pragma unroll
      for (u32 j = 0; j < GROUP; j++)
#pragma unroll
        for (u32 i = 0; i < BATCH; i++) load_vector(vector(at, i) + (u64)(cols[j] + lane % 8 * 8) * 2, held[j][i]);
    } else {
#pragma unroll
      for (u32 j = 0; j < GROUP; j++)
#pragma unroll
        for (u32 i = 0; i < BATCH; i++) load_words(batch, vector(at, i), cols[j] + lane % 8 * 8, t.cols, held[j][i]);
    }
  }
  // The address of the lane's vector `i` of a batch.
  DEVICE_MEMBER u64 vector(u32 at, u32 i) const {
    const u32 place = (at % BATCHES * BATCH + i) * 4 + lane / 8;
    return x + (u64)(ROUTED ? rows[i] : which(place)) * batch.x_stride * 2;
  }

  // The factors of a column with an even number and of the next one.
  DEVICE_MEMBER u32 two_factors(u32 col) const {
    const u8* const at = (const u8*)t.output.columns + (u64)col * 2;
    if (batch.vector && col + 2 <= t.cols) return ldg32(at);
    u32 word = col < t.cols ? ldg16(at) : 0;
    if (col + 1 < t.cols) word |= ldg16(at + 2) << 16;
    return word;
  }

  // Multiplies what is held by the factors of the columns, and bf16 by a power of two. All lanes call it.
  DEVICE_MEMBER void lift(u32 j) {
    const u32 up[4] = {MANY_UP, MANY_UP, MANY_UP, MANY_UP};
    if (t.output.columns) {
      u32 own[4];
#pragma unroll
      for (u32 k = 0; k < 4; k++) own[k] = shfl(factors[j], lane % 8 * 4 + k);
      // Both at once, where factors times the power are finite. Only products below 2^-126 differ by that: they keep 8
      // bits, where they would lose some.
      const bool large = (factors[j] & 0xFFFF) >= MANY_LARGE_FACTOR || factors[j] >> 16 >= MANY_LARGE_FACTOR;
      if (BF16 && ballot(large) == 0) {
        multiply_by<BF16>(own, up);
        multiply_held_by(j, own);
        return;
      }
      multiply_held_by(j, own);
    }
    if constexpr (BF16) multiply_held_by(j, up);
  }
  DEVICE_MEMBER void multiply_held_by(u32 j, const u32 (&by)[4]) {
#pragma unroll
    for (u32 i = 0; i < BATCH; i++) multiply_by<BF16>(held[j][i], by);
  }

  // `mma` reads 16 columns of a vector from a lane: they lie as they are, with every two times 16 bytes exchanged in rows
  // with odd numbers, so that lanes meet in no bank. `wgmma` reads rows that are swizzled; of 16 columns that belong to a
  // lane, operand j has columns 4 j to 4 j + 3, the first two as its columns 2 t, 2 t + 1, and the others as 2 t + 8,
  // 2 t + 9.
  DEVICE_MEMBER void store(u32 to, const u32 (&held)[BATCH][4]) const {
    const u32 u = lane % 8, row = lane / 8;
    const u32 own = row * 128 + (MMA ? (u ^ row % 2) * 16 : ((4 * (u % 2)) ^ row) * 16 + u / 2 * 4);
#pragma unroll
    for (u32 i = 0; i < BATCH; i++) {
      if constexpr (MMA) {
        sts128(to + i * 512 + own, {held[i][0], held[i][1], held[i][2], held[i][3]});
      } else {
        // Rows 4 to 7 of eight are swizzled the other way round.
#pragma unroll
        for (u32 w = 0; w < 4; w++) sts32(to + i * 512 + (own ^ ((w + i % 2 * 4) * 16)), held[i][w]);
      }
    }
  }
};

// Copies side words and chunks for all decoding warps, a lane for each, group after group: the words of MANY_GROUP blocks
// of a tile, or of those that are left of it. A chunk comes with its first group.
DEVICE void many_fetch(const ProductBatch& batch, const Tiles& t, const ManyShare& share, u32 lane) {
  const u32 words = t.shift + 1u, place = words * (MANY_GROUP * 128);
  const u32 decoders = share.decoders(), warp = lane < decoders ? lane : decoders - 1, strip = share.strip(warp);
  const u32 first_tile = share.tile(share.part(warp)), end_tile = share.tile(share.part(warp) + 1);
  u32 tile = first_tile, k = 0, count = 0;
  Chunk c = chunk_at(t, strip * t.tiles + tile);
  // The place of a chunk is loaded one chunk ahead.
  const auto arrival = [&](u32 i) { return Arrival{ldg32((const u32*)t.offsets + i), ldg32((const u32*)t.offsets + i + 1)}; };
  Arrival now = arrival(c.index), next = tile + 1 < end_tile ? arrival(c.index + 1) : now;
  const u8* side = QuadTile<false>::side(t, c);
  bool active = lane < decoders;
#pragma unroll 1
  while (ballot(active) != 0) {
    const u32 which = (count & 1) * 8 + warp * 16, arrived = share.window + MANY_ARRIVED + which;
    const bool ready = active && (count < 2 || signal_passed(share.window + MANY_RELEASED + which, ((count >> 1) - 1) & 1));
    if (ready) {
      const u32 blocks = c.blocks - k < MANY_GROUP ? c.blocks - k : MANY_GROUP, bytes = blocks * words * 128;
      const u32 to = share.window + batch.staging + (warp * 2 + (count & 1)) * place;
      const u32 chunk = warp * 2 + ((tile - first_tile) & 1);
      const u32 buffer = share.window + batch.buffers + chunk * batch.buffer_bytes;
      if (k == 0) {
        const Source s = source_of(t, now);
        // A chunk that is not sound has no bytes.
        const Body body = s.sound ? body_of(now, buffer) : Body{buffer, buffer};
        sts64(share.window + MANY_BODIES + chunk * 8, {body.begin, body.end});
        copy_start_two(buffer, s.from, s.bytes, to, side, bytes, arrived);
      } else {
        copy_start(to, side, bytes, arrived);
      }
      count++, k += MANY_GROUP, side += bytes;
      if (k >= c.blocks) {
        k = 0, tile++;
        active = tile < end_tile;
        if (active) {
          c = chunk_at(t, strip * t.tiles + tile);
          now = next;
          if (tile + 1 < end_tile) next = arrival(c.index + 1);
        }
      }
    }
    if (ballot(ready) == 0) rest();
  }
}

// Magnitudes of a word's levels: of levels that are halves twice them. `signs` has bits 7 of bytes, and nothing else.
template <u32 SHIFT, bool HALF>
DEVICE u32 quad_magnitudes(u32 entry, const u32* side, u32 k, u32 signs) {
  const u32 raised = quad_raised<SHIFT>(entry, side, k);
  if constexpr (!HALF) return (raised >> (4 - SHIFT)) + (signs >> 7);
  else if constexpr (SHIFT == 4) return raised + raised + 0x01010101u;
  else return raised >> (3 - SHIFT) | 0x01010101u;
}

// A warp's decoder: the blocks of a strip, one after the other.
template <u32 SHIFT, bool HALF, bool TRELLIS>
struct ManyDecoder {
  enum : u32 { WORDS = SHIFT + 1, PLACE = MANY_GROUP * WORDS * 128, NO_PATCH = 0xFFFFFFFFu };

  const ProductBatch& batch;
  const Tiles& t;
  const ManyShare& share;
  u32 warp, lane;
  QuadCoder<true, true> d;
  Patches patches;
  u32 patch, patched;  // the next patch, and its block
  u32 raw;             // address of the symbols of a raw chunk
  u32 index;           // the chunk's
  u32 blocks;          // of the chunk
  bool coded;          // whether the chunk is valid and not raw,
  bool live;           // or valid at all
  u32 k;               // the next block, in its chunk
  u32 stop;            // the end of the group that it is in
  u32 left;            // chunks that are left, this one included
  u32 chunks;          // and all of them
  u32 count;           // groups before this one
  u32 side;            // address of the next block's side words, of this lane
  u32 carry;
  bool last;           // the part is the strip's last one
  bool lost;           // a chunk was not valid

  DEVICE_MEMBER ManyDecoder(const ProductBatch& batch, const Tiles& t, const ManyShare& share, u32 warp, u32 lane)
      : batch(batch), t(t), share(share), warp(warp), lane(lane), raw(0), coded(false), live(false), k(0), count(0), carry(0), lost(false) {
    const u32 part = share.part(warp), first = share.tile(part);
    index = share.strip(warp) * t.tiles + first;
    left = chunks = share.tile(part + 1) - first;
    last = first + chunks == t.tiles;
    open();
  }

  // Waits for a group, and begins its chunk if it is the first one.
  DEVICE_MEMBER void open() {
    copy_wait(share.window + MANY_ARRIVED + warp * 16 + (count & 1) * 8, count >> 1 & 1);
    side = share.window + batch.staging + (warp * 2 + (count & 1)) * PLACE;
    if (k == 0) begin();
    stop = k + MANY_GROUP < blocks ? k + MANY_GROUP : blocks;
  }
  // To the next block; false if there is none.
  DEVICE_MEMBER bool next() {
    k++;
    side += WORDS * 128;
    if (k != stop) return true;
    if (k == blocks) {
      end();
      left--, index++, k = 0;
    }
    // The copied words are read.
    syncwarp();
    signal_arrive(share.window + MANY_RELEASED + warp * 16 + (count & 1) * 8, lane);
    count++;
    if (left == 0) return false;
    open();
    return true;
  }

  // Symbols and side words of the next block. A chunk that is not valid has any.
  DEVICE_MEMBER void symbols(u32 (&e)[8], u32 (&own)[WORDS]) {
    if (__builtin_expect(coded, 1)) {
      read_side<WORDS>(own, lane, SideCopied{side});
      d.two(e[0], e[1], e[4], e[5]);
      d.two(e[2], e[3], e[6], e[7]);
    } else if (live) {
      read_side<WORDS>(own, lane, SideCopied{side});
      const u32 at = raw + k * 512 + lane * 8;
#pragma unroll
      for (u32 i = 0; i < 8; i++) e[i] = quad_entry(lds16(at + i % 4 * 2 + i / 4 * 256));
    } else {
      any_values(e);
      any_values(own);
    }
  }

  // Magnitudes of its elements, and their signs at bits 7, which are finite numbers whatever the symbols are.
  DEVICE_MEMBER void levels(const u32 (&e)[8], const u32 (&own)[WORDS], u32 (&m)[8], u32 (&s)[8]) {
    if constexpr (TRELLIS) {
      Block b;
#pragma unroll
      for (u32 i = 0; i < 8; i++) b.q[i] = merge_quad<SHIFT>(e[i], own, i);
      apply_patches<false>(patches, b, k, lane);
      unfilter_trellis(b, lane, carry);
#pragma unroll
      for (u32 i = 0; i < 8; i++) {
        s[i] = b.q[i] & 0x80808080u;
        const u32 v = (b.q[i] ^ prmt(b.q[i], b.q[i], 0xBA98)) & 0x7F7F7F7Fu;
        m[i] = HALF ? v + v + 0x01010101u : v + (s[i] >> 7);
      }
    } else {
#pragma unroll
      for (u32 i = 0; i < 8; i++) {
        s[i] = quad_signs<SHIFT>(own, i) & 0x80808080u;
        m[i] = quad_magnitudes<SHIFT, HALF>(e[i], own, i, s[i]);
      }
      if (__builtin_expect(k == patched, 0)) put_patches(m, s);
    }
  }

 private:
  DEVICE_MEMBER void begin() {
    const u32 chunk = warp * 2 + ((chunks - left) & 1);
    const Vec2 ends = lds64(share.window + MANY_BODIES + chunk * 8);
    Body body = {ends.x, ends.y};
    blocks = left == 1 && last ? t.last_blocks : t.blocks;
    bool good = find_patches(body, patches, true);
    if (good && patches.next < patches.end) good = are_sound(patches, blocks, lane);
    const u32 length = body.end - body.begin, raw_length = blocks * 512;
    const bool is_raw = length == raw_length;
    if (good) good = length <= raw_length && (is_raw || d.begin(t, body, lane, 0));
    // The table's address: it costs nothing here.
    d.copy.copy = share.window;
    raw = body.begin;
    live = good;
    coded = good && !is_raw;
    carry = 0;
    if (!good) patches.next = patches.end;
    if constexpr (!TRELLIS) {
      patch = next_patch();
      patched = block_of(patch);
    }
  }

  DEVICE_MEMBER void end() {
    if (live && (!coded || d.ended_well())) return;
    lost = true;
    if (lane == 0) atomic_min((u32*)t.status, index);
  }

  DEVICE_MEMBER u32 next_patch() const { return patches.next < patches.end ? lds32(patches.next) : NO_PATCH; }
  // Beyond all blocks for NO_PATCH: a chunk has fewer.
  static DEVICE_MEMBER u32 block_of(u32 patch) { return patch == NO_PATCH ? NO_PATCH : patch >> 10 & 63; }

  // Applies a block's patches, and loads the one behind them. They are few, so that all lanes go through all of them.
  DEVICE_MEMBER void put_patches(u32 (&m)[8], u32 (&s)[8]) {
#pragma unroll 1
    do {
      const u32 now = patch, word = now >> 2 & 7, shift = (now & 3) * 8;
      patches.next += 4;
      patch = next_patch();
      patched = block_of(patch);
      const u32 mask = (now >> 5 & 31) == lane ? 0xFFu << shift : 0;
      const u32 q = now >> 16 & 0xFF, sign = q & 0x80, v = sign ? q ^ 0xFF : q;
      const u32 magnitude = (HALF ? 2 * v + 1 : v + (sign >> 7)) << shift, signs = sign << shift;
      // Not an index, for which the words would lie in memory.
      switch (word) {
        case 0: put(m[0], s[0], mask, magnitude, signs); break;
        case 1: put(m[1], s[1], mask, magnitude, signs); break;
        case 2: put(m[2], s[2], mask, magnitude, signs); break;
        case 3: put(m[3], s[3], mask, magnitude, signs); break;
        case 4: put(m[4], s[4], mask, magnitude, signs); break;
        case 5: put(m[5], s[5], mask, magnitude, signs); break;
        case 6: put(m[6], s[6], mask, magnitude, signs); break;
        default: put(m[7], s[7], mask, magnitude, signs);
      }
    } while (patched == k);
  }
  static DEVICE_MEMBER void put(u32& m, u32& s, u32 mask, u32 magnitude, u32 sign) {
    m = choose(mask, magnitude, m), s = choose(mask, sign, s);
  }
};

// Operands of a word: two elements a register.
DEVICE void many_operands(u32 m, u32 s, u32& a, u32& b) {
  a = prmt(m, s, 0x5140);
  b = prmt(m, s, 0x7362);
}

// Decodes a warp's strip and multiplies; returns whether all of it was valid.
template <u32 SHIFT, bool HALF, bool TRELLIS, u32 N, bool BF16>
DEVICE bool many_multiply(const ProductBatch& batch, const Tiles& t, const ManyShare& share, u32 warp, u32 lane, float (&sum)[N / 2]) {
  const u32 window = share.window;
  u32 parity = 0;
  copy_wait(window + MANY_TABLE, 0);
  ManyDecoder<SHIFT, HALF, TRELLIS> d(batch, t, share, warp, lane);
  // The slots of the warp's part.
  const u32 slots = many_has_parts(N) ? many_slots(N) >> share.part_bits : many_slots(N);
  const u32 begin_slot = many_has_parts(N) ? share.part(warp) * slots : 0, end_slot = begin_slot + slots;
  if constexpr (N <= MANY_MOST_MMA) {
    // The 16 columns of lane t of vector g, in two parts.
    const u32 mine = window + MANY_RING_AT + lane / 4 * 128 + lane % 4 * 32 + lane / 4 % 2 * 16;
    // The code of one block: of several it would not stay in the caches of instructions.
#pragma unroll 1
    for (u32 slot = begin_slot;;) {
      u32 e[8], own[SHIFT + 1], m[8], s[8];
      d.symbols(e, own);
      d.levels(e, own, m, s);
      const u32 first = mine + slot * (N * 128), second = first ^ 16, signal = window + MANY_FULL + 8 * slot;
      signal_wait(signal, parity);
#pragma unroll
      for (u32 h = 0; h < 2; h++) {
        u32 a[2][4];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
          many_operands(m[2 * h + i], s[2 * h + i], a[i][0], a[i][2]);
          many_operands(m[4 + 2 * h + i], s[4 + 2 * h + i], a[i][1], a[i][3]);
        }
#pragma unroll
        for (u32 n = 0; n < N / 8; n++) {
          const Vec4 x = lds128((h ? second : first) + n * 1024);
          float(&c)[4] = *(float(*)[4])(sum + 4 * n);
          Half<BF16>::mma(c, a[0], {x.x, x.y});
          Half<BF16>::mma(c, a[1], {x.z, x.w});
        }
      }
      syncwarp();
      signal_arrive(signal + (MANY_EMPTY - MANY_FULL), lane);
      if (++slot == end_slot) slot = begin_slot, parity ^= 1;
      if (!d.next()) break;
    }
  } else {
#if HAS_WGMMA
    u32 a[4][4], e[8], own[SHIFT + 1];
    bool more = true, add = false;
    d.symbols(e, own);
#pragma unroll 1
    for (u32 slot = begin_slot; more;) {
      u32 m[8], s[8];
      d.levels(e, own, m, s);
#pragma unroll
      for (u32 i = 0; i < 4; i++) {
        many_operands(m[i], s[i], a[i][0], a[i][2]);
        many_operands(m[4 + i], s[4 + i], a[i][1], a[i][3]);
      }
      const u32 matrix = wgmma_matrix(MANY_RING_AT) + slot * (N * 128 / 16), signal = window + MANY_FULL + 8 * slot;
      signal_wait(signal, parity);
      wgmma_fence();
#pragma unroll
      for (u32 i = 0; i < 4; i++) wgmma<BF16>(sum, a[i], matrix + i * 2, add || i);
      wgmma_commit();
      // Meanwhile the next block's symbols.
      if (++slot == end_slot) slot = begin_slot, parity ^= 1;
      more = d.next();
      if (more) d.symbols(e, own);
      wgmma_wait();
      held_until_here(sum);
#pragma unroll
      for (u32 i = 0; i < 4; i++) held_until_here(a[i]);
      signal_arrive(signal + (MANY_EMPTY - MANY_FULL), lane);
      add = true;
    }
#endif
  }
  return !d.lost;
}

// Sums of squares of all segments of all vectors, as `Squares` has them, in this block's shared memory.
template <bool BF16>
DEVICE void many_squares(const ProductBatch& batch, u32 cols, u32 window) {
  const u32 each = segments(cols), lane = thread_index() % LANES;
#pragma unroll 1
  for (u32 i = thread_index() / LANES; i < each * batch.vectors; i += block_threads() / LANES) {
    const u32 v = i / each;
    u32 words[4];
    load_words(batch, batch.squared + (u64)v * batch.x_stride * 2, (i - v * each) * SQUARES_COLS + lane * 8, cols, words);
    float sum = 0;
#pragma unroll
    for (u32 k = 0; k < 8; k++) {
      const float x = Half<BF16>::to_f32(words[k / 2] >> (k % 2 * 16) & 0xFFFF);
      sum = add_rn(sum, mul_rn(x, x));
    }
#pragma unroll
    for (u32 by = LANES / 2; by; by /= 2) sum = add_rn(sum, bits_f32(shfl(f32_bits(sum), lane ^ by)));
    if (lane == 0) sts32(window + batch.squares + i * 4, f32_bits(sum));
  }
}
// As `norm_factor`.
DEVICE float many_norm_factor(const ProductBatch& batch, u32 cols, u32 vector, u32 window) {
  const u32 each = segments(cols);
  float sum = 0;
  for (u32 k = 0; k < each; k++) sum = add_rn(sum, bits_f32(lds32(window + batch.squares + (vector * each + k) * 4)));
  const float mean = add_rn(mul_rn(sum, bits_f32(batch.share)), bits_f32(batch.epsilon));
  return div_rn(bits_f32(batch.norm_factor), sqrt_rn(mean));
}

// As `Stash::arrive`.
DEVICE void many_arrive(const ProductBatch& batch, const Stash& stash, u32 first, u32 strips, u32 window) {
  syncthreads();
  for (u32 i = thread_index(); i < strips; i += block_threads()) {
    fence_device();
    const u32 before = atomic_add(stash.arrivals + first + i, 1);
    fence_device();
    // Zero again for the next launch.
    if (before) stg32(stash.arrivals + first + i, 0);
    sts32(window + batch.arrived + i * 4, before);
  }
  syncthreads();
}

// The strips of the group whose results a thread block writes, and their rows.
struct ManyRows {
  u32 from;         // the first strip, counted in the group
  u32 begin_strip;  // the same, counted through the plane
  u32 strips, rows;

  DEVICE_MEMBER explicit ManyRows(const ManyShare& share) {
    from = share.warps * share.rank / share.ranks;
    const u32 to = share.warps * (share.rank + 1) / share.ranks, there = share.end_strip - share.first_strip;
    begin_strip = share.first_strip + from;
    strips = from < there ? (to < there ? to : there) - from : 0;
    rows = strips * TILE_ROWS;
  }
};

// Leaves all that is known of the rows of results in shared memory, KNOWN_BYTES bytes for each: helpers do so while others
// multiply, and nobody waits for a scale later. Thread `thread` of `threads` does its part.
template <bool BF16>
DEVICE void many_leave_rows(const ProductBatch& batch, const ProductItem& item, const ManyShare& share, u32 thread, u32 threads) {
  const ManyRows own(share);
#pragma unroll 1
  for (u32 row = thread; row < own.rows; row += threads) {
    Result<BF16> result(item, own.begin_strip, row, TILE_ROWS, batch);
    result.settle(batch, item, row, TILE_ROWS);
    result.ask(batch, item, 0);
    const u32 to = share.window + batch.known + row * KNOWN_BYTES;
    sts128(to, {(u32)result.to, (u32)(result.to >> 32), result.place, f32_bits(result.by)});
    sts64(to + 16, {result.bias, result.gain});
  }
}
template <bool BF16>
DEVICE Result<BF16> many_left_row(const ProductBatch& batch, const ManyShare& share, u32 row, u32 epilogue) {
  const u32 from = share.window + batch.known + row * KNOWN_BYTES;
  const Vec4 a = lds128(from);
  const Vec2 b = lds64(from + 16);
  Result<BF16> result;
  result.to = (u64)a.y << 32 | a.x, result.place = a.z, result.by = bits_f32(a.w), result.bias = b.x, result.gain = b.y;
  result.epilogue = epilogue;
  return result;
}

// The sums of a cluster. A block has a place for each part's sums of each strip whose results it writes, four numbers for
// each lane and eight vectors as `mma` leaves them: rows g and g + 8 of vectors 2 t and 2 t + 1.
template <u32 N>
struct ManySums {
  enum : u32 { FRAGMENTS = N / 8, STRIP = FRAGMENTS * LANES * 16 };
  u32 at, most;

  DEVICE_MEMBER ManySums(const ProductBatch& batch, const ManyShare& share)
      : at(share.window + batch.sums), most((share.warps + share.ranks - 1) / share.ranks) {}

  // Stores a warp's sums where their results are written.
  DEVICE_MEMBER void put(const ManyShare& share, u32 warp, u32 lane, const float (&sum)[N / 2], bool good) const {
    const u32 part = share.part(warp), own = warp - part * share.warps;
    const u32 owner = ((own + 1) * share.ranks - 1) / share.warps, strip = own - share.warps * owner / share.ranks;
    const u32 to = at + (((share.rank << share.part_bits) + part) * most + strip) * STRIP + lane * 16;
#pragma unroll
    for (u32 i = 0; i < FRAGMENTS; i++) {
      Vec4 v = {f32_bits(sum[4 * i]), f32_bits(sum[4 * i + 1]), f32_bits(sum[4 * i + 2]), f32_bits(sum[4 * i + 3])};
      if (!good) v = {0x7FFFFFFFu, 0x7FFFFFFFu, 0x7FFFFFFFu, 0x7FFFFFFFu};
      if (share.ranks > 1) sts128_of(to + i * LANES * 16, owner, v);
      else sts128(to + i * LANES * 16, v);
    }
  }
  // Adds up what all parts have left for a lane's part of a strip, in the order of the columns.
  DEVICE_MEMBER void get(const ManyShare& share, u32 part, float (&sum)[4]) const {
#pragma unroll
    for (u32 i = 0; i < 4; i++) sum[i] = 0;
#pragma unroll 2
    for (u32 p = 0; p < share.pieces(); p++) {
      const Vec4 v = lds128(at + p * most * STRIP + part * 16);
      sum[0] = add_rn(sum[0], bits_f32(v.x)), sum[1] = add_rn(sum[1], bits_f32(v.y));
      sum[2] = add_rn(sum[2], bits_f32(v.z)), sum[3] = add_rn(sum[3], bits_f32(v.w));
    }
  }
};

// EPILOGUE_* of an item's results.
DEVICE u32 epilogue_of(const ProductBatch& batch, const ProductItem& item) {
  Result<false> any;
  any.settle(batch, item, 0, TILE_ROWS);
  return any.epilogue;
}

// A lane's part of a strip in `ManySums`: results of two rows, eight apart, and two vectors.
template <u32 N>
struct ManyPart {
  u32 row, vector;

  DEVICE_MEMBER explicit ManyPart(u32 part) {
    row = part / (LANES * (N / 8)) * TILE_ROWS + part % LANES / 4, vector = part / LANES % (N / 8) * 8 + part % 4 * 2;
  }
};

// Numbers in global memory that those results take. They are loaded for all four at once, and nothing waits before they
// are used.
template <u32 N>
struct ManyOthers {
  u32 residual[4], mine[4], other[4];

  DEVICE_MEMBER void ask(const ProductBatch& batch, const ProductItem& item, const ManyShare& share, u32 part, u32 epilogue, bool gates) {
    const Stash stash(batch, item);
    const ManyPart<N> at(part);
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      residual[i] = mine[i] = other[i] = 0;
      const u32 first = lds32(share.window + batch.known + (at.row + i / 2 * 8) * KNOWN_BYTES + 8), place = first + (at.vector + i % 2) * item.stride;
      if (first == ~0u || at.vector + i % 2 >= share.vectors) continue;
      if (epilogue & EPILOGUE_RESIDUAL) residual[i] = load16((const u8*)batch.residual + (u64)place * 2);
      if (gates) mine[i] = load32(stash.results + place), other[i] = load32(stash.counterpart + place);
    }
  }
};

// Stores results that are sums times the scale of their row, and the bias.
template <u32 N, bool BF16>
DEVICE void many_plain_results(const ProductBatch& batch, const ProductItem& item, const ManyShare& share, ManyPart<N> at, const float (&sum)[4], float down) {
#pragma unroll
  for (u32 i = 0; i < 2; i++) {
    const Result<BF16> row = many_left_row<BF16>(batch, share, at.row + i * 8, 0);
    if (!row.exists()) continue;
    const float bias = Half<BF16>::to_f32(row.bias);
    const u64 to = row.to + (u64)at.vector * item.stride * 2;
    stg16((u8*)to, Half<BF16>::of(add_rn(mul_rn(mul_rn(sum[2 * i], down), row.by), bias)));
    if (at.vector + 1 < share.vectors) {
      stg16((u8*)to + item.stride * 2, Half<BF16>::of(add_rn(mul_rn(mul_rn(sum[2 * i + 1], down), row.by), bias)));
    }
  }
}

// Not an index, for which they would lie in memory.
template <class T>
DEVICE T one_of(const T (&v)[4], u32 i) {
  return i < 2 ? (i == 0 ? v[0] : v[1]) : (i == 2 ? v[2] : v[3]);
}

// Results of a thread block: those of its share of the group's strips. The code is short: it runs once in a launch, and
// instructions come slowly then.
template <u32 N, bool BF16>
DEVICE void many_results(const ProductBatch& batch, const ProductItem& item, const ManyShare& share, float down) {
  const Tiles& t = item.tiles;
  const ManyRows own(share);
  const u32 epilogue = epilogue_of(batch, item), parts = own.strips * (N / 8) * LANES;
  // Helpers have left what is known of rows; no warp uses the table any more.
  syncthreads();
  const bool plain = epilogue == 0 && batch.activation == ACTIVATION_NONE;
  const ManySums<N> sums(batch, share);
  const bool gate = item.part == PART_GATE;
  bool gates = false;
  u32 part = thread_index();
  ManyOthers<N> now;
  if (part < parts && !plain) now.ask(batch, item, share, part, epilogue & EPILOGUE_PART ? 0 : epilogue, false);
  if (batch.squared) {
    many_squares<BF16>(batch, t.cols, share.window);
    syncthreads();
    // Factors of vectors take the place of the table.
    if (thread_index() < share.vectors) {
      sts32(share.window + TABLE_AT + thread_index() * 4, f32_bits(many_norm_factor(batch, t.cols, thread_index(), share.window)));
    }
    syncthreads();
  }
  if (share.ranks > 1) cluster_wait();
  while (true) {
#pragma unroll 1
    for (; part < parts; part += block_threads()) {
      const ManyPart<N> at(part);
      const bool wanted = !gates || lds32(share.window + batch.arrived + at.row / TILE_ROWS * 4);
      float sum[4] = {0, 0, 0, 0};
      if (!gates) sums.get(share, part, sum);
      if (plain) {
        if (at.vector < share.vectors) many_plain_results<N, BF16>(batch, item, share, at, sum, down);
        continue;
      }
#pragma unroll 1
      for (u32 i = 0; i < 4; i++) {
        Result<BF16> result = many_left_row<BF16>(batch, share, at.row + i / 2 * 8, epilogue);
        const u32 v = at.vector + i % 2;
        if (!wanted || !result.exists() || v >= share.vectors) continue;
        result.place += v * item.stride, result.to += (u64)v * item.stride * 2, result.residual = one_of(now.residual, i);
        float y = 0;
        if (!gates) {
          const float by = epilogue & EPILOGUE_NORM ? mul_rn(result.by, bits_f32(lds32(share.window + TABLE_AT + v * 4))) : result.by;
          y = add_rn(mul_rn(mul_rn(one_of(sum, i), down), by), Half<BF16>::to_f32(result.bias));
          if (epilogue & EPILOGUE_PART) {
            stg32(Stash(batch, item).results + result.place, f32_bits(y));
            continue;
          }
        }
        const float mine = bits_f32(one_of(now.mine, i)), other = bits_f32(one_of(now.other, i));
        const float active = activated(batch.activation, gates ? (gate ? mine : other) : y);
        result.write(batch, gates ? mul_rn(active, gate ? other : mine) : active);
      }
      if (part + block_threads() < parts) {
        now.ask(batch, item, share, part + block_threads(), epilogue & EPILOGUE_PART && !gates ? 0 : epilogue, gates);
      }
    }
    if (gates || item.part == PART_RESULT) return;
    gates = true;
    many_arrive(batch, Stash(batch, item), (item.place + own.begin_strip * TILE_ROWS - t.output.row_begin) / TILE_ROWS, own.strips, share.window);
    part = thread_index();
    if (part < parts) now.ask(batch, item, share, part, epilogue, true);
  }
}

// A thread block of an item, the block's number counted as the item's are, with so many vectors.
template <bool TRELLIS, u32 N, bool BF16, bool ROUTED>
DEVICE void multiply_item(const ProductBatch& batch, const ProductItem& item, u32 at, u32 vectors) {
  const Tiles& t = item.tiles;
  const ManyShare share(batch, t, at, vectors, many_helpers(N), many_has_parts(N));
  const u32 decoders = share.decoders();
  const u32 warp = thread_index() / LANES, lane = thread_index() % LANES;
  const bool half = item.minus == 0;
  if (thread_index() == decoders * LANES) {
    const u32 window = share.window;
    for (u32 j = 0; j < many_slots(N); j++) signal_init(window + MANY_FULL + 8 * j, VectorRing<N, BF16, ROUTED>::BATCHES), signal_init(window + MANY_EMPTY + 8 * j, share.warps);
    for (u32 j = 0; j < 2 * decoders; j++) copy_init(window + MANY_ARRIVED + 8 * j), signal_init(window + MANY_RELEASED + 8 * j, 1);
    copy_init(window + MANY_TABLE);
    copy_init_fence();
    copy_start(window + TABLE_AT, (const u8*)t.table, 4u << t.bits, window + MANY_TABLE);
  }
  syncthreads();
  // Sums have a place of their own, or that of the ring. Other blocks may store there once they know that this one runs.
  const bool apart = batch.sums != MANY_RING_AT;
  if (apart && share.ranks > 1) cluster_begin();
  float sum[N / 2];
#pragma unroll
  for (u32 j = 0; j < N / 2; j++) sum[j] = 0;
  bool good = true;
  if (warp < decoders) {
    if constexpr (MANY_TAKES_REGISTERS(N)) more_registers<ManyRegisters<N>::DECODING>();
    // A plane has one of these shifts. With a trellis levels are halves: the host launches nothing else.
#define MANY_CASE(shift, halves)                                                                             \
  case shift * 2 + halves:                                                                                   \
    if constexpr (TRELLIS && !halves) good = false;                                                          \
    else good = many_multiply<shift, halves, TRELLIS, N, BF16>(batch, t, share, warp, lane, sum);             \
    break;
    switch (t.shift * 2 + (half ? 1 : 0)) {
      MANY_CASE(0, false)
      MANY_CASE(0, true)
      MANY_CASE(1, false)
      MANY_CASE(1, true)
      MANY_CASE(2, false)
      MANY_CASE(2, true)
      MANY_CASE(3, false)
      MANY_CASE(3, true)
      MANY_CASE(4, false)
      MANY_CASE(4, true)
      default: good = false;
    }
#undef MANY_CASE
    if constexpr (MANY_TAKES_REGISTERS(N)) fewer_registers<ManyRegisters<N>::EACH>();
  } else {
    if constexpr (MANY_TAKES_REGISTERS(N)) fewer_registers<ManyRegisters<N>::HELPING>();
    if (warp == decoders) {
      many_fetch(batch, t, share, lane);
    } else {
      prefetch_factors(t, share.tile(0) * t.blocks + thread_index() - (decoders + 1) * LANES);
      overlap_wait();
      VectorRing<N, BF16, ROUTED>(batch, item, share, lane).fill(share, warp - decoders - 1);
      many_leave_rows<BF16>(batch, item, share, thread_index() - (decoders + 1) * LANES, many_stagers(N) * LANES);
    }
    if constexpr (MANY_TAKES_REGISTERS(N)) more_registers<ManyRegisters<N>::EACH>();
  }
  // Found again: in registers it would take the place of what warps decode.
  const ManyShare found(batch, t, found_again(at), vectors, many_helpers(N), many_has_parts(N));
  if (!apart) {
    // Sums take the place of the ring and the copies, which all blocks of the cluster have read then.
    syncthreads();
    if (found.ranks > 1) cluster_arrive();
  }
  if (found.ranks > 1) cluster_wait();
  if (warp < found.decoders()) ManySums<N>(batch, found).put(found, warp, lane, sum, good);
  if (found.ranks > 1) cluster_arrive();
  overlap_wait();
  many_results<N, BF16>(batch, item, found, many_down<BF16>(half));
}

// The whole launch.
template <bool TRELLIS, u32 N, bool BF16>
DEVICE void multiply_many(const ProductBatch& batch) {
  // Results are written, and vectors are read, behind `overlap_wait` only: the next launch may begin, and decode.
  overlap_start();
  prefetch_params(batch);
  u32 i = 0;
  while (i + 1 < batch.count && batch.items[i].tiles.block_end <= block_index()) i++;
  multiply_item<TRELLIS, N, BF16, false>(batch, batch.items[i], block_index(), batch.vectors);
}

// The whole launch of kernels named `routed`: kernels/src/abi.rs says how they take their parameters.
template <bool TRELLIS, u32 N, bool BF16>
DEVICE void multiply_routed(const ProductBatch& batch) {
  overlap_start();
  // Another launch has found the routes.
  overlap_wait();
  const u32 number = block_index() / batch.copies, at = block_index() - number * batch.copies;
  const Vec4 slot = load128((const RouteSlot*)batch.arrivals + number);
  // All blocks of a cluster have the same slot: none waits for another one that has left.
  if (slot.z == 0) return;
  const ProductItem* place = (const ProductItem*)batch.stash + (u64)slot.x * batch.count;
  for (u32 i = 0; i + 1 < batch.count && ldg16(&place->tiles.block_end) <= at; i++) place++;
  // In registers, as far as it is used: in memory it would be loaded again behind each barrier.
  static_assert(sizeof(ProductItem) % 16 == 0, "it is loaded in units of 16 bytes");
  Vec4 words[sizeof(ProductItem) / 16];
#pragma unroll
  for (u32 i = 0; i < sizeof(ProductItem) / 16; i++) words[i] = ldg128((const Vec4*)place + i);
  ProductItem item;
  memcpy(&item, words, sizeof(item));
  item.vector = slot.y;
  item.place += slot.y * item.stride;
  multiply_item<TRELLIS, N, BF16, true>(batch, item, at, slot.z);
}
#endif

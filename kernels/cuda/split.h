// From a chunk's streams and its uncoded bytes ("rests") to elements: layouts `split` and `byte` of scheme `lossless`.
// As tile.h, but an epilogue gets symbols and rests (join.h).
#pragma once
#include "join.h"
#include "tile.h"

// The number of rest bytes is not known before the launch, and may be 0.
#define ANY_REST 0u

// Prefetched rests: loaded one block ahead of their use, or half a block if they take many registers; across the end of
// a chunk, for the next one of the warp. A lane loads the rests of the elements that it has after `exchange` (emit.h),
// which are adjacent: with REST = 1 those of two lanes, with 3 those of four.
template <u32 CODER, u32 REST>
struct RestAhead {
  enum : u32 { SETS = REST == 1 ? 2 : 1 };
  u32 held[SETS][REST][4];  // those of the halves of the next block, or of the next half
  const u8* p = nullptr;    // the lane's words of the next block to load
  u32 blocks = 0;           // from there to the end of their chunk
  bool valid = false;       // whether the loaded words belong to the next chunk

  static DEVICE_MEMBER const u8* place(const Tiles& t, const Chunk& c, u32 lane) {
    const u8* const side = side_at<CODER>(t, c, 8 * REST);
    if (REST == 1) return side + (lane & 1) * 256 + (lane & ~1u) * 4;
    return side + (lane & 3) * 128 + (lane & ~3u) * 4;
  }

  DEVICE_MEMBER u32 (*of(u32 half))[4] { return held[half % SETS]; }

  // The loaded rests of `half` of a block are no longer needed: loads the next ones.
  DEVICE_MEMBER void after(u32 half, u32 lane, const u8* then, u32 then_blocks) {
    if (SETS == 1 && half == 0) {
      load_lower(lane);
      return;
    }
    if (half == 0 || SETS == 1) {
      if (blocks == 0) {
        p = then;
        blocks = then_blocks;
      }
      load(of(0), p, lane, false);
    } else {
      load_lower(lane);
    }
  }

  // Loads the rests of a chunk's first block.
  DEVICE_MEMBER void begin(const Tiles& t, const Chunk& c, u32 lane) {
    p = place(t, c, lane);
    blocks = c.blocks;
    valid = true;
    load(of(0), p, lane, false);
    if (SETS == 2) load_lower(lane);
  }

  // Inserts the lanes' tails for the word that the side plane lacks, in the second half of the last block.
  DEVICE_MEMBER void put_tails(u32 tail, u32 lane) {
    u32 (*const rests)[4] = of(1);
    if constexpr (REST == 1) {
      const u32 before = shfl(tail, lane & ~1u);
      if (lane & 1) {
        rests[0][1] = before;
        rests[0][3] = tail;
      }
    } else {
#pragma unroll
      for (u32 j = 0; j < 4; j++) {
        const u32 word = shfl(tail, (lane & ~3u) + j);
        if ((lane & 3) == 3) rests[REST - 1][j] = word;
      }
    }
  }

 private:
  DEVICE_MEMBER void load_lower(u32 lane) {
    load(of(1), p + 512, lane, blocks == 1);
    p += REST * 1024;
    blocks--;
  }

  // With rANS the side plane lacks the last word of the last block: the one before it is loaded again.
  static DEVICE_MEMBER void load(u32 (*rests)[4], const u8* p, u32 lane, bool last) {
    const bool missing = CODER == RANS && last;
    if constexpr (REST == 1) {
      const Vec2 a = ldg64_stream(p), b = ldg64_stream(p + (missing && lane & 1 ? 0 : 128));
      rests[0][0] = a.x;
      rests[0][1] = b.x;
      rests[0][2] = a.y;
      rests[0][3] = b.y;
    } else {
#pragma unroll
      for (u32 r = 0; r < REST; r++) {
        const bool before = missing && r + 1 == REST && (lane & 3) == 3;
        const Vec4 v = ldg128_stream(p + r * 1024 - (before ? 128 : 0));
        rests[r][0] = v.x;
        rests[r][1] = v.y;
        rests[r][2] = v.z;
        rests[r][3] = v.w;
      }
    }
  }
};

template <u32 CODER>
struct RestAhead<CODER, ANY_REST> {
  bool valid = false;
};

// Decodes tiles of a coder whose elements have REST uncoded bytes. mainloop.h describes the interface of tiles.
template <u32 CODER, u32 REST>
struct SplitTile {
  enum : u32 { BITS = REST == ANY_REST ? 0 : 12, MOST = REST == ANY_REST ? 3 : REST };
  enum : bool { COPIES = false, SMALL = false };
  RestAhead<CODER, REST> ahead;

  template <bool>
  DEVICE_MEMBER void prefetch_side(const Tiles& t, const Chunk& c, u32 lane) {
    if constexpr (REST != ANY_REST) ahead.begin(t, c, lane);
  }

  DEVICE_MEMBER void forget() { ahead.valid = false; }

  template <class Epilogue>
  DEVICE_MEMBER bool decode(typename Epilogue::State& state, const Tiles& t, const Chunk& c, Arrival a, u32 buffer, u32, u32 lane,
                            const Chunk& following, bool more) {
    const u32 rest = REST != ANY_REST ? REST : t.layout == LAYOUT_SPLIT ? t.shift / 8 : 0;
    const Body body = body_of(a, buffer);
    const u32 length = body.end - body.begin;
    const u32 raw_length = c.blocks * 1024 + (CODER == RANS && rest > 0 ? LANES * 4 : 0);
    const bool raw = length == raw_length;
    if (length > raw_length) return false;
    Coder<CODER, BITS> d;
    if (!raw && !d.begin(t, body, lane)) return false;
    Epilogue epilogue(state, t, c, lane);
    bool interior = false;
    if constexpr (REST != ANY_REST) {
      interior = !raw && epilogue.takes_interior() && lies_inside(t, c);
      if (interior) interior_blocks(t, c, d, body, lane, following, more, epilogue);
    }
    if (!interior) {
      forget();
      any_blocks(t, c, d, body, raw, rest, lane, epilogue);
    }
    const bool good = raw || d.ended_well();
    state.end(t, c, lane, good);
    return good;
  }

 private:
  // The blocks of a coded chunk inside the matrix.
  template <class Epilogue>
  DEVICE_MEMBER void interior_blocks(const Tiles& t, const Chunk& c, Coder<CODER, BITS>& d, Body body, u32 lane, const Chunk& following,
                                  bool more, Epilogue epilogue) {
    epilogue.begin_interior(0);
    if (!ahead.valid) ahead.begin(t, c, lane);
    ahead.valid = more;
    // After this chunk: the next one of the warp or, if there is none, this one again.
    const Chunk& then = more ? following : c;
    const u8* const then_p = ahead.place(t, then, lane);
    const u32 then_blocks = then.blocks;
#pragma unroll 1
    for (u32 k = c.blocks; k != 0; k--) {
      u32 q[4];
#pragma unroll
      for (u32 half = 0; half < 2; half++) {
#pragma unroll
        for (u32 j = 0; j < 4; j++) q[j] = bytes4(d);
        if (CODER == RANS && half == 1 && k == 1) ahead.put_tails(d.tail(body), lane);
        epilogue.interior(half, q, ahead.of(half));
        ahead.after(half, lane, then_p, then_blocks);
      }
    }
  }

  // The blocks of any chunk.
  template <class Epilogue>
  DEVICE_MEMBER void any_blocks(const Tiles& t, const Chunk& c, Coder<CODER, BITS>& d, Body body, bool raw, u32 rest, u32 lane,
                                Epilogue epilogue) {
    const u8* side = side_at<CODER>(t, c, 8 * rest) + lane * 4;
#pragma unroll 1
    for (u32 k = 0; k < c.blocks; k++) {
      const bool last = k + 1 == c.blocks;
#pragma unroll
      for (u32 half = 0; half < 2; half++) {
        u32 q[4], rests[MOST][4];
        // With rANS the lane's last word, or its last four symbols, are its tail.
        const bool with_tail = CODER == RANS && last && half == 1;
#pragma unroll
        for (u32 r = 0; r < MOST; r++) {
#pragma unroll
          for (u32 j = 0; j < 4; j++) {
            const bool stored = r < rest && !(with_tail && r + 1 == rest && j == 3);
            rests[r][j] = stored ? ldg32(side + (r * 8 + half * 4 + j) * 128) : 0;
          }
        }
        u32 tail = 0;
        if (raw) {
          const u32 at = body.begin + k * 1024 + half * 512 + lane * 16;
#pragma unroll
          for (u32 j = 0; j < 4; j++) q[j] = lds32(at + 4 * j);
          if (with_tail && rest > 0) tail = lds32(body.begin + c.blocks * 1024 + lane * 4);
        } else {
#pragma unroll
          for (u32 j = 0; j < 3; j++) q[j] = bytes4(d);
          if (with_tail && rest == 0) {
            q[3] = d.tail(body);
          } else {
            q[3] = bytes4(d);
            if (with_tail) tail = d.tail(body);
          }
        }
        if (with_tail) {
#pragma unroll
          for (u32 r = 0; r < MOST; r++) {
            if (r + 1 == rest) rests[r][3] = tail;
          }
        }
        epilogue.any(half, q, rests, rest);
      }
      epilogue.next();
      side += rest * 1024;
    }
  }
};

// From a chunk's streams to blocks of weights in registers, which an epilogue takes one after the other
// (chunk_epilogue.h).
//
// No input is trusted: streams cannot leave their buffer, and a chunk that does not end correctly is not valid.
#pragma once
#include "chunk.h"
#include "coders.h"
#include "symbols.h"

// Side words of a lane and block (shift + 1 of them).
template <u32 MODE>
DEVICE u32 side_words(const Tiles& t) {
  if (MODE == MODE_GENERAL && t.layout != LAYOUT_PAIR) return 0;
  return MODE == MODE_BYTE ? 0 : MODE == MODE_PAIR ? 4 : t.shift + 1u;
}

template <u32 CODER>
DEVICE const u8* side_at(const Tiles& t, const Chunk& c, u32 words) {
  // With rANS the last word of each lane and tile is its tail, which is not stored here.
  const u32 tails = CODER == RANS && words > 0 ? 1 : 0;
  const u32 strip = ((t.tiles - 1) * t.blocks + t.last_blocks) * words - t.tiles * tails;
  return (const u8*)t.side + ((u64)c.strip * strip + c.tile * (t.blocks * words - tails)) * 128;
}

template <u32 CODER>
DEVICE u32 raw_body_bytes(u32 blocks, bool pair) {
  if (!pair) return blocks * 1024;
  return blocks * 512 + (CODER == RANS ? 128 : 0);
}

// Coded symbols of a lane and block, from a raw chunk: layout `byte` stores the elements, `pair` the high parts.
template <bool PAIR>
DEVICE void raw_block(Block& b, u32 body, u32 block, u32 lane, u32 shift) {
#pragma unroll
  for (u32 half = 0; half < 2; half++) {
    if (PAIR) {
      const u32 at = body + block * 512 + half * 256 + lane * 8;
#pragma unroll
      for (u32 j = 0; j < 4; j++) b.q[half * 4 + j] = spread_pairs(prmt(lds16(at + 2 * j), 0, 0x1100), shift);
    } else {
      const u32 at = body + block * 1024 + half * 512 + lane * 16;
#pragma unroll
      for (u32 j = 0; j < 4; j++) b.q[half * 4 + j] = lds32(at + 4 * j);
    }
  }
}

// Four elements of layout `byte`.
template <class Decoder>
DEVICE u32 bytes4(Decoder& d) {
  u32 a, b, c, e;
  d.two(a, b);
  d.two(c, e);
  d.stay_inside();
  return prmt(prmt(a, b, 0x0073), prmt(c, e, 0x0073), 0x5410);
}

// High parts of elements 8j to 8j + 7 of layout `pair`.
template <u32 CODER, class Decoder>
DEVICE void pairs8(Decoder& d, u32& first, u32& second, u32 shift) {
  u32 a, b;
  d.two(a, b);
  first = high_parts<CODER>(a, b, shift);
  d.two(a, b);
  second = high_parts<CODER>(a, b, shift);
  d.stay_inside();
}

// The high parts of a block: three symbols at a time, except for the last two of each half.
template <u32 CODER, class Decoder>
DEVICE void thirds16(Decoder& d, Block& b, u32 shift) {
#pragma unroll
  for (u32 half = 0; half < 2; half++) {
    u32 s[8];
    d.three(s[0], s[1], s[2]);
    d.three(s[3], s[4], s[5]);
    d.two(s[6], s[7]);
#pragma unroll
    for (u32 j = 0; j < 4; j++) b.q[half * 4 + j] = high_parts<CODER>(s[2 * j], s[2 * j + 1], shift);
  }
}

// The remaining patches of a chunk: elements to replace, in the order in which they are decoded.
struct Patches {
  u32 next, end;
  bool changes;  // patches store by how much elements exceed the values that the symbols give
  bool wrong;    // one that the lane has applied contradicts the symbols
};

// The position of an element that a patch changes, and the amount.
struct Change {
  u32 block, row, col;  // the column counted in the block
  i32 by;
  DEVICE_MEMBER Change(u32 patch)
      : block(patch >> 10 & 63), row((patch >> 7 & 7) | (patch >> 1 & 8)), col((patch >> 1 & 48) | (patch & 15)), by((i32)patch >> 24) {}
};

// Whether the patch at `at` may belong to a valid chunk: positions ascend, and lie in the tile.
DEVICE bool is_sound(const Patches& p, u32 at, u32 patch, u32 blocks) {
  const u32 place = patch & 0xFFFF;
  const bool ascends = at == p.next || (lds32(at - 4) & 0xFFFF) < place;
  return ascends && place < blocks * 1024 && (p.changes || patch >> 24 == 0);
}
DEVICE bool are_sound(const Patches& p, u32 blocks, u32 lane) {
  bool bad = false;
  for (u32 at = p.next + lane * 4; at < p.end; at += LANES * 4) bad = bad || !is_sound(p, at, lds32(at), blocks);
  return ballot(bad) == 0;
}

// Finds the list of patches at the start of a body, and the body after it; returns whether the list fits.
DEVICE bool find_patches(Body& body, Patches& p, bool changes) {
  p = {0, 0, changes, false};
  const u32 bytes = body.end - body.begin;
  if (bytes < 4) return false;
  const u32 count = lds32(body.begin);
  if (count > (bytes - 4) / 4) return false;
  p.next = body.begin + 4;
  p.end = body.begin = p.next + count * 4;
  return true;
}

// Whether an element, byte 0 of `from`, plus the change gives the patch's value.
DEVICE bool is_changed(u32 from, u32 patch) {
  return ((i32)(from << 24) >> 24) + ((i32)patch >> 24) == (i32)(patch << 8) >> 24;
}
// Word `k` of a block, whose registers cannot be indexed.
DEVICE u32 word_of(const Block& b, u32 k) {
  const u32 low = k & 2 ? (k & 1 ? b.q[3] : b.q[2]) : (k & 1 ? b.q[1] : b.q[0]);
  const u32 high = k & 2 ? (k & 1 ? b.q[7] : b.q[6]) : (k & 1 ? b.q[5] : b.q[4]);
  return k & 4 ? high : low;
}

// Applies the patches of a block. CHECKS: also checks them against the symbols.
template <bool CHECKS>
DEVICE void apply_patches(Patches& p, Block& b, u32 block, u32 lane) {
#pragma unroll 1
  while (p.next < p.end) {
    const u32 patch = lds32(p.next);
    if ((patch >> 10 & 63) != block) break;
    p.next += 4;
    if ((patch >> 5 & 31) == lane) {
      const u32 shift = (patch & 3) * 8, mask = 0xFFu << shift, value = (patch >> 16 & 0xFF) << shift, word = patch >> 2 & 7;
      if (CHECKS && p.changes) p.wrong = p.wrong || !is_changed(word_of(b, word) >> shift, patch);
      // Not a loop, which the compiler would treat as an indexed access: then the words would lie in memory.
      if (word == 0) b.q[0] = (b.q[0] & ~mask) | value;
      if (word == 1) b.q[1] = (b.q[1] & ~mask) | value;
      if (word == 2) b.q[2] = (b.q[2] & ~mask) | value;
      if (word == 3) b.q[3] = (b.q[3] & ~mask) | value;
      if (word == 4) b.q[4] = (b.q[4] & ~mask) | value;
      if (word == 5) b.q[5] = (b.q[5] & ~mask) | value;
      if (word == 6) b.q[6] = (b.q[6] & ~mask) | value;
      if (word == 7) b.q[7] = (b.q[7] & ~mask) | value;
    }
  }
}

// Whether there is a patch for this block.
DEVICE bool has_patches(const Patches& p, u32 block) { return p.next < p.end && (lds32(p.next) >> 10 & 63) == block; }

// Side words of a lane and block, layout `pair` with shift 3.
struct Side {
  u32 w[4];
};

// Prefetched side words: loads run two blocks ahead of their use, across the end of a chunk into the next one of the
// warp.
template <u32 CODER>
struct SideAhead {
  Side even, odd;         // those of the next two blocks
  const u8* p = nullptr;  // the lane's words of the next block to load
  u32 blocks = 0;         // from there to the end of their chunk
  bool valid = false;     // whether the loaded words belong to the next chunk

  // With rANS the side plane lacks the last word of the last block: the one before it is loaded again.
  static DEVICE_MEMBER void load(Side& s, const u8* p, bool last) {
    s.w[0] = ldg32_stream(p);
    s.w[1] = ldg32_stream(p + 128);
    s.w[2] = ldg32_stream(p + 256);
    s.w[3] = ldg32_stream(p + (CODER == RANS && last ? 256 : 384));
  }

  // Loads the side words of a chunk's first two blocks; `side` is the address of the first.
  DEVICE_MEMBER void begin(const u8* side, const Chunk& c, u32 lane) {
    p = side + lane * 4 + 1024;
    blocks = c.blocks - 2;
    valid = true;
    load(even, p - 1024, false);
    load(odd, p - 512, c.blocks == 2);
  }
};

// As `SideAhead`, for shifts 0 to 2, which have few words: one block ahead.
template <u32 CODER>
struct LowSideAhead {
  u32 w[3] = {0, 0, 0};   // those of the next block
  const u8* p = nullptr;  // the lane's words of the next block to load
  u32 blocks = 0;         // from there to the end of their chunk
  bool valid = false;     // whether the loaded words belong to the next chunk

  // With rANS the side plane lacks the last word of the last block.
  template <u32 WORDS>
  DEVICE_MEMBER void next() {
#pragma unroll
    for (u32 j = 0; j < WORDS; j++) {
      if (CODER == HUFFMAN || j + 1 < WORDS || blocks != 1) w[j] = ldg32_stream(p + 128 * j);
    }
    p += WORDS * 128;
    blocks--;
  }

  // Loads the side words of a chunk's first block; `side` is the address of the first.
  template <u32 WORDS>
  DEVICE_MEMBER void begin(const u8* side, const Chunk& c, u32 lane) {
    p = side + lane * 4;
    blocks = c.blocks;
    valid = true;
    next<WORDS>();
  }
};

template <bool LOW, u32 CODER>
struct Ahead {
  typedef SideAhead<CODER> Type;
};
template <u32 CODER>
struct Ahead<true, CODER> {
  typedef LowSideAhead<CODER> Type;
};

// Decodes tiles of a coder. mainloop.h describes the interface of tiles.
template <u32 CODER, u32 MODE>
struct Tile {
  enum : bool { LOW = MODE == MODE_LOW || MODE == MODE_TRELLIS, PATCHES = MODE == MODE_GENERAL || LOW };
  // Small tables may be stored in copies, for epilogues that request them: there is no space for copies of larger ones.
  // Side words may be copied if they are few.
  enum : bool { COPIES = CODER == HUFFMAN && LOW, SMALL = false };
  enum : u32 { BITS = PATCHES ? 0 : 12 };
  typename Ahead<LOW, CODER>::Type ahead;

  template <bool ALL>
  DEVICE_MEMBER void prefetch_side(const Tiles& t, const Chunk& c, u32 lane) {
    const u32 words = side_words<MODE>(t);
    const u8* const side = side_at<CODER>(t, c, words);
    if constexpr (ALL) {
      // One line per lane: memory latency exceeds the distance at which words are loaded ahead.
      const u32 lines = c.blocks * words - (CODER == RANS && words > 0);
#pragma unroll 1
      for (u32 i = lane; i < lines; i += LANES) prefetch(side + i * 128);
    }
    if constexpr (LOW) {
      if (t.shift == 0) ahead.template begin<1>(side, c, lane);
      else if (t.shift == 1) ahead.template begin<2>(side, c, lane);
      else ahead.template begin<3>(side, c, lane);
    } else {
      if (MODE == MODE_PAIR && c.blocks % 2 == 0) ahead.begin(side, c, lane);
    }
  }

  static DEVICE_MEMBER u32 side_bytes(const Tiles& t, const Chunk& c) { return c.blocks * side_words<MODE>(t) * 128; }
  static DEVICE_MEMBER const u8* side(const Tiles& t, const Chunk& c) { return side_at<CODER>(t, c, side_words<MODE>(t)); }

  DEVICE_MEMBER void forget() { ahead.valid = false; }

  template <class Epilogue>
  DEVICE_MEMBER bool decode(typename Epilogue::State& state, const Tiles& t, const Chunk& c, Arrival a, u32 buffer, u32 copied, u32 lane,
                            const Chunk& following, bool more) {
    constexpr bool IN_COPIES = Epilogue::COPIES && COPIES;
    const bool pair = MODE == MODE_GENERAL ? t.layout == LAYOUT_PAIR : MODE != MODE_BYTE;
    Body body = body_of(a, buffer);
    bool taken = false;
    // An epilogue that can take patches rarely leaves some.
    if constexpr (Epilogue::CORRECTS && MODE == MODE_LOW) taken = state.takes_patches();
    Patches patches = {0, 0, t.changes != 0, false};
    if (PATCHES && pair && (LOW || t.shift < 3)) {
      if (!find_patches(body, patches, t.changes != 0)) return false;
      if (patches.next < patches.end && !taken && !are_sound(patches, c.blocks, lane)) return false;
    }
    const u32 length = body.end - body.begin, raw_length = raw_body_bytes<CODER>(c.blocks, pair);
    const bool raw = length == raw_length;
    typedef Coder<CODER, BITS, IN_COPIES, Epilogue::BESIDE> Decoder;
    if (length > raw_length) return false;
    u32 copies = 0;
    if constexpr (IN_COPIES) copies = state.batch.copies;
    Decoder d;
    if (!raw && !d.begin(t, body, lane, copies)) return false;
    Epilogue epilogue(state, t, c, lane);
    if constexpr (Epilogue::CORRECTS && MODE == MODE_LOW) {
      // The epilogue applies the patches, so the blocks do not.
      if (taken) state.changes = patches, patches.next = patches.end;
    }
    const bool left = Epilogue::CORRECTS && MODE == MODE_LOW && patches.next < patches.end;
    const bool interior = (LOW || (MODE == MODE_PAIR && c.blocks % 2 == 0)) && !raw && !left && epilogue.takes_interior() &&
                       lies_inside(t, c);
    if (!interior) {
      forget();
      any_blocks(t, c, d, body, raw, patches, lane, epilogue);
    } else if constexpr (LOW) {
      bool three = false;
      if constexpr (IN_COPIES) {
        three = d.bits.get() <= 8;
        if (three) low_shifts<true>(t, c, d, body, patches, copied, lane, following, more, epilogue);
      }
      if (!three) low_shifts<false>(t, c, d, body, patches, copied, lane, following, more, epilogue);
    } else {
      interior_blocks(t, c, d, body, lane, following, more, epilogue);
    }
    bool good = raw || d.ended_well();
    if (PATCHES && Epilogue::CHECKS) good = good && ballot(patches.wrong) == 0;
    if constexpr (Epilogue::CORRECTS && MODE == MODE_LOW) {
      if (taken) good = state.change(t, c, lane) && good;
    }
    state.end(t, c, lane, good);
    return good;
  }

 private:
  // The blocks of a coded chunk inside the matrix with an even number of blocks: layout `pair`, shift 3.
  template <class Decoder, class Epilogue>
  DEVICE_MEMBER void interior_blocks(const Tiles& t, const Chunk& c, Decoder& d, Body body, u32 lane, const Chunk& following,
                                  bool more, Epilogue epilogue) {
    epilogue.begin_interior(0);
    if (!ahead.valid) ahead.begin(side_at<CODER>(t, c, 4), c, lane);
    // The words of a block are replaced by those of the block after the next.
    auto block = [&](Side& side, u32 place, bool last_ahead, bool last) {
      const Side w = side;
      ahead.load(side, ahead.p + place, last_ahead);
      Block b;
#pragma unroll
      for (u32 j = 0; j < 4; j++) {
        u32 h0, h1;
        pairs8<CODER>(d, h0, h1, 3);
        u32 word = w.w[j];
        if (CODER == RANS && j == 3 && last) word = d.tail(body);
        if constexpr (Epilogue::OPERANDS) {
          epilogue.operands(2 * j, split_shift3(h0, word));
          epilogue.operands(2 * j + 1, split_shift3(h1, fshl(word, word, 4)));
        } else {
          b.q[2 * j] = merge_shift3(h0, word);
          b.q[2 * j + 1] = merge_shift3(h1, fshl(word, word, 4));
        }
      }
      if constexpr (Epilogue::OPERANDS) epilogue.next();
      else epilogue.interior(b);
    };
    ahead.valid = more && following.blocks % 2 == 0;
    // After this chunk: the next one of the warp or, if there is none, words that were loaded already.
    const u8* const then_p = ahead.valid ? side_at<CODER>(t, following, 4) + lane * 4 : ahead.p - 1024;
    const u32 then_blocks = ahead.valid ? following.blocks : 2;
#pragma unroll 1
    for (u32 k = c.blocks; k != 0; k -= 2) {
      if (ahead.blocks == 0) {
        ahead.p = then_p;
        ahead.blocks = then_blocks;
      }
      block(ahead.even, 0, false, false);
      block(ahead.odd, 512, ahead.blocks == 2, k == 2);
      ahead.p += 1024;
      ahead.blocks -= 2;
    }
  }

  template <bool THREE, class Decoder, class Epilogue>
  DEVICE_MEMBER void low_shifts(const Tiles& t, const Chunk& c, Decoder& d, Body body, Patches& patches, u32 copied, u32 lane,
                                const Chunk& following, bool more, Epilogue epilogue) {
    if (t.shift == 0) low_blocks<0, THREE>(t, c, d, body, patches, copied, lane, following, more, epilogue);
    else if (t.shift == 1) low_blocks<1, THREE>(t, c, d, body, patches, copied, lane, following, more, epilogue);
    else low_blocks<2, THREE>(t, c, d, body, patches, copied, lane, following, more, epilogue);
  }

  // The blocks of a coded chunk inside the matrix: layout `pair`, shifts 0 to 2. THREE: its table has at most eight
  // bits. Side words that were copied are at `copied`.
  template <u32 SHIFT, bool THREE, class Decoder, class Epilogue>
  DEVICE_MEMBER void low_blocks(const Tiles& t, const Chunk& c, Decoder& d, Body body, Patches& patches, u32 copied, u32 lane,
                                const Chunk& following, bool more, Epilogue epilogue) {
    constexpr bool BESIDE = Epilogue::BESIDE && COPIES;
    constexpr u32 WORDS = SHIFT + 1;
    epilogue.begin_interior(0);
    const u8* then_p = nullptr;
    const u32 then_blocks = following.blocks;
    if constexpr (!BESIDE) {
      if (!ahead.valid) ahead.template begin<WORDS>(side_at<CODER>(t, c, WORDS), c, lane);
      ahead.valid = more;
      // After this chunk: the next one of the warp, if there is one.
      if (more) then_p = side_at<CODER>(t, following, WORDS) + lane * 4;
      // One line per lane: memory latency exceeds the distance at which words are loaded ahead. Kernels that only
      // decode are bound by memory anyway.
      if (Epilogue::COPIES && more && lane < then_blocks * WORDS - (CODER == RANS)) prefetch(then_p + lane * 124);
    }
    u32 carry = 0;
    copied += lane * 4;
#pragma unroll 1
    for (u32 k = 0; k < c.blocks; k++) {
      u32 side[WORDS];
      if constexpr (BESIDE) {
#pragma unroll
        for (u32 j = 0; j < WORDS; j++) side[j] = lds32(copied + j * 128);
        copied += WORDS * 128;
        // The epilogue may store blocks over these words.
        syncwarp();
      } else {
#pragma unroll
        for (u32 j = 0; j < WORDS; j++) side[j] = ahead.w[j];
        if (more && ahead.blocks == 0) {
          ahead.p = then_p;
          ahead.blocks = then_blocks;
        }
        if (more || ahead.blocks != 0) ahead.template next<WORDS>();
      }
      const bool with_tail = CODER == RANS && k + 1 == c.blocks;
      if constexpr (Epilogue::OPERANDS && MODE == MODE_LOW) {
        // The tail follows all symbols, and patches need all of the block.
        if (!with_tail && !has_patches(patches, k)) {
#pragma unroll
          for (u32 j = 0; j < 4; j++) {
            u32 h0, h1;
            pairs8<CODER>(d, h0, h1, SHIFT);
            epilogue.operands(2 * j, split_low<CODER, SHIFT>(h0, side, 2 * j));
            epilogue.operands(2 * j + 1, split_low<CODER, SHIFT>(h1, side, 2 * j + 1));
          }
          epilogue.next();
          continue;
        }
      }
      Block b;
      if constexpr (THREE) {
        thirds16<CODER>(d, b, SHIFT);
      } else {
#pragma unroll
        for (u32 j = 0; j < 4; j++) pairs8<CODER>(d, b.q[2 * j], b.q[2 * j + 1], SHIFT);
      }
      if (with_tail) side[SHIFT] = d.tail(body);
#pragma unroll
      for (u32 j = 0; j < 8; j++) b.q[j] = merge_low<CODER, SHIFT>(b.q[j], side, j);
      if constexpr (!(Epilogue::CORRECTS && MODE == MODE_LOW)) apply_patches<Epilogue::CHECKS>(patches, b, k, lane);
      if (MODE == MODE_TRELLIS) unfilter_trellis(b, lane, carry);
      epilogue.interior(b);
    }
  }

  // The blocks of any chunk.
  template <class Decoder, class Epilogue>
  DEVICE_MEMBER void any_blocks(const Tiles& t, const Chunk& c, Decoder& d, Body body, bool raw, Patches& patches, u32 lane,
                                Epilogue epilogue) {
    const bool pair = MODE == MODE_GENERAL ? t.layout == LAYOUT_PAIR : MODE != MODE_BYTE;
    const u32 words = side_words<MODE>(t);
    const u32 shift = MODE == MODE_PAIR ? 3 : t.shift;
    const u8* side = side_at<CODER>(t, c, words);
    u32 carry = 0;
#pragma unroll 1
    for (u32 k = 0; k < c.blocks; k++) {
      Block b;
      const bool last = k + 1 == c.blocks;
      if (!pair) {
        if (raw) {
          raw_block<false>(b, body.begin, k, lane, 0);
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
        for (u32 j = 0; j < (LOW ? 3 : 4); j++) {
          if (j < words - with_tail) side_now[j] = ldg32(p + j * 128 + lane * 4);
        }
        if (raw) {
          raw_block<true>(b, body.begin, k, lane, shift);
        } else {
#pragma unroll
          for (u32 j = 0; j < 4; j++) pairs8<CODER>(d, b.q[2 * j], b.q[2 * j + 1], shift);
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
        if (PATCHES) apply_patches<Epilogue::CHECKS>(patches, b, k, lane);
      }
      if (MODE == MODE_GENERAL) {
        if (t.filter == FILTER_LEFT) unfilter_left(b, lane, carry);
        if (t.filter == FILTER_UP) unfilter_up(b, lane);
        if (t.filter == FILTER_TRELLIS) unfilter_trellis(b, lane, carry);
      }
      if (MODE == MODE_TRELLIS) unfilter_trellis(b, lane, carry);
      epilogue.any(b);
    }
  }
};

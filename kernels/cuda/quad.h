// Layout `quad`: from a chunk's streams to blocks of weights. As tile.h, whose symbols hold one or two elements; here
// each holds four.
//
// A table entry has a high part of three bits at the same position of each of its bytes, whatever the shift, and the
// code's length in the lowest byte below it. The low bits, which come from the side words, replace the length.
#pragma once
#include "tile.h"

// The most side words of a lane and block.
#define MOST_QUAD_SIDE 5u
// The largest log2 of the bits of a unit.
#define MOST_UNIT 8u

// The side bits of word `k` of a lane and block. Its signs, shifted to bits 7 of bytes ...
template <u32 SHIFT>
DEVICE u32 quad_signs(const u32* side, u32 k) {
  if (SHIFT == 1) return side[k / 4] << (k % 4);
  if (SHIFT == 3) return side[k / 2] << (4 * (k % 2));
  return side[0] << k;
}
// ... and its low bits, inserted into a table entry: 16 times the high parts of v (FORMAT.md section 3), with the low
// bits below. The bits below those are unspecified.
template <u32 SHIFT>
DEVICE u32 quad_raised(u32 entry, const u32* side, u32 k) {
  if (SHIFT == 0) return entry;
  if (SHIFT == 1) return choose(0x08080808u, side[k / 4] << (k % 4), entry);
  if (SHIFT == 2) {
    const u32 low = side[1 + k / 4];
    return choose(0x0C0C0C0Cu, k % 4 == 0 ? low << 2 : low >> (2 * (k % 4) - 2), entry);
  }
  if (SHIFT == 3) return choose(0x0E0E0E0Eu, k % 2 ? side[k / 2] << 1 : side[k / 2] >> 3, entry);
  return choose(0x0F0F0F0Fu, side[1 + k / 2] >> (4 * (k % 2)), entry);
}
// v of four elements.
template <u32 SHIFT>
DEVICE u32 quad_v(u32 entry, const u32* side, u32 k) { return quad_raised<SHIFT>(entry, side, k) >> (4 - SHIFT); }
// v, or ~v where the sign is 1.
template <u32 SHIFT>
DEVICE u32 merge_quad(u32 entry, const u32* side, u32 k) {
  const u32 signs = quad_signs<SHIFT>(side, k);
  return quad_v<SHIFT>(entry, side, k) ^ prmt(signs, signs, 0xBA98);
}
// As `merge_quad`, times 2^(4 - SHIFT), as i8: one instruction less.
template <u32 SHIFT>
DEVICE u32 merge_quad_raised(u32 entry, const u32* side, u32 k) {
  const u32 signs = quad_signs<SHIFT>(side, k);
  return differ((0xFFu << (4 - SHIFT) & 0xFFu) * 0x01010101u, quad_raised<SHIFT>(entry, side, k), prmt(signs, signs, 0xBA98));
}
DEVICE u32 merge_quad_any(u32 entry, const u32* side, u32 shift, u32 k) {
  if (shift == 0) return merge_quad<0>(entry, side, k);
  if (shift == 1) return merge_quad<1>(entry, side, k);
  if (shift == 2) return merge_quad<2>(entry, side, k);
  if (shift == 3) return merge_quad<3>(entry, side, k);
  return merge_quad<4>(entry, side, k);
}

// A symbol of a raw chunk, in the form of a table entry.
DEVICE u32 quad_entry(u32 symbol) {
  const u32 pairs = (symbol | symbol << 8) & 0x00FF00FFu;
  return (pairs | pairs << 4) << 4 & 0x70707070u;
}

// Side words lie in groups of four, two and one (FORMAT.md section 3), so that a lane reads its part of each at once.
// Reads the WORDS words of a lane and block through `read`, which reads four, two or one word at an offset from the
// block's words.
template <u32 WORDS, class Read>
DEVICE void read_side(u32* w, u32 lane, Read read) {
  u32 first = 0;
  if constexpr ((WORDS & 4) != 0) {
    const Vec4 v = read.four(lane * 16);
    w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
    first = 4;
  }
  if constexpr ((WORDS & 2) != 0) {
    const Vec2 v = read.two(first * 128 + lane * 8);
    w[first] = v.x, w[first + 1] = v.y;
    first += 2;
  }
  if constexpr ((WORDS & 1) != 0) w[first] = read.one(first * 128 + lane * 4);
}
// Reads side words from global memory, or from a copy in shared memory.
struct SideOfPlane {
  const u8* p;
  DEVICE_MEMBER Vec4 four(u32 at) const { return ldg128_stream(p + at); }
  DEVICE_MEMBER Vec2 two(u32 at) const { return ldg64_stream(p + at); }
  DEVICE_MEMBER u32 one(u32 at) const { return ldg32_stream(p + at); }
};
struct SideCopied {
  u32 p;
  DEVICE_MEMBER Vec4 four(u32 at) const { return lds128(p + at); }
  DEVICE_MEMBER Vec2 two(u32 at) const { return lds64(p + at); }
  DEVICE_MEMBER u32 one(u32 at) const { return lds32(p + at); }
};

// Prefetched side words: those of the first block of the next chunk.
struct QuadSideAhead {
  u32 w[MOST_QUAD_SIDE] = {0, 0, 0, 0, 0};
  const u8* next = nullptr;  // the words after them; null if there are none

  template <u32 WORDS>
  DEVICE_MEMBER void begin(const u8* side, u32 lane) {
    next = side + WORDS * 128;
    read_side<WORDS>(w, lane, SideOfPlane{side});
  }
};

// A lane's two streams: those of words 0 to 3 and of words 4 to 7 of all blocks. FORMAT.md section 7.
template <bool COPIES, bool EARLY>
struct QuadCoder {
  Window<EARLY> first, second;
  u32 ends;   // their ends, the second one's in the upper half
  u32 limit;  // the end of the body
  u32 mask;
  TableCopy<COPIES> copy;

  // A body: u16 least, u16 log2 of a unit, for each lane a byte with the units by which its streams exceed the shortest
  // one, and words of codes. The end of each stream is known from the beginning, so everything else is checked here.
  DEVICE_MEMBER bool begin(const Tiles& t, Body body, u32 lane, u32 copies) {
    copy.set(copies, lane);
    mask = ((1u << t.bits) - 1) << copy.shift();
    const u32 words = body.begin + 4 + LANES;
    if (words >= body.end) return false;
    const u32 head = lds32(body.begin), more = lds8(body.begin + 4 + lane), unit = head >> 16, least = head & 0xFFFF;
    if (unit > MOST_UNIT) return false;
    const u32 first_bits = least + ((more & 15) << unit), second_bits = least + (more >> 4 << unit);
    const u32 sum = sum_up_to(first_bits + second_bits, lane), all = shfl(sum, LANES - 1) + 2;
    if (words + (all + 31) / 32 * 4 != body.end) return false;
    limit = body.end;
    const u32 start = sum - first_bits - second_bits + 2 + 32 - copy.shift();
    first.begin(words, start, limit);
    second.begin(words, start + first_bits, limit);
    ends = (first.position + first_bits) | (second.position + second_bits) << 16;
    // Codes end within the last unit.
    slack = (1u << unit) - 1;
    return (lds32(words) & 3) == 0 && lds32(body.end - 4) >> ((all - 1) % 32) >> 1 == 0;
  }

  // Two symbols of each stream.
  DEVICE_MEMBER void two(u32& a, u32& b, u32& c, u32& d) {
    const u32 w = first.bits(), v = second.bits();
    a = lds32_table(copy.place(w & mask));
    c = lds32_table(copy.place(v & mask));
    const u32 la = a & 15, lc = c & 15;
    b = lds32_table(copy.place(fshr(w, 0, la) & mask));
    d = lds32_table(copy.place(fshr(v, 0, lc) & mask));
    first.move(first.position + la + (b & 15), limit);
    second.move(second.position + lc + (d & 15), limit);
  }

  DEVICE_MEMBER bool ended_well() const {
    const u32 a = (ends & 0xFFFF) - first.position, b = (ends >> 16) - second.position;
    return ballot(a > slack || b > slack) == 0;
  }

 private:
  u32 slack;
};

// Decodes tiles. mainloop.h describes the interface of tiles.
template <bool TRELLIS>
struct QuadTile {
  enum : bool { COPIES = true, SMALL = true };
  QuadSideAhead ahead;

  template <bool ALL>
  DEVICE_MEMBER void prefetch_side(const Tiles& t, const Chunk& c, u32 lane) {
    const u8* const from = side(t, c);
    if constexpr (ALL) {
      // One line per lane: memory latency exceeds the distance at which words are loaded ahead.
      const u32 lines = c.blocks * (t.shift + 1u);
#pragma unroll 1
      for (u32 i = lane; i < lines; i += LANES) prefetch(from + i * 128);
    }
    if (t.shift == 0) ahead.template begin<1>(from, lane);
    else if (t.shift == 1) ahead.template begin<2>(from, lane);
    else if (t.shift == 2) ahead.template begin<3>(from, lane);
    else if (t.shift == 3) ahead.template begin<4>(from, lane);
    else ahead.template begin<5>(from, lane);
  }

  static DEVICE_MEMBER u32 side_bytes(const Tiles& t, const Chunk& c) { return c.blocks * (t.shift + 1u) * 128; }
  static DEVICE_MEMBER const u8* side(const Tiles& t, const Chunk& c) { return side_at<HUFFMAN>(t, c, t.shift + 1u); }

  DEVICE_MEMBER void forget() { ahead.next = nullptr; }

  template <class Epilogue>
  DEVICE_MEMBER bool decode(typename Epilogue::State& state, const Tiles& t, const Chunk& c, Arrival a, u32 buffer, u32 copied, u32 lane,
                            const Chunk& following, bool more) {
    constexpr bool LEAVES = Epilogue::CORRECTS && !TRELLIS;
    Body body = body_of(a, buffer);
    bool taken = false;
    if constexpr (LEAVES) taken = state.takes_patches();
    Patches patches;
    if (!find_patches(body, patches, true)) return false;
    if (patches.next < patches.end && !taken && !are_sound(patches, c.blocks, lane)) return false;
    const u32 length = body.end - body.begin, raw_length = c.blocks * 512;
    const bool raw = length == raw_length;
    if (length > raw_length) return false;
    u32 copies = 0;
    if constexpr (Epilogue::COPIES) copies = state.batch.copies;
    QuadCoder<Epilogue::COPIES, Epilogue::BESIDE> d;
    if (!raw && !d.begin(t, body, lane, copies)) return false;
    Epilogue epilogue(state, t, c, lane);
    if constexpr (LEAVES) {
      // The epilogue applies the patches, so the blocks do not.
      if (taken) state.changes = patches, patches.next = patches.end;
    }
    const bool left = LEAVES && patches.next < patches.end;
    const bool interior = !raw && !left && epilogue.takes_interior() && lies_inside(t, c);
    if (!interior) {
      forget();
      any_blocks(t, c, d, body, raw, patches, lane, epilogue);
    } else {
      if (t.shift == 0) blocks<0>(t, c, d, patches, copied, lane, following, more, epilogue);
      else if (t.shift == 1) blocks<1>(t, c, d, patches, copied, lane, following, more, epilogue);
      else if (t.shift == 2) blocks<2>(t, c, d, patches, copied, lane, following, more, epilogue);
      else if (t.shift == 3) blocks<3>(t, c, d, patches, copied, lane, following, more, epilogue);
      else blocks<4>(t, c, d, patches, copied, lane, following, more, epilogue);
    }
    bool good = raw || d.ended_well();
    if (Epilogue::CHECKS) good = good && ballot(patches.wrong) == 0;
    if constexpr (LEAVES) {
      if (taken) good = state.change(t, c, lane) && good;
    }
    state.end(t, c, lane, good);
    return good;
  }

 private:
  // The blocks of a coded chunk inside the matrix. Side words that were copied are at `copied`.
  template <u32 SHIFT, class Decoder, class Epilogue>
  DEVICE_MEMBER void blocks(const Tiles& t, const Chunk& c, Decoder& d, Patches& patches, u32 copied, u32 lane, const Chunk& following,
                            bool more, Epilogue epilogue) {
    constexpr u32 WORDS = SHIFT + 1;
    constexpr bool RAISED = Epilogue::RAISED && !TRELLIS;
    epilogue.begin_interior(RAISED ? 4 - SHIFT : 0);
    const u8* next = nullptr;
    const u8* then = nullptr;
    if constexpr (!Epilogue::BESIDE) {
      if (!ahead.next) ahead.template begin<WORDS>(side(t, c), lane);
      next = ahead.next;
      ahead.next = nullptr;
      if (more) {
        then = side(t, following);
        // One line per lane: memory latency exceeds the distance at which words are loaded ahead. Kernels that only
        // decode are bound by memory anyway.
        if (Epilogue::COPIES) {
#pragma unroll 1
          for (u32 i = lane; i < following.blocks * WORDS; i += LANES) prefetch(then + i * 128);
        }
      }
    }
    u32 carry = 0;
#pragma unroll 1
    for (u32 k = 0; k < c.blocks; k++) {
      u32 side[WORDS];
      if constexpr (Epilogue::BESIDE) {
        read_side<WORDS>(side, lane, SideCopied{copied});
        copied += WORDS * 128;
        // The epilogue may store blocks over these words.
        syncwarp();
      } else {
#pragma unroll
        for (u32 j = 0; j < WORDS; j++) side[j] = ahead.w[j];
        if (k + 1 < c.blocks) read_side<WORDS>(ahead.w, lane, SideOfPlane{next});
        next += WORDS * 128;
      }
      if constexpr (Epilogue::OPERANDS && !TRELLIS) {
        // Patches need all of the block.
        if (!has_patches(patches, k)) {
          u32 e[8];
          d.two(e[0], e[1], e[4], e[5]);
          d.two(e[2], e[3], e[6], e[7]);
#pragma unroll
          for (u32 j = 0; j < 8; j++) {
            const u32 signs = quad_signs<SHIFT>(side, j);
            epilogue.operands(j, {quad_v<SHIFT>(e[j], side, j), prmt(signs, 0, SIGNS_FIRST), prmt(signs, 0, SIGNS_SECOND)});
          }
          epilogue.next();
          continue;
        }
      }
      Block b;
#pragma unroll
      for (u32 j = 0; j < 4; j += 2) {
        u32 e[4];
        d.two(e[0], e[1], e[2], e[3]);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
          const u32 word = j + i % 2 + i / 2 * 4;
          b.q[word] = RAISED ? merge_quad_raised<SHIFT>(e[i], side, word) : merge_quad<SHIFT>(e[i], side, word);
        }
      }
      if constexpr (!(Epilogue::CORRECTS && !TRELLIS)) apply_patches<Epilogue::CHECKS>(patches, b, k, lane);
      if (TRELLIS) unfilter_trellis(b, lane, carry);
      epilogue.interior(b);
    }
    if constexpr (!Epilogue::BESIDE) {
      if (more) ahead.template begin<WORDS>(then, lane);
    }
  }

  // The blocks of any chunk.
  template <class Decoder, class Epilogue>
  DEVICE_MEMBER void any_blocks(const Tiles& t, const Chunk& c, Decoder& d, Body body, bool raw, Patches& patches, u32 lane, Epilogue epilogue) {
    const u8* from = side(t, c);
    u32 carry = 0;
#pragma unroll 1
    for (u32 k = 0; k < c.blocks; k++) {
      u32 side_words[MOST_QUAD_SIDE] = {0, 0, 0, 0, 0};
      if (t.shift == 0) read_side<1>(side_words, lane, SideOfPlane{from});
      else if (t.shift == 1) read_side<2>(side_words, lane, SideOfPlane{from});
      else if (t.shift == 2) read_side<3>(side_words, lane, SideOfPlane{from});
      else if (t.shift == 3) read_side<4>(side_words, lane, SideOfPlane{from});
      else read_side<5>(side_words, lane, SideOfPlane{from});
      from += (t.shift + 1u) * 128;
      Block b;
#pragma unroll
      for (u32 j = 0; j < 4; j += 2) {
        u32 e[4];
        if (raw) {
          const u32 at = body.begin + k * 512 + lane * 8 + j * 2;
#pragma unroll
          for (u32 i = 0; i < 4; i++) e[i] = quad_entry(lds16(at + i % 2 * 2 + i / 2 * 256));
        } else {
          d.two(e[0], e[1], e[2], e[3]);
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
          const u32 word = j + i % 2 + i / 2 * 4;
          b.q[word] = merge_quad_any(e[i], side_words, t.shift, word);
        }
      }
      apply_patches<Epilogue::CHECKS>(patches, b, k, lane);
      if (TRELLIS) unfilter_trellis(b, lane, carry);
      epilogue.any(b);
    }
  }
};

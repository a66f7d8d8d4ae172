// From coded symbols and side words to int8: four elements a word. FORMAT.md section 3.
#pragma once
#include "coders.h"

// Adds bytes, modulo 256 each.
DEVICE u32 add_bytes(u32 a, u32 b) {
  return ((a & 0x7F7F7F7Fu) + (b & 0x7F7F7F7Fu)) ^ ((a ^ b) & 0x80808080u);
}

// High parts of four elements, `shift` bits up in their bytes; the caller masks other bits.
DEVICE u32 spread_pairs(u32 twice, u32 shift) {
  // `twice` holds each of two symbols in two bytes.
  return (twice << shift & 0x00FF00FFu) | (twice >> (4 - shift) & 0xFF00FF00u);
}
// Huffman's tables store them in place, with zeros beside them.
template <u32 CODER>
DEVICE u32 high_parts(u32 a, u32 b, u32 shift) {
  return CODER == HUFFMAN ? prmt(a, b, 0x7632) : spread_pairs(prmt(a, b, 0x7733), shift);
}

// Sign and v of four elements with their signs unfolded: v where bit 7 is 0, else ~v.
DEVICE u32 unfold(u32 m) { return m ^ (prmt(m, m, 0xBA98) & 0x7F7F7F7Fu); }

// Shift 3: `side` has signs and low bits in bits 7 and 0 to 2 of its bytes; other bits are masked here.
DEVICE u32 merge_shift3(u32 high, u32 side) { return unfold((high & 0x78787878u) | (side & 0x87878787u)); }

// Shifts 0 to 2, element word `k`, from high parts of a decoder. `side` holds the shift + 1 side words of the lane and
// block.
template <u32 CODER, u32 SHIFT>
DEVICE u32 merge_low(u32 high, const u32* side, u32 k) {
  const u32 upper = CODER == HUFFMAN ? high : high & (0x0F0F0F0Fu << SHIFT);
  // Signs are shifted to the top bits of bytes, so none crosses bytes, as low bits do.
  const u32 low = SHIFT == 0 ? 0 : side[SHIFT == 1 ? k / 4 : 1 + k / 4];
  const u32 turned = fshl(low, low, 2 * (k % 4)), signs = SHIFT == 1 ? turned : side[0] << k;
  // v, or ~v where the sign is 1.
  return (upper | (turned & (SHIFT == 0 ? 0 : SHIFT == 1 ? 0x01010101u : 0x03030303u))) ^ prmt(signs, signs, 0xBA98);
}

// Four elements with separate signs: each v (FORMAT.md section 3) as a byte, and signs at bits 15 and 31 among other
// bits: those of elements 0 and 1 in `first`, those of elements 2 and 3 in `second`.
struct Signed {
  u32 v, first, second;
};

// Selectors that move the sign bits of four bytes to bits 15 and 31.
#define SIGNS_FIRST 0x1404
#define SIGNS_SECOND 0x3424

// Shift 3: as `merge_shift3`, with separate signs.
DEVICE Signed split_shift3(u32 high, u32 side) {
  return {(high & 0x78787878u) | (side & 0x07070707u), prmt(side, 0, SIGNS_FIRST), prmt(side, 0, SIGNS_SECOND)};
}

// Shifts 0 to 2: as `merge_low`, with separate signs.
template <u32 CODER, u32 SHIFT>
DEVICE Signed split_low(u32 high, const u32* side, u32 k) {
  const u32 upper = CODER == HUFFMAN ? high : high & (0x0F0F0F0Fu << SHIFT);
  const u32 low = SHIFT == 0 ? 0 : side[SHIFT == 1 ? k / 4 : 1 + k / 4];
  const u32 turned = fshl(low, low, 2 * (k % 4));
  const u32 v = upper | (turned & (SHIFT == 0 ? 0 : SHIFT == 1 ? 0x01010101u : 0x03030303u));
  if (SHIFT == 1) return {v, prmt(turned, 0, SIGNS_FIRST), prmt(turned, 0, SIGNS_SECOND)};
  // Permuted once for all words of the block, and then only shifted.
  return {v, prmt(side[0], 0, SIGNS_FIRST) << k, prmt(side[0], 0, SIGNS_SECOND) << k};
}

// Separates the signs of merged elements.
DEVICE Signed split_merged(u32 q) {
  const u32 signs = prmt(q, q, 0xBA98);
  return {(q ^ signs) & 0x7F7F7F7Fu, prmt(signs, 0, SIGNS_FIRST), prmt(signs, 0, SIGNS_SECOND)};
}

// Any shift. `side` holds the shift + 1 side words of the lane and block.
DEVICE u32 merge_any(u32 high, const u32* side, u32 shift, u32 k) {
  u32 m;
  if (shift == 3) {
    const u32 s = k < 2 ? side[0] : k < 4 ? side[1] : k < 6 ? side[2] : side[3];
    m = fshl(s, s, 4 * (k & 1)) & 0x87878787u;
  } else if (shift == 2) {
    const u32 low = k < 4 ? side[1] : side[2];
    m = (fshl(side[0], side[0], k) & 0x80808080u) | (fshl(low, low, 2 * (k & 3)) & 0x03030303u);
  } else if (shift == 1) {
    const u32 s = k < 4 ? side[0] : side[1];
    m = fshl(s, s, 2 * (k & 3)) & 0x81818181u;
  } else {
    m = fshl(side[0], side[0], k) & 0x80808080u;
  }
  return unfold(m | (high & 0x0F0F0F0Fu << shift));
}

// The weights of a block of 16 rows and 64 columns that a lane holds, as int8: for each of two rows the 16 columns in
// four words. With g = lane / 4 and t = lane % 4, byte i of word j is
//
//   | word     | row   | column               |
//   |----------|-------|----------------------|
//   | j = 0..3 | g     | 16 t + 4 j + i       |
//   | j = 4..7 | g + 8 | 16 t + 4 (j - 4) + i |
//
// The rows are those of a tensor core's operand A (simt.h, `mma_f16`): if its columns are taken in the order 4 j to 4 j
// + 3 of each t, words j and j + 4 are one operand.
struct Block {
  u32 q[8];
};

// Undoes filter `left` within a row of the tile. `carry` is the last byte of the block before: row g in byte 0, row g + 8
// in byte 2.
DEVICE void unfilter_left(Block& b, u32 lane, u32& carry) {
  for (u32 half = 0; half < 2; half++) {
    u32 last = 0;
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      u32& w = b.q[half * 4 + j];
      w = add_bytes(w, w << 8);
      w = add_bytes(w, w << 16);
      w = add_bytes(w, last);
      last = prmt(w, 0, 0x3333);
    }
  }
  // Sums over the lanes of a row, both rows at once.
  u32 sum = prmt(b.q[3], b.q[7], 0x7733) & 0x00FF00FFu;
  const u32 t = lane & 3;
  const u32 of_lane = sum;
  u32 other = shfl_up(sum, 1);
  if (t >= 1) sum = add_bytes(sum, other);
  other = shfl_up(sum, 2);
  if (t >= 2) sum = add_bytes(sum, other);
  sum = add_bytes(sum, carry);
  // Before this lane: the sum up to it without its own.
  const u32 before = add_bytes(sum, add_bytes(~of_lane & 0x00FF00FFu, 0x00010001u)) & 0x00FF00FFu;
  carry = shfl(sum, lane | 3);
#pragma unroll
  for (u32 j = 0; j < 4; j++) {
    b.q[j] = add_bytes(b.q[j], prmt(before, 0, 0x0000));
    b.q[4 + j] = add_bytes(b.q[4 + j], prmt(before, 0, 0x2222));
  }
}

// Undoes filter `up` within the 16 rows of the tile.
DEVICE void unfilter_up(Block& b, u32 lane) {
  const u32 g = lane >> 2;
#pragma unroll
  for (u32 j = 0; j < 8; j++) {
#pragma unroll
    for (u32 d = 1; d < 8; d *= 2) {
      const u32 other = shfl_up(b.q[j], 4 * d);
      if (g >= d) b.q[j] = add_bytes(b.q[j], other);
    }
  }
#pragma unroll
  for (u32 j = 0; j < 4; j++) b.q[4 + j] = add_bytes(b.q[4 + j], shfl(b.q[j], 28 + (lane & 3)));
}

// Undoes filter `trellis` within a row of the tile. `carry` has in bit 0 of its bytes the parities of the lowest bits
// of the blocks before: for the even columns of row g, for the odd ones, and the same for row g + 8.
DEVICE void unfilter_trellis(Block& b, u32 lane, u32& carry) {
  const u32 g = b.q[0] ^ b.q[1] ^ b.q[2] ^ b.q[3], g8 = b.q[4] ^ b.q[5] ^ b.q[6] ^ b.q[7];
  const u32 parities = prmt(g, g8, 0x5410) ^ prmt(g, g8, 0x7632);
  // The parities of the preceding lanes among the row's four.
  const u32 first = shfl(parities, lane ^ 1), two = parities ^ first, second = shfl(two, lane ^ 2);
  const u32 before = (carry ^ (lane & 1 ? first : 0) ^ (lane & 2 ? second : 0)) & 0x01010101u;
  carry ^= two ^ second;
#pragma unroll
  for (u32 half = 0; half < 2; half++) {
    // The quantizer of a column is the parity of the columns before it at distances 1, 3 and so on. `sum` has sums
    // whose lowest bits are parities: over the columns before a word that count for each of its bytes.
    u32 sum = prmt(before, 0, half ? 0x2323 : 0x0101);
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      u32& q = b.q[half * 4 + j];
      const u32 bits = q & 0x01010101u, quantizers = bits * 0x01000100u + sum;
      sum += prmt(bits * 0x00010001u, 0, 0x2323);
      // Sign, bits 0 to 5 shifted up by one, quantizer: equivalent to FORMAT.md, since ~v at bit 7 goes with ~k.
      const u32 level = (q << 1 & 0xFEFEFEFEu) | (quantizers & 0x01010101u);
      q = (q & 0x80808080u) | (level & 0x7F7F7F7Fu);
    }
  }
}

// Entropy decoders: one struct a coder, one state a lane. FORMAT.md sections 6 and 7.
//
// A body lies in shared memory with zeros behind it. Corrupt bytes may make a decoder run on into them, never beyond:
// `CODER_SLACK` says how far, and the host sizes the buffers by it.
#pragma once
#include "simt.h"

#define RANS 0
#define HUFFMAN 1

struct Body {
  u32 begin;  // address in shared memory, a multiple of 4
  u32 end;
};

template <u32 CODER, u32 BITS>
struct Coder;

// BITS: log2 of the table's slots, or 0 where it is not known before the launch.
template <u32 BITS>
struct TableBits {
  u32 bits;
  DEVICE_MEMBER u32 get() const { return bits; }
  DEVICE_MEMBER void set(u32 v) { bits = v; }
};
template <>
struct TableBits<12> {
  DEVICE_MEMBER u32 get() const { return 12; }
  DEVICE_MEMBER void set(u32) {}
};

// Table entries: frequency in bits 0 to 11, slot minus start in bits 12 to 23, symbol in bits 24 to 31.
template <u32 BITS>
struct Coder<RANS, BITS> {
  u32 x, next, below, limit, table;
  TableBits<BITS> bits;

  static DEVICE_MEMBER u32 header_bytes() { return LANES * 4; }

  DEVICE_MEMBER void begin(Body body, u32 lane, u32 at, u32 table_bits) {
    table = at;
    x = lds32(body.begin + lane * 4);
    next = body.begin + LANES * 4;
    limit = body.end + 2;
    below = (1u << lane) - 1;
    bits.set(table_bits);
  }

  DEVICE_MEMBER u32 step() {
    const u32 e = lds32_constant(table + (x & ((1u << bits.get()) - 1)) * 4);
    x = (e & 0xFFF) * (x >> bits.get()) + (e >> 12 & 0xFFF);
    take_words(x, next, below);
    return e;
  }

  DEVICE_MEMBER void two(u32& a, u32& b) {
    a = step();
    b = step();
  }

  // Called after four steps at most, which take 256 bytes: who has run out of words stays just behind the end.
  DEVICE_MEMBER void stay_inside() { next = next < limit ? next : limit; }

  // The 16 bits that a lane's state ends with, in the lower half.
  DEVICE_MEMBER u32 payload() const { return x; }

  // Whether all lanes ended as a valid chunk makes them end.
  DEVICE_MEMBER bool ended_well(Body body, u32) const {
    const bool words = next == body.end || (next + 2 == body.end && lds16(next) == 0);
    return ballot(x >> 16 != 1 || !words) == 0;
  }
};

// Table entries: length of the code in bits 0 to 4, zeros up to bit 15, then the symbol (byte 3, or a nibble three bits up in
// byte 2 and one in byte 3). The window keeps the next code at bit 2, so that it is a byte address into the table.
template <u32 BITS>
struct Coder<HUFFMAN, BITS> {
  u32 lo, hi, after, position, next, start, table;
  TableBits<BITS> bits;

  static DEVICE_MEMBER u32 header_bytes() { return LANES * 2; }

  DEVICE_MEMBER void begin(Body body, u32 lane, u32 at, u32 table_bits) {
    table = at;
    start = lds16(body.begin + lane * 2);
    bits.set(table_bits);
    const u32 first = body.begin + LANES * 2 + (start >> 5) * 4;
    // A damaged start may point anywhere: behind the end everything is zero, wherever one is.
    next = first < body.end ? first : body.end;
    position = start & 31;
    lo = lds32(next);
    hi = lds32(next + 4);
    after = lds32(next + 8);
    next += 12;
  }

  DEVICE_MEMBER void two(u32& a, u32& b) {
    const u32 mask = ((1u << bits.get()) - 1) << 2;
    const u32 w = fshr(lo, hi, position);
    a = lds32_constant(table + (w & mask));
    b = lds32_constant(table + (fshr(w, 0, a) & mask));  // the shift takes five bits of the entry: the length
    const u32 p = position + a + b;
    // One word more than the window is held, so that nothing waits for this load.
    if ((p ^ position) & 32) {
      lo = hi;
      hi = after;
      after = lds32(next);
      next += 4;
    }
    position = p;
  }

  DEVICE_MEMBER void stay_inside() {}

  DEVICE_MEMBER u32 payload() const { return 0; }

  DEVICE_MEMBER bool ended_well(Body body, u32 lane) const {
    const u32 words = body.begin + LANES * 2;
    const u32 end = (start & ~31u) + (position & 0xFFFF);  // minus 2, like `start`
    const u32 after = shfl(start, lane + 1 < LANES ? lane + 1 : lane);
    bool good;
    if (lane + 1 < LANES) {
      good = end == after && words + (start >> 5) * 4 < body.end;
    } else {
      const u32 bits = end + 2, whole = words + bits / 32 * 4;
      good = bits % 32 ? whole + 4 == body.end && lds32(whole) >> (bits % 32) == 0 : whole == body.end;
    }
    if (lane == 0) good = good && start == 0 && (lds32(words) & 3) == 0;
    return ballot(!good) == 0;
  }
};

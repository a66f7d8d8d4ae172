// Entropy decoders: one struct per coder, one state per lane. FORMAT.md sections 6 and 7.
//
// A body lies in shared memory. Corrupt bytes may make a decoder run past its end: the host (`TilesPlan::slack`) bounds
// how far, and sizes the buffers accordingly. The bytes there belong to other chunks and do no harm: a lane that took
// bits from there is codes damaged at the end.
#pragma once
#include "chunk.h"

#define RANS 0
#define HUFFMAN 1

// COPIES: the table may be stored in several copies. EARLY: for kernels whose warps have one chunk each, which they
// decode early.
template <u32 CODER, u32 BITS, bool COPIES = false, bool EARLY = false>
struct Coder;

// BITS: log2 of the table's slots, or 0 if it is not known before the launch.
template <u32 BITS>
struct TableBits {
  u32 bits;
  DEVICE_MEMBER u32 get() const { return bits; }
  DEVICE_MEMBER void set(const Tiles& t) { bits = t.bits; }
};
template <>
struct TableBits<12> {
  DEVICE_MEMBER u32 get() const { return 12; }
  DEVICE_MEMBER void set(const Tiles&) {}
};

// Table entries: frequency in bits 0 to 11, slot minus start in bits 12 to 23, symbol in bits 24 to 31.
template <u32 BITS, bool COPIES, bool EARLY>
struct Coder<RANS, BITS, COPIES, EARLY> {
  u32 x, next, below, limit;
  TableBits<BITS> bits;

  // Whether the body begins like that of a valid chunk. If not, there is nothing to decode.
  DEVICE_MEMBER bool begin(const Tiles& t, Body body, u32 lane, u32 = 0) {
    if (body.end - body.begin < LANES * 4) return false;
    x = lds32(body.begin + lane * 4);
    next = body.begin + LANES * 4;
    limit = body.end + 2;
    below = (1u << lane) - 1;
    bits.set(t);
    return true;
  }

  DEVICE_MEMBER u32 step() {
    const u32 e = lds32_table((x & ((1u << bits.get()) - 1)) * 4);
    x = (e & 0xFFF) * (x >> bits.get()) + (e >> 12 & 0xFFF);
    take_words(x, next, below, limit - 2);
    return e;
  }

  DEVICE_MEMBER void two(u32& a, u32& b) {
    a = step();
    b = step();
  }

  // Called after at most four steps, which take 256 bytes: a lane that has run out of words stays just past the end.
  DEVICE_MEMBER void stay_inside() { next = next < limit ? next : limit; }

  // Called after the last step: returns the lane's tail. From then on, x tells whether the lane ended as in a valid
  // chunk.
  DEVICE_MEMBER u32 tail(Body body) {
    const u32 zeros = clz(x), z = zeros < 15 ? zeros : 15, held = 30 - z;
    // The 2 + z bits that the state does not hold follow the words, lane after lane: z is summed bit by bit.
    u32 at = 2 * popc(below), all = 2 * LANES;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      const u32 lanes = ballot(z >> i & 1);
      at += popc(lanes & below) << i;
      all += popc(lanes) << i;
    }
    const u32 from = next + at / 16 * 2;
    const u32 rest = prmt(lds16_stream(from, body.end), lds16_stream(from + 2, body.end), 0x5410) >> (at % 16);
    const u32 codes = (x & ((1u << held) - 1)) | rest << held;
    // Fewer than 32 bits are left, and they are zero.
    const u32 left = (body.end - next) * 8 - all;
    x = x >> held == 2 && left < 32 && lds32(body.end - 4) >> 1 >> (31 - left) == 0;
    return codes;
  }

  DEVICE_MEMBER bool ended_well() const { return ballot(x == 0) == 0; }
};

// A lane's copy of the table. With 2^log copies, word c of entry i is copy c: with as many copies as shared memory has
// banks, lanes never conflict.
template <bool COPIES>
struct TableCopy {
  u32 up, copy;
  DEVICE_MEMBER u32 shift() const { return up; }
  DEVICE_MEMBER u32 place(u32 entry) const { return entry | copy; }
  DEVICE_MEMBER void set(u32 copies, u32 lane) {
    up = 2 + copies;
    copy = lane * 4 & ((4u << copies) - 4);
  }
};
template <>
struct TableCopy<false> {
  DEVICE_MEMBER u32 shift() const { return 2; }
  DEVICE_MEMBER u32 place(u32 entry) const { return entry; }
  DEVICE_MEMBER void set(u32, u32) {}
};

// The next bits of a stream of codes, and their source. It holds one word more than the window's two, so that nothing
// waits for a load.
template <bool EARLY>
struct Window {
  u32 lo, hi, after, position, next;

  // Starts at bit `start`, counted from the word before `words`, where the first bits may be; bytes before the words
  // may be the header's, since they are masked.
  DEVICE_MEMBER void begin(u32 words, u32 start, u32 limit) {
    next = words + (start >> 5) * 4 - 4;
    position = start & 31;
    lo = lds32_stream(next, limit);
    hi = lds32_stream(next + 4, limit);
    after = lds32_stream(next + 8, limit);
    next += 12;
  }
  DEVICE_MEMBER u32 bits() const { return fshr(lo, hi, position); }
  // Moves to a position less than 32 bits ahead.
  DEVICE_MEMBER void move(u32 p, u32 limit) {
    const u32 on = (p ^ position) & 32;
    if constexpr (EARLY) {
      next_word(on, lo, hi, after, next, limit);
    } else if (on) {
      lo = hi;
      hi = after;
      after = lds32_stream(next, limit);
      next += 4;
    }
    position = p;
  }
};

// Table entries: length of the code in bits 0 to 4, zeros up to bit 15, then the symbol (byte 3; in layout `pair` a
// nibble in byte 2 and one in byte 3, each shifted left by the plane's shift, with zeros beside them; entries of layout
// `quad` are in quad.h). The window keeps the next code at bit 2, plus log2 of the number of copies, so that it is a
// byte address into the table.
template <u32 BITS, bool COPIES, bool EARLY>
struct Coder<HUFFMAN, BITS, COPIES, EARLY> {
  Window<EARLY> window;
  u32 end, limit;
  TableBits<BITS> bits;
  TableCopy<COPIES> copy;

  // A body: u16 least, u16 wide, the lanes' excesses in u8 or u16, and words of codes: two bits that are 0, the codes
  // of all lanes, and zeros up to a whole word. The end of each lane is known from the beginning, so everything else is
  // checked here.
  DEVICE_MEMBER bool begin(const Tiles& t, Body body, u32 lane, u32 copies = 0) {
    bits.set(t);
    copy.set(copies, lane);
    if (body.end - body.begin < 4) return false;
    const u32 head = lds32(body.begin), wide = head >> 16, words = body.begin + (wide ? 4 + LANES * 2 : 4 + LANES);
    if (words >= body.end) return false;
    const u32 bits = (head & 0xFFFF) + (wide ? lds16(body.begin + 4 + lane * 2) : lds8(body.begin + 4 + lane));
    const u32 sum = sum_up_to(bits, lane), all = shfl(sum, LANES - 1) + 2;
    if (wide > 1 || words + (all + 31) / 32 * 4 != body.end) return false;
    const u32 start = sum - bits + 2 + 32 - copy.shift();
    limit = body.end;
    window.begin(words, start, limit);
    end = window.position + bits;
    return (lds32(words) & 3) == 0 && (all % 32 == 0 || lds32(body.end - 4) >> (all % 32) == 0);
  }

  DEVICE_MEMBER void two(u32& a, u32& b) {
    const u32 mask = ((1u << bits.get()) - 1) << copy.shift();
    const u32 w = window.bits();
    a = lds32_table(copy.place(w & mask));
    b = lds32_table(copy.place(fshr(w, 0, a) & mask));  // the shift uses five bits of the entry: the length
    window.move(window.position + a + b, limit);
  }

  // For a table of at most eight bits: three codes take at most 24 of the window's 32 bits, and at most seven bits lie
  // below them.
  DEVICE_MEMBER void three(u32& a, u32& b, u32& c) {
    const u32 mask = ((1u << bits.get()) - 1) << copy.shift();
    const u32 w = window.bits();
    a = lds32_table(copy.place(w & mask));
    const u32 v = fshr(w, 0, a);
    b = lds32_table(copy.place(v & mask));
    c = lds32_table(copy.place(fshr(v, 0, b) & mask));
    window.move(window.position + a + b + c, limit);
  }

  DEVICE_MEMBER void stay_inside() {}

  DEVICE_MEMBER u32 tail(Body) const { return 0; }

  // Lengths were summed in the lower half, symbols in the upper one.
  DEVICE_MEMBER bool ended_well() const { return ballot((window.position & 0xFFFF) != end) == 0; }
};

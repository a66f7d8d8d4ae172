// Writes decoded elements, as int8 or dequantized. FORMAT.md section 2, schemes `int8` and `rate`.
#pragma once
#include "abi.h"
#include "symbols.h"

template <u32 OUT>
struct Element {
  static DEVICE_MEMBER u32 bytes() { return OUT == OUT_INT8 ? 1 : OUT == OUT_F32 ? 4 : 2; }
};

// The properties of scales that the compiler may assume.
#define SCALES_INT8 0  // they are f32, and symbols have no offset
#define SCALES_ANY 1   // anything

// The conversion of symbols to values: `base` is 2^15 + o / 256 as f32 if symbols have an offset of o 256ths.
struct Steps {
  u32 base;
  float scale;
};

template <u32 SCALES>
DEVICE u32 steps_base(const Output& o) {
  return 0x47000000u | (SCALES == SCALES_ANY ? o.offset : 0);
}

template <u32 SCALES>
DEVICE float scale_at(const Output& o, u64 row, u32 col) {
  const u64 place = row * o.scales_per_row + col / o.scale_columns;
  if (SCALES == SCALES_ANY && o.scale_bytes == 2) return bits_f32(ldg16((const u8*)o.scales + place * 2) << 16);
  return bits_f32(ldg32((const u8*)o.scales + place * 4));
}

// A symbol plus its offset, given the symbol plus 128 in a byte of `u`. The byte is inserted as byte 1 of the base,
// where it counts ones: the sum is exact in f32, and so is the difference. `selector` is 0x7604, plus 16 times the
// byte's index.
DEVICE float level(u32 u, u32 base, u32 selector) { return bits_f32(prmt(u, base, selector)) - 32896.0f; }

// Four symbols as floats, times their scale, rounded once to f32.
DEVICE void scaled(u32 q, Steps s, float* v) {
  const u32 u = q ^ 0x80808080u;
  v[0] = mul_rn(level(u, s.base, 0x7604), s.scale);
  v[1] = mul_rn(level(u, s.base, 0x7614), s.scale);
  v[2] = mul_rn(level(u, s.base, 0x7624), s.scale);
  v[3] = mul_rn(level(u, s.base, 0x7634), s.scale);
}

// A factor of a column in the lower or upper half of a word.
DEVICE float lower_factor(u32 word) { return bits_f32(word << 16); }
DEVICE float upper_factor(u32 word) { return bits_f32(word & 0xFFFF0000u); }

// Those four times the factors of their columns, rounded again.
DEVICE void times_factors(Vec2 factors, float* v) {
  v[0] = mul_rn(v[0], lower_factor(factors.x));
  v[1] = mul_rn(v[1], upper_factor(factors.x));
  v[2] = mul_rn(v[2], lower_factor(factors.y));
  v[3] = mul_rn(v[3], upper_factor(factors.y));
}

// Writes four elements of f32, or eight of 2 bytes, to a multiple of 16 bytes.
DEVICE void emit4(u8* to, const float* v) { stg128(to, {f32_bits(v[0]), f32_bits(v[1]), f32_bits(v[2]), f32_bits(v[3])}); }
template <u32 OUT>
DEVICE void emit8(u8* to, const float* v, const float* w) {
  if (OUT == OUT_F16) stg128(to, {pack_f16(v[0], v[1]), pack_f16(v[2], v[3]), pack_f16(w[0], w[1]), pack_f16(w[2], w[3])});
  else stg128(to, {pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(w[0], w[1]), pack_bf16(w[2], w[3])});
}

// Writes 16 adjacent elements to `to`, a multiple of 16 bytes. `factors` is the address of those of their columns, a
// multiple of 8, or 0 if these have none.
template <u32 OUT>
DEVICE void emit16(u8* to, const u32* q, Steps s, u64 factors) {
  if constexpr (OUT == OUT_INT8) {
    stg128(to, {q[0], q[1], q[2], q[3]});
  } else {
#pragma unroll
    for (u32 j = 0; j < 4; j += 2) {
      float v[4], w[4];
      scaled(q[j], s, v);
      scaled(q[j + 1], s, w);
      if (factors) {
        times_factors(ldg64((const u8*)factors + 8 * j), v);
        times_factors(ldg64((const u8*)factors + 8 * j + 8), w);
      }
      if constexpr (OUT == OUT_F32) {
        emit4(to + 16 * j, v);
        emit4(to + 16 * j + 16, w);
      } else {
        emit8<OUT>(to + 8 * j, v, w);
      }
    }
  }
}

// Exchanges elements among the four lanes of a row so that the lanes' stores fill whole sectors of 32 bytes; with int8
// they do so already. With 2 bytes, a lane gets 8 of the 32 elements of its pair of lanes, twice; with 4 bytes, 4 of
// the row's 64, four times.
template <u32 OUT>
DEVICE void exchange(u32* q, u32 lane) {
  if constexpr (OUT != OUT_INT8) {
    const bool odd = lane & 1;
    if constexpr (OUT == OUT_F32) {
      // Transposes four words of four lanes, in two steps.
      u32 a = shfl(odd ? q[0] : q[1], lane ^ 1), b = shfl(odd ? q[2] : q[3], lane ^ 1);
      if (odd) {
        q[0] = a;
        q[2] = b;
      } else {
        q[1] = a;
        q[3] = b;
      }
      const bool upper = lane & 2;
      a = shfl(upper ? q[0] : q[2], lane ^ 2);
      b = shfl(upper ? q[1] : q[3], lane ^ 2);
      if (upper) {
        q[0] = a;
        q[1] = b;
      } else {
        q[2] = a;
        q[3] = b;
      }
    } else {
      const u32 a = shfl(odd ? q[0] : q[2], lane ^ 1), b = shfl(odd ? q[1] : q[3], lane ^ 1);
      if (odd) {
        q[0] = a;
        q[1] = b;
      } else {
        q[2] = a;
        q[3] = b;
      }
    }
  }
}

// The byte offset, from the row's elements of a block, of a lane's first store after `exchange`.
template <u32 OUT>
DEVICE u32 exchanged_place(u32 lane) {
  const u32 t = lane & 3;
  if (OUT == OUT_INT8) return t * 16;
  return OUT == OUT_F32 ? t * 16 : (t >> 1) * 64 + (t & 1) * 16;
}

// Writes the result of `exchange`; `scales` has one for each group of 16 columns that the lanes had.
template <u32 OUT>
DEVICE void emit_exchanged(u8* to, const u32* q, u32 base, const float* scales) {
  if constexpr (OUT == OUT_INT8) {
    stg128(to, {q[0], q[1], q[2], q[3]});
  } else if constexpr (OUT == OUT_F32) {
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      float v[4];
      scaled(q[j], {base, scales[j]}, v);
      emit4(to + 64 * j, v);
    }
  } else {
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
      float v[4], w[4];
      scaled(q[2 * j], {base, scales[j]}, v);
      scaled(q[2 * j + 1], {base, scales[j]}, w);
      emit8<OUT>(to + 32 * j, v, w);
    }
  }
}

// Writes two rows as `emit_exchanged` does, times the factors of their columns: `factors` is the address of that of the
// first column of the lane's first stores. Factors are loaded one after the other: all at once they would take registers
// of the decoder.
template <u32 OUT>
DEVICE void emit_with_factors(u8* to, u8* to8, const u32* q, Steps s, Steps s8, u64 factors) {
  if constexpr (OUT != OUT_INT8) {
    float v[4], w[4];
    const auto values = [&](u32 k, Steps by, Vec2 four, float* of) {
      scaled(q[k], by, of);
      times_factors(four, of);
    };
#pragma unroll
    for (u32 j = 0; j < (OUT == OUT_F32 ? 4 : 2); j++) {
      const u8* const at = (const u8*)factors + 32 * j;
      if constexpr (OUT == OUT_F32) {
        const Vec2 four = ldg64_late(at);
        values(j, s, four, v);
        emit4(to + 64 * j, v);
        values(4 + j, s8, four, w);
        emit4(to8 + 64 * j, w);
      } else {
        const Vec4 eight = load128(at);
        values(2 * j, s, {eight.x, eight.y}, v);
        values(2 * j + 1, s, {eight.z, eight.w}, w);
        emit8<OUT>(to + 32 * j, v, w);
        values(4 + 2 * j, s8, {eight.x, eight.y}, v);
        values(5 + 2 * j, s8, {eight.z, eight.w}, w);
        emit8<OUT>(to8 + 32 * j, v, w);
      }
    }
  }
}

// Writes one element. `factor` is at its column's factor, or 0.
template <u32 OUT>
DEVICE void emit1(u8* to, u32 q, Steps s, u64 factor) {
  if (OUT == OUT_INT8) {
    stg8(to, q);
    return;
  }
  float v = mul_rn(level(q ^ 0x80, s.base, 0x7604), s.scale);
  if (factor) v = mul_rn(v, lower_factor(ldg16((const u8*)factor)));
  if (OUT == OUT_F32) stg32(to, f32_bits(v));
  else stg16(to, (OUT == OUT_F16 ? pack_f16(v, 0) : pack_bf16(v, 0)) & 0xFFFF);
}

// Writes the first `count` of 16 elements, `stride` bytes apart. `factors` are their columns', or 0.
template <u32 OUT>
DEVICE void emit_some(u8* to, const u32* q, Steps s, u64 factors, u32 count, u64 stride) {
#pragma unroll
  for (u32 j = 0; j < 4; j++) {
    u32 w = q[j];
#pragma unroll 1
    for (u32 i = 4 * j; i < 4 * j + 4 && i < count; i++, w >>= 8) {
      emit1<OUT>(to + i * stride, w & 0xFF, s, factors ? factors + i * 2 : 0);
    }
  }
}

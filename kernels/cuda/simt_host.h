// The primitives of simt.h for the CPU: kernels compiled with this run under the emulator (simt_engine.h), which fails
// a launch on behaviour that would be undefined on a GPU:
// - access to shared memory outside of it, misaligned, or racing with another thread's;
// - access to global memory outside the ranges that the launch names, misaligned, or a store to read-only memory; in a
//   launch that overlaps with the preceding one, stores and ordinary loads before `overlap_wait`;
// - primitives of a warp or block that not all of its threads reach, or that they reach at different places;
// - shifts by 32 and more, indices outside an array, signed overflow, division by zero;
// - a barrier that was not initialised and fenced, a wait for a copy that was never started, or that would not wait for
//   it where copies are counted, a read of a copy in flight.
// Shared memory, and the target of a copy until it is waited for, hold 0xA5. Kernels access memory only through these
// functions. The location in a message is that of the primitive.
#pragma once
#include "simt_run.h"
#include "simt_undefined.h"

#define DEVICE static inline
#define DEVICE_MEMBER inline
#define DEVICE_RARE static inline

// The name of this translation unit: `simt_run_<module>` runs its kernels.
#ifndef SIMT_MODULE
#error "compile with -DSIMT_MODULE=name"
#endif
#define SIMT_JOIN_(a, b) a##b
#define SIMT_JOIN(a, b) SIMT_JOIN_(a, b)

extern "C" int SIMT_JOIN(simt_run_, SIMT_MODULE)(const simt::Launch* launch) {
  return simt::run(*launch, simt::kernels);
}

#define KERNEL(name, threads, blocks, Params)                                                                     \
  static void name(const Params& params);                                                                         \
  static void simt_enter_##name(const void* params) { name(*(const Params*)params); }                             \
  static simt::Register simt_register_##name(simt::kernels, #name, sizeof(Params), (threads), simt_enter_##name); \
  static void name(const Params& params)

// The location of the call, for messages.
#define SIMT_AT const char *file = __builtin_FILE(), u32 line = __builtin_LINE()
#define SIMT_HERE \
  simt::At { file, line }

DEVICE u32 thread_index() { return simt::grid->now->thread; }
DEVICE u32 block_index() { return simt::grid->block; }
DEVICE u32 block_threads() { return simt::grid->threads; }
DEVICE u32 grid_blocks() { return simt::grid->launch->grid; }

DEVICE u32 ballot(bool p, SIMT_AT) { return simt::meet(simt::BALLOT, 0, p, SIMT_HERE)->bits; }
DEVICE u32 shfl(u32 v, u32 lane, SIMT_AT) { return simt::meet(simt::SHFL, v, false, SIMT_HERE)->values[lane % LANES]; }
DEVICE u32 shfl_up(u32 v, u32 delta, SIMT_AT) {
  if (delta >= LANES) simt::fail(SIMT_HERE, "shfl_up by %u lanes", delta);
  const u32 lane = thread_index() % LANES;
  const simt::Meeting* const m = simt::meet(simt::SHFL_UP, v, false, SIMT_HERE);
  return lane < delta ? v : m->values[lane - delta];
}
DEVICE void syncwarp(SIMT_AT) { simt::meet(simt::SYNCWARP, 0, false, SIMT_HERE); }
DEVICE void syncthreads(SIMT_AT) { simt::sync_threads(SIMT_HERE); }

DEVICE u32 popc(u32 v) { return (u32)__builtin_popcount(v); }
DEVICE u32 mulhi(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }
DEVICE u32 clz(u32 v) { return v ? (u32)__builtin_clz(v) : 32; }
DEVICE u32 prmt(u32 a, u32 b, u32 selector) {
  const u64 bytes = (u64)b << 32 | a;
  u32 r = 0;
  for (u32 i = 0; i < 4; i++) {
    const u32 s = selector >> (4 * i);
    u32 v = (u32)(bytes >> (8 * (s & 7))) & 0xFF;
    if (s & 8) v = v & 0x80 ? 0xFF : 0;
    r |= v << (8 * i);
  }
  return r;
}
DEVICE u32 fshr(u32 lo, u32 hi, u32 s) { return (u32)(((u64)hi << 32 | lo) >> (s & 31)); }
DEVICE u32 fshl(u32 lo, u32 hi, u32 s) { return (u32)(((u64)hi << 32 | lo) << (s & 31) >> 32); }

DEVICE u32 lds32(u32 a, SIMT_AT) { return simt::load_shared<u32>(a, SIMT_HERE); }
DEVICE u32 lds16(u32 a, SIMT_AT) { return simt::load_shared<u16>(a, SIMT_HERE); }
DEVICE u32 lds8(u32 a, SIMT_AT) { return simt::load_shared<u8>(a, SIMT_HERE); }
DEVICE u32 lds32_stream(u32 a, u32 end, SIMT_AT) { return simt::load_stream<u32>(a, end, SIMT_HERE); }
DEVICE u32 lds16_stream(u32 a, u32 end, SIMT_AT) { return simt::load_stream<u16>(a, end, SIMT_HERE); }
DEVICE void next_word(u32 on, u32& lo, u32& hi, u32& after, u32& next, u32 end, SIMT_AT) {
  if (!on) return;
  lo = hi;
  hi = after;
  after = simt::load_stream<u32>(next, end, SIMT_HERE);
  next += 4;
}
DEVICE void sts32(u32 a, u32 v, SIMT_AT) { simt::store_shared<u32>(a, v, SIMT_HERE); }
DEVICE void sts64(u32 a, Vec2 v, SIMT_AT) {
  if (a % 8) simt::fail(SIMT_HERE, "8 bytes of shared memory at %u", a);
  simt::store_shared<u32>(a, v.x, SIMT_HERE);
  simt::store_shared<u32>(a + 4, v.y, SIMT_HERE);
}
DEVICE void add_shared(u32 a, u32 v, SIMT_AT) { simt::add_shared(a, v, SIMT_HERE); }
DEVICE void sts8(u32 a, u32 v, SIMT_AT) { simt::store_shared<u8>(a, v, SIMT_HERE); }
DEVICE Vec2 lds64(u32 a, SIMT_AT) {
  if (a % 8) simt::fail(SIMT_HERE, "8 bytes of shared memory at %u", a);
  return {simt::load_shared<u32>(a, SIMT_HERE), simt::load_shared<u32>(a + 4, SIMT_HERE)};
}
DEVICE Vec4 lds128(u32 a, SIMT_AT) {
  if (a % 16) simt::fail(SIMT_HERE, "16 bytes of shared memory at %u", a);
  Vec4 v;
  v.x = simt::load_shared<u32>(a, SIMT_HERE);
  v.y = simt::load_shared<u32>(a + 4, SIMT_HERE);
  v.z = simt::load_shared<u32>(a + 8, SIMT_HERE);
  v.w = simt::load_shared<u32>(a + 12, SIMT_HERE);
  return v;
}
DEVICE void sts128(u32 a, Vec4 v, SIMT_AT) {
  if (a % 16) simt::fail(SIMT_HERE, "16 bytes of shared memory at %u", a);
  simt::store_shared<u32>(a, v.x, SIMT_HERE);
  simt::store_shared<u32>(a + 4, v.y, SIMT_HERE);
  simt::store_shared<u32>(a + 8, v.z, SIMT_HERE);
  simt::store_shared<u32>(a + 12, v.w, SIMT_HERE);
}

namespace simt {
template <class T>
inline T load_global(const void* p, At at, bool ordinary = false) {
  check_global(p, sizeof(T), sizeof(T), ordinary ? ANY : READ, at);
  T v;
  memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
inline void store_global(void* p, T v, At at) {
  check_global(p, sizeof(T), sizeof(T), WRITE, at);
  memcpy(p, &v, sizeof v);
}
}  // namespace simt

DEVICE u32 ldg32(const void* p, SIMT_AT) { return simt::load_global<u32>(p, SIMT_HERE); }
DEVICE u32 ldg16(const void* p, SIMT_AT) { return simt::load_global<u16>(p, SIMT_HERE); }
DEVICE u32 ldg8(const void* p, SIMT_AT) { return simt::load_global<u8>(p, SIMT_HERE); }
DEVICE Vec4 ldg128(const void* p, SIMT_AT) { return simt::load_global<Vec4>(p, SIMT_HERE); }
DEVICE Vec2 ldg64(const void* p, SIMT_AT) { return simt::load_global<Vec2>(p, SIMT_HERE); }
DEVICE Vec2 ldg64_late(const void* p, SIMT_AT) { return simt::load_global<Vec2>(p, SIMT_HERE); }
DEVICE u32 ldg32_stream(const void* p, SIMT_AT) { return simt::load_global<u32>(p, SIMT_HERE); }
DEVICE Vec2 ldg64_stream(const void* p, SIMT_AT) { return simt::load_global<Vec2>(p, SIMT_HERE); }
DEVICE Vec4 ldg128_stream(const void* p, SIMT_AT) { return simt::load_global<Vec4>(p, SIMT_HERE); }
DEVICE void prefetch(const void* p, SIMT_AT) { simt::check_global<true>(p, 1, 1, simt::ANY, SIMT_HERE); }
DEVICE void prefetch_l1(const void* p, SIMT_AT) { simt::check_global<true>(p, 1, 1, simt::ANY, SIMT_HERE); }
DEVICE void keep(u32) {}
// Ordinary loads, of memory that this kernel or a concurrent one may write.
DEVICE u32 load8(const void* p, SIMT_AT) { return simt::load_global<u8>(p, SIMT_HERE, true); }
DEVICE u32 load16(const void* p, SIMT_AT) { return simt::load_global<u16>(p, SIMT_HERE, true); }
DEVICE u32 load32(const void* p, SIMT_AT) { return simt::load_global<u32>(p, SIMT_HERE, true); }
DEVICE u64 load64(const void* p, SIMT_AT) { return simt::load_global<u64>(p, SIMT_HERE, true); }
DEVICE Vec4 load128(const void* p, SIMT_AT) { return simt::load_global<Vec4>(p, SIMT_HERE, true); }
DEVICE void stg128(void* p, Vec4 v, SIMT_AT) { simt::store_global<Vec4>(p, v, SIMT_HERE); }
DEVICE void stg32(void* p, u32 v, SIMT_AT) { simt::store_global<u32>(p, v, SIMT_HERE); }
DEVICE void stg16(void* p, u32 v, SIMT_AT) { simt::store_global<u16>(p, (u16)v, SIMT_HERE); }
DEVICE void stg8(void* p, u32 v, SIMT_AT) { simt::store_global<u8>(p, (u8)v, SIMT_HERE); }
// Stores the smallest value over all launches.
DEVICE void atomic_min(u32* p, u32 v, SIMT_AT) {
  simt::check_global<true>(p, 4, 4, simt::WRITE, SIMT_HERE);
  if (v < *p) *p = v;
}
// The blocks of a launch run one after the other.
DEVICE u32 atomic_add(u32* p, u32 v, SIMT_AT) {
  simt::check_global(p, 4, 4, simt::WRITE, SIMT_HERE);
  const u32 before = *p;
  *p = before + v;
  return before;
}
DEVICE void fence_device() {}

DEVICE void copy_init(u32 barrier, SIMT_AT) { simt::init_barrier(barrier, SIMT_HERE); }
DEVICE void copy_fence() { simt::fence_copies(); }
DEVICE void copy_init_fence() { simt::fence_barriers(), simt::fence_copies(); }
DEVICE void copy_start(u32 dst, const void* src, u32 bytes, u32 barrier, SIMT_AT) {
  simt::start_copy(dst, src, bytes, 0, nullptr, 0, barrier, SIMT_HERE);
}
DEVICE void copy_start_two(u32 dst, const void* src, u32 bytes, u32 dst2, const void* src2, u32 bytes2, u32 barrier, SIMT_AT) {
  simt::start_copy(dst, src, bytes, dst2, src2, bytes2, barrier, SIMT_HERE);
}
DEVICE void copy_wait(u32 barrier, u32 parity, u32 younger = 0, SIMT_AT) { simt::wait_copy(barrier, parity, younger, SIMT_HERE); }

DEVICE float bits_f32(u32 v) {
  float f;
  memcpy(&f, &v, sizeof f);
  return f;
}
DEVICE u32 f32_bits(float v) {
  u32 bits;
  memcpy(&bits, &v, sizeof bits);
  return bits;
}
// Compiled without contraction into fused operations, so each is rounded separately, as on the GPU.
DEVICE float mul_rn(float a, float b) { return a * b; }
DEVICE float add_rn(float a, float b) { return a + b; }
DEVICE float div_rn(float a, float b) { return a / b; }
DEVICE float sqrt_rn(float v) { return __builtin_sqrtf(v); }
DEVICE float floor_f32(float v) { return __builtin_floorf(v); }
DEVICE float exp_f32(float v) { return __builtin_expf(v); }
DEVICE float erf_f32(float v) { return __builtin_erff(v); }
DEVICE float fma_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEVICE float f32_of_i32(i32 v) { return (float)v; }

namespace simt {
// Rounds to nearest even. A NaN becomes the NaN of the GPU's conversions.
inline u32 f16_of(float value) {
  const u32 bits = f32_bits(value), sign = bits >> 16 & 0x8000, v = bits & 0x7FFFFFFF;
  if (v > 0x7F800000) return 0x7FFF;
  if (v >= 0x47800000) return sign | 0x7C00;
  if (v < 0x33000000) return sign;
  const u32 exponent = v >> 23;
  if (exponent >= 113) {
    const u32 rounded = v + 0xFFF + (v >> 13 & 1);
    return sign | ((rounded - (112u << 23)) >> 13);
  }
  // A subnormal: a multiple of 2^-24.
  const u32 shift = 126 - exponent, mantissa = (v & 0x7FFFFF) | 0x800000;
  const u32 whole = mantissa >> shift, rest = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1);
  return sign | (whole + (rest > half || (rest == half && (whole & 1))));
}
inline u32 bf16_of(float value) {
  const u32 v = f32_bits(value);
  return (v & 0x7FFFFFFF) > 0x7F800000 ? 0x7FFF : (v + 0x7FFF + (v >> 16 & 1)) >> 16;
}
}  // namespace simt

DEVICE u32 pack_f16(float lo, float hi) { return simt::f16_of(lo) | simt::f16_of(hi) << 16; }
DEVICE u32 pack_bf16(float lo, float hi) { return simt::bf16_of(lo) | simt::bf16_of(hi) << 16; }

namespace simt {
inline float f32_of_f16(u32 h) {
  const u32 sign = (h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3FF;
  if (exponent == 0) {
    const float size = (float)mantissa * 0x1p-24f;
    return sign ? -size : size;
  }
  return bits_f32(sign | (exponent == 31 ? 255 : exponent + 112) << 23 | mantissa << 13);
}
inline float f32_of_bf16(u32 h) { return bits_f32(h << 16); }

// c += A B, as in simt.h. The lanes meet once for each register of the operands.
template <float (*WIDEN)(u32)>
inline void multiply(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], At at) {
  const u32 lane = grid->now->index, g = lane / 4, t = lane % 4;
  float rows[2][16], columns[2][16];  // rows g and g + 8 of A; columns 2t and 2t + 1 of B
  for (u32 r = 0; r < 4; r++) {
    const Meeting* const m = meet(MMA, a[r], false, at);
    for (u32 i = 0; i < 8; i++) rows[r % 2][r / 2 * 8 + i] = WIDEN(m->values[g * 4 + i / 2] >> (i % 2 * 16) & 0xFFFF);
  }
  for (u32 r = 0; r < 2; r++) {
    const Meeting* const m = meet(MMA, b[r], false, at);
    for (u32 n = 0; n < 2; n++) {
      for (u32 i = 0; i < 8; i++) columns[n][r * 8 + i] = WIDEN(m->values[(2 * t + n) * 4 + i / 2] >> (i % 2 * 16) & 0xFFFF);
    }
  }
  for (u32 i = 0; i < 4; i++) {
    for (u32 k = 0; k < 16; k++) c[i] += rows[i / 2][k] * columns[i % 2][k];
  }
}
}  // namespace simt

DEVICE float f32_of_f16(u32 h) { return simt::f32_of_f16(h); }
// Rounded twice, which is harmless: f32 has more than twice their bits.
DEVICE u32 add_f16(u32 a, u32 b) {
  return pack_f16(f32_of_f16(a & 0xFFFF) + f32_of_f16(b & 0xFFFF), f32_of_f16(a >> 16) + f32_of_f16(b >> 16));
}
DEVICE u32 add_bf16(u32 a, u32 b) {
  using simt::f32_of_bf16;
  return pack_bf16(f32_of_bf16(a & 0xFFFF) + f32_of_bf16(b & 0xFFFF), f32_of_bf16(a >> 16) + f32_of_bf16(b >> 16));
}
DEVICE u32 mul_bf16(u32 a, u32 b) {
  using simt::f32_of_bf16;
  return pack_bf16(f32_of_bf16(a & 0xFFFF) * f32_of_bf16(b & 0xFFFF), f32_of_bf16(a >> 16) * f32_of_bf16(b >> 16));
}

DEVICE void mma_f16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], SIMT_AT) {
  simt::multiply<simt::f32_of_f16>(c, a, b, SIMT_HERE);
}
DEVICE void mma_bf16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], SIMT_AT) {
  simt::multiply<simt::f32_of_bf16>(c, a, b, SIMT_HERE);
}

namespace simt {
inline void multiply_s8(i32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2], At at) {
  const u32 lane = grid->now->index, g = lane / 4, t = lane % 4;
  const auto byte = [](u32 v, u32 i) { return (i32)(signed char)(v >> (8 * i)); };
  i32 rows[2][32], columns[2][32];  // rows g and g + 8 of A; columns 2t and 2t + 1 of B
  for (u32 r = 0; r < 4; r++) {
    const Meeting* const m = meet(MMA, a[r], false, at);
    for (u32 i = 0; i < 16; i++) rows[r % 2][r / 2 * 16 + i] = byte(m->values[g * 4 + i / 4], i % 4);
  }
  for (u32 r = 0; r < 2; r++) {
    const Meeting* const m = meet(MMA, b[r], false, at);
    for (u32 n = 0; n < 2; n++) {
      for (u32 i = 0; i < 16; i++) columns[n][r * 16 + i] = byte(m->values[(2 * t + n) * 4 + i / 4], i % 4);
    }
  }
  for (u32 i = 0; i < 4; i++) {
    u32 sum = (u32)c[i];
    for (u32 k = 0; k < 32; k++) sum += (u32)(rows[i / 2][k] * columns[i % 2][k]);
    c[i] = (i32)sum;
  }
}
}  // namespace simt

DEVICE void mma_s8(i32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2], SIMT_AT) { simt::multiply_s8(c, a, b, SIMT_HERE); }

DEVICE void overlap_wait() { simt::grid->now->alone = true; }
DEVICE void overlap_start() {}

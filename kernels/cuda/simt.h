// The machine primitives of the kernels, under names with the same meaning on a GPU and in the emulator (simt_host.h).
// Kernels contain nothing else that depends on the machine, so that the emulator tests the code that a GPU executes.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef int i32;

struct alignas(8) Vec2 {
  u32 x, y;
};
struct alignas(16) Vec4 {
  u32 x, y, z, w;
};

#define LANES 32u

// Three words combined bit by bit. A GPU does each in one instruction, selected by its truth table, which is the result
// of the expression on these words. The emulator cannot check a different table.
#define CHOSEN(mask, a, b) (((a) & (mask)) | ((b) & ~(mask)))
#define DIFFERING(mask, a, b) (((a) ^ (b)) & (mask))
#define TRUTH_TABLE(of) (of(0xF0, 0xCC, 0xAA) & 0xFFu)

// Address in shared memory of the decoding table: a constant, so that a lookup needs no addition. The system's reserved
// part at the beginning of a block's shared memory ends here at the latest (`RESERVED_SHARED` of the host, which
// refuses devices that reserve more).
#define TABLE_AT 1024u

#ifndef __CUDACC__
#include "simt_host.h"

DEVICE bool table_fits() { return true; }
DEVICE u32 choose(u32 mask, u32 a, u32 b) { return CHOSEN(mask, a, b); }
DEVICE u32 differ(u32 mask, u32 a, u32 b) { return DIFFERING(mask, a, b); }
DEVICE u32 lds32_table(u32 offset) { return lds32(TABLE_AT + offset); }
DEVICE u32 sum_up_to(u32 v, u32 lane) {
  for (u32 by = 1; by < LANES; by *= 2) {
    const u32 before = shfl_up(v, by);
    if (lane >= by) v += before;
  }
  return v;
}
DEVICE void take_words(u32& x, u32& next, u32 below, u32 end) {
  const bool needs = x < 65536;
  const u32 takers = ballot(needs);
  const u32 word = lds16_stream(next + 2 * popc(takers & below), end);
  if (needs) x = prmt(word, x, 0x5410);
  next += 2 * popc(takers);
}
#else

#define DEVICE static __device__ __forceinline__
// Rarely taken paths are not inlined, so that they do not affect the registers of the others.
#define DEVICE_MEMBER __device__ __forceinline__
#define DEVICE_RARE static __device__ __noinline__
#define KERNEL(name, threads, blocks, Params) \
  extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ Params params)

extern __shared__ __align__(128) u8 shared_memory[];

DEVICE u32 thread_index() { return threadIdx.x; }
DEVICE u32 block_index() { return blockIdx.x; }
DEVICE u32 block_threads() { return blockDim.x; }
DEVICE u32 grid_blocks() { return gridDim.x; }

DEVICE u32 ballot(bool p) { return __ballot_sync(0xFFFFFFFFu, p); }
DEVICE u32 shfl(u32 v, u32 lane) { return __shfl_sync(0xFFFFFFFFu, v, lane); }
DEVICE u32 shfl_up(u32 v, u32 delta) { return __shfl_up_sync(0xFFFFFFFFu, v, delta); }
// The sum of `v` over the lanes up to this one. In assembly, because a shuffle reports which lanes received a value.
DEVICE u32 sum_up_to(u32 v, u32) {
#pragma unroll
  for (u32 by = 1; by < LANES; by *= 2) {
    asm volatile(
        "{\n.reg .pred got;\n.reg .u32 before;\n"
        "shfl.sync.up.b32 before|got, %0, %1, 0, 0xFFFFFFFF;\n"
        "@got add.u32 %0, %0, before;\n}"
        : "+r"(v)
        : "r"(by));
  }
  return v;
}
DEVICE void syncwarp() { __syncwarp(); }
DEVICE void syncthreads() { __syncthreads(); }

DEVICE u32 popc(u32 v) { return __popc(v); }
DEVICE u32 clz(u32 v) { return __clz(v); }
DEVICE u32 mulhi(u32 a, u32 b) { return __umulhi(a, b); }
DEVICE u32 prmt(u32 a, u32 b, u32 selector) {
  u32 r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
  return r;
}
// The bits of `a` where `mask` has ones, else those of `b`. In assembly, because the compiler splits the mask if it
// knows which bits of `b` are used.
DEVICE u32 choose(u32 mask, u32 a, u32 b) {
  u32 r;
  asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(r) : "r"(mask), "r"(a), "r"(b), "n"(TRUTH_TABLE(CHOSEN)));
  return r;
}
// The bits of `mask` in which `a` and `b` differ.
DEVICE u32 differ(u32 mask, u32 a, u32 b) {
  u32 r;
  asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(r) : "r"(mask), "r"(a), "r"(b), "n"(TRUTH_TABLE(DIFFERING)));
  return r;
}
DEVICE u32 fshr(u32 lo, u32 hi, u32 s) { return __funnelshift_r(lo, hi, s); }
DEVICE u32 fshl(u32 lo, u32 hi, u32 s) { return __funnelshift_l(lo, hi, s); }

// Shared memory, by address. In assembly, because the compiler would otherwise add the address of `shared_memory`,
// which it does not treat as a constant, at each access.
DEVICE bool table_fits() { return (u32)__cvta_generic_to_shared(shared_memory) <= TABLE_AT; }
DEVICE u32 lds32(u32 a) {
  u32 v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(a) : "memory");
  return v;
}
DEVICE u32 lds16(u32 a) {
  u16 v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(a) : "memory");
  return v;
}
DEVICE u32 lds8(u32 a) {
  u32 v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(a) : "memory");
  return v;
}
// Decoding tables do not change while they are read, so the compiler may move these loads.
DEVICE u32 lds32_table(u32 offset) {
  u32 v;
  asm volatile("ld.shared.u32 %0, [%1+%2];" : "=r"(v) : "r"(offset), "n"(TABLE_AT));
  return v;
}
// Bytes before `end` belong to a stream; from there on they may be anything, even the target of a copy in flight.
DEVICE u32 lds32_stream(u32 a, u32) { return lds32(a); }
DEVICE u32 lds16_stream(u32 a, u32) { return lds16(a); }
// If `on` is not 0, advances to the next word of a stream: the window's three words move down, and the one at `next`
// follows them. One instruction less than the compiler's code, with one more dependency: worth it if a warp decodes a
// single chunk, but not if it decodes one after the other.
DEVICE void next_word(u32 on, u32& lo, u32& hi, u32& after, u32& next, u32) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %4, 0;\n@p mov.u32 %0, %1;\n@p mov.u32 %1, %2;\n@p ld.shared.u32 %2, [%3];\n@p add.u32 %3, %3, 4;\n}"
      : "+r"(lo), "+r"(hi), "+r"(after), "+r"(next)
      : "r"(on)
      : "memory");
}
DEVICE void sts32(u32 a, u32 v) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(a), "r"(v) : "memory"); }

DEVICE void sts64(u32 a, Vec2 v) { asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(a), "r"(v.x), "r"(v.y) : "memory"); }
DEVICE void sts8(u32 a, u32 v) { asm volatile("st.shared.u8 [%0], %1;" ::"r"(a), "r"(v) : "memory"); }
// Adds to a value in shared memory, atomically among the threads of the block.
DEVICE void add_shared(u32 a, u32 v) { asm volatile("red.shared.add.u32 [%0], %1;" ::"r"(a), "r"(v) : "memory"); }
DEVICE Vec2 lds64(u32 a) {
  Vec2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(a) : "memory");
  return v;
}
DEVICE Vec4 lds128(u32 a) {
  Vec4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(a) : "memory");
  return v;
}
DEVICE void sts128(u32 a, Vec4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(a), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// If `x` is below 2^16, shifts the next word of the stream into it. Lanes take words in ascending order; `next` is the
// address of the first, and `below` has the bits of the lanes before this one. All lanes load, which costs nothing
// extra. A single assembly block, because the compiler would test twice.
DEVICE void take_words(u32& x, u32& next, u32 below, u32) {
  asm volatile(
      "{\n.reg .pred needs;\n.reg .u32 takers, before, word;\n"
      "setp.lt.u32 needs, %0, 65536;\n"
      "vote.sync.ballot.b32 takers, needs, 0xFFFFFFFF;\n"
      "and.b32 before, takers, %2;\n"
      "popc.b32 before, before;\n"
      "mad.lo.u32 before, before, 2, %1;\n"
      "ld.shared.u16 word, [before];\n"
      "@needs prmt.b32 %0, word, %0, 0x5410;\n"
      "popc.b32 takers, takers;\n"
      "mad.lo.u32 %1, takers, 2, %1;\n}"
      : "+r"(x), "+r"(next)
      : "r"(below));
}

// Global memory. Words that are read through these never change while a kernel runs.
DEVICE u32 ldg32(const void* p) { return __ldg((const u32*)p); }
DEVICE u32 ldg16(const void* p) { return __ldg((const u16*)p); }
DEVICE u32 ldg8(const void* p) { return __ldg((const u8*)p); }
DEVICE Vec4 ldg128(const void* p) {
  const uint4 v = __ldg((const uint4*)p);
  return {v.x, v.y, v.z, v.w};
}
DEVICE Vec2 ldg64(const void* p) {
  const uint2 v = __ldg((const uint2*)p);
  return {v.x, v.y};
}
// As `ldg64`, for where registers are few: as an ordinary load, it is not moved before stores. L1 keeps it.
DEVICE Vec2 ldg64_late(const void* p) {
  Vec2 v;
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
  return v;
}
// For data that is read once: it need not be kept in L1.
DEVICE u32 ldg32_stream(const void* p) {
  u32 v;
  asm("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
DEVICE Vec2 ldg64_stream(const void* p) {
  Vec2 v;
  asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
DEVICE Vec4 ldg128_stream(const void* p) {
  Vec4 v;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
// Prefetches the line at `p` into L2. Not for 12.0, where NVRTC 12.8 crashes on it.
DEVICE void prefetch(const void* p) {
#if __CUDA_ARCH__ != 1200
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}
// Prefetches it into L1, too: for what this launch reads soon, and nothing writes meanwhile.
DEVICE void prefetch_l1(const void* p) {
#if __CUDA_ARCH__ != 1200
  asm volatile("prefetch.global.L1 [%0];" ::"l"(p));
#endif
}
// Forces the load of a value whose result is unused.
DEVICE void keep(u32 v) { asm volatile("" ::"r"(v)); }
// Ordinary loads, of memory that this kernel or a concurrent one may write.
DEVICE u32 load8(const void* p) { return *(const volatile u8*)p; }
DEVICE u32 load16(const void* p) { return *(const volatile u16*)p; }
DEVICE u32 load32(const void* p) { return *(const volatile u32*)p; }
DEVICE u64 load64(const void* p) { return *(const volatile u64*)p; }
DEVICE Vec4 load128(const void* p) {
  Vec4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}
DEVICE void stg128(void* p, Vec4 v) { *(uint4*)p = make_uint4(v.x, v.y, v.z, v.w); }
DEVICE void stg32(void* p, u32 v) { *(u32*)p = v; }
DEVICE void stg16(void* p, u32 v) { *(u16*)p = (u16)v; }
DEVICE void stg8(void* p, u32 v) { *(u8*)p = (u8)v; }
DEVICE void atomic_min(u32* p, u32 v) { atomicMin(p, v); }
// Adds, and returns the previous value.
DEVICE u32 atomic_add(u32* p, u32 v) { return atomicAdd(p, v); }
// A fence: this thread's earlier stores, and stores that it has observed, become visible to every thread of the device
// before its later stores.
DEVICE void fence_device() { __threadfence(); }

DEVICE float bits_f32(u32 v) { return __uint_as_float(v); }
DEVICE u32 f32_bits(float v) { return __float_as_uint(v); }
DEVICE float mul_rn(float a, float b) { return __fmul_rn(a, b); }
DEVICE float add_rn(float a, float b) { return __fadd_rn(a, b); }
DEVICE float div_rn(float a, float b) { return __fdiv_rn(a, b); }
DEVICE float sqrt_rn(float v) { return __fsqrt_rn(v); }
DEVICE float floor_f32(float v) { return floorf(v); }
// e to the power of v, within two units in the last place.
DEVICE float exp_f32(float v) { return expf(v); }
DEVICE float erf_f32(float v) { return erff(v); }
DEVICE float f32_of_f16(u32 h) {
  float v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"((u16)h));
  return v;
}
DEVICE float f32_of_i32(i32 v) { return __int2float_rn(v); }
// a b + c, rounded once.
DEVICE float fma_rn(float a, float b, float c) { return __fmaf_rn(a, b, c); }
// Two sums of f16, rounded to nearest even.
DEVICE u32 add_f16(u32 a, u32 b) {
  u32 r;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
DEVICE u32 pack_f16(float lo, float hi) {
#if __CUDA_ARCH__ >= 800
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
#else
  u16 a, b;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(a) : "f"(lo));
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(b) : "f"(hi));
  return a | (u32)b << 16;
#endif
}
DEVICE u32 pack_bf16(float lo, float hi) {
#if __CUDA_ARCH__ >= 800
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
#else
  // Rounds to nearest even on the bits; a NaN would round to infinity or wrap.
  u32 a = __float_as_uint(lo), b = __float_as_uint(hi);
  a = (a & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FFF0000u : a + 0x7FFFu + (a >> 16 & 1);
  b = (b & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FFF0000u : b + 0x7FFFu + (b >> 16 & 1);
  return a >> 16 | (b & 0xFFFF0000u);
#endif
}

// Programmatic dependent launch: the next kernel of the stream may begin before this one ends, and waits before it
// accesses memory that this one may write or still read.
DEVICE void overlap_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEVICE void overlap_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#if __CUDA_ARCH__ >= 900
#define COPY_BULK 1
DEVICE void copy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void copy_init(u32 barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"((barrier)) : "memory");
}
DEVICE void copy_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  copy_fence();
}
DEVICE void copy_expect(u32 bytes, u32 barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
DEVICE void copy_piece(u32 dst, const void* src, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst),
      "l"(__cvta_generic_to_global(src)), "r"(bytes), "r"(barrier)
      : "memory");
}
DEVICE void copy_start(u32 dst, const void* src, u32 bytes, u32 barrier) {
  copy_expect(bytes, barrier);
  copy_piece(dst, src, bytes, barrier);
}
DEVICE void copy_start_two(u32 dst, const void* src, u32 bytes, u32 dst2, const void* src2, u32 bytes2, u32 barrier) {
  copy_expect(bytes + bytes2, barrier);
  copy_piece(dst, src, bytes, barrier);
  copy_piece(dst2, src2, bytes2, barrier);
}
DEVICE void copy_wait(u32 barrier, u32 parity, u32 = 0) {
  asm volatile(
      "{\n.reg .pred done;\nagain%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again%=;\n}" ::"r"(
          (barrier)),
      "r"(parity)
      : "memory");
}
#endif
#endif  // __CUDACC__

// Matrix products of a warp, called by all of its lanes together: c += A B, where A has 16 rows and 16 columns and B 16
// rows and 8 columns, of f16 or bf16, and c is f32. The fragments that each lane holds (PTX ISA, "Matrix Fragments for
// mma.m16n8k16 with floating point type"), with g = lane / 4 and t = lane % 4:
//
//   | register | lower half, or float | upper half         |
//   |----------|----------------------|--------------------|
//   | a[0]     | A[g][2t]             | A[g][2t + 1]       |
//   | a[1]     | A[g + 8][2t]         | A[g + 8][2t + 1]   |
//   | a[2]     | A[g][2t + 8]         | A[g][2t + 9]       |
//   | a[3]     | A[g + 8][2t + 8]     | A[g + 8][2t + 9]   |
//   | b[0]     | B[2t][g]             | B[2t + 1][g]       |
//   | b[1]     | B[2t + 8][g]         | B[2t + 9][g]       |
//   | c[0]     | C[g][2t]             |                    |
//   | c[1]     | C[g][2t + 1]         |                    |
//   | c[2]     | C[g + 8][2t]         |                    |
//   | c[3]     | C[g + 8][2t + 1]     |                    |
//
// Products are exact and sums are f32, but the order and rounding of a GPU's additions are unspecified: results differ
// from one device to the next, and from the emulator's, which adds the products to c by ascending column of A, each sum
// rounded to nearest even.
#ifdef __CUDACC__
DEVICE void mma_f16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  // Columns 0 to 7 of A, then 8 to 15: their fragments are halves of the whole one.
#pragma unroll
  for (u32 k = 0; k < 2; k++) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[2 * k]), "r"(a[2 * k + 1]), "r"(b[k]));
  }
#endif
}
#if __CUDA_ARCH__ >= 800
#define MMA_BF16 1
DEVICE void mma_bf16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// Two sums of bf16, rounded to nearest even; as products with 1, which compute capability 8.0 supports.
DEVICE u32 add_bf16(u32 a, u32 b) {
  u32 r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(0x3F803F80u), "r"(b));
  return r;
}
// Two products of bf16, rounded to nearest even.
DEVICE u32 mul_bf16(u32 a, u32 b) {
  u32 r;
  // A product with something added that changes no product, not even a zero: -0.
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u));
  return r;
}
#else
#define MMA_BF16 0
template <bool THERE = false>
DEVICE u32 add_bf16(u32, u32) {
  static_assert(THERE, "sums of bf16 need compute capability 8.0");
  return 0;
}
template <bool THERE = false>
DEVICE u32 mul_bf16(u32, u32) {
  static_assert(THERE, "products of bf16 need compute capability 8.0");
  return 0;
}
// Callers check `#if MMA_BF16` first.
template <bool THERE = false>
DEVICE void mma_bf16(float (&)[4], const u32 (&)[4], const u32 (&)[2]) {
  static_assert(THERE, "matrix products of bf16 need compute capability 8.0");
}
#endif
#else
#define MMA_BF16 1
#endif

// As above, c += A B for integers, where A has 16 rows and 32 columns and B 32 rows and 8 columns, of i8, and c is i32,
// modulo 2^32 (PTX ISA, "Matrix Fragments for mma.m16n8k32"). Bytes of a register are neighbours in A's row, or in B's
// column:
//
//   | register | byte i                |
//   |----------|-----------------------|
//   | a[0]     | A[g][4t + i]          |
//   | a[1]     | A[g + 8][4t + i]      |
//   | a[2]     | A[g][4t + 16 + i]     |
//   | a[3]     | A[g + 8][4t + 16 + i] |
//   | b[0]     | B[4t + i][g]          |
//   | b[1]     | B[4t + 16 + i][g]     |
//
// c is as above. Sums are exact, and the same on every device.
#ifdef __CUDACC__
DEVICE void mma_s8(i32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  // Rows 0 to 7 and 8 to 15, for each of them columns 0 to 15 and then 16 to 31.
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+r"(c[i % 2 * 2]), "+r"(c[i % 2 * 2 + 1])
                 : "r"(a[i]), "r"(b[i / 2]));
  }
#endif
}
#endif

// The larger of two lower and of two upper halves.
DEVICE u32 max_halves(u32 a, u32 b) {
#ifdef __CUDACC__
  return __vmaxu2(a, b);
#else
  const u32 lower = (a & 0xFFFF) > (b & 0xFFFF) ? a : b, upper = a >> 16 > b >> 16 ? a : b;
  return (lower & 0xFFFF) | (upper & 0xFFFF0000u);
#endif
}

// Forces a value into a register here. Otherwise the compiler loads a parameter where it is used, possibly where
// nothing else is left to overlap with the wait. All lanes call it.
DEVICE u32 in_register(u32 v, u32 lane) { return shfl(v, lane); }
DEVICE u64 in_register(u64 v, u32 lane) { return (u64)shfl((u32)(v >> 32), lane) << 32 | shfl((u32)v, lane); }

// The largest of the lanes' values, and their sum. All lanes call these.
DEVICE u32 warp_max(u32 v, u32 lane) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
  return __reduce_max_sync(0xFFFFFFFFu, v);
#else
  for (u32 by = LANES / 2; by; by /= 2) {
    const u32 other = shfl(v, lane ^ by);
    v = other > v ? other : v;
  }
  return v;
#endif
}
DEVICE i32 warp_sum(i32 v, u32 lane) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
  return __reduce_add_sync(0xFFFFFFFFu, v);
#else
  for (u32 by = LANES / 2; by; by /= 2) v += (i32)shfl((u32)v, lane ^ by);
  return v;
#endif
}

// Copies by a warp. All lanes call these with the same arguments.
//
// `warp_copy` starts to copy `bytes` (a multiple of 16, both addresses aligned to 16) from global to shared memory, and
// `warp_copy_two` starts two pieces at once, which count as one copy; `warp_copy_wait` returns when the copy that
// completes `parity` of the barrier has arrived. `younger` is the number of copies started after that one, 0 or 1:
// before 9.0 there are no barriers for copies, and they are counted instead. `small_copy` and `small_copy_wait` do the
// same for copies of a kilobyte or two, for which setting up a device's copy engine takes longer than requesting 16
// bytes per lane. A kernel uses one kind for a barrier.
#if !defined(__CUDACC__) || defined(COPY_BULK)
DEVICE void warp_copy(u32 dst, const u8* src, u32 bytes, u32 barrier, u32 lane) {
  if (lane == 0) copy_start(dst, src, bytes, barrier);
}
DEVICE void warp_copy_two(u32 dst, const u8* src, u32 bytes, u32 dst2, const u8* src2, u32 bytes2, u32 barrier, u32 lane) {
  if (lane == 0) copy_start_two(dst, src, bytes, dst2, src2, bytes2, barrier);
}
DEVICE void warp_copy_wait(u32 barrier, u32 parity, u32 younger) { copy_wait(barrier, parity, younger); }
#endif
#ifdef __CUDACC__
DEVICE void copy_lanes(u32 dst, const u8* src, u32 bytes, u32 lane) {
  for (u32 i = lane * 16; i < bytes; i += LANES * 16) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((dst + i)),
                 "l"(__cvta_generic_to_global(src + i))
                 : "memory");
#else
    const uint4 v = __ldg((const uint4*)(src + i));
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(dst + i), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
#endif
  }
}
DEVICE void copy_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
DEVICE void small_copy(u32 dst, const u8* src, u32 bytes, u32, u32 lane) {
  copy_lanes(dst, src, bytes, lane);
  copy_commit();
}
DEVICE void small_copy_wait(u32, u32, u32 younger) {
#if __CUDA_ARCH__ >= 800
  if (younger) asm volatile("cp.async.wait_group 1;" ::: "memory");
  else asm volatile("cp.async.wait_group 0;" ::: "memory");
#endif
  __syncwarp();
}
#else
DEVICE void small_copy(u32 dst, const u8* src, u32 bytes, u32 barrier, u32 lane) { warp_copy(dst, src, bytes, barrier, lane); }
DEVICE void small_copy_wait(u32 barrier, u32 parity, u32 younger) { warp_copy_wait(barrier, parity, younger); }
#endif
#if defined(__CUDACC__) && !defined(COPY_BULK)
DEVICE void copy_init(u32) {}
DEVICE void copy_init_fence() {}
DEVICE void copy_fence() {}
DEVICE void warp_copy(u32 dst, const u8* src, u32 bytes, u32 barrier, u32 lane) { small_copy(dst, src, bytes, barrier, lane); }
DEVICE void warp_copy_two(u32 dst, const u8* src, u32 bytes, u32 dst2, const u8* src2, u32 bytes2, u32, u32 lane) {
  copy_lanes(dst, src, bytes, lane);
  copy_lanes(dst2, src2, bytes2, lane);
  copy_commit();
}
DEVICE void warp_copy_wait(u32 barrier, u32 parity, u32 younger) { small_copy_wait(barrier, parity, younger); }
#endif

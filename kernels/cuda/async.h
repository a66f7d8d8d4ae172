// Barriers at which warps arrive, clusters of thread blocks, and matrix products that run while a warp does other work.
// GPUs have them from compute capability 9.0 on; the emulator has them as simt_cluster.h says.
//
// In a cluster, an address in shared memory has the rank of its thread block in the top byte. Kernels whose addresses
// are constants add `shared_window()` to each.
#pragma once
#include "simt.h"

// Descriptors of matrices in shared memory for `wgmma`: rows of 128 bytes that follow each other, swizzled in groups of
// eight rows, which begin at multiples of 1,024 bytes (PTX ISA, "Shared memory matrix layout", 128-byte swizzle). The
// upper half is the same for all of them.
DEVICE constexpr u32 wgmma_matrix(u32 at) { return (at & 0x3FFFFu) >> 4 | 1u << 16; }
#define WGMMA_MATRIX_UPPER "0x40000040"

#ifndef __CUDACC__
#include "simt_cluster.h"
#define HAS_WGMMA 1
#else

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif

#if __CUDA_ARCH__ >= 900
// A barrier whose phases end when `count` warps have arrived.
DEVICE void signal_init(u32 barrier, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// Lane 0 arrives for its warp; the lanes have met before.
DEVICE void signal_arrive(u32 barrier, u32 lane) {
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %1, 0;\n@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(barrier), "r"(lane)
               : "memory");
}
// Waits until the phase with this parity has ended; the phase before the first counts as ended, with parity 1.
DEVICE void signal_wait(u32 barrier, u32 parity) { copy_wait(barrier, parity); }
// Whether it has ended.
DEVICE bool signal_passed(u32 barrier, u32 parity) {
  u32 r;
  asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(r)
               : "r"(barrier), "r"(parity)
               : "memory");
  return r != 0;
}
// Lets other warps run, before a condition is tested again.
DEVICE void rest() { __nanosleep(100); }

// The part of an address in shared memory that says whose it is.
DEVICE u32 shared_window() {
  u32 window = (u32)__cvta_generic_to_shared(shared_memory) & 0xFF000000u;
  // The compiler would combine it with constants by OR, and not as an offset of a load.
  asm volatile("" : "+r"(window));
  return window;
}
// All threads of all blocks of the cluster meet: they arrive, and wait later. What they stored to shared memory before
// they arrived, in any block, is visible to those that have waited.
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
// As `cluster_arrive`, and nothing was stored before.
DEVICE void cluster_begin() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Registers of a thread from here on: more, which others must have given up, or fewer. All warps of four that begin with
// a multiple of four call them.
template <u32 COUNT>
DEVICE void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <u32 COUNT>
DEVICE void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
// Stores to the shared memory of the cluster's block `rank`, which must have begun.
DEVICE void sts128_of(u32 a, u32 rank, Vec4 v) {
  asm volatile(
      "{\n.reg .u32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nst.shared::cluster.v4.u32 [there], {%2, %3, %4, %5};\n}" ::"r"(a),
      "r"(rank), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
      : "memory");
}
#endif

// A number that the compiler takes for another one, so that results which depend on it are computed once more.
DEVICE u32 found_again(u32 v) {
  asm volatile("" : "+r"(v));
  return v;
}

// Gives registers any values.
template <u32 COUNT>
DEVICE void any_values(u32 (&v)[COUNT]) {
#pragma unroll
  for (u32 i = 0; i < COUNT; i++) asm volatile("" : "=r"(v[i]));
}

#if HAS_WGMMA
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
// Registers that a product still uses: the compiler must not move them before this.
template <u32 COUNT>
DEVICE void held_until_here(float (&v)[COUNT]) {
#pragma unroll
  for (u32 i = 0; i < COUNT; i++) asm volatile("" : "+f"(v[i])::"memory");
}
template <u32 COUNT>
DEVICE void held_until_here(u32 (&v)[COUNT]) {
#pragma unroll
  for (u32 i = 0; i < COUNT; i++) asm volatile("" : "+r"(v[i])::"memory");
}

// c += A B of a warpgroup, four warps that begin with a multiple of four: each warp's fragment of A (as `mma_f16`'s, 16
// of 64 rows) and a matrix B of N columns in shared memory, each a row of 128 bytes there. c is as `mma_f16`'s, for each
// eight columns of B. Without `add`, c = A B. Calls lie between `wgmma_fence` and `wgmma_commit`.
#define WGMMA_REGISTERS_8(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), "+f"(c[i + 7])
#define WGMMA_16 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
#define WGMMA_32                                                                                                       \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "    \
  "%24, %25, %26, %27, %28, %29, %30, %31}"
#define WGMMA_64                                                                                                       \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "                   \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "                    \
  "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "                    \
  "%59, %60, %61, %62, %63}"
#define WGMMA(type, n, registers, a0, a1, a2, a3, d, add)                                                              \
  "{\n.reg .pred p;\n.reg .b64 d;\nsetp.ne.b32 p, %" #add ", 0;\nmov.b64 d, {%" #d ", " WGMMA_MATRIX_UPPER "};\n"      \
  "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type " " registers ", {%" #a0 ", %" #a1 ", %" #a2       \
  ", %" #a3 "}, d, p, 1, 1, 0;\n}"
template <bool BF16>
DEVICE void wgmma(float (&c)[16], const u32 (&a)[4], u32 matrix, bool add) {
  if constexpr (BF16) {
    asm volatile(WGMMA(bf16, 32, WGMMA_16, 16, 17, 18, 19, 20, 21)
                 : WGMMA_REGISTERS_8(c, 0), WGMMA_REGISTERS_8(c, 8)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(matrix), "r"((u32)add));
  } else {
    asm volatile(WGMMA(f16, 32, WGMMA_16, 16, 17, 18, 19, 20, 21)
                 : WGMMA_REGISTERS_8(c, 0), WGMMA_REGISTERS_8(c, 8)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(matrix), "r"((u32)add));
  }
}
template <bool BF16>
DEVICE void wgmma(float (&c)[32], const u32 (&a)[4], u32 matrix, bool add) {
  if constexpr (BF16) {
    asm volatile(WGMMA(bf16, 64, WGMMA_32, 32, 33, 34, 35, 36, 37)
                 : WGMMA_REGISTERS_8(c, 0), WGMMA_REGISTERS_8(c, 8), WGMMA_REGISTERS_8(c, 16), WGMMA_REGISTERS_8(c, 24)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(matrix), "r"((u32)add));
  } else {
    asm volatile(WGMMA(f16, 64, WGMMA_32, 32, 33, 34, 35, 36, 37)
                 : WGMMA_REGISTERS_8(c, 0), WGMMA_REGISTERS_8(c, 8), WGMMA_REGISTERS_8(c, 16), WGMMA_REGISTERS_8(c, 24)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(matrix), "r"((u32)add));
  }
}
template <bool BF16>
DEVICE void wgmma(float (&c)[64], const u32 (&a)[4], u32 matrix, bool add) {
  if constexpr (BF16) {
    asm volatile(WGMMA(bf16, 128, WGMMA_64, 64, 65, 66, 67, 68, 69)
                 : WGMMA_REGISTERS_8(c, 0), WGMMA_REGISTERS_8(c, 8), WGMMA_REGISTERS_8(c, 16), WGMMA_REGISTERS_8(c, 24),
                   WGMMA_REGISTERS_8(c, 32), WGMMA_REGISTERS_8(c, 40), WGMMA_REGISTERS_8(c, 48), WGMMA_REGISTERS_8(c, 56)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(matrix), "r"((u32)add));
  } else {
    asm volatile(WGMMA(f16, 128, WGMMA_64, 64, 65, 66, 67, 68, 69)
                 : WGMMA_REGISTERS_8(c, 0), WGMMA_REGISTERS_8(c, 8), WGMMA_REGISTERS_8(c, 16), WGMMA_REGISTERS_8(c, 24),
                   WGMMA_REGISTERS_8(c, 32), WGMMA_REGISTERS_8(c, 40), WGMMA_REGISTERS_8(c, 48), WGMMA_REGISTERS_8(c, 56)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(matrix), "r"((u32)add));
  }
}
#endif
#endif  // __CUDACC__

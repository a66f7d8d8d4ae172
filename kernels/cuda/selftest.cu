// Kernels that test the emulator: each primitive, and each mistake that it must find. Not shipped.
#include "simt.h"

struct SelfTest {
  u64 input;   // address of u32
  u64 output;  // address of u32
  u32 mode;
  u32 n;
};

#define SLOT 256u

// What the primitives give, 16 words a thread.
KERNEL(primitives, 1024, 1, SelfTest) {
  overlap_wait();
  const u32 thread = block_index() * block_threads() + thread_index(), lane = thread_index() % LANES;
  const u32 v = ldg32((const u32*)params.input + thread);
  u32* const out = (u32*)params.output + (u64)thread * 16;
  stg32(out + 0, ballot(v & 1));
  stg32(out + 1, shfl(v, v));
  stg32(out + 2, shfl_up(v, 3));
  stg32(out + 3, popc(v));
  stg32(out + 4, prmt(v, ~v, v >> 7));
  stg32(out + 5, fshr(v, ~v, v));
  stg32(out + 6, fshl(v, ~v, v));
  stg32(out + 7, pack_f16(bits_f32(v), bits_f32(~v)));
  stg32(out + 8, pack_bf16(bits_f32(v), bits_f32(~v)));
  stg32(out + 9, f32_bits(mul_rn(bits_f32(v), bits_f32(v ^ 0x12345))));
  stg16(out + 10, v);
  stg16((u8*)(out + 10) + 2, ldg16((const u8*)((const u32*)params.input + thread) + 2));
  stg8((u8*)(out + 11) + 1, ldg8((const u32*)params.input + thread));
  stg32(out + 12, ldg32_stream((const u32*)params.input + thread));
  stg32(out + 13, grid_blocks() << 16 | block_threads());
  if (lane == 0) atomic_min(out + 14, 5);
  if (lane == 1) atomic_min(out + 14, 15);
  overlap_start();
}

// What other primitives make of words, 8 words a thread.
KERNEL(words, 1024, 1, SelfTest) {
  const u32 thread = block_index() * block_threads() + thread_index(), lane = thread_index() % LANES;
  const u32 v = ldg32((const u32*)params.input + thread), a = fshl(v, v, 11), b = v * 0x9E3779B1u;
  u32* const out = (u32*)params.output + (u64)thread * 8;
  stg32(out + 0, choose(v, a, b));
  stg32(out + 1, differ(v, a, b));
  // Masks that the compiler knows.
  stg32(out + 2, choose(0x0C0C0C0Cu, a, b));
  stg32(out + 3, differ(0xFCFCFCFCu, a, prmt(b, b, 0xBA98)));
  stg32(out + 4, sum_up_to(v, lane));
  stg32(out + 5, max_halves(a, b));
  stg32(out + 6, warp_max(v, lane));
  stg32(out + 7, (u32)warp_sum((i32)v >> 5, lane));
}

// c += A B of matrices of f16 (mode 0) or bf16 (mode 1): of each lane four words of A, two of B and four of c come in, and its c goes out.
KERNEL(products, 1024, 1, SelfTest) {
  const u32 thread = block_index() * block_threads() + thread_index();
  const u32* const in = (const u32*)params.input + (u64)thread * 10;
  u32 a[4], b[2];
  float c[4];
  for (u32 i = 0; i < 4; i++) a[i] = ldg32(in + i);
  for (u32 i = 0; i < 2; i++) b[i] = ldg32(in + 4 + i);
  for (u32 i = 0; i < 4; i++) c[i] = bits_f32(ldg32(in + 6 + i));
  if (params.mode == 0) mma_f16(c, a, b);
#if MMA_BF16
  else mma_bf16(c, a, b);
#endif
  for (u32 i = 0; i < 4; i++) stg32((u32*)params.output + (u64)thread * 4 + i, f32_bits(c[i]));
}

// Likewise of whole numbers.
KERNEL(whole_products, 1024, 1, SelfTest) {
  const u32 thread = block_index() * block_threads() + thread_index();
  const u32* const in = (const u32*)params.input + (u64)thread * 10;
  u32 a[4], b[2];
  i32 c[4];
  for (u32 i = 0; i < 4; i++) a[i] = ldg32(in + i);
  for (u32 i = 0; i < 2; i++) b[i] = ldg32(in + 4 + i);
  for (u32 i = 0; i < 4; i++) c[i] = (i32)ldg32(in + 6 + i);
  mma_s8(c, a, b);
  for (u32 i = 0; i < 4; i++) stg32((u32*)params.output + (u64)thread * 4 + i, (u32)c[i]);
}

// Vectors, and a reversal of a block's words through shared memory.
KERNEL(reverse, 1024, 1, SelfTest) {
  const u32 threads = block_threads(), t = thread_index();
  const u8* const in = (const u8*)params.input + (u64)block_index() * threads * 16;
  u8* const out = (u8*)params.output + (u64)block_index() * threads * 16;
  // Loaded in every way that there is.
  Vec4 v = t % 2 ? ldg128(in + t * 16) : ldg128_stream(in + t * 16);
  if (t % 3 == 0) {
    const Vec2 first = ldg64_stream(in + t * 16), second = ldg64_stream(in + t * 16 + 8);
    v = {first.x, first.y, second.x, second.y};
  }
  sts32(t * 16, v.w);
  sts32(t * 16 + 4, v.z);
  sts32(t * 16 + 8, v.y);
  for (u32 i = 0; i < 4; i++) sts8(t * 16 + 12 + i, v.x >> (8 * i));
  syncthreads();
  const u32 o = threads - 1 - t;
  const Vec4 r = {lds32(o * 16), lds16(o * 16 + 4) | lds16(o * 16 + 6) << 16, lds32(o * 16 + 8),
                  lds8(o * 16 + 12) | lds8(o * 16 + 13) << 8 | lds16(o * 16 + 14) << 16};
  stg128(out + t * 16, r);
}

// Warps take different numbers of steps, some end early, and those that stay meet at syncthreads.
KERNEL(uneven, 1024, 1, SelfTest) {
  const u32 t = thread_index(), warp = t / LANES, lane = t % LANES;
  u32 sum = 0;
  for (u32 i = 0; i <= warp * 3; i++) sum += popc(ballot((lane + i) % 3 == 0)) + shfl(lane, i);
  if (warp % 4 == 3) {
    stg32((u32*)params.output + t, sum);
    return;
  }
  sts32(t * 4, sum);
  syncthreads();
  u32 total = 0;
  for (u32 w = 0; w < block_threads() / LANES; w++) {
    if (w % 4 != 3) total += lds32((w * LANES + lane) * 4);
  }
  syncwarp();
  stg32((u32*)params.output + t, total);
}

// Each warp adds up its slots of the input, a lane at a time a word, two copies in flight. Shared memory: 64 slots for
// two buffers a warp, then the barriers.
KERNEL(copies, 1024, 1, SelfTest) {
  const u32 warp = thread_index() / LANES, lane = thread_index() % LANES, warps = block_threads() / LANES;
  const u32 buffers = warp * 2 * SLOT, barriers = warps * 2 * SLOT + warp * 16;
  const u8* const in = (const u8*)params.input;
  if (lane == 0) {
    copy_init(barriers);
    copy_init(barriers + 8);
    copy_init_fence();
  }
  syncwarp();
  u32 sum = 0;
  if (warp < params.n) warp_copy(buffers, in + warp * SLOT, SLOT, barriers, lane);
  for (u32 i = 0; warp + i * warps < params.n; i++) {
    const u32 slot = warp + i * warps, next = slot + warps, odd = i & 1;
    if (next < params.n) warp_copy(buffers + (odd ^ 1) * SLOT, in + next * SLOT, SLOT, barriers + (odd ^ 1) * 8, lane);
    warp_copy_wait(barriers + odd * 8, i >> 1 & 1, next < params.n);
    for (u32 a = lane * 4; a < SLOT; a += LANES * 4) sum += lds32(buffers + odd * SLOT + a);
    syncwarp();
  }
  stg32((u32*)params.output + thread_index(), sum);
}

// `n` ballots of each warp.
KERNEL(ballots, 1024, 1, SelfTest) {
  u32 sum = thread_index();
  for (u32 i = 0; i < params.n; i++) sum += ballot(sum & 1);
  stg32((u32*)params.output + thread_index(), sum);
}

// `n` loads from shared memory by each thread.
KERNEL(loads, 1024, 1, SelfTest) {
  sts32(thread_index() * 4, 4 * thread_index() * 5 % (block_threads() * 4));
  syncthreads();
  u32 at = thread_index() * 4;
  for (u32 i = 0; i < params.n; i++) at = lds32(at);
  stg32((u32*)params.output + thread_index(), at);
}

#ifndef __CUDACC__
// One mistake each. A GPU would hang, fault or compute rubbish, so these are for the emulator alone; the numbers are
// those of the tests.
KERNEL(mistakes, 1024, 1, SelfTest) {
  const u32 t = thread_index(), lane = t % LANES;
  const u8* const in = (const u8*)params.input;
  u8* const out = (u8*)params.output;
  switch (params.mode) {
    case 0: lds32(params.n); break;
    case 1: sts8(params.n, 0); break;
    case 2: lds16(params.n); break;
    case 3: ldg32(in + params.n); break;
    case 4: stg8(out + params.n, 0); break;
    case 5: stg32((void*)in, 0); break;
    case 6: ldg32(out); break;
    case 7: ldg32((const void*)(u64)params.n); break;
    case 8: atomic_min((u32*)(out + params.n), 0); break;
    case 9:  // some lanes elsewhere
      if (lane < 16) ballot(true);
      else syncwarp();
      break;
    case 10:
      if (lane < 16) ballot(true);
      else ballot(false);  // on another line
      break;
    case 11:  // some lanes end
      if (lane == 7) return;
      ballot(true);
      break;
    case 12:
      if (lane != 7) ballot(true);
      break;
    case 13:
      if (t < LANES) syncthreads();
      else ballot(true), syncthreads();
      break;
    case 14:
      if (lane < 16) syncthreads();
      else ballot(true);
      break;
    case 15: copy_wait(64, 0); break;  // never initialised
    case 16:
      if (lane == 0) copy_init(64);
      syncwarp();
      copy_wait(64, 0);
      break;
    case 17:  // never started
    case 18:  // the other half of the warp waits for something else
    case 19:  // not waited for
    case 20:  // started twice
    case 21:  // read before the wait
    case 22:  // the wrong parity
    case 23:  // the target is outside
    case 24:  // the source is outside
    case 25:  // the target was stored to without a fence
    case 26:  // the target is read by a lane that goes on
    case 27:  // overwrites the barrier
      if (params.mode == 26) lds32(lane * 4);
      if (lane == 0) {
        copy_init(64);
        copy_init_fence();
      }
      if (params.mode == 25) {
        syncwarp();
        if (lane == 0) sts32(4, 1);
      }
      if (params.mode != 26) syncwarp();
      if (params.mode == 17) copy_wait(64, 0);
      if (params.mode == 18) {
        if (lane >= 16) copy_wait(64, 0);
        ballot(true);
      }
      if (lane == 0) {
        copy_start(params.mode == 23 ? 4080 : params.mode == 27 ? 48 : 0, in + (params.mode == 24 ? 4096 : 0), 32, 64);
        if (params.mode == 20) copy_start(0, in, 32, 64);
      }
      if (params.mode == 19) return;
      if (params.mode == 21 || params.mode == 22) syncwarp();
      if (params.mode == 21) lds32(16);
      copy_wait(64, params.mode == 22);
      if (params.mode == 22) lds8(0);
      break;
    case 28:  // a load in another warp without syncthreads
      if (t == 40) sts32(8, 1);
      if (t == 3) lds8(9);
      break;
    case 29:  // a load in the same warp without syncwarp
      if (t == 4) sts32(8, 1);
      ballot(true);
      if (t == 3) lds32(8);
      break;
    case 30:  // a store after a load without syncthreads
      lds32(0);
      syncwarp();
      if (t == 33) sts32(0, 1);
      break;
    case 31:  // two stores of different values
      sts32(0, lane);
      break;
    case 32:  // a load of a barrier
      if (lane == 0) copy_init(64), lds32(64);
      break;
    case 33:  // a barrier that another warp initialised
      if (t == 0) copy_init(64), copy_init_fence();
      syncwarp();
      copy_wait(64, 1);
      break;
    case 34:  // misaligned
      ldg32(in + 2);
      break;
    case 35: shfl_up(lane, 32); break;
    case 36:  // no mistake: the same value, and lanes of one thread after another
      sts32(0, 7);
      syncthreads();
      if (t == 5) sts32(0, 8);
      syncthreads();
      if (t == 6) sts32(0, lds32(0) + 1);
      break;
    case 37:  // a copy that only one lane waited for
      if (lane == 0) {
        copy_init(64);
        copy_init_fence();
        copy_start(0, in, 32, 64);
        copy_wait(64, 0);
      }
      if (params.n) syncwarp();
      lds32(lane % 8 * 4);
      break;
    case 40: stg32(out, 1u << (params.n + lane)); break;
    case 41: {
      u32 values[4] = {lane, 1, 2, 3};
      values[params.n & 3] = 7;
      stg32(out, values[params.n]);
      break;
    }
    case 42: stg32(out, lane / params.n); break;
    case 43: stg32(out, (u32)((i32)params.n + 1)); break;
    case 44:
      if (lane < 16) {
        float c[4] = {};
        mma_f16(c, {1, 2, 3, 4}, {5, 6});
      }
      break;
    default: break;
  }
}
#endif

// Kernels that test the emulator: each primitive, and each mistake that it must detect. Not shipped.
//
// Kernels that tests compare with a GPU use shared memory from TABLE_AT on: bytes before that may be the system's
// there.
#include "async.h"
#include "single.h"

struct SelfTest {
  u64 input;   // address of u32
  u64 output;  // address of u32
  u32 mode;
  u32 n;
};

// The results of the primitives, 16 words per thread.
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

// The results of other primitives on words, 8 words per thread.
KERNEL(words, 1024, 1, SelfTest) {
  const u32 thread = block_index() * block_threads() + thread_index(), lane = thread_index() % LANES;
  const u32 v = ldg32((const u32*)params.input + thread), a = fshl(v, v, 11), b = v * 0x9E3779B1u;
  u32* const out = (u32*)params.output + (u64)thread * 8;
  stg32(out + 0, choose(v, a, b));
  stg32(out + 1, differ(v, a, b));
  // Masks that are compile-time constants.
  stg32(out + 2, choose(0x0C0C0C0Cu, a, b));
  stg32(out + 3, differ(0xFCFCFCFCu, a, prmt(b, b, 0xBA98)));
  stg32(out + 4, sum_up_to(v, lane));
  stg32(out + 5, max_halves(a, b));
  stg32(out + 6, warp_max(v, lane));
  stg32(out + 7, (u32)warp_sum((i32)v >> 5, lane));
}

// Arithmetic on three floats per thread, and conversions of the first two; 8 words per thread.
KERNEL(floats, 1024, 1, SelfTest) {
  const u32 thread = block_index() * block_threads() + thread_index();
  const u32* const in = (const u32*)params.input + (u64)thread * 3;
  const u32 v = ldg32(in);
  const float a = bits_f32(v), b = bits_f32(ldg32(in + 1)), c = bits_f32(ldg32(in + 2));
  u32* const out = (u32*)params.output + (u64)thread * 8;
  stg32(out + 0, f32_bits(add_rn(a, b)));
  stg32(out + 1, f32_bits(mul_rn(a, b)));
  stg32(out + 2, f32_bits(div_rn(a, b)));
  stg32(out + 3, f32_bits(sqrt_rn(a)));
  stg32(out + 4, f32_bits(fma_rn(a, b, c)));
  stg32(out + 5, f32_bits(f32_of_i32((i32)v)));
  stg32(out + 6, pack_f16(a, b));
  stg32(out + 7, pack_bf16(a, b));
}

// The steps by which single.h splits an element times a power of two into digits, 3 words per thread.
KERNEL(digits, 1024, 1, SelfTest) {
  const u32 thread = block_index() * block_threads() + thread_index();
  const u32* const in = (const u32*)params.input + (u64)thread * 2;
  const float x = bits_f32(ldg32(in)), factor = bits_f32(ldg32(in + 1));
  const float upper = fma_rn(x, factor, bits_f32(DIGITS_ABOVE));
  const float rest = fma_rn(x, factor, bits_f32(DIGITS_ABOVE) - upper);
  u32* const out = (u32*)params.output + (u64)thread * 3;
  stg32(out + 0, f32_bits(upper));
  stg32(out + 1, f32_bits(rest));
  stg32(out + 2, f32_bits(fma_rn(rest, 128, bits_f32(DIGIT_ABOVE))));
}

// e to the power of one float per thread.
KERNEL(powers, 1024, 1, SelfTest) {
  const u32 thread = block_index() * block_threads() + thread_index();
  stg32((u32*)params.output + thread, f32_bits(exp_f32(bits_f32(ldg32((const u32*)params.input + thread)))));
}

// The f16 of each thread's number.
KERNEL(halves, 1024, 1, SelfTest) {
  const u32 thread = block_index() * block_threads() + thread_index();
  stg32((u32*)params.output + thread, f32_bits(f32_of_f16(thread & 0xFFFF)));
}

// Sums of two words per thread: pairs of f16 (mode 0) or bf16 (mode 1).
KERNEL(pairs, 1024, 1, SelfTest) {
  const u32 thread = block_index() * block_threads() + thread_index();
  const u32* const in = (const u32*)params.input + (u64)thread * 2;
  const u32 a = ldg32(in), b = ldg32(in + 1);
  u32 sum = 0;
  if (params.mode == 0) sum = add_f16(a, b);
#if MMA_BF16
  else sum = add_bf16(a, b);
#endif
  stg32((u32*)params.output + thread, sum);
}

// Integer arithmetic, 11 words per thread: the inputs are two numbers, and the factor and shift of a divisor.
KERNEL(integers, 1024, 1, SelfTest) {
  const u32 thread = block_index() * block_threads() + thread_index(), lane = thread_index() % LANES;
  const u32* const in = (const u32*)params.input + (u64)thread * 4;
  const u32 a = ldg32(in), b = ldg32(in + 1);
  const Divisor by = {ldg32(in + 2), ldg32(in + 3)};
  u32* const out = (u32*)params.output + (u64)thread * 11;
  stg32(out + 0, clz(a));
  stg32(out + 1, mulhi(a, b));
  stg32(out + 2, divide(a & 0x7FFFFFFFu, by));
  stg32(out + 3, shfl_up(a, 1));
  stg32(out + 4, shfl_up(a, 2));
  stg32(out + 5, shfl_up(a, 4));
  stg32(out + 6, max_halves(a, b));
  stg32(out + 7, warp_max(a, lane));
  stg32(out + 8, sum_up_to(a, lane));
  const u64 both = in_register((u64)b << 32 | a, lane);
  stg32(out + 9, (u32)both);
  stg32(out + 10, (u32)(both >> 32));
}

// c += A B for matrices of f16 (mode 0) or bf16 (mode 1): each lane's inputs are four words of A, two of B and four of
// c, and its output is c.
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

// As `products`, for matrices of integers.
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

// Vector accesses, and a reversal of a block's words through shared memory.
KERNEL(reverse, 1024, 1, SelfTest) {
  const u32 threads = block_threads(), t = thread_index();
  const u8* const in = (const u8*)params.input + (u64)block_index() * threads * 16;
  u8* const out = (u8*)params.output + (u64)block_index() * threads * 16;
  // Loaded in every available way.
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

// Warps take different numbers of steps, some end early, and the others meet at syncthreads.
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

// Stores the first `n` words of the input in shared memory, for streams that the threads read.
DEVICE void put_stream(const SelfTest& params) {
  for (u32 i = thread_index(); i < params.n; i += block_threads()) {
    sts32(TABLE_AT + i * 4, ldg32((const u32*)params.input + i));
  }
  syncthreads();
}

// Eight steps of take_words: `x` and `next` after each, 16 words per thread. After the stream, the input has for each
// thread the end of its warp's words, and four values of `x`: every other step continues with the result of the one
// before.
KERNEL(takes, 1024, 1, SelfTest) {
  const u32 t = thread_index(), lane = t % LANES;
  const u32* const of_thread = (const u32*)params.input + params.n + t * 5;
  put_stream(params);
  const u32 below = (1u << lane) - 1, end = ldg32(of_thread);
  // Warps begin at 16-bit words in either half.
  u32 x = 0, next = TABLE_AT + t / LANES * 66;
  for (u32 i = 0; i < 8; i++) {
    if (i % 2 == 0) x = ldg32(of_thread + 1 + i / 2);
    take_words(x, next, below, end);
    stg32((u32*)params.output + t * 16 + 2 * i, x);
    stg32((u32*)params.output + t * 16 + 2 * i + 1, next);
  }
}

// Six steps of next_word: all values that it moves, 24 words per thread. After the stream, the input has the six `on`
// of each thread.
KERNEL(windows, 1024, 1, SelfTest) {
  const u32 t = thread_index(), end = TABLE_AT + params.n * 4;
  const u32* const of_thread = (const u32*)params.input + params.n + t * 6;
  put_stream(params);
  u32 next = TABLE_AT + t * 8;
  u32 lo = lds32_stream(next, end), hi = lds32_stream(next + 4, end), after = lds32_stream(next + 8, end);
  next += 12;
  for (u32 i = 0; i < 6; i++) {
    next_word(ldg32(of_thread + i), lo, hi, after, next, end);
    u32* const out = (u32*)params.output + t * 24 + 4 * i;
    stg32(out + 0, lo);
    stg32(out + 1, hi);
    stg32(out + 2, after);
    stg32(out + 3, next);
  }
}

// Loads of each kind of words stored in each way by a thread of another warp, 19 words per thread.
KERNEL(shared_words, 1024, 1, SelfTest) {
  const u32 t = thread_index(), to = TABLE_AT + t * 32, from = TABLE_AT + (t ^ 33) * 32;
  const u32 end = TABLE_AT + block_threads() * 32;
  const u8* const in = (const u8*)params.input + t * 32;
  const Vec4 v = ldg128(in), w = ldg128(in + 16);
  sts128(to, v);
  sts64(to + 16, {w.x, w.y});
  sts32(to + 24, w.z);
  for (u32 i = 0; i < 4; i++) sts8(to + 28 + i, w.w >> (8 * i));
  // One byte of a word, from a value with more.
  sts8(to + 25, v.x);
  syncthreads();
  u32* const out = (u32*)params.output + t * 19;
  const Vec4 first = lds128(from), second = lds128(from + 16);
  stg32(out + 0, first.x), stg32(out + 1, first.y), stg32(out + 2, first.z), stg32(out + 3, first.w);
  stg32(out + 4, second.x), stg32(out + 5, second.y), stg32(out + 6, second.z), stg32(out + 7, second.w);
  const Vec2 third = lds64(from + 8), fourth = lds64(from + 24);
  stg32(out + 8, third.x), stg32(out + 9, third.y), stg32(out + 10, fourth.x), stg32(out + 11, fourth.y);
  stg32(out + 12, lds32(from + 12));
  stg32(out + 13, lds16(from + 18) | lds16(from + 28) << 16);
  stg32(out + 14, lds8(from + 3) | lds8(from + 17) << 8 | lds8(from + 25) << 16 | lds8(from + 30) << 24);
  stg32(out + 15, lds32_table(from - TABLE_AT + 20));
  stg32(out + 16, lds32_stream(from + 4, end));
  stg32(out + 17, lds16_stream(from + 26, end) | lds16_stream(from + 14, end) << 16);
  stg32(out + 18, table_fits());
}

// Sums in shared memory of one word per thread: of its warp once that has met, of the block, and of some threads of
// each warp. Shared memory: a word of the block, then words of warps, and from word 40 on those of the selected
// threads.
KERNEL(shared_sums, 1024, 1, SelfTest) {
  const u32 t = thread_index(), v = ldg32((const u32*)params.input + t);
  const u32 of_warp = TABLE_AT + 4 + t / LANES * 4, of_some = TABLE_AT + 160 + t % 7 * 4;
  // The initial values of the sums.
  if (t < 64) sts32(TABLE_AT + t * 4, ~t);
  syncthreads();
  add_shared(TABLE_AT, v);
  add_shared(of_warp, ~v);
  syncwarp();
  stg32((u32*)params.output + t * 3, lds32(of_warp));
  add_shared(of_some, v);
  add_shared(of_some, 1);
  syncthreads();
  stg32((u32*)params.output + t * 3 + 1, lds32(TABLE_AT));
  stg32((u32*)params.output + t * 3 + 2, lds32(of_some));
}

// Loads and stores of global memory, 28 words per thread: loads of 8 words that are never written, and of words that
// the thread has just stored.
KERNEL(memory, 1024, 1, SelfTest) {
  const u32 t = thread_index();
  const u8* const in = (const u8*)params.input + t * 32;
  u8* const out = (u8*)params.output + t * 112;
  const Vec4 v = ldg128(in), w = ldg128_stream(in + 16), u = load128(in);
  const Vec2 x = ldg64_stream(in + 8), y = ldg64_late(in + 24);
  const u64 z = load64(in + 8);
  stg128(out, v);
  stg128(out + 16, w);
  stg128(out + 32, {x.x, x.y, y.x, y.y});
  stg128(out + 48, {u.w, u.z, u.y, u.x});
  stg32(out + 64, (u32)z);
  stg32(out + 68, (u32)(z >> 32));
  stg32(out + 72, load32(in + 20));
  stg32(out + 76, load16(in + 6) | load16(in + 16) << 16);
  stg32(out + 80, load8(in + 1) | load8(in + 15) << 8 | load8(in + 23) << 16 | load8(in + 28) << 24);
  stg32(out + 84, load32(out + 36));
  stg32(out + 88, load16(out + 18) | load8(out + 27) << 16 | load8(out + 41) << 24);
  stg32(out + 92, (u32)(load64(out + 40) >> 16));
  const Vec4 s = load128(out + 16);
  stg128(out + 96, {s.y, s.z, s.w, s.x});
}

// Additions in global memory, 4 words per thread: the value of its third word before the thread added to that, and the
// value of the first thread's fourth word before each thread adds 1. All add to the second thread's fourth word, too.
KERNEL(arrivals, 1024, 1, SelfTest) {
  const u32 t = thread_index(), v = ldg32((const u32*)params.input + t);
  u32* const all = (u32*)params.output + 3;
  u32* const out = (u32*)params.output + t * 4;
  stg32(out + 0, atomic_add(out + 2, v));
  stg32(out + 1, atomic_add(all, 1));
  atomic_add(all + 4, v);
}

#define SLOT 4096u

// Slots begin at any multiple of 16 bytes, and are from 16 bytes to SLOT long.
DEVICE u32 slot_units(u32 slot) { return 256 - slot * 51 % 256; }

// Starts to copy a slot to a buffer: by warp_copy (`how` is 0), by warp_copy_two in separate pieces (1), or by
// small_copy (2).
DEVICE void start_slot(u32 how, const SelfTest& params, u32 slot, u32 buffer, u32 barrier, u32 lane) {
  const u8* const in = (const u8*)params.input + slot * 1040;
  const u32 units = slot_units(slot);
  if (how == 0) {
    warp_copy(buffer, in, units * 16, barrier, lane);
  } else if (how == 1) {
    const u32 first = (units + 3) / 4 * 16, second = (units + 1) / 2 * 16;
    warp_copy_two(buffer, in, first, buffer + SLOT - second, in + SLOT / 2, second, barrier, lane);
  } else {
    small_copy(buffer, in, units * 16, barrier, lane);
  }
}

// Warps copy the `n` slots in turn, and read the whole buffer when a copy has arrived, because its untouched bytes
// count too; one word per thread. Modes 0 to 2: through one buffer, as in `start_slot`; 3 to 5: through two, with two
// copies in flight. Shared memory: two buffers per warp, then the barriers.
KERNEL(copies, 1024, 1, SelfTest) {
  const u32 warp = thread_index() / LANES, lane = thread_index() % LANES, warps = block_threads() / LANES;
  const u32 buffers = TABLE_AT + warp * 2 * SLOT, barriers = TABLE_AT + warps * 2 * SLOT + warp * 16;
  const u32 how = params.mode % 3;
  const bool two = params.mode >= 3;
  if (lane == 0) {
    copy_init(barriers);
    copy_init(barriers + 8);
    copy_init_fence();
  }
  for (u32 a = lane * 4; a < 2 * SLOT; a += LANES * 4) sts32(buffers + a, a);
  copy_fence();
  syncwarp();
  u32 sum = 0;
  if (two && warp < params.n) start_slot(how, params, warp, buffers, barriers, lane);
  for (u32 i = 0; warp + i * warps < params.n; i++) {
    const u32 slot = warp + i * warps, next = slot + warps, odd = two ? i & 1 : 0, other = odd ^ 1;
    const bool more = two && next < params.n;
    if (!two) start_slot(how, params, slot, buffers, barriers, lane);
    if (more) start_slot(how, params, next, buffers + other * SLOT, barriers + other * 8, lane);
    const u32 parity = two ? i >> 1 & 1 : i & 1;
    if (how < 2) warp_copy_wait(barriers + odd * 8, parity, more);
    else small_copy_wait(barriers + odd * 8, parity, more);
    for (u32 a = lane * 4; a < SLOT; a += LANES * 4) sum = sum * 0x01000193u + lds32(buffers + odd * SLOT + a);
    // The buffer is read before the next copy into it.
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
// One mistake each. A GPU would hang, fault or compute garbage, so these are for the emulator alone; the numbers are
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
    case 9:  // some lanes are elsewhere
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
    case 23:  // the target is out of bounds
    case 24:  // the source is out of bounds
    case 25:  // the target was stored to without a fence
    case 26:  // the target is read by a lane that does not wait
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
    case 45:  // devices that count copies would not wait for this one
      if (lane == 0) {
        copy_init(64);
        copy_init_fence();
        copy_start(0, in, 32, 64);
        copy_wait(64, 0, 1);
      }
      break;
    case 46: cluster_wait(); break;  // has not arrived
    case 47:
      cluster_arrive();
      cluster_begin();
      break;
    case 48:  // a store to another block that has used the place since it arrived,
    case 49:  // to one that knows nothing of it,
    case 50:  // and no mistake
    case 51:  // to no block
    case 52:  // misaligned
    case 53:  // to a barrier
    case 54:  // a load of a word that another warp stored behind its arrival,
    case 55:  // before one that orders nothing,
    case 56: {  // and before its arrival, which is no mistake
      const u32 own = shared_window(), other = 1 - (own >> 24);
      if (params.mode == 53 && lane == 0) copy_init(own + 64), copy_init_fence();
      if (params.mode >= 54) {
        if (params.mode != 54) sts32(own + 1024 + t * 4, t);
        if (params.mode == 55) cluster_begin();
        else cluster_arrive();
        if (params.mode == 54) sts32(own + 1024 + t * 4, t);
        cluster_wait();
        stg32((u32*)out + block_index() * LANES + lane, lds32(own + 1024 + (t ^ LANES) * 4));
        break;
      }
      cluster_begin();
      if (params.mode == 48) sts32(own + 512 + lane * 16, lane);
      cluster_wait();
      const u32 to = own + (params.mode == 53 ? 0 : 512) + lane * 16 + (params.mode == 52 ? 4 : 0);
      sts128_of(to, params.mode == 51 ? 2 : other, {lane, other, 2, 3});
      if (params.mode == 49) lds32(own + 512 + lane * 16);
      cluster_arrive();
      cluster_wait();
      if (params.mode == 50) stg32((u32*)out + block_index() * LANES + lane, lds32(own + 512 + lane * 16) | lds32(own + 516 + lane * 16) << 8);
      break;
    }
    default: break;
  }
}
#endif

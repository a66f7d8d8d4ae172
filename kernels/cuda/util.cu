// Kernels for planes that nvCOMP decodes or that are stored raw: arguments for nvCOMP, its results, filters, scales,
// bits of elements; and norms of vectors.
#include "abi.h"
#include "emit.h"
#include "join.h"
#include "norm.h"
#include "symbols.h"

#define THREADS 256

// The item that entry `i` of the launch belongs to.
template <class Batch>
DEVICE u32 item_of(const Batch& batch, u64 i) {
  u32 item = 0;
  while (item + 1 < batch.count && batch.items[item + 1].cost_begin <= i) item++;
  return item;
}

// The factor of a column, in the matrix that a row is in; 0 if columns have none.
DEVICE u64 factor_of(const Symbols& s, u64 row, u64 col) {
  return s.output.columns ? s.output.columns + (row / s.rows * s.cols + col) * 2 : 0;
}

template <u32 OUT>
DEVICE void write_group(const Symbols& s, u64 at) {
  const u64 row = at / s.cols, col = at - row * s.cols;
  const u32 bytes = Element<OUT>::bytes();
  const u32 base = steps_base<SCALES_ANY>(s.output);
  u8* to = (u8*)s.output.out + ((row - s.output.row_begin) * s.output.row_stride + col * s.output.column_stride) * bytes;
  if (s.vector) {
    const Vec4 v = ldg128((const u8*)s.symbols + at);
    const u32 q[4] = {v.x, v.y, v.z, v.w};
    emit16<OUT>(to, q, {base, OUT != OUT_INT8 ? scale_at<SCALES_ANY>(s.output, row, (u32)col) : 0}, factor_of(s, row, col));
    return;
  }
  u64 r = row, c = col;
  for (u64 i = at; i < at + 16 && i < s.end; i++) {
    const float scale = OUT != OUT_INT8 ? scale_at<SCALES_ANY>(s.output, r, (u32)c) : 0;
    to = (u8*)s.output.out + ((r - s.output.row_begin) * s.output.row_stride + c * s.output.column_stride) * bytes;
    emit1<OUT>(to, ldg8((const u8*)s.symbols + i), {base, scale}, factor_of(s, r, c));
    if (++c == s.cols) {
      c = 0;
      r++;
    }
  }
}

// Converts symbols to values: 16 elements per thread.
KERNEL(wcodec_dequantize, THREADS, 4, SymbolsBatch) {
  overlap_start();
  overlap_wait();
  const u64 step = (u64)grid_blocks() * block_threads();
  for (u64 i = (u64)block_index() * block_threads() + thread_index(); i < params.cost; i += step) {
    const Symbols& s = params.items[item_of(params, i)];
    const u64 at = s.begin + (i - s.cost_begin) * 16;
    if (s.kind == OUT_INT8) write_group<OUT_INT8>(s, at);
    else if (s.kind == OUT_F16) write_group<OUT_F16>(s, at);
    else if (s.kind == OUT_BF16) write_group<OUT_BF16>(s, at);
    else write_group<OUT_F32>(s, at);
  }
}

// Undoes filters in place. `left`: one warp per run of a row. `up`: one lane per column of a chunk, which holds whole
// rows.
KERNEL(wcodec_unfilter, THREADS, 4, FilteredBatch) {
  overlap_start();
  overlap_wait();
  const u32 lane = thread_index() % LANES;
  const u64 warps = (u64)grid_blocks() * (block_threads() / LANES);
  for (u64 i = ((u64)block_index() * block_threads() + thread_index()) / LANES; i < params.cost; i += warps) {
    const Filtered& f = params.items[item_of(params, i)];
    const u64 run = i - f.cost_begin;
    u8* symbols = (u8*)f.symbols;
    if (f.filter == FILTER_UP) {
      const u64 columns = (f.cols + LANES - 1) / LANES, piece = run / columns, chunk = f.chunk_begin + piece;
      const u64 col = (run - piece * columns) * LANES + lane;
      if (col < f.cols) {
        const u64 end = (chunk + 1) * f.chunk < f.elements ? (chunk + 1) * f.chunk : f.elements;
        u32 sum = 0;
        for (u64 at = chunk * f.chunk + col; at < end; at += f.cols) {
          sum += load8(symbols + at);
          stg8(symbols + at, sum);
        }
      }
    } else {
      // Runs are the pieces between the starts of rows and of chunks: piece `j` of a chunk begins where its row does,
      // or with the chunk itself.
      const u64 per_chunk = (f.chunk + f.cols - 1) / f.cols + 1;
      const u64 piece = run / per_chunk, chunk = f.chunk_begin + piece, j = run - piece * per_chunk;
      const u64 from = chunk * f.chunk, to = from + f.chunk < f.elements ? from + f.chunk : f.elements;
      const u64 row = from / f.cols + j;
      const u64 begin = row * f.cols > from ? row * f.cols : from;
      const u64 end = (row + 1) * f.cols < to ? (row + 1) * f.cols : to;
      u32 carry = 0;
      for (u64 at = begin; at < end; at += LANES) {
        u32 sum = at + lane < end ? load8(symbols + at + lane) : 0;
#pragma unroll
        for (u32 d = 1; d < LANES; d *= 2) {
          const u32 other = shfl_up(sum, d);
          if (lane >= d) sum += other;
        }
        sum += carry;
        if (at + lane < end) stg8(symbols + at + lane, sum);
        carry = shfl(sum, LANES - 1);
      }
    }
  }
}

DEVICE u32 frame_item(const FramesBatch& batch, u32 i) {
  u32 item = 0;
  while (item + 1 < batch.count && batch.items[item + 1].first <= i) item++;
  return item;
}

DEVICE u64 frame_bytes(const Frames& f, u64 frame) {
  const u64 begin = frame * f.chunk;
  return f.decoded - begin < f.chunk ? f.decoded - begin : f.chunk;
}

DEVICE void store64(u64 array, u32 i, u64 v) {
  stg32((u8*)array + (u64)i * 8, (u32)v);
  stg32((u8*)array + (u64)i * 8 + 4, (u32)(v >> 32));
}

// Fills nvCOMP's arrays from the chunk offsets, as stored in the file. The host has checked that frames are in their
// plane.
KERNEL(wcodec_frames, THREADS, 4, FramesBatch) {
  overlap_wait();
  for (u32 i = block_index() * block_threads() + thread_index(); i < params.frames; i += grid_blocks() * block_threads()) {
    const Frames& f = params.items[frame_item(params, i)];
    const u64 frame = f.frame_begin + (i - f.first);
    const u8* entry = (const u8*)f.offsets + frame * 8;
    store64(params.compressed, i, f.data + (u64)ldg32(entry) * 8);
    store64(params.compressed_bytes, i, ldg32(entry + 4));
    store64(params.capacity, i, frame_bytes(f, frame));
    store64(params.outputs, i, f.output + (frame - f.frame_begin) * f.chunk);
    store64(params.actual, i, 0);
    // Not a status of nvCOMP: a status that it does not write is an error.
    stg32((u8*)params.statuses + (u64)i * 4, 0x7FFFFFFF);
  }
}

// Compares nvCOMP's results with the expected ones.
KERNEL(wcodec_frames_check, THREADS, 4, FramesBatch) {
  overlap_wait();
  for (u32 i = block_index() * block_threads() + thread_index(); i < params.frames; i += grid_blocks() * block_threads()) {
    const Frames& f = params.items[frame_item(params, i)];
    const u64 frame = f.frame_begin + (i - f.first);
    const u64 actual = load64((u8*)params.actual + (u64)i * 8);
    const u32 status = load32((u8*)params.statuses + (u64)i * 4);
    if (status != 0 || actual != frame_bytes(f, frame)) atomic_min((u32*)f.status, (u32)frame);
  }
}

// The plane that group `i` of the launch belongs to.
DEVICE u32 plane_of(const FieldsSymbolsBatch& batch, u64 i) {
  u32 item = 0;
  while (item + 1 < batch.count && batch.items[item + 1].symbols.cost_begin <= i) item++;
  return item;
}

// Stores symbols as bits of elements: 16 per thread.
KERNEL(wcodec_fields, THREADS, 4, FieldsSymbolsBatch) {
  overlap_start();
  overlap_wait();
  const u64 step = (u64)grid_blocks() * block_threads();
  for (u64 i = (u64)block_index() * block_threads() + thread_index(); i < params.cost; i += step) {
    const FieldsSymbols& item = params.items[plane_of(params, i)];
    const Symbols& s = item.symbols;
    const u64 at = s.begin + (i - s.cost_begin) * 16;
    u64 row = at / s.cols, col = at - row * s.cols;
    for (u64 e = at; e < at + 16 && e < s.end; e++) {
      const u64 place = (row - s.output.row_begin) * s.output.row_stride + col * s.output.column_stride;
      const u32 stored = ldg8((const u8*)s.symbols + e);
      u32 element;
      scatter<1>(item.fields, &stored, &element);
      put(item.fields, (u8*)s.output.out + place * item.fields.bytes, element);
      if (++col == s.cols) {
        col = 0;
        row++;
      }
    }
  }
}

// Norms of vectors, a block of threads each.
KERNEL(wcodec_norm, NORM_THREADS, 1, NormBatch) {
  overlap_start();
  overlap_wait();
  if (!table_fits()) return;
  const u64 before = (u64)block_index() * params.cols * 2;
  if (params.bf16) Normed<true>{params, before}.write();
  else Normed<false>{params, before}.write();
}

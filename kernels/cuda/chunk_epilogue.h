// Epilogues of chunks: the use of decoded weights. (product_epilogue.h has the epilogue of a launch of products.)
//
// A warp makes an epilogue for each chunk, and passes it the chunk's blocks from left to right; all lanes call its members
// together. `Block` (symbols.h) defines the weights of a block that a lane holds. An epilogue is a type with
//
//   State                         a thread's state beyond a chunk, such as sums. The kernel makes it
//     end(t, c, lane, good)       called after the last block of a chunk; `good`: whether the chunk was valid. Not called for one
//                                 that was abandoned before its first block
//     lost(t, c, lane)            called after a chunk that was not valid, or was abandoned
//   enum : bool { WAITS = ... }   whether the main loop waits for the preceding launch (`overlap_wait`) and lets the next one begin
//                                 (`overlap_start`) before the first chunk. If not, the epilogue, or the caller of the main loop, does both
//                                 before it accesses memory that other launches may write, or may still read
//   enum : bool { PREPARES = ... }
//                                 whether all warps of the block call `state.prepare(t, lane)` before the first chunk, and then
//                                 find the data that all of them stored in shared memory; only for main loops with a new table
//   enum : bool { OPERANDS = ... }
//                                 whether it takes elements with separate signs (`Signed`), if a tile has interior blocks of them; it
//                                 then has, in place of `interior`,
//     operands(k, signed)         takes the equivalent of word k of a `Block`, from 0 to 7, and
//     next()                      called after the last of them
//   enum : bool { CHECKS = ... }  whether a chunk is invalid if a patch contradicts the symbols
//   enum : bool { COPIES = ... }  whether `state.batch.copies` says that a small table is stored in several copies
//   enum : bool { CORRECTS = ... }
//                                 whether, if `state.takes_patches()` says so, it applies patches itself: blocks are passed without
//                                 patches, `state.changes` has the patches, and `state.change(t, c, lane)`, called after the last
//                                 block, applies them and returns whether all of them were sound, apart from their claims about
//                                 the symbols
//   enum : bool { BESIDE = ... }  whether the side words of a warp's only chunk may be copied to `state.space_for_side(t, bytes)`, if
//                                 they are few
//   Epilogue(State&, const Tiles&, const Chunk&, u32 lane)
//                                 called before the first block. The chunk's position is in the plane; its bytes may be damaged
//   bool takes_interior() const      whether `interior` can be used; the same for all lanes
//   enum : bool { RAISED = ... }  whether it takes interior blocks with scaled elements
//   void begin_interior(raised)      all blocks of this chunk will be interior, with elements multiplied by 2^raised: 0, unless RAISED
//   void interior(Block&)            takes the next block, all of whose weights are in the matrix. The epilogue may change the registers
//   void any(const Block&)        takes the next block, whose rows and columns may partly or entirely lie beyond the matrix's edge
//
// The blocks of a chunk all go to `interior`, or all to `any`; an epilogue that does not distinguish them lets one call the
// other. Epilogues are passed by value: with a reference the compiler used more registers in some of the kernels.
#pragma once
#include "chunk.h"
#include "emit.h"

// Writes weights to global memory, as int8 or dequantized (OUT_*).
template <u32 OUT, u32 SCALES>
struct Store {
  struct State {
    DEVICE_MEMBER void end(const Tiles&, const Chunk&, u32, bool) {}
    DEVICE_MEMBER void lost(const Tiles&, const Chunk&, u32) {}
  };
  // Not variables, which would belong to the module.
  enum : bool { WAITS = true, OPERANDS = false, PREPARES = false, CHECKS = true, COPIES = false, CORRECTS = false, BESIDE = false, RAISED = false };

  const Tiles& t;
  u32 lane;
  u8* to;        // element of row g and the lane's first column, in the next block
  u32 row;       // row g, counted through all matrices
  u32 col;       // first column of the lane in the next block
  u32 factor;    // number of the factor of that column, if columns have some
  u32 rows;      // bit 0: row g is in the matrix; bit 1: row g + 8 is
  float s, s8;   // scales of the two rows, at `col`
  u32 row8;      // for interior blocks: bytes from row g to row g + 8; only where registers are left for it
  bool several;  // for interior blocks: whether a row has several scales

  DEVICE_MEMBER Store(State&, const Tiles& t, const Chunk& c, u32 lane) : t(t), lane(lane) {
    const u32 matrix = divide(c.strip, t.by_strips);
    const u32 in_matrix = (c.strip - matrix * t.strips) * TILE_ROWS + lane / 4;
    row = matrix * t.rows + in_matrix;
    col = c.tile * t.blocks * BLOCK_COLS + (lane & 3) * 16;
    factor = matrix * t.cols + col;
    rows = (in_matrix < t.rows ? 1 : 0) | (in_matrix + 8 < t.rows ? 2 : 0);
    to = (u8*)t.output.out + ((u64)(row - t.output.row_begin) * t.output.row_stride + (u64)col * t.output.column_stride) *
                                 Element<OUT>::bytes();
    float a = 0, b = 0;
    if (OUT != OUT_INT8) load_scales(a, b);
    s = a;
    s8 = b;
    // A line for each block: the factors of all of them come while the first one is decoded.
    if (has_factors() && lane < c.blocks) prefetch((const u8*)t.output.columns + (u64)(factor - (lane & 3) * 16 + lane * BLOCK_COLS) * 2);
  }

  // Several scales per row, for which interior blocks need registers, are allowed only if the compiler knows their type.
  DEVICE_MEMBER bool takes_interior() const { return t.vector && (SCALES == SCALES_INT8 || !rescales()); }

  DEVICE_MEMBER void begin_interior(u32) {
    row8 = 8 * t.output.row_stride * Element<OUT>::bytes();
    several = SCALES == SCALES_INT8 && rescales();
    to = to - (lane & 3) * (16 * Element<OUT>::bytes()) + exchanged_place<OUT>(lane);
    factor = factor - (lane & 3) * 16 + exchanged_place<OUT>(lane) / Element<OUT>::bytes();
  }

  DEVICE_MEMBER void interior(Block& b) {
    exchange<OUT>(b.q, lane);
    exchange<OUT>(b.q + 4, lane);
    float scales[4] = {s, s, s, s}, scales8[4] = {s8, s8, s8, s8};
    if (several) {
      // The scales of the groups of 16 columns whose elements the lane has now: with 2 bytes those of its pair of
      // lanes, with 4 bytes all four.
      const u32 first = col - (lane & (OUT == OUT_F32 ? 3 : 1)) * 16;
#pragma unroll
      for (u32 j = 0; j < (OUT == OUT_F32 ? 4 : 2); j++) {
        scales[j] = scale_at<SCALES>(t.output, row, first + 16 * j);
        scales8[j] = scale_at<SCALES>(t.output, row + 8, first + 16 * j);
      }
    }
    if (has_factors()) {
      const u64 factors = t.output.columns + (u64)factor * 2;
      emit_with_factors<OUT>(to, to_row8(), b.q, {base(), s}, {base(), s8}, factors);
    } else {
      emit_exchanged<OUT>(to, b.q, base(), scales);
      emit_exchanged<OUT>(SCALES == SCALES_INT8 ? to + row8 : to_row8(), b.q + 4, base(), scales8);
    }
    to += Element<OUT>::bytes() * BLOCK_COLS;
    col += BLOCK_COLS;
    factor += BLOCK_COLS;
  }

  DEVICE_MEMBER void any(const Block& b) {
    if (rescales()) load_scales(s, s8);
    if (t.vector && col + 16 <= t.cols) {
      if (rows & 1) emit16<OUT>(to, b.q, {base(), s}, factors_here());
      if (rows & 2) emit16<OUT>(to_row8(), b.q + 4, {base(), s8}, factors_here());
    } else {
      edge(b);
    }
    to += (u64)t.output.column_stride * (Element<OUT>::bytes() * BLOCK_COLS);
    col += BLOCK_COLS;
    factor += BLOCK_COLS;
  }

 private:
  // As in `Steps`.
  DEVICE_MEMBER u32 base() const { return steps_base<SCALES>(t.output); }

  // Whether a row has several scales.
  DEVICE_MEMBER bool rescales() const { return OUT != OUT_INT8 && t.output.scales_per_row > 1; }

  // Whether values are multiplied by factors of columns, which only planes with any scales may have.
  DEVICE_MEMBER bool has_factors() const { return OUT != OUT_INT8 && SCALES == SCALES_ANY && t.output.columns != 0; }
  // The address of factor number `factor`; 0 if there is none.
  DEVICE_MEMBER u64 factors_here() const { return has_factors() ? t.output.columns + (u64)factor * 2 : 0; }

  // The element of row g + 8, where `to` has that of row g.
  DEVICE_MEMBER u8* to_row8() const { return to + (u64)t.output.row_stride * (8 * Element<OUT>::bytes()); }

  DEVICE_MEMBER void load_scales(float& s, float& s8) const {
    if (col >= t.cols) return;
    if (rows & 1) s = scale_at<SCALES>(t.output, row, col);
    if (rows & 2) s8 = scale_at<SCALES>(t.output, row + 8, col);
  }

  // Writes a block at the edge of the matrix, or where rows are not aligned.
  DEVICE_MEMBER void edge(const Block& b) const {
    if (col >= t.cols) return;
    const u32 count = t.cols - col < 16 ? t.cols - col : 16;
    const u64 column = (u64)t.output.column_stride * Element<OUT>::bytes();
    if (rows & 1) emit_some<OUT>(to, b.q, {base(), s}, factors_here(), count, column);
    if (rows & 2) emit_some<OUT>(to_row8(), b.q + 4, {base(), s8}, factors_here(), count, column);
  }
};

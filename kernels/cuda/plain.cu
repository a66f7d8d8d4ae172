// Products of one vector with uncoded weights: they measure the cost of the coded products' structure by itself
// (pyext/benches/plain.py). Not shipped.
//
// A chunk has its elements uncoded: block after block, for each block rows 0 to 7 and then rows 8 to 15, 16 bytes per
// lane (`Block`).
#include "product.h"

struct PlainTile {
  enum : bool { COPIES = false, SMALL = false };

  template <bool>
  DEVICE_MEMBER void prefetch_side(const Tiles&, const Chunk&, u32) {}
  DEVICE_MEMBER void forget() {}

  template <class Epilogue>
  DEVICE_MEMBER bool decode(typename Epilogue::State& state, const Tiles& t, const Chunk& c, Arrival a, u32 buffer, u32, u32 lane, const Chunk&, bool) {
    const Body body = body_of(a, buffer);
    if (body.end - body.begin != c.blocks * 1024) return false;
    Epilogue epilogue(state, t, c, lane);
    epilogue.begin_interior(0);
    u32 at = body.begin + lane * 16;
#pragma unroll 1
    for (u32 k = 0; k < c.blocks; k++, at += 1024) {
      const Vec4 upper = lds128(at), lower = lds128(at + 512);
      Block b = {{upper.x, upper.y, upper.z, upper.w, lower.x, lower.y, lower.z, lower.w}};
      epilogue.interior(b);
    }
    state.end(t, c, lane, true);
    return true;
  }
};

KERNEL(plain_times_f16, 1024, 1, ProductBatch) { multiply_all<PlainTile, 1, false, false>(params); }
KERNEL(plain_times_f16_early, 1024, 1, ProductBatch) { multiply_all<PlainTile, 1, false, true>(params); }
#if MMA_BF16
KERNEL(plain_times_bf16, 1024, 1, ProductBatch) { multiply_all<PlainTile, 1, true, false>(params); }
KERNEL(plain_times_bf16_early, 1024, 1, ProductBatch) { multiply_all<PlainTile, 1, true, true>(params); }
#endif

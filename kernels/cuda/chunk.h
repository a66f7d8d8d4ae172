// A chunk: which part of a plane it covers, and where its bytes are. FORMAT.md section 3 defines the words.
#pragma once
#include "abi.h"

#define BLOCK_COLS 64u
#define TILE_ROWS 16u

// A tile of a strip: TILE_ROWS rows of `blocks` blocks of BLOCK_COLS columns. At the matrix's edges it may be wider and higher than the
// matrix is.
struct Chunk {
  u32 index;
  u32 tile;
  u32 blocks;
  u32 strip;

  // To the chunk `step` chunks on, which are so many strips and tiles.
  DEVICE_MEMBER void move(const Tiles& t, u32 step, u32 strips, u32 tiles) {
    index += step;
    strip += strips;
    tile += tiles;
    if (tile >= t.tiles) {
      tile -= t.tiles;
      strip++;
    }
    blocks = tile + 1 == t.tiles ? t.last_blocks : t.blocks;
  }
};

// Where a chunk lies in its plane.
struct Arrival {
  u32 from, to;  // units of 4 bytes
};

// A chunk's bytes in shared memory.
struct Body {
  u32 begin;  // address in shared memory, a multiple of 4
  u32 end;
};

// A chunk that was copied to `buffer` with the whole 16 bytes around it.
DEVICE Body body_of(Arrival a, u32 buffer) {
  return {buffer + (a.from & 3) * 4, buffer + (a.from & 3) * 4 + (a.to - a.from) * 4};
}

DEVICE u32 divide(u32 n, Divisor by) { return mulhi(2 * n, by.factor) >> by.shift; }

DEVICE Chunk chunk_at(const Tiles& t, u32 index) {
  Chunk c;
  c.index = index;
  c.strip = divide(index, t.by_tiles);
  c.tile = index - c.strip * t.tiles;
  c.blocks = c.tile + 1 == t.tiles ? t.last_blocks : t.blocks;
  return c;
}

// Where a chunk begins and ends in its matrix, the same for all lanes.
DEVICE u32 first_row(const Tiles& t, const Chunk& c) {
  return (c.strip - divide(c.strip, t.by_strips) * t.strips) * TILE_ROWS;
}
DEVICE u32 end_col(const Tiles& t, const Chunk& c) { return c.tile * t.blocks * BLOCK_COLS + c.blocks * BLOCK_COLS; }
// Whether all of it lies inside. Of most matrices nothing has to be divided for that.
DEVICE bool lies_inside(const Tiles& t, const Chunk& c) {
  return (t.rows % TILE_ROWS == 0 || first_row(t, c) + TILE_ROWS <= t.rows) && (t.cols % BLOCK_COLS == 0 || end_col(t, c) <= t.cols);
}

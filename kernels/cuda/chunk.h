// A chunk: the part of a plane that it covers, and the position of its bytes. FORMAT.md section 3 defines the words.
#pragma once
#include "abi.h"

#define BLOCK_COLS 64u
#define TILE_ROWS 16u

// A tile of a strip: TILE_ROWS rows of `blocks` blocks of BLOCK_COLS columns. At the matrix's edges it may extend
// beyond the matrix.
struct Chunk {
  u32 index;
  u32 tile;
  u32 blocks;
  u32 strip;

  // Advances to the chunk `step` chunks later, given that as strips and tiles.
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

// The position of a chunk in its plane.
struct Arrival {
  u32 from, to;  // units of 4 bytes
};

// A chunk's bytes in shared memory.
struct Body {
  u32 begin;  // address in shared memory, a multiple of 4
  u32 end;
};

// The body of a chunk that was copied to `buffer` in whole units of 16 bytes.
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

// The beginning and end of a chunk in its matrix, the same for all lanes.
DEVICE u32 first_row(const Tiles& t, const Chunk& c) {
  return (c.strip - divide(c.strip, t.by_strips) * t.strips) * TILE_ROWS;
}
DEVICE u32 end_col(const Tiles& t, const Chunk& c) { return c.tile * t.blocks * BLOCK_COLS + c.blocks * BLOCK_COLS; }
// Whether the whole chunk lies inside the matrix. Most matrices need no division for that.
DEVICE bool lies_inside(const Tiles& t, const Chunk& c) {
  return (t.rows % TILE_ROWS == 0 || first_row(t, c) + TILE_ROWS <= t.rows) && (t.cols % BLOCK_COLS == 0 || end_col(t, c) <= t.cols);
}

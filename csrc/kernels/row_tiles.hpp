// The rows of a matrix in tiles whose sizes differ by at most one row. Included by kernel files only.
#pragma once

#include "kernels/kernel.hpp"
#include "simd/isa.hpp"

namespace engine::ENGINE_ISA_NS {

struct RowTiles {
  std::int64_t count;
  std::int64_t least, wide;  // rows in a tile; the first `wide` tiles have one more
  ENGINE_ALWAYS_INLINE std::int64_t first_row(std::int64_t tile) const { return tile * least + min64(tile, wide); }
  ENGINE_ALWAYS_INLINE std::int64_t rows(std::int64_t tile) const { return least + (tile < wide); }
};

// Of at least one row; at most `most` in a tile.
ENGINE_INLINE RowTiles row_tiles(std::int64_t rows, std::int64_t most) {
  const std::int64_t count = (rows + most - 1) / most;
  return {count, rows / count, rows % count};
}

}  // namespace engine::ENGINE_ISA_NS

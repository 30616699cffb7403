// Packs weights of i8 in the order in which int8 tiles read them (tile_int8.hpp).
#pragma once

#include "kernels/pack.hpp"

namespace engine {

// As pack.hpp, with adjacent depths in fours, the last ones filled with zeros:
//
//   packed [group][tile][block][row][col][ceil(depth / 4)][tile_channels][4]
static inline std::int64_t pack_int8_reduction(const PackArgs& args) {
  const std::int64_t depth = (args.depth + 3) / 4 * 4, last_depth = (args.last_depth + 3) / 4 * 4;
  return (depth * (args.blocks - 1) + last_depth) * args.rows * args.cols;
}
// The number of bytes of a packed group.
static inline std::int64_t pack_int8_group_size(const PackArgs& args) {
  const std::int64_t tiles = pack_tiles(args);
  return tiles == 0 ? 0 : ((tiles - 1) * args.tile_channels + args.tail_channels) * pack_int8_reduction(args);
}

}  // namespace engine

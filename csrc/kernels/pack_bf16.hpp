// Packing of f32 weights into the order in which tiles of bf16 read them (tile_bf16.hpp).
#pragma once

#include "kernels/pack.hpp"

namespace engine {

// As pack.hpp, with the depths of a pair beside each other and a zero where a depth is odd:
//
//   packed [group][tile][block][row][col][ceil(depth / 2)][tile_channels][2]
static inline std::int64_t pack_bf16_reduction(const PackArgs& args) {
  const std::int64_t depth = (args.depth + 1) / 2 * 2, last_depth = (args.last_depth + 1) / 2 * 2;
  return (depth * (args.blocks - 1) + last_depth) * args.rows * args.cols;
}
// Values of bf16 in a packed group.
static inline std::int64_t pack_bf16_group_size(const PackArgs& args) {
  const std::int64_t tiles = pack_tiles(args);
  return tiles == 0 ? 0 : ((tiles - 1) * args.tile_channels + args.tail_channels) * pack_bf16_reduction(args);
}

}  // namespace engine

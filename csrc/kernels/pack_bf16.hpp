// Packs f32 weights as bf16, in the order in which bf16 tiles read them (tile_bf16.hpp).
#pragma once

#include "kernels/pack.hpp"

namespace engine {

// As pack.hpp, with adjacent depths in pairs and a zero after an odd depth:
//
//   packed [group][tile][block][row][col][ceil(depth / 2)][tile_channels][2]
static inline std::int64_t pack_bf16_reduction(const PackArgs& args) {
  const std::int64_t depth = (args.depth + 1) / 2 * 2, last_depth = (args.last_depth + 1) / 2 * 2;
  return (depth * (args.blocks - 1) + last_depth) * args.rows * args.cols;
}
// The number of bf16 values in a packed group.
static inline std::int64_t pack_bf16_group_size(const PackArgs& args) {
  const std::int64_t tiles = pack_tiles(args);
  return tiles == 0 ? 0 : ((tiles - 1) * args.tile_channels + args.tail_channels) * pack_bf16_reduction(args);
}

}  // namespace engine

// Packs weights in the order in which tiles of AMX are loaded (tile_product.hpp).
#pragma once

#include "kernels/pack.hpp"

namespace engine {

// Columns of a group of packed weights, and bytes of depth in a step.
constexpr std::int32_t kAmxColumns = 32;
constexpr std::int32_t kAmxStepBytes = 64;

// As pack.hpp for one group with tiles of 32 channels, the last one, too. `depth` is a step of 64 bytes: 32 values of
// bf16, which are adjacent in twos (P), or 64 of i8, in fours. Channels and depths beyond the last ones are zero.
//
//   packed [tile][block][row][col][2][depth / P][16][P]
//
// The number of bytes of the packed array.
static inline std::int64_t pack_amx_bytes(const PackArgs& args) {
  return pack_tiles(args) * args.blocks * args.rows * args.cols * kAmxColumns * kAmxStepBytes;
}

}  // namespace engine

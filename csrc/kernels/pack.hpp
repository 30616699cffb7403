// Packs weights in the order in which tiles read them (tile.hpp).
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

// The mapping from a source array with any strides (in elements) to a packed array. The output channels of each group
// are divided into tiles of `tile_channels`, the last of `tail_channels` (both multiples of a vector's lanes):
//
//   packed [group][tile][block][row][col][ceil(depth / adjacent)][tile_channels][adjacent]
//
// Channels beyond `channels` are zero, and depths that fill up the last word. A word has 4 bytes: one value of f32, two
// of bf16 (from f32), four of i8.
// Convolution on NCHWc16: block is 16 input channels (the last one last_depth). Matrix product: the same without taps.
struct PackArgs {
  std::int64_t groups;
  std::int64_t channels;  // output channels of a group
  std::int32_t tile_channels;
  std::int32_t tail_channels;
  std::int32_t blocks;
  std::int32_t rows;
  std::int32_t cols;
  std::int32_t depth;
  std::int32_t last_depth;
  std::int32_t adjacent = 1;  // values in a word
  std::int64_t group_stride;
  std::int64_t channel_stride;
  std::int64_t block_stride;
  std::int64_t row_stride;
  std::int64_t col_stride;
  std::int64_t depth_stride;
  std::int64_t source_offset;  // of the first weight; the strides may be negative
  std::int64_t packed_offset;  // where the packed array starts in its buffer, in packed elements
};

// The words of one output channel, and of the packed array of a group.
static inline std::int64_t pack_reduction(const PackArgs& args) {
  const std::int64_t depth = (args.depth + args.adjacent - 1) / args.adjacent;
  const std::int64_t last_depth = (args.last_depth + args.adjacent - 1) / args.adjacent;
  return (depth * (args.blocks - 1) + last_depth) * args.rows * args.cols;
}
static inline std::int64_t pack_tiles(const PackArgs& args) {
  return (args.channels + args.tile_channels - 1) / args.tile_channels;
}
static inline std::int64_t pack_group_words(const PackArgs& args) {
  const std::int64_t tiles = pack_tiles(args);
  return tiles == 0 ? 0 : ((tiles - 1) * args.tile_channels + args.tail_channels) * pack_reduction(args);
}

}  // namespace engine

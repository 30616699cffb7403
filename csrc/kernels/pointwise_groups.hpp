// Grouped 1x1 convolution on NCHWc16 whose groups need not start at a block: for groups of a dozen channels or more.
#pragma once

#include "kernels/conv.hpp"

namespace engine {

// Pixels that are computed together: maps have at least as many.
constexpr std::int64_t kPointwisePixels = 14;
// Output channels of a group that share a read of their inputs, and a tile of the packed weights.
constexpr std::int64_t kPointwiseChannels = 32;

// Operands: x, w (packed), [bias], [scale], [residual], y.
struct PointwiseGroupsArgs {
  ConvShape shape;
  ConvOperands operands;
  EpilogueArgs epilogue;
  PackArgs pack;
  std::int64_t x_batch, y_batch, residual_batch;
};

// Floats between pixels of a worker's scratch memory. The last vectors of a group may reach beyond its channels; and an
// odd number of cache lines keeps pixels in different sets.
static inline std::int64_t pointwise_row(const ConvShape& shape) {
  return ((shape.out_channels + kPointwiseChannels + 15) / 16 | 1) * 16;
}

}  // namespace engine

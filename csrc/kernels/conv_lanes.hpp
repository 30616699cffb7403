// Grouped convolution on NCHWc16 whose groups have few channels: each lane is multiplied with the inputs of its own
// group, so no product is wasted, and no channel is moved in memory.
#pragma once

#include "kernels/conv.hpp"

namespace engine {

// Operands: x, w (packed, [block][kernel row][channel of a group][kernel column][16]), [bias], [scale], [residual], y.
struct LanesConvArgs {
  ConvShape shape;
  ConvOperands operands;
  EpilogueArgs epilogue;
  PackArgs pack;
  std::int64_t x_batch, y_batch, residual_batch;
};

// Where the lanes of a vector of outputs have one channel of their groups.
struct LaneSource {
  std::int64_t first, second;  // floats before the channel of all lanes, or before the one or two vectors with it
  union {
    std::int32_t index[16];  // the lane of the two vectors
    std::int64_t offset[4];  // without permutations: floats before each lane
  };
  std::int32_t kind;
};

}  // namespace engine

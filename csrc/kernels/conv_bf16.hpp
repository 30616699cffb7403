// Convolution on bf16 maps in NCHWc16, with f32 accumulation.
#pragma once

#include "kernels/conv_planar.hpp"

namespace engine {

// Weights are packed as described in pack_bf16.hpp. Strides in `conv` are in elements of either type.
struct ConvBf16Args {
  ConvArgs conv;
  std::int32_t y_bytes;         // size of an element of y: 2 (bf16) or 4 (f32)
  std::int32_t residual_bytes;  // the same for the residual
};

// From a plain f32 input, whose rows are rounded to bf16 when they are copied to scratch.
struct PlanarConvBf16Args {
  PlanarConvArgs conv;
  std::int32_t y_bytes, residual_bytes;
};

}  // namespace engine

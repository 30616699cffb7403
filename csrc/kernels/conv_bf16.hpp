// Convolution on maps in NCHWc16 of bf16, sums in f32.
#pragma once

#include "kernels/conv_planar.hpp"

namespace engine {

// Weights are packed as pack_bf16.hpp says. Strides of `conv` are in elements, whichever type they have.
struct ConvBf16Args {
  ConvArgs conv;
  std::int32_t y_bytes;         // of an element of y: 2 (bf16) or 4 (f32)
  std::int32_t residual_bytes;  // and of the residual
};

// From plain f32, whose rows are rounded to bf16 on their way into the scratch.
struct PlanarConvBf16Args {
  PlanarConvArgs conv;
  std::int32_t y_bytes, residual_bytes;
};

}  // namespace engine

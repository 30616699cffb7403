// Convolution on maps in NCHWc16 of bf16, sums in f32.
#pragma once

#include "kernels/conv.hpp"

namespace engine {

// Weights are packed as pack_bf16.hpp says. Strides of `conv` are in elements, whichever type they have.
struct ConvBf16Args {
  ConvArgs conv;
  std::int32_t y_bytes;         // of an element of y: 2 (bf16) or 4 (f32)
  std::int32_t residual_bytes;  // and of the residual
};

}  // namespace engine

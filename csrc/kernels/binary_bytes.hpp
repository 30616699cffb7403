// Sums and products of two 8-bit tensors with scales, as 8-bit integers or f32.
#pragma once

#include "kernels/requantize.hpp"

namespace engine {

// [outer][pixels][lanes]: A has all elements. B has all, or is the same for all pixels: lanes is 16 for blocks of
// channels, or 1.
//
//   sum      value = (a - a_zero_point) * a_scale + (b - b_zero_point) * b_scale
//   product  value = (a - a_zero_point) * (b - b_zero_point) * a_scale
//
// y = requantize(value).
struct BinaryBytesArgs {
  std::int64_t outer, pixels, lanes;
  RequantizeArgs requantize;
  float a_scale, b_scale;
  float a_zero_point, b_zero_point;  // as u8
  std::int32_t a_flip, b_flip;       // 128 for i8
  bool is_product, is_b_repeated;
};

}  // namespace engine

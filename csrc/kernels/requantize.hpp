// The epilogue of kernels with 8-bit operands: from exact integer sums to the result's type.
#pragma once

#include "kernels/codes.hpp"
#include "kernels/tile.hpp"

namespace engine {

// value = sum * scale[c] + bias[c], in f32
// value = min(max(round(value), middle_low), middle_high) * middle_scale + middle_bias[c], if has_middle: a result that
//         the model rounds to integers before it adds a bias or the residual; the bias is 0 where a kernel has none
// value += (residual - residual_zero_point) * residual_scale, activated as EpilogueArgs says
// y     = value; or as 8-bit integers, min(max(value, low), high), rounded half to even, + zero_point
//
// The factor that converts value to units of y is part of scale, bias and residual_scale if the activation commutes
// with it (kClip); otherwise `factor` is applied after the activation. Zero points of x and of the residual are part of
// the sum's start and of bias. For a result of i32, y is the sum.
struct RequantizeArgs {
  EpilogueArgs epilogue;
  ElementCode y = ElementCode::kF32;         // kU8, kI8, kF32, kI32
  ElementCode residual = ElementCode::kF32;  // kU8, kI8, kF32
  std::int32_t zero_point = 0;
  float low = 0, high = 0;
  float factor = 1;
  float residual_scale = 1;
  float residual_zero_point = 0;
  bool has_middle = false;
  float middle_low = 0, middle_high = 0, middle_scale = 1;
};

static inline std::int32_t element_bytes_of(ElementCode code) {
  return code == ElementCode::kU8 || code == ElementCode::kI8 ? 1 : 4;
}

}  // namespace engine

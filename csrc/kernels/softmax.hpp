// Softmax and its logarithm over one axis of [outer, axis, inner]; and Softmax of rows, as 8-bit integers.
#pragma once

#include "kernels/codes.hpp"
#include "kernels/kernel.hpp"

namespace engine {

// Floats of a row that one worker sums if several share a row.
constexpr std::int64_t kSoftmaxChunk = 8192;
// Adjacent columns that are processed together if inner > 1.
constexpr std::int64_t kSoftmaxColumns = 64;

struct SoftmaxArgs {
  std::int64_t outer, axis, inner;
  std::int64_t chunks;  // of a row; only for softmax_sum_f32 and softmax_apply_f32
  bool is_log;
  bool by_columns;  // also if inner is 1
};

// y = quantize(softmax(x)) for rows [outer, axis].
struct SoftmaxBytesArgs {
  std::int64_t outer, axis;
  ElementCode x, y;  // x: f32, u8 or i8; y: u8 or i8
  float x_scale;     // of integers; their zero point is irrelevant
  float y_scale;
  std::int32_t y_zero_point;
};

}  // namespace engine

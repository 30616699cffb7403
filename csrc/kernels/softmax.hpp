// Softmax and its logarithm over one axis of [outer, axis, inner].
#pragma once

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
};

}  // namespace engine

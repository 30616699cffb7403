// Division by the L1 or L2 norm over one axis of [outer, axis, inner].
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

// Adjacent columns that are processed together if inner > 1.
constexpr std::int64_t kLpNormColumns = 64;

struct LpNormArgs {
  std::int64_t outer, axis, inner;
  float zero;  // what a norm of zero is replaced by
};

}  // namespace engine

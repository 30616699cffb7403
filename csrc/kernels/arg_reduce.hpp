// Positions of extremes along one axis of [outer, axis, inner].
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

enum class ArgType : std::int32_t { kF32, kI32, kI64, kU8, kI8, kCount };

struct ArgReduceArgs {
  ArgType type;
  bool is_min;
  bool is_last;  // of equal ones; else the first
  std::int64_t outer, axis, inner;
};

// Columns (of inner) that are done together.
constexpr std::int64_t kArgTile = 64;

}  // namespace engine

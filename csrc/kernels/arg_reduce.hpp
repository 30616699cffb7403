// ArgMin and ArgMax along one axis of [outer, axis, inner].
#pragma once

#include "kernels/codes.hpp"
#include "kernels/kernel.hpp"

namespace engine {

struct ArgReduceArgs {
  ElementCode type;
  bool is_min;
  bool is_last;  // of equal elements, take the last; otherwise the first
  std::int64_t outer, axis, inner;
};

// Columns (of inner) that are processed together.
constexpr std::int64_t kArgTile = 64;

}  // namespace engine

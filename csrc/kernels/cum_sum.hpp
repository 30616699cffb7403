// Running sums or products along one axis of [outer, axis, inner].
#pragma once

#include "kernels/codes.hpp"
#include "kernels/kernel.hpp"

namespace engine {

struct CumSumArgs {
  ElementCode type;
  bool is_exclusive;
  bool is_reversed;
  bool is_product;
  std::int64_t outer, axis, inner;
};

// Columns (of inner) that are processed together.
constexpr std::int64_t kCumSumTile = 64;

}  // namespace engine

// Running sums along one axis of [outer, axis, inner].
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

enum class CumSumType : std::int32_t { kF32, kI32, kI64, kCount };

struct CumSumArgs {
  CumSumType type;
  bool is_exclusive;
  bool is_reversed;
  std::int64_t outer, axis, inner;
};

// Columns (of inner) that are done together.
constexpr std::int64_t kCumSumTile = 64;

}  // namespace engine

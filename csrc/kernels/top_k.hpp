// The k largest or smallest elements along one axis of [outer, axis, inner], and their positions.
#pragma once

#include "kernels/codes.hpp"
#include "kernels/kernel.hpp"

namespace engine {

struct TopKArgs {
  ElementCode type;
  bool is_smallest;
  std::int64_t outer, axis, inner;
  std::int64_t k;  // 0..axis
};

// An element in the requested order: larger keys come first; for equal keys, the lower position.
struct TopKEntry {
  std::int64_t key;
  std::int64_t position;
};

}  // namespace engine

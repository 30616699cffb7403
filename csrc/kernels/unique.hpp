// The different elements of a tensor, or slices along an axis, in ascending order, or in order of their first
// occurrence (ONNX Unique-11).
#pragma once

#include "kernels/codes.hpp"
#include "kernels/kernel.hpp"

namespace engine {

struct UniqueArgs {
  ElementCode type;
  std::int64_t outer, axis, inner;  // slices have outer * inner elements; for single elements, both are 1
  bool is_sorted;
  bool joins_nans;  // elements that are NaN are equal; otherwise each is different from all others
  bool has_first, has_inverse, has_counts;
};

}  // namespace engine

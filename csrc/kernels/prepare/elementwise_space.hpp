// The iteration space of an elementwise program: dimensions merged as far as all operands allow, divided into strips.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/elementwise.hpp"

namespace engine {

struct OperandStrides {
  int bytes;                          // of one element
  std::vector<std::int64_t> strides;  // elements, one for each dimension
};

struct StripPlan {
  ElementwiseArgs args;  // the fields of the iteration
  int level;             // the dimension that is chunked
};

// Drops dimensions of size one and merges neighbours that are contiguous in every operand. Keeps at least one
// dimension.
void merge_dimensions(std::vector<std::int64_t>& dims, std::vector<OperandStrides>& operands);

// Divides a space without zero dimensions into strips of at most `largest` elements.
StripPlan cut_strips(const std::vector<std::int64_t>& dims, std::int64_t largest);

// How an operand is accessed by the strips of a plan; the caller sets slot, fill and scratch.
ElementwiseInput place_operand(const std::vector<std::int64_t>& dims, const OperandStrides& operand,
                               const StripPlan& plan);

}  // namespace engine

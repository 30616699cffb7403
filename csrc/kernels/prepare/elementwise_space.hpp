// The iteration space of an elementwise program: dimensions merged as far as all operands allow, and cut into strips.
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

// Drops dimensions of one and merges neighbours that every operand walks as one. At least one dimension is left.
void merge_dimensions(std::vector<std::int64_t>& dims, std::vector<OperandStrides>& operands);

// Strips of `largest` elements at most, of a space without zero dimensions.
StripPlan cut_strips(const std::vector<std::int64_t>& dims, std::int64_t largest);

// How an operand is brought in for the strips of a plan; slot, fill and scratch are left to the caller.
ElementwiseInput place_operand(const std::vector<std::int64_t>& dims, const OperandStrides& operand,
                               const StripPlan& plan);

}  // namespace engine

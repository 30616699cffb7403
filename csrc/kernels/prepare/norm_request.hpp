// Reads the attributes that normalizations share.
#pragma once

#include <string_view>

#include "kernels/prepare.hpp"

namespace engine {

// Products of two sizes up to this cannot overflow.
constexpr std::int64_t kLargestSize = std::int64_t{1} << 31;

// A number that is neither negative nor NaN.
float read_epsilon(const Attributes& attributes, std::string_view name);
float read_epsilon_or(const Attributes& attributes, std::string_view name, float otherwise);

// Bytes of a dense array of floats. Throws PlanError if they overflow.
std::size_t float_bytes(const std::vector<std::int64_t>& dimensions);

// Limits the workers of a phase to the number of items that it divides.
void limit_workers(PreparedPhase& phase, std::int64_t items);

}  // namespace engine

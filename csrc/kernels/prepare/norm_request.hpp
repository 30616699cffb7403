// What the normalizations' operations read from a step in the same way.
#pragma once

#include <string_view>

#include "kernels/prepare.hpp"

namespace engine {

// Products of two sizes up to this cannot overflow.
constexpr std::int64_t kLargestSize = std::int64_t{1} << 31;

// An optional attribute of 0 or 1.
bool read_flag(const Attributes& attributes, std::string_view name);
// A number that is not negative and no NaN.
float read_epsilon(const Attributes& attributes, std::string_view name);
float read_epsilon_or(const Attributes& attributes, std::string_view name, float otherwise);

// Bytes of a dense array of floats. Throws PlanError where they overflow.
std::size_t float_bytes(const std::vector<std::int64_t>& dimensions);

// Tells the plan how many items a phase splits.
void limit_workers(PreparedPhase& phase, std::int64_t items);

}  // namespace engine

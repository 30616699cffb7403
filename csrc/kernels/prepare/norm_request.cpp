#include "kernels/prepare/norm_request.hpp"

#include <algorithm>
#include <string>

namespace engine {

float read_epsilon(const Attributes& attributes, std::string_view name) {
  const double value = attributes.real(name);
  if (!(value >= 0.0)) {
    throw PlanError("attribute \"" + std::string(name) + "\" is " + std::to_string(value) + "; expected 0 or more");
  }
  return static_cast<float>(value);
}

float read_epsilon_or(const Attributes& attributes, std::string_view name, float otherwise) {
  return attributes.has(name) ? read_epsilon(attributes, name) : otherwise;
}

std::size_t float_bytes(const std::vector<std::int64_t>& dimensions) {
  return checked_multiply(checked_product(dimensions), sizeof(float));
}

void limit_workers(PreparedPhase& phase, std::int64_t items) {
  phase.max_workers = static_cast<int>(std::clamp<std::int64_t>(items, 1, phase.max_workers));
}

}  // namespace engine

// The parts of prepare.hpp that all kernels share: sizes, attributes, operands.
#include <string>

#include "kernels/prepare.hpp"

namespace engine {
namespace {

std::string quoted(std::string_view name) {
  return "\"" + std::string(name) + "\"";
}

void expect_within(const std::string& what, std::int64_t value, std::int64_t minimum, std::int64_t maximum) {
  if (value >= minimum && value <= maximum) return;
  throw PlanError(what + std::to_string(value) + "; expected " + std::to_string(minimum) + " to " +
                  std::to_string(maximum));
}

void expect_bytes(const char* kind, const std::vector<std::size_t>& buffers, std::size_t index, std::size_t bytes) {
  if (index >= buffers.size()) {
    throw PlanError(std::string(kind) + " " + std::to_string(index) + " is missing; the step has " +
                    std::to_string(buffers.size()));
  }
  if (buffers[index] < bytes) {
    throw PlanError(std::string(kind) + " " + std::to_string(index) + " has " + std::to_string(buffers[index]) +
                    " bytes; expected " + std::to_string(bytes) + " at least");
  }
}

}  // namespace

std::size_t checked_multiply(std::size_t a, std::size_t b) {
  std::size_t product;
  if (__builtin_mul_overflow(a, b, &product)) {
    throw PlanError("a size overflows: " + std::to_string(a) + " times " + std::to_string(b));
  }
  return product;
}

std::size_t checked_add(std::size_t a, std::size_t b) {
  std::size_t sum;
  if (__builtin_add_overflow(a, b, &sum)) {
    throw PlanError("a size overflows: " + std::to_string(a) + " plus " + std::to_string(b));
  }
  return sum;
}

std::size_t checked_product(const std::vector<std::int64_t>& dimensions) {
  std::size_t product = 1;
  bool empty = false;
  for (const std::int64_t dimension : dimensions) {
    if (dimension < 0) throw PlanError("dimension " + std::to_string(dimension) + " is negative");
    empty = empty || dimension == 0;
  }
  if (empty) return 0;
  for (const std::int64_t dimension : dimensions)
    product = checked_multiply(product, static_cast<std::size_t>(dimension));
  return product;
}

const Attributes::Slot* Attributes::find(std::string_view name) const {
  const auto at = values_.find(name);
  if (at == values_.end()) return nullptr;
  at->second.used = true;
  return &at->second;
}

const Attributes::Slot& Attributes::require(std::string_view name) const {
  if (const Slot* slot = find(name)) return *slot;
  throw PlanError("attribute " + quoted(name) + " is missing");
}

std::int64_t Attributes::integer(std::string_view name) const {
  if (const auto* value = std::get_if<std::int64_t>(&require(name).value)) return *value;
  throw PlanError("attribute " + quoted(name) + " is not an integer");
}

std::int64_t Attributes::integer(std::string_view name, std::int64_t minimum, std::int64_t maximum) const {
  const std::int64_t value = integer(name);
  expect_within("attribute " + quoted(name) + " is ", value, minimum, maximum);
  return value;
}

double Attributes::real(std::string_view name) const {
  const Value& value = require(name).value;
  if (const auto* real = std::get_if<double>(&value)) return *real;
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return static_cast<double>(*integer);
  throw PlanError("attribute " + quoted(name) + " is not a number");
}

const std::vector<std::int64_t>& Attributes::integers(std::string_view name) const {
  if (const auto* value = std::get_if<std::vector<std::int64_t>>(&require(name).value)) return *value;
  throw PlanError("attribute " + quoted(name) + " is not a list of integers");
}

const std::vector<std::int64_t>& Attributes::integers(std::string_view name, std::size_t count, std::int64_t minimum,
                                                      std::int64_t maximum) const {
  const std::vector<std::int64_t>& values = integers(name);
  if (values.size() != count) {
    throw PlanError("attribute " + quoted(name) + " has " + std::to_string(values.size()) + " values; expected " +
                    std::to_string(count));
  }
  for (const std::int64_t value : values)
    expect_within("attribute " + quoted(name) + " has the value ", value, minimum, maximum);
  return values;
}

std::vector<double> Attributes::reals(std::string_view name) const {
  const Value& value = require(name).value;
  if (const auto* reals = std::get_if<std::vector<double>>(&value)) return *reals;
  if (const auto* integers = std::get_if<std::vector<std::int64_t>>(&value))
    return {integers->begin(), integers->end()};
  throw PlanError("attribute " + quoted(name) + " is not a list of numbers");
}

const std::string& Attributes::text(std::string_view name) const {
  if (const auto* value = std::get_if<std::string>(&require(name).value)) return *value;
  throw PlanError("attribute " + quoted(name) + " is not a name");
}

bool Attributes::has(std::string_view name) const {
  return find(name) != nullptr;
}

std::int64_t Attributes::integer_or(std::string_view name, std::int64_t otherwise) const {
  return has(name) ? integer(name) : otherwise;
}

std::int64_t Attributes::integer_or(std::string_view name, std::int64_t minimum, std::int64_t maximum,
                                    std::int64_t otherwise) const {
  return has(name) ? integer(name, minimum, maximum) : otherwise;
}

double Attributes::real_or(std::string_view name, double otherwise) const {
  return has(name) ? real(name) : otherwise;
}

bool Attributes::flag(std::string_view name) const {
  return integer_or(name, 0, 1, 0) == 1;
}

Attributes Attributes::part(std::string_view prefix) const {
  Attributes found;
  for (auto at = values_.lower_bound(prefix); at != values_.end(); ++at) {
    if (at->first.compare(0, prefix.size(), prefix) != 0) break;
    at->second.used = true;
    found.set(at->first.substr(prefix.size()), at->second.value);
  }
  return found;
}

void Attributes::check_all_used() const {
  for (const auto& [name, slot] : values_) {
    if (!slot.used) throw PlanError("attribute " + quoted(name) + " is not one of this kernel");
  }
}

void StepRequest::expect_operands(std::size_t input_count, std::size_t output_count) const {
  const auto check = [](const char* kind, std::size_t got, std::size_t expected) {
    if (got != expected) {
      throw PlanError("the step has " + std::to_string(got) + " " + kind + "; expected " + std::to_string(expected));
    }
  };
  check("inputs", inputs.size(), input_count);
  check("outputs", outputs.size(), output_count);
}

void StepRequest::expect_input(std::size_t index, std::size_t bytes) const {
  expect_bytes("input", inputs, index, bytes);
}

void StepRequest::expect_output(std::size_t index, std::size_t bytes) const {
  expect_bytes("output", outputs, index, bytes);
  if (expected_outputs != nullptr) (*expected_outputs)[index] = bytes;
}

}  // namespace engine

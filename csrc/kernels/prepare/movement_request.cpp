#include "kernels/prepare/movement_request.hpp"

#include <algorithm>
#include <limits>
#include <string>

namespace engine {

std::int64_t read_element_bytes(const Attributes& attributes) {
  const std::int64_t element = attributes.integer("element_bytes", 1, 8);
  if ((element & (element - 1)) != 0) {
    throw PlanError("elements have " + std::to_string(element) + " bytes; expected 1, 2, 4 or 8");
  }
  return element;
}

std::vector<std::int64_t> read_shape(const Attributes& attributes, const char* name, std::int64_t count,
                                     std::int64_t most) {
  const std::vector<std::int64_t>& shape = attributes.integers(name);
  const auto size = static_cast<std::int64_t>(shape.size());
  if (count >= 0 ? size != count : size > most) {
    throw PlanError(std::string("attribute \"") + name + "\" has " + std::to_string(size) + " values; expected " +
                    (count >= 0 ? std::to_string(count) : "at most " + std::to_string(most)));
  }
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) {
      throw PlanError(std::string("attribute \"") + name + "\" has the value " + std::to_string(dimension) +
                      "; expected 0 or more");
    }
  }
  bytes_of(shape, 1);
  return shape;
}

std::int64_t read_pattern(const Attributes& attributes, std::int64_t element) {
  auto value = static_cast<std::uint64_t>(attributes.integer_or("value", 0));
  if (element == 8) return static_cast<std::int64_t>(value);
  value &= (std::uint64_t{1} << (8 * element)) - 1;
  for (std::int64_t bytes = element; bytes < 8; bytes *= 2) value |= value << (8 * bytes);
  return static_cast<std::int64_t>(value);
}

std::int64_t bytes_of(const std::vector<std::int64_t>& shape, std::int64_t element) {
  const std::size_t bytes = checked_multiply(checked_product(shape), static_cast<std::size_t>(element));
  // Offsets are signed, and a stride is a product of some of the sizes.
  std::size_t largest = static_cast<std::size_t>(element);
  for (const std::int64_t dimension : shape)
    largest = checked_multiply(largest, static_cast<std::size_t>(std::max<std::int64_t>(dimension, 1)));
  if (largest > static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max())) {
    throw PlanError("a size of " + std::to_string(largest) + " bytes is larger than an address space");
  }
  return static_cast<std::int64_t>(bytes);
}

std::int64_t read_index_bytes(const Attributes& attributes) {
  const std::int64_t bytes = attributes.integer("index_bytes", 4, 8);
  if (bytes != 4 && bytes != 8) {
    throw PlanError("indices have " + std::to_string(bytes) + " bytes; expected 4 or 8");
  }
  return bytes;
}

std::vector<std::int64_t> row_major_strides(const std::vector<std::int64_t>& shape, std::int64_t element) {
  std::vector<std::int64_t> strides(shape.size(), element);
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

void throw_larger(std::size_t dimension, std::int64_t indices, std::int64_t data) {
  throw PlanError("dimension " + std::to_string(dimension) + " of the indices has " + std::to_string(indices) +
                  "; the data has " + std::to_string(data));
}

int workers_for_bytes(double bytes) {
  constexpr double kBytesPerWorker = 32 << 10;
  return static_cast<int>(std::min(1024.0, 1 + bytes / kBytesPerWorker));
}

}  // namespace engine

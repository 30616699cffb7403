// Runs operations on untyped bytes.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "kernels_operation_common.hpp"

namespace engine::test {

using ByteVector = std::vector<char>;

// Runs the operation on more workers than it requests. Every buffer has exactly its bytes, with guards around it, at an
// address with the given alignment and no larger one; `outputs` has the content before and after the run.
// Returns one of the faults.
Fault run_bytes(const Target& target, const OperationEntry* operations, const std::string& name,
                const AttributeMap& attributes, const std::vector<ByteVector>& inputs, std::vector<ByteVector>& outputs,
                std::size_t alignment = 1, int workers = 3);

// Reproducible bytes from `seed`.
ByteVector random_bytes(std::size_t count, std::uint32_t seed);

template <class T>
ByteVector bytes_of_values(const std::vector<T>& values) {
  ByteVector bytes(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <class T>
std::vector<T> values_of_bytes(const ByteVector& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// One of the values of T in bytes.
template <class T>
T value_at(const ByteVector& bytes, std::int64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// A sequence of small random numbers from `seed`.
class Dice {
 public:
  explicit Dice(std::uint32_t seed) : state_(seed * 2654435761u + 99991u) {}
  // One of 0 to sides - 1.
  std::int64_t roll(std::int64_t sides) {
    state_ = state_ * 1664525u + 1013904223u;
    return static_cast<std::int64_t>(state_ >> 8) % sides;
  }

 private:
  std::uint32_t state_;
};

}  // namespace engine::test

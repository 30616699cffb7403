// What the operations that move elements read from a step's attributes.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/prepare.hpp"

namespace engine {

// element_bytes: 1, 2, 4 or 8.
std::int64_t read_element_bytes(const Attributes& attributes);

// A list of sizes, each zero or more. `count` < 0: of any length up to `most`.
std::vector<std::int64_t> read_shape(const Attributes& attributes, const char* name, std::int64_t count,
                                     std::int64_t most);

// The bytes of a value of `element` bytes, eight of them: attribute `value`, the value's bits as an integer (0).
std::int64_t read_pattern(const Attributes& attributes, std::int64_t element);

std::int64_t bytes_of(const std::vector<std::int64_t>& shape, std::int64_t element);

// index_bytes: 4 or 8.
std::int64_t read_index_bytes(const Attributes& attributes);

// Bytes from one element to the next in each dimension of an array in row-major order.
std::vector<std::int64_t> row_major_strides(const std::vector<std::int64_t>& shape, std::int64_t element);

[[noreturn]] void throw_larger(std::size_t dimension, std::int64_t indices, std::int64_t data);

// As many workers as make a barrier worth its while when these bytes are moved.
int workers_for_bytes(double bytes);

}  // namespace engine

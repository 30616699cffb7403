// Reads the attributes of operations that move elements.
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

// A value of `element` bytes, repeated to eight bytes; attribute `value` (0) has its bits as an integer.
std::int64_t read_pattern(const Attributes& attributes, std::int64_t element);

std::int64_t bytes_of(const std::vector<std::int64_t>& shape, std::int64_t element);

// index_bytes: 4 or 8.
std::int64_t read_index_bytes(const Attributes& attributes);

// Bytes from one element to the next in each dimension of an array in row-major order.
std::vector<std::int64_t> row_major_strides(const std::vector<std::int64_t>& shape, std::int64_t element);

[[noreturn]] void throw_larger(std::size_t dimension, std::int64_t indices, std::int64_t data);

// The number of workers for which a barrier is worthwhile when `bytes` bytes are moved.
int workers_for_bytes(double bytes);

}  // namespace engine

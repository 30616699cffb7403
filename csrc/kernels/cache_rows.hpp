// Rows of keys and values in the formats in which variables keep them: f32, f16, bf16, or integers of 8 bits and their
// scale.
//
//   i8    [size] i8, f32 scale      value = code * scale; the largest magnitude of a row is 127 * scale
//
// A scale has 16 significant bits, so products with codes are exact in f32, and narrowing a widened row gives the same
// codes and scale. A row with NaN or infinities has the scale NaN; one below 1e-30 is zero. f16 and bf16 round to
// nearest.
#pragma once

#include "kernels/codes.hpp"
#include "kernels/kernel.hpp"

namespace engine {

// Bytes of an element, of which distances between rows are multiples, and bytes of a row.
static inline std::int64_t cache_element_bytes(CacheFormat format) {
  return format == CacheFormat::kF32 ? 4 : format == CacheFormat::kInt8 ? 1 : 2;
}
static inline std::int64_t cache_row_bytes(CacheFormat format, std::int64_t size) {
  return size * cache_element_bytes(format) + (format == CacheFormat::kInt8 ? 4 : 0);
}

}  // namespace engine

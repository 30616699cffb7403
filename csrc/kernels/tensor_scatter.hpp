// Writes the steps of an update into a cache, at positions that are computed: TensorScatter.
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

// The distances of samples, parts and rows, in bytes; the elements of a row are adjacent.
struct TensorScatterView {
  std::int64_t batch, part, row;
};

// Operands: cache, update, [first positions, i64, of each sample], y, which may be the cache.
struct TensorScatterArgs {
  std::int64_t batch, parts, rows, steps;  // rows of a part of the cache, and of the update
  std::int64_t row_bytes;
  TensorScatterView cache, update;  // y is as the cache
  std::int64_t has_positions;
  std::int64_t is_circular;
  std::int64_t expected;  // the only allowed position, or -1
};

}  // namespace engine

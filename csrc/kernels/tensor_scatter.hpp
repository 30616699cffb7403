// Writes the steps of an update into a cache, at positions that are computed: TensorScatter.
#pragma once

#include "kernels/cache_rows.hpp"

namespace engine {

// The distances of samples, parts and rows, in bytes; the elements of a row are adjacent.
struct TensorScatterView {
  std::int64_t batch, part, row;
};

// Operands: cache, update, [first positions, i64, of each sample], y, which may be the cache.
struct TensorScatterArgs {
  std::int64_t batch, parts, rows, steps;  // rows of a part of the cache, and of the update
  std::int64_t row_bytes;                  // of the update
  TensorScatterView cache, update;         // y is as the cache
  std::int64_t has_positions;
  std::int64_t is_circular;
  std::int64_t expected;  // the only allowed position, also used for samples without positions; or -1
  CacheFormat format;     // of the cache's rows; unless it is f32, rows of the update are narrowed from f32
  std::int64_t cache_row_bytes;
};

}  // namespace engine

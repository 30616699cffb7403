// Rotary embeddings: rotates pairs of elements of each row by an angle that depends on its position.
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

// The strides of rows, in floats; the elements of a row are adjacent.
struct RotaryView {
  std::int64_t batch, head, row;
};

// y[i] = x[i] cos[i] - x[j] sin[i], y[j] = x[i] sin[i] + x[j] cos[i] for the pairs (i, j) among the first `rotated`
// elements of a row: j = i + rotated / 2, or j = i + 1 if `interleaved`. Other elements are copied.
struct RotaryArgs {
  std::int64_t batch, heads, rows, size, rotated;
  RotaryView x, y;
  std::int64_t table_batch, table_row;  // floats between batches and rows of cos and sin
  bool interleaved;
};

}  // namespace engine

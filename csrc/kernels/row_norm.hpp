// LayerNormalization and RMSNormalization over rows of [rows, columns], of x or of x + residual.
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

// Floats of a row that one worker takes where several share a row.
constexpr std::int64_t kRowNormChunk = 16384;

// Operands, in this order, those in brackets where their flag is set:
//   inputs   x, [residual], [scale: columns], [bias: columns]
//   outputs  y, [sum: x + residual], [mean: rows], [inv_std: rows]
struct RowNormArgs {
  std::int64_t rows, columns;
  std::int64_t chunks;      // of a row; the kernels in two phases only
  float epsilon;            // added to the variance
  float deviation_epsilon;  // added to its root
  bool has_residual, has_scale, has_bias;
  bool stores_sum, stores_mean, stores_inv_std;
};

}  // namespace engine

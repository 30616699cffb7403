// LayerNormalization and RMSNormalization over the rows of [rows, columns], for x or x + residual.
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

// Floats of a row that one worker processes if several share a row.
constexpr std::int64_t kRowNormChunk = 16384;

// Operands, in this order, those in brackets if their flag is set:
//   inputs   x, [residual], [scale: columns], [bias: columns]
//   outputs  y, [sum: x + residual], [mean: rows], [inv_std: rows]
struct RowNormArgs {
  std::int64_t rows, columns;
  std::int64_t chunks;      // of a row; only for the kernels in two phases
  float epsilon;            // added to the variance
  float deviation_epsilon;  // added to the standard deviation
  bool has_residual, has_scale, has_bias;
  bool stores_sum, stores_mean, stores_inv_std;
};

}  // namespace engine

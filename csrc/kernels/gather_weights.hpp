// Rows of a table of weights of 4 or 8 bits, each block of which has a scale:
//
//   y[i, c] = (code[row, c] - zero[row, c / block]) * scale[row, c / block],  row = indices[i]
//
// Indices have 4 or 8 bytes; negative ones count from the end; one out of range yields zeros and a fault.
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

// Operands: codes [rows][ceil(columns * bits / 8)], unsigned, the first of two in the low half of a byte; scales
// [rows][blocks] f16 or f32; [zero points] [rows][blocks] u8; indices; y.
struct GatherWeightsArgs {
  std::int64_t rows, columns, count;
  std::int64_t block, blocks;
  std::int64_t index_bytes;
  std::int32_t bits;         // 4 or 8
  std::int32_t scale_bytes;  // 2 (f16) or 4 (f32)
  std::int32_t has_zero_points;
  std::int32_t center;  // the zero point of all codes, unless has_zero_points
};

}  // namespace engine

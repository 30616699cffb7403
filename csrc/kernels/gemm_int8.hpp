// Matrix products C[M, N] = requantize(A[M, K] * B[K, N]) of 8-bit integers, with exact sums.
#pragma once

#include "kernels/gemm.hpp"
#include "kernels/requantize.hpp"

namespace engine {

// Operands: A (u8, or i8 if is_a_signed, row-major), B (packed, pack_int8.hpp), start (i32), scale (f32), [bias] (f32),
// [middle_bias] (f32), [residual], C; last, the temporary. Start, scale and biases have a value for each column, padded
// to a multiple of 16.
//
// The tiles read A in blocks, [ceil(K / 16)][rows][16], separately for each tile of rows; the step's first phase makes
// them, with 128 added to values of i8.
struct GemmInt8Args {
  std::int64_t m, n, k;
  GemmOperands operands;
  GemmTiling tiling;
  RequantizeArgs requantize;
  PackArgs pack;
  std::int64_t a_row, residual_row, c_row;  // elements between rows
  bool is_a_signed;
  bool has_middle_bias;
  bool pairs_fit;               // see requantize_request.hpp
  std::int32_t c_at, panel_at;  // indices of buffers
};

}  // namespace engine

// Products of two computed matrices of 8-bit integers, with any zero points and exact sums, for a batch:
//
//   sum[m, n] = sum over k of (A[m, k] - a_zero[m]) * (B[k, n] - b_zero[n]),   C = sum, or requantize(sum * scale[n])
//
// Sums are modulo 2^32.
#pragma once

#include "kernels/gemm.hpp"
#include "kernels/requantize.hpp"

namespace engine {

constexpr int kProductBatchRank = 8;

// Operands: A [a_batches, M, K], B [b_batches, K, N], or [b_batches, N, K] if transposed, each u8 or i8; their zero
// points, of the same types: one, or M and N; unless C is i32, scale (f32), one or a value for each column, padded to a
// multiple of 16; C [batches, M, N]. Then the temporaries: packed B with its columns' sums and zero points, and A in
// blocks with its rows' sums, for each matrix.
struct ProductInt8Args {
  std::int64_t m, n, k;
  std::int64_t batches, a_batches, b_batches;
  std::int32_t batch_rank;
  // The lengths of the batch's dimensions, and the matrices between two of them, 0 where all are the same.
  std::int64_t batch[kProductBatchRank], a_step[kProductBatchRank], b_step[kProductBatchRank];
  GemmTiling tiling;
  PackArgs pack;
  RequantizeArgs requantize;
  std::int64_t columns;  // of a packed B
  bool is_a_signed, is_b_signed, is_b_transposed;
  bool has_a_zeros, has_b_zeros, has_scales;  // a value for each row or column
  std::int32_t c_at;                          // the index of C
};

}  // namespace engine

// Matrix products C[M, N] = epilogue(A[M, K] * B[K, N]) with the factors in bf16 and sums in f32.
#pragma once

#include "kernels/gemm.hpp"

namespace engine {

// A matrix of f32 or bf16; `row` as MatrixView's, in elements.
struct MixedMatrix {
  MatrixLayout layout;
  std::int32_t element_bytes;
  std::int64_t row;
};

// Operands: A, B (packed as pack_bf16.hpp says), then those that are there of bias, scale and residual, C; last, where
// A is converted, the temporary for it. The tiles read A as bf16 in blocks, [ceil(K / 16)][M][16]: a dense matrix of
// that kind is read where it is, any other is converted by the step's first phase, to such blocks for each tile of rows
// by itself: those of all rows would lie a power of two apart for many M, where they evict each other.
struct GemmBf16Args {
  std::int64_t m, n, k;
  GemmOperands operands;
  GemmTiling tiling;
  EpilogueArgs epilogue;
  PackArgs pack;
  MixedMatrix a, residual, c;
  std::int32_t c_at;         // which of the step's buffers C is
  std::int32_t panel_at;     // and A in blocks of bf16: 0, or the temporary
  std::int64_t panel_block;  // values between its blocks where it is read as it is; 0: in tiles
};

}  // namespace engine

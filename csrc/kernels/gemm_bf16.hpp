// Matrix products C[M, N] = epilogue(A[M, K] * B[K, N]) with bf16 operands and f32 accumulation.
#pragma once

#include "kernels/gemm.hpp"

namespace engine {

// A matrix of f32 or bf16; `row` as in MatrixView, in elements.
struct MixedMatrix {
  MatrixLayout layout;
  std::int32_t element_bytes;
  std::int64_t row;
};

// Operands: A, B (packed as described in pack_bf16.hpp), then bias, scale and residual if present, then C; last, if A
// is converted, its temporary. The tiles read A as bf16 in blocks, [ceil(K / 16)][M][16]. A dense matrix in this format
// is read in place; any other is converted by the step's first phase, separately for each tile of rows: for many M,
// blocks of all rows would be a power of two apart, and evict each other from the cache.
struct GemmBf16Args {
  std::int64_t m, n, k;
  GemmOperands operands;
  GemmTiling tiling;
  EpilogueArgs epilogue;
  PackArgs pack;
  MixedMatrix a, residual, c;
  std::int32_t c_at;         // the index of C's buffer in the step
  std::int32_t panel_at;     // the index of A in blocks of bf16: 0, or the temporary
  std::int64_t panel_block;  // values between its blocks if it is read in place; 0: converted by tiles
};

}  // namespace engine

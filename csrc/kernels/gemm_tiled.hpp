// Matrix products C[M, N] = epilogue(A[M, K] * B[K, N]) by tiles that read A in blocks: of bf16 with f32 accumulation,
// and of 8-bit integers with exact sums.
#pragma once

#include "kernels/gemm.hpp"
#include "kernels/requantize.hpp"

namespace engine {

// A matrix whose elements have `element_bytes` bytes; `row` as in MatrixView, in elements.
struct SizedMatrix {
  MatrixLayout layout;
  std::int32_t element_bytes;
  std::int64_t row;
};

// Operands: A, B (packed, pack.hpp), those below, then C; last, if A is copied, its temporary. Vectors have a value for
// each column, padded to a multiple of 16.
//
// The tiles read A in blocks, [ceil(K / 16)][M][16]. A dense matrix in this format and of the tiles' type is read in
// place; any other is copied by the step's first phase, separately for each tile of rows: for many M, blocks of all
// rows would be a power of two apart, and evict each other from the cache.
struct TiledGemmArgs {
  std::int64_t m, n, k;
  GemmOperands operands;
  GemmTiling tiling;
  EpilogueArgs epilogue;
  PackArgs pack;
  SizedMatrix a, residual, c;
  std::int32_t c_at;         // the index of C's buffer in the step; that of a residual precedes it
  std::int32_t panel_at;     // the index of A in blocks: 0, or the temporary
  std::int64_t panel_block;  // elements between its blocks if it is read in place; 0: copied by tiles
};

// A, C and the residual are f32 or bf16. Operands: [bias], [scale] (f32), [residual].
using GemmBf16Args = TiledGemmArgs;

// A is u8, or i8, to which the copy adds 128; matrices are row-major. Operands: start (i32), scale (f32), [bias] (f32),
// [middle_bias] (f32), [factors] (i32), [residual]. Factors are those of the sum of a row of A, the negative zero
// points of B; the sums are in the temporary after the copy.
struct GemmInt8Args : TiledGemmArgs {
  RequantizeArgs requantize;
  bool is_a_signed;
  bool has_middle_bias;
  bool pairs_fit;  // see requantize_request.hpp
  bool has_factors;
};

}  // namespace engine

// Matrix products C[M, N] = epilogue(A[M, K] * B[K, N]), B packed (pack.hpp), batched.
#pragma once

#include "kernels/pack.hpp"
#include "kernels/tile.hpp"

namespace engine {

// Where the rows of A or C lie. kRows: row-major, `row` floats between rows. kBlocked: [columns / 16][M][16], which is
// NCHWc16 with a row for a pixel; `row` is then the floats between blocks (16 * M where dense).
enum class MatrixLayout : std::int32_t { kRows, kBlocked };

struct MatrixView {
  MatrixLayout layout = MatrixLayout::kRows;
  std::int64_t row = 0;
  std::int64_t batch = 0;  // floats between the matrices of a batch; 0: one for all
};

struct GemmShape {
  std::int64_t batch = 1;
  std::int64_t m = 0, n = 0, k = 0;
};

// Operands: A, B (packed), then those that are there of bias [N rounded up to 16], scale (the same) and residual, C.
struct GemmOperands {
  bool has_bias = false;
  bool has_scale = false;
  bool has_residual = false;  // laid out as `residual` says; C itself is allowed
};

struct GemmTiling {
  std::int32_t vectors = 0;  // as ConvTiling's
  std::int32_t pixels = 0;
  std::int32_t tile_block = 0;     // row tiles for which one tile of columns stays; 0: all of them
  std::int32_t channel_split = 1;  // workers that share the columns; the others share the rows
};

struct GemmArgs {
  GemmShape shape;
  GemmOperands operands;
  GemmTiling tiling;
  EpilogueArgs epilogue;
  PackArgs pack;  // of one matrix of the batch
  MatrixView a, residual, c;
  std::int64_t b_batch;  // floats between packed matrices; 0: one for all
};

// Fills packing (of B as [K, N], or [N, K] where `transposed`; `b_row` floats between its rows) and, where
// tiling.vectors is 0, a tiling chosen by size alone. Views are dense where their row is 0.
GemmArgs make_gemm_args(const GemmShape& shape, const GemmOperands& operands, const EpilogueArgs& epilogue,
                        const GemmTiling& tiling, bool transposed, std::int64_t b_row, const MatrixView& a,
                        const MatrixView& residual, const MatrixView& c, bool is_b_shared, const TileTraits& traits);

std::size_t gemm_scratch_bytes(const GemmArgs& args);

}  // namespace engine

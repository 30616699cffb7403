// Matrix products C[M, N] = epilogue(A[M, K] * B[K, N]) of strided matrices, batched.
#pragma once

#include "kernels/pack.hpp"
#include "kernels/tile.hpp"

namespace engine {

constexpr int kGemmBatchDims = 6;

// Where a matrix lies. kRows: row-major, `row` floats between rows. kBlocked: [columns / 16][M][16], which is NCHWc16
// with a row for a pixel; `row` is then the floats between blocks (16 * M where dense).
enum class MatrixLayout : std::int32_t { kRows, kBlocked };

struct MatrixView {
  MatrixLayout layout = MatrixLayout::kRows;
  std::int64_t row = 0;
  std::int64_t batch[kGemmBatchDims] = {};  // floats between the matrices along each batch dimension; 0 broadcasts
};

struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0;
  std::int32_t rank = 0;  // batch dimensions
  std::int64_t batch[kGemmBatchDims] = {};
};

static inline std::int64_t gemm_matrices(const GemmShape& shape) {
  std::int64_t count = 1;
  for (int d = 0; d < shape.rank; ++d) count *= shape.batch[d];
  return count;
}

// Operands: A, B, then those that are there of bias [N rounded up to 16], scale (the same) and residual, C; last, where
// B is packed at run time, the temporary for it.
struct GemmOperands {
  bool has_bias = false;
  bool has_scale = false;
  bool has_residual = false;  // laid out as `residual` says; C itself is allowed
};

struct GemmTiling {
  std::int32_t vectors = 0;     // vectors in a tile of columns; fixes the format of packed B
  std::int32_t pixels = 0;      // rows in a tile, at most
  std::int32_t tile_block = 0;  // row tiles for which one tile of columns stays; 0: all of them
};

// How B is stored where the product reads it.
enum class GemmForm : std::int32_t {
  kTiles,    // packed (pack.hpp), for tiles
  kColumns,  // [N][K], for products of rows with rows: N is small, or M where B came transposed
  kRaw,      // [K][N] with `b_row` between rows, for few rows of A
};

// Rows of A up to which B is read as it is rather than packed at run time, and up to which the reduction is split.
constexpr std::int64_t kFewRows = 4;
// Columns up to which products of rows with rows beat tiles, most of whose lanes would be empty.
constexpr std::int64_t kFewColumns = 4;
// Columns whose sums a worker keeps at a time where B is read as it is: four rows of them stay in the nearest cache.
constexpr std::int64_t kRawColumns = 1024;

struct GemmArgs {
  GemmShape shape;
  GemmOperands operands;
  GemmTiling tiling;
  GemmForm form;
  EpilogueArgs epilogue;
  PackArgs pack;  // of one matrix
  MatrixView a, residual, c;
  std::int64_t b_row;                    // of kRaw and kColumns
  std::int64_t b_batch[kGemmBatchDims];  // floats between the matrices that the product reads
  std::int32_t b_operand;                // which operand these are: 1, or the temporary
};

// Packing of B at run time: operand 1 as `source` tells to the temporary.
struct GemmPackArgs {
  PackArgs pack;
  GemmForm form;  // kTiles or kColumns
  std::int64_t n, k;
  std::int32_t rank;
  std::int64_t batch[kGemmBatchDims];   // of the distinct matrices
  std::int64_t source[kGemmBatchDims];  // floats between them
  std::int64_t matrix_floats;           // between the packed ones
  std::int32_t from, to;                // operands
};

}  // namespace engine

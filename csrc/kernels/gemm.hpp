// Matrix products C[M, N] = epilogue(A[M, K] * B[K, N]) of strided matrices, batched.
#pragma once

#include "kernels/pack.hpp"
#include "kernels/tile.hpp"

namespace engine {

constexpr int kGemmBatchDims = 6;

// The layout of a matrix. kRows: row-major, `row` floats between rows. kBlocked: [columns / 16][M][16], which is
// NCHWc16 with rows as pixels; `row` is then the number of floats between blocks (16 * M if dense).
enum class MatrixLayout : std::int32_t { kRows, kBlocked };

struct MatrixView {
  MatrixLayout layout = MatrixLayout::kRows;
  std::int64_t row = 0;
  std::int64_t batch[kGemmBatchDims] = {};  // floats between the matrices along each batch dimension; 0 broadcasts
};

// The offset of (row, column) in a matrix with a layout; the column must be a multiple of a vector's lanes.
template <class Matrix>
ENGINE_INLINE std::int64_t position(const Matrix& matrix, std::int64_t row, std::int64_t column) {
  if (matrix.layout == MatrixLayout::kRows) return row * matrix.row + column;
  return column / 16 * matrix.row + row * 16 + column % 16;
}
// The elements between rows, and between blocks of 16 columns.
template <class Matrix>
ENGINE_INLINE std::int64_t row_step(const Matrix& matrix) {
  return matrix.layout == MatrixLayout::kRows ? matrix.row : 16;
}
template <class Matrix>
ENGINE_INLINE std::int64_t block_step(const Matrix& matrix) {
  return matrix.layout == MatrixLayout::kRows ? 16 : matrix.row;
}

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

// Operands: A, B, then bias [N rounded up to 16], scale (the same) and residual if present, then C; last, if B is
// packed at run time, its temporary.
struct GemmOperands {
  bool has_bias = false;
  bool has_scale = false;
  bool has_residual = false;  // with the layout `residual`
};

struct GemmTiling {
  std::int32_t vectors = 0;     // vectors in a tile of columns; determines the format of packed B
  std::int32_t pixels = 0;      // maximum number of rows in a tile
  std::int32_t tile_block = 0;  // consecutive row tiles that use the same tile of columns; 0: all
  std::int32_t depth = 0;       // values of K, a multiple of 16, after which the next columns follow; 0: all
};

// The floats of the scratch for last columns that are not whole vectors: tiles of C and of the residual.
static inline std::int64_t gemm_partial_floats(const GemmTiling& tiling) {
  return std::int64_t{2} * 64 * (tiling.pixels > 4 ? tiling.pixels : 4);
}

// The elements of a packed B are f32, bf16 or f16; those of 16 bits are widened where they are used.
static inline std::int64_t weight_bytes(ElementCode element) {
  return element == ElementCode::kF32 ? 4 : 2;
}

// The format in which the product reads B.
enum class GemmForm : std::int32_t {
  kTiles,    // packed (pack.hpp), for tiles
  kColumns,  // [N][K], for products of rows with rows: N is small, or M is and B is given transposed
  kRaw,      // [K][N] with stride `b_row`, for few rows of A
};

// The number of rows of A up to which B is read unpacked, instead of being packed at run time, and the reduction is
// split.
constexpr std::int64_t kFewRows = 4;
// The number of columns up to which products of rows with rows are faster than tiles, whose lanes would be mostly
// empty.
constexpr std::int64_t kFewColumns = 4;
// The number of rows from which it is worth taking columns apart that are packed as a tile.
constexpr std::int64_t kManyRows = 32;
// The number of columns whose sums a worker keeps at a time if B is read unpacked: four rows of them fit the L1 cache.
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
  std::int64_t b_batch[kGemmBatchDims];  // elements between the matrices as the product reads them
  std::int32_t b_operand;                // the operand with this format: 1, or the temporary
  ElementCode b_element;                 // f32 unless B is packed for tiles
  bool is_repeatable;                    // the order of sums does not depend on M
  bool is_column_tile;                   // kColumns: B is packed as a tile; its columns are taken apart in the scratch
};

// Packing of B at run time: from operand 1, with strides `source`, to the temporary.
struct GemmPackArgs {
  PackArgs pack;
  GemmForm form;  // kTiles or kColumns
  std::int64_t n, k;
  std::int32_t rank;
  std::int64_t batch[kGemmBatchDims];   // of the distinct matrices
  std::int64_t source[kGemmBatchDims];  // floats between them
  std::int64_t matrix_floats;           // elements between packed matrices
  std::int32_t from, to;                // operands
  ElementCode element;                  // of the packed matrices
};

}  // namespace engine

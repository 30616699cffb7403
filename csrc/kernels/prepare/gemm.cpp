// Plan building for matrix products.
#include "kernels/gemm.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/prepare/codes.hpp"
#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/tile_request.hpp"

namespace engine {
namespace {

// Attributes of gemm_f32:
//   m, n, k
//   batch ([]): the number of matrices along each of up to six batch dimensions
//   packed (1): B was packed by pack_gemm_f32; 0: B is read unpacked, or packed in a phase of the step
//   transposed (0): B is [N, K]; b_row (dense): floats between its rows; both for unpacked B only
//   b_batch (zeros): between the matrices along each batch dimension, in floats, or in matrices if B is packed
//   a_layout, c_layout, residual_layout (0): rows or blocked
//   a_row, c_row, residual_row (dense): floats between rows, or blocks; a_batch, c_batch, residual_batch (dense):
//     floats between the matrices along each batch dimension, 0 to repeat a matrix (not for C)
//   bias, scale, residual, activation, alpha, beta, residual_after: as in convolutions
//   vectors (by n), which determines the format of B; pixels, tile_block, depth (only if A is rows): the tiling
//   b_element (f32): bf16 or f16, of a B packed for tiles
//   repeatable (0): a row of C has the same bits for any M, any other rows and any number of workers: always by tiles,
//     which add products in the order of K
// Attributes of pack_gemm_f32: n, k, transposed, b_row, a_layout, vectors, b_element, repeatable as above, where f16
// and bf16 are for matrices that are finite and exact in it; matrices (1): their number, stored densely. Its output has
// at most n rounded up to 16, times k, elements for each matrix.
constexpr std::int64_t kBlock = 16;
constexpr std::int64_t kLargestGemm = std::int64_t{1} << 30;
constexpr std::int64_t kLargestStride = std::int64_t{1} << 46;
// The size of a packed B that fits the L2 cache, and of a part of A that leaves room there for a tile of columns.
constexpr std::int64_t kCachedWeightFloats = 96 * 1024;
constexpr std::int64_t kCachedInputFloats = 256 * 1024;
// The size of an A that fits the last-level cache, if K cannot be cut.
constexpr std::int64_t kSharedInputFloats = 1024 * 1024;
// The values of K after which sums are stored, and the next columns follow, where rows of that length fit the cache.
constexpr std::int64_t kLongestDepth = 1536;
// The length of a row of A, in vectors, from which products of rows with rows are worth the final sum over lanes.
constexpr std::int64_t kLongRow = 8;
// Floats in a way of the L1 cache: addresses that far apart map to the same set.
constexpr std::int64_t kWayFloats = 1024;
// The number of column tiles from which a partly empty last tile does not matter.
constexpr std::int64_t kWideTiles = 16;
// The least work for a worker, in multiplications, and the number of multiplications that take as long as reading an
// element of B from the L2 cache.
constexpr double kMinWork = 1.0e5;
constexpr double kReadWork = 4.0;

GemmShape read_shape(const Attributes& attributes) {
  GemmShape shape;
  shape.m = attributes.integer("m", 0, kLargestGemm);
  shape.n = attributes.integer("n", 0, kLargestGemm);
  shape.k = attributes.integer("k", 0, kLargestGemm);
  const std::vector<std::int64_t> batch =
      attributes.has("batch") ? attributes.integers("batch") : std::vector<std::int64_t>{};
  if (batch.size() > kGemmBatchDims) {
    throw PlanError("attribute \"batch\" has " + std::to_string(batch.size()) + " dimensions; expected " +
                    std::to_string(kGemmBatchDims) + " at most");
  }
  for (const std::int64_t count : batch) {
    if (count < 0 || count > kLargestGemm) {
      throw PlanError("attribute \"batch\" has the value " + std::to_string(count) + "; expected 0 to " +
                      std::to_string(kLargestGemm));
    }
    shape.batch[shape.rank++] = count;
  }
  std::vector<std::int64_t> all = batch;
  all.insert(all.end(), {std::max(shape.m, shape.k), std::max(shape.n, kBlock)});
  if (checked_product(all) > kLargestStride) {
    throw PlanError("the matrices have " + std::to_string(checked_product(all)) + " elements; expected " +
                    std::to_string(kLargestStride) + " at most");
  }
  return shape;
}

MatrixView read_view(const Attributes& attributes, const std::string& name, const GemmShape& shape, std::int64_t rows,
                     std::int64_t columns) {
  MatrixView view;
  const bool is_blocked = attributes.flag(name + "_layout");
  view.layout = is_blocked ? MatrixLayout::kBlocked : MatrixLayout::kRows;
  view.row = is_blocked ? attributes.integer_or(name + "_row", rows * kBlock, kLargestStride, rows * kBlock)
                        : attributes.integer_or(name + "_row", 0, kLargestStride, columns);
  if (attributes.has(name + "_batch")) {
    const auto& strides = attributes.integers(name + "_batch", static_cast<std::size_t>(shape.rank), 0, kLargestStride);
    std::copy(strides.begin(), strides.end(), view.batch);
    return view;
  }
  std::size_t stride = checked_product({is_blocked ? divide_up(columns, kBlock) : rows, view.row});
  for (int d = shape.rank - 1; d >= 0; --d) {
    view.batch[d] = static_cast<std::int64_t>(stride);
    stride = checked_multiply(stride, static_cast<std::size_t>(std::max<std::int64_t>(1, shape.batch[d])));
  }
  return view;
}

// The bytes that a batch of matrices spans.
std::size_t batch_bytes(const GemmShape& shape, const std::int64_t* strides, std::size_t matrix,
                        std::size_t element_bytes = sizeof(float)) {
  if (gemm_matrices(shape) == 0 || matrix == 0) return 0;
  std::size_t floats = matrix;
  for (int d = 0; d < shape.rank; ++d) floats = checked_add(floats, checked_product({shape.batch[d] - 1, strides[d]}));
  return checked_multiply(floats, element_bytes);
}

// Two workers must not write the same element: each stride must be at least the extent of the dimensions inside it.
void expect_apart(const GemmShape& shape, const MatrixView& c) {
  if (gemm_matrices(shape) * shape.m * shape.n == 0) return;
  std::vector<std::pair<std::int64_t, std::int64_t>> steps;  // stride, count
  const bool is_blocked = c.layout == MatrixLayout::kBlocked;
  steps.emplace_back(1, is_blocked ? shape.m * kBlock : shape.n);
  steps.emplace_back(c.row, is_blocked ? divide_up(shape.n, kBlock) : shape.m);
  for (int d = 0; d < shape.rank; ++d) steps.emplace_back(c.batch[d], shape.batch[d]);
  std::sort(steps.begin() + 1, steps.end());
  std::int64_t inside = steps[0].second;
  for (std::size_t i = 1; i < steps.size(); ++i) {
    const auto [stride, count] = steps[i];
    if (count <= 1) continue;
    if (stride < inside) {
      throw PlanError("elements of C overlap: " + std::to_string(count) + " parts of " + std::to_string(inside) +
                      " floats are " + std::to_string(stride) + " apart");
    }
    inside =
        static_cast<std::int64_t>(checked_add(checked_product({count - 1, stride}), static_cast<std::size_t>(inside)));
  }
}

// K in parts of equal length.
std::int32_t cut_depth(std::int64_t k) {
  const std::int64_t parts = divide_up(k, kLongestDepth);
  return static_cast<std::int32_t>(parts <= 1 ? 0 : divide_up(divide_up(k, parts), kBlock) * kBlock);
}

// The number of row tiles in each of equal blocks with at most `floats` values of A.
std::int32_t block_tiles(std::int64_t tiles, std::int64_t floats, std::int64_t in_tile) {
  const std::int64_t most = std::max<std::int64_t>(1, floats / std::max<std::int64_t>(1, in_tile));
  return static_cast<std::int32_t>(divide_up(tiles, divide_up(tiles, most)));
}

GemmTiling choose_tiling(const GemmArgs& args, const GemmTiling& given, const TileTraits& traits) {
  const GemmShape& shape = args.shape;
  GemmTiling tiling = given;
  if (tiling.vectors == 0) {
    // Independent of M: a packed B serves products with any number of rows.
    tiling.vectors = traits.best_vectors;
    // Wider tiles with fewer rows read A less often, and rows that are a multiple of an L1 way apart evict each other.
    // Not if the last tile would be mostly empty.
    const std::int64_t wide = std::int64_t{traits.lanes} * (tiling.vectors + 1);
    const bool fills_wide = shape.n % wide == 0 || shape.n >= kWideTiles * wide;
    const bool is_way_apart = shape.k > 0 && shape.k % kWayFloats == 0;
    if ((fills_wide || is_way_apart) && traits.max_product_vectors > tiling.vectors) ++tiling.vectors;
    tiling.vectors = needed_vectors(tiling.vectors, shape.n, traits);
  }
  if (tiling.pixels > 0) return tiling;
  tiling.pixels = traits.max_pixels[tiling.vectors];
  const std::int64_t tiles = std::max<std::int64_t>(1, divide_up(shape.m, tiling.pixels));
  const bool is_narrow = args.b_element != ElementCode::kF32, may_cut = args.a.layout == MatrixLayout::kRows;
  if (!is_narrow && shape.n * shape.k <= kCachedWeightFloats) {
    tiling.tile_block = 1;
    return tiling;
  }
  // A bias is added after the first part.
  if (may_cut && !args.is_repeatable && (is_narrow || shape.m * shape.k > kCachedInputFloats))
    tiling.depth = cut_depth(shape.k);
  const std::int64_t depth = tiling.depth > 0 ? tiling.depth : shape.k;
  const bool is_long = depth > kLongestDepth;  // few rows at a time would read B too often
  const std::int64_t most = is_long ? kSharedInputFloats : kCachedInputFloats;
  if (shape.m * depth > most) tiling.tile_block = block_tiles(tiles, is_long ? most / 4 : most, tiling.pixels * depth);
  return tiling;
}

GemmTiling read_tiling(const Attributes& attributes, const TileTraits& traits) {
  GemmTiling tiling;
  const auto read = [&](const char* name, std::int64_t least, std::int64_t most) {
    return static_cast<std::int32_t>(attributes.integer_or(name, least, most, 0));
  };
  tiling.vectors = read("vectors", 0, traits.max_product_vectors);
  if (tiling.vectors == 0) return tiling;
  tiling.pixels = read("pixels", 0, traits.max_pixels[tiling.vectors]);
  tiling.tile_block = read("tile_block", 0, kLargestGemm);
  tiling.depth = read("depth", 0, kLargestGemm);
  if (tiling.depth % kBlock != 0)
    throw PlanError("attribute \"depth\" is " + std::to_string(tiling.depth) + "; expected a multiple of 16");
  return tiling;
}

// The unpacked B, as described by attributes.
struct Source {
  bool transposed;
  std::int64_t row;
  std::size_t floats;  // of one matrix
};

Source read_source(const Attributes& attributes, std::int64_t n, std::int64_t k) {
  Source source = {};
  source.transposed = attributes.flag("transposed");
  const std::int64_t columns = source.transposed ? k : n, rows = source.transposed ? n : k;
  source.row = attributes.integer_or("b_row", 0, kLargestStride, columns);
  source.floats = matrix_elements(MatrixView{MatrixLayout::kRows, source.row, {}}, rows, columns);
  return source;
}

PackArgs packing(const GemmShape& shape, const Source& source, const GemmTiling& tiling, const TileTraits& traits) {
  PackArgs pack = pack_columns(shape.n, shape.k, tiling.vectors, traits);
  set_pack_strides(pack, source.row, source.transposed);
  return pack;
}

// The format of a packed B. Independent of M, which may change while the packed B is reused.
GemmForm packed_form(const GemmShape& shape, bool must_tile, MatrixLayout a_layout, const TileTraits& traits) {
  const bool is_narrow = shape.n <= kFewColumns && shape.k >= kLongRow * traits.lanes;
  return is_narrow && !must_tile && a_layout == MatrixLayout::kRows ? GemmForm::kColumns : GemmForm::kTiles;
}

// The elements of a packed B, and f32 unless it is stored as tiles.
ElementCode read_element(const Attributes& attributes, GemmForm form) {
  const auto element = read_code_or(attributes, "b_element", ElementCode::kF32);
  const bool is_known = element == ElementCode::kF32 || element == ElementCode::kBF16 || element == ElementCode::kF16;
  if (is_known && (element == ElementCode::kF32 || form == GemmForm::kTiles)) return element;
  throw PlanError("attribute \"b_element\" is \"" + attributes.text("b_element") + "\"; expected " +
                  (is_known ? "\"f32\" for a B of this shape" : "\"f32\", \"bf16\" or \"f16\""));
}

std::int64_t stored_elements(const GemmArgs& args) {
  return args.form == GemmForm::kTiles ? pack_group_words(args.pack) : args.shape.n * args.shape.k;
}

// Merges the innermost batch dimension into M if it has a single B and its rows continue with the same stride.
bool fold_batch(GemmArgs& args) {
  GemmShape& shape = args.shape;
  if (shape.rank == 0) return false;
  const int d = shape.rank - 1;
  const std::int64_t count = shape.batch[d];
  if (count != 1) {
    if (args.b_batch[d] != 0 || count * shape.m > kLargestGemm || count == 0) return false;
    for (MatrixView* view : {&args.a, &args.c, &args.residual}) {
      if (view->layout != MatrixLayout::kRows) return false;
      if (shape.m != 1 && view->batch[d] != shape.m * view->row) return false;
    }
    if (shape.m == 1)
      for (MatrixView* view : {&args.a, &args.c, &args.residual}) view->row = view->batch[d];
    shape.m *= count;
  }
  --shape.rank;
  return true;
}

struct Reading {
  GemmArgs args;
  Source source;
  bool is_packed;
  std::size_t a_bytes, b_bytes, residual_bytes, c_bytes;
};

Reading read_gemm(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  const TileTraits& traits = *static_cast<const TileTraits*>(request.kernels.find("gemm_f32").traits);
  Reading reading = {};
  GemmArgs& args = reading.args;
  GemmShape& shape = args.shape;
  shape = read_shape(attributes);
  const ConvOperands operands = read_conv_operands(attributes);
  args.operands = {operands.has_bias, operands.has_scale, operands.has_residual};
  args.epilogue = read_epilogue(attributes);
  args.a = read_view(attributes, "a", shape, shape.m, shape.k);
  args.c = read_view(attributes, "c", shape, shape.m, shape.n);
  args.residual = operands.has_residual ? read_view(attributes, "residual", shape, shape.m, shape.n) : args.c;
  expect_apart(shape, args.c);

  reading.is_packed = attributes.integer_or("packed", 0, 1, 1) == 1;
  reading.source = reading.is_packed ? Source{} : read_source(attributes, shape.n, shape.k);
  if (attributes.has("b_batch")) {
    const auto& strides = attributes.integers("b_batch", static_cast<std::size_t>(shape.rank), 0, kLargestStride);
    std::copy(strides.begin(), strides.end(), args.b_batch);
  }
  const GemmTiling tiling = read_tiling(attributes, traits);
  args.is_repeatable = attributes.flag("repeatable");
  args.form = packed_form(shape, tiling.vectors != 0 || args.is_repeatable, args.a.layout, traits);
  args.b_element = reading.is_packed ? read_element(attributes, args.form) : ElementCode::kF32;
  if (tiling.depth > 0 && args.a.layout != MatrixLayout::kRows)
    throw PlanError("attribute \"depth\" is set, but A is in blocks; expected rows");
  args.tiling = choose_tiling(args, tiling, traits);
  args.pack = packing(shape, reading.source, args.tiling, traits);
  args.b_row = shape.k;
  args.b_operand = 1;

  reading.a_bytes = batch_bytes(shape, args.a.batch, matrix_elements(args.a, shape.m, shape.k));
  reading.c_bytes = batch_bytes(shape, args.c.batch, matrix_elements(args.c, shape.m, shape.n));
  reading.residual_bytes = batch_bytes(shape, args.residual.batch, matrix_elements(args.residual, shape.m, shape.n));
  std::size_t b_floats = reading.source.floats;
  if (reading.is_packed) {
    b_floats = static_cast<std::size_t>(stored_elements(args));
    for (int d = 0; d < shape.rank; ++d)
      args.b_batch[d] = static_cast<std::int64_t>(checked_multiply(args.b_batch[d], b_floats));
  }
  reading.b_bytes = batch_bytes(shape, args.b_batch, b_floats, static_cast<std::size_t>(weight_bytes(args.b_element)));
  return reading;
}

// Whether B can be read unpacked; if so, sets the form of the product.
bool read_directly(GemmArgs& args, const Source& source) {
  const GemmShape& shape = args.shape;
  const bool is_rows = args.a.layout == MatrixLayout::kRows && args.c.layout == MatrixLayout::kRows &&
                       args.residual.layout == MatrixLayout::kRows;
  const bool is_few = shape.m <= kFewRows;
  if (!is_rows || args.is_repeatable) return false;
  const bool is_column = !source.transposed && shape.n == 1 && source.row == 1;
  if (is_column || (source.transposed && (is_few || shape.n <= kFewColumns))) {
    args.form = GemmForm::kColumns;
    args.b_row = source.row;
    return true;
  }
  if (source.transposed || !is_few || args.form == GemmForm::kColumns) return false;
  args.form = GemmForm::kRaw;
  args.b_row = source.row;
  return true;
}

// Makes the product one of rows with rows if a packed B is a single tile of few columns, most of whose lanes would be
// empty, and there are many rows.
void read_by_columns(GemmArgs& args, const Attributes& attributes) {
  const GemmShape& shape = args.shape;
  const bool is_rows = args.a.layout == MatrixLayout::kRows && args.c.layout == MatrixLayout::kRows &&
                       args.residual.layout == MatrixLayout::kRows;
  const bool is_tile = args.form == GemmForm::kTiles && args.b_element == ElementCode::kF32 && shape.rank == 0;
  if (!is_tile || !is_rows || args.is_repeatable || attributes.has("vectors")) return;
  if (shape.n > kFewColumns || shape.m < kManyRows) return;
  args.form = GemmForm::kColumns;
  args.is_column_tile = true;
  args.b_row = shape.k;
}

// The phase that packs B, whose distinct matrices are then stored densely.
GemmPackArgs pack_phase(GemmArgs& args, int temporary) {
  GemmPackArgs pack = {};
  pack.pack = args.pack;
  pack.form = args.form;
  pack.element = args.b_element;
  pack.n = args.shape.n;
  pack.k = args.shape.k;
  pack.matrix_floats = stored_elements(args);
  pack.from = 1;
  pack.to = temporary;
  std::int64_t stride = pack.matrix_floats;
  for (int d = args.shape.rank - 1; d >= 0; --d) {
    const bool is_distinct = args.b_batch[d] != 0;
    pack.batch[d] = is_distinct ? args.shape.batch[d] : 1;
    pack.source[d] = args.b_batch[d];
    args.b_batch[d] = is_distinct ? stride : 0;
    stride *= pack.batch[d];
  }
  pack.rank = args.shape.rank;
  args.b_operand = temporary;
  args.b_row = args.shape.k;
  return pack;
}

std::size_t scratch_bytes(const GemmArgs& args) {
  if (args.form == GemmForm::kColumns)
    return args.is_column_tile ? checked_product({args.shape.n, args.shape.k, sizeof(float)}) : 0;
  if (args.form == GemmForm::kRaw) return kFewRows * (kRawColumns + kBlock) * sizeof(float);
  std::size_t floats = static_cast<std::size_t>(gemm_partial_floats(args.tiling));
  if (args.b_element != ElementCode::kF32) {
    const std::int64_t depth = args.tiling.depth > 0 ? args.tiling.depth : args.shape.k;
    floats = checked_add(floats, checked_product({depth, args.pack.tile_channels}));
  }
  return checked_multiply(floats, sizeof(float));
}

int useful_workers(double work) {
  return static_cast<int>(std::min(1e6, std::max(1.0, work / kMinWork)));
}

PreparedStep prepare_gemm_f32(const StepRequest& request) {
  Reading reading = read_gemm(request);
  GemmArgs& args = reading.args;
  const GemmOperands& operands = args.operands;
  const std::size_t column_bytes = blocked_bytes(1, args.shape.n, 1, 1);
  const std::size_t input_count = 2 + std::size_t{operands.has_bias} + operands.has_scale + operands.has_residual;
  request.expect_operands(input_count, 1);
  request.expect_input(0, reading.a_bytes);
  request.expect_input(1, reading.b_bytes);
  std::size_t index = 2;
  if (operands.has_bias) request.expect_input(index++, column_bytes);
  if (operands.has_scale) request.expect_input(index++, column_bytes);
  if (operands.has_residual) request.expect_input(index, reading.residual_bytes);
  request.expect_output(0, reading.c_bytes);

  while (fold_batch(args)) {
  }
  const TileTraits& traits = *static_cast<const TileTraits*>(request.kernels.find("gemm_f32").traits);
  args.tiling = choose_tiling(args, read_tiling(request.attributes, traits), traits);
  const std::int64_t matrices = gemm_matrices(args.shape);
  PreparedStep step;
  step.work = 2.0 * matrices * args.shape.m * args.shape.n * args.shape.k;
  if (!reading.is_packed && !read_directly(args, reading.source)) {
    const GemmPackArgs pack = pack_phase(args, static_cast<int>(input_count) + 1);
    std::vector<std::int64_t> floats(pack.batch, pack.batch + pack.rank);
    floats.push_back(pack.matrix_floats);
    const std::size_t bytes = checked_multiply(checked_product(floats), sizeof(float));
    step.temporaries.push_back(bytes);
    step.phases.push_back(PreparedPhase::of(request.kernels.find("gemm_pack_f32"), pack));
    step.phases.back().max_workers = useful_workers(kReadWork * static_cast<double>(bytes / sizeof(float)));
  }
  if (reading.is_packed) read_by_columns(args, request.attributes);
  const char* kernel = args.form == GemmForm::kTiles ? "gemm_f32"
                       : args.form == GemmForm::kRaw ? "gemm_raw_f32"
                                                     : "gemm_columns_f32";
  step.phases.push_back(PreparedPhase::of(request.kernels.find(kernel), args));
  step.phases.back().scratch_bytes = scratch_bytes(args);
  step.phases.back().max_workers =
      useful_workers(std::max(step.work / 2, kReadWork * matrices * args.shape.n * args.shape.k));
  return step;
}

// B -> packed, one or several matrices.
PreparedStep prepare_pack_gemm_f32(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  const TileTraits& traits = *static_cast<const TileTraits*>(request.kernels.find("gemm_f32").traits);
  GemmArgs args = {};
  args.shape.n = attributes.integer("n", 0, kLargestGemm);
  args.shape.k = attributes.integer("k", 0, kLargestGemm);
  args.shape.rank = 1;
  args.shape.batch[0] = attributes.integer_or("matrices", 0, kLargestGemm, 1);
  const bool is_blocked = attributes.flag("a_layout");
  const Source source = read_source(attributes, args.shape.n, args.shape.k);
  const GemmTiling tiling = read_tiling(attributes, traits);
  args.is_repeatable = attributes.flag("repeatable");
  args.form = packed_form(args.shape, tiling.vectors != 0 || args.is_repeatable,
                          is_blocked ? MatrixLayout::kBlocked : MatrixLayout::kRows, traits);
  args.b_element = read_element(attributes, args.form);
  args.tiling = choose_tiling(args, tiling, traits);
  args.pack = packing(args.shape, source, args.tiling, traits);
  // Matrices are consecutive, as [K, N] or [N, K] with all their rows, including gaps.
  const std::int64_t rows = source.transposed ? args.shape.n : args.shape.k;
  args.b_batch[0] = static_cast<std::int64_t>(checked_product({rows, source.row}));
  GemmPackArgs pack = pack_phase(args, 1);
  pack.from = 0;
  request.expect_operands(1, 1);
  request.expect_input(0, batch_bytes(args.shape, pack.source, source.floats));
  request.expect_output(0, checked_product({args.shape.batch[0], pack.matrix_floats, weight_bytes(args.b_element)}));
  return one_phase(PreparedPhase::of(request.kernels.find("gemm_pack_f32"), pack), 0, 0);
}

}  // namespace

extern const OperationEntry gemm_operations[] = {
    {"gemm_f32", prepare_gemm_f32}, {"pack_gemm_f32", prepare_pack_gemm_f32}, {}};

}  // namespace engine

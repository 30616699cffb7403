// Plan-time half of the matrix products.
#include "kernels/gemm.hpp"

#include <algorithm>
#include <limits>

#include "kernels/prepare/conv_request.hpp"

namespace engine {
namespace {

constexpr std::int64_t kBlock = 16;
constexpr std::int64_t kCachedWeightFloats = 96 * 1024;

std::int64_t divide_up(std::int64_t value, std::int64_t by) {
  return (value + by - 1) / by;
}

GemmTiling choose_tiling(const GemmShape& shape, const TileTraits& traits) {
  GemmTiling tiling;
  tiling.vectors = shape.m == 1 ? traits.max_vectors : traits.best_vectors;
  while (tiling.vectors > 1 && (tiling.vectors - 1) * traits.lanes >= shape.n) --tiling.vectors;
  tiling.pixels = traits.max_pixels[tiling.vectors];
  const bool is_cached = shape.n * shape.k <= kCachedWeightFloats && shape.m > shape.n;
  tiling.tile_block = is_cached ? 1 : 0;
  tiling.channel_split = is_cached ? 1 : std::numeric_limits<std::int32_t>::max();
  return tiling;
}

MatrixView dense(MatrixView view, std::int64_t rows, std::int64_t columns) {
  if (view.row == 0) view.row = view.layout == MatrixLayout::kRows ? columns : rows * kBlock;
  return view;
}

}  // namespace

GemmArgs make_gemm_args(const GemmShape& shape, const GemmOperands& operands, const EpilogueArgs& epilogue,
                        const GemmTiling& tiling, bool transposed, std::int64_t b_row, const MatrixView& a,
                        const MatrixView& residual, const MatrixView& c, bool is_b_shared, const TileTraits& traits) {
  GemmArgs args = {};
  args.shape = shape;
  args.operands = operands;
  args.epilogue = epilogue;
  args.tiling = tiling.vectors == 0 ? choose_tiling(shape, traits) : tiling;
  args.a = dense(a, shape.m, shape.k);
  args.residual = dense(residual, shape.m, shape.n);
  args.c = dense(c, shape.m, shape.n);

  PackArgs& pack = args.pack;
  pack.groups = 1;
  pack.channels = shape.n;
  pack.tile_channels = args.tiling.vectors * traits.lanes;
  const std::int64_t rest = shape.n % pack.tile_channels;
  pack.tail_channels =
      rest == 0 ? pack.tile_channels : static_cast<std::int32_t>(divide_up(rest, traits.lanes) * traits.lanes);
  // K of zero: one block of no depth, so that the epilogue still runs on zeros.
  pack.blocks = static_cast<std::int32_t>(std::max<std::int64_t>(1, divide_up(shape.k, kBlock)));
  pack.rows = pack.cols = 1;
  pack.depth = kBlock;
  pack.last_depth = static_cast<std::int32_t>(shape.k - kBlock * (pack.blocks - 1));
  pack.channel_stride = transposed ? b_row : 1;
  pack.depth_stride = transposed ? 1 : b_row;
  pack.block_stride = pack.depth_stride * kBlock;
  args.b_batch = is_b_shared ? 0 : pack_group_floats(pack);
  return args;
}

std::size_t gemm_scratch_bytes(const GemmArgs& args) {
  // Offsets of a tile's rows, and a tile of C where its last columns are not whole vectors.
  const std::size_t offsets = (args.tiling.pixels * sizeof(std::int64_t) + 63) / 64 * 64;
  return offsets + 2 * static_cast<std::size_t>(args.tiling.pixels) * 64 * sizeof(float);
}

namespace {

// Attributes: batch (1), m, n, k; transposed (0): B is [N, K]; b_row (dense): floats between B's rows; shared (1): one
// B for the whole batch; a_layout, c_layout, residual_layout (0): rows or blocked; bias, scale, residual, activation,
// alpha, beta, residual_after, vectors, pixels, tile_block, channel_split: as the convolutions'.
struct Request {
  GemmArgs args;
  bool transposed;
  std::int64_t b_row;
};

std::int64_t read_or(const Attributes& attributes, const char* name, std::int64_t least, std::int64_t most,
                     std::int64_t otherwise) {
  return attributes.has(name) ? attributes.integer(name, least, most) : otherwise;
}

MatrixView read_view(const Attributes& attributes, const char* name, std::int64_t rows, std::int64_t columns) {
  if (read_or(attributes, name, 0, 1, 0) == 0) return {MatrixLayout::kRows, columns, rows * columns};
  return {MatrixLayout::kBlocked, rows * kBlock, divide_up(columns, kBlock) * kBlock * rows};
}

std::size_t view_bytes(const MatrixView& view, std::int64_t batch) {
  return checked_product({batch, view.batch, static_cast<std::int64_t>(sizeof(float))});
}

Request read_gemm(const StepRequest& request) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  const Attributes& attributes = request.attributes;
  const TileTraits& traits = *static_cast<const TileTraits*>(request.kernels.find("gemm_f32").traits);
  GemmShape shape;
  shape.batch = read_or(attributes, "batch", 0, kLargest, 1);
  shape.m = attributes.integer("m", 0, kLargest);
  shape.n = attributes.integer("n", 0, kLargest);
  shape.k = attributes.integer("k", 0, kLargest);
  const bool transposed = read_or(attributes, "transposed", 0, 1, 0) == 1;
  const std::int64_t least_row = transposed ? shape.k : shape.n;
  const std::int64_t b_row = read_or(attributes, "b_row", least_row, kLargest, least_row);
  const ConvOperands operands = read_conv_operands(attributes);
  const ConvTiling tiling = read_conv_tiling(attributes, traits);
  const GemmArgs args = make_gemm_args(
      shape, {operands.has_bias, operands.has_scale, operands.has_residual}, read_epilogue(attributes),
      {tiling.vectors, tiling.pixels, tiling.tile_block, tiling.channel_split}, transposed, b_row,
      read_view(attributes, "a_layout", shape.m, shape.k), read_view(attributes, "residual_layout", shape.m, shape.n),
      read_view(attributes, "c_layout", shape.m, shape.n), read_or(attributes, "shared", 0, 1, 1) == 1, traits);
  return {args, transposed, b_row};
}

PreparedStep prepare_gemm_f32(const StepRequest& request) {
  const GemmArgs args = read_gemm(request).args;
  const GemmOperands& operands = args.operands;
  const std::size_t column_bytes = blocked_bytes(1, args.shape.n, 1, 1);
  request.expect_operands(2 + std::size_t{operands.has_bias} + operands.has_scale + operands.has_residual, 1);
  request.expect_input(0, view_bytes(args.a, args.shape.batch));
  request.expect_input(1, checked_product({args.b_batch == 0 ? 1 : args.shape.batch, pack_group_floats(args.pack), 4}));
  std::size_t index = 2;
  if (operands.has_bias) request.expect_input(index++, column_bytes);
  if (operands.has_scale) request.expect_input(index++, column_bytes);
  if (operands.has_residual) request.expect_input(index, view_bytes(args.residual, args.shape.batch));
  request.expect_output(0, view_bytes(args.c, args.shape.batch));
  const double work = 2.0 * args.shape.batch * args.shape.m * args.shape.n * args.shape.k;
  return one_phase(PreparedPhase::of(request.kernels.find("gemm_f32"), args), gemm_scratch_bytes(args), work);
}

// B -> packed, one matrix or, where `shared` is 0, one for each of the batch, densely one after the other.
PreparedStep prepare_pack_gemm_f32(const StepRequest& request) {
  const auto [args, transposed, b_row] = read_gemm(request);
  PackArgs pack = args.pack;
  const std::int64_t matrices = args.b_batch == 0 ? 1 : args.shape.batch;
  const std::int64_t matrix = (transposed ? args.shape.n : args.shape.k) * b_row;
  pack.groups = matrices;
  pack.group_stride = matrix;
  request.expect_operands(1, 1);
  request.expect_input(0, checked_product({matrices, matrix, 4}));
  request.expect_output(0, checked_product({matrices, pack_group_floats(pack), 4}));
  return one_phase(PreparedPhase::of(request.kernels.find("pack_tiles_f32"), pack), 0, 0);
}

}  // namespace

extern const OperationEntry gemm_operations[] = {
    {"gemm_f32", prepare_gemm_f32}, {"pack_gemm_f32", prepare_pack_gemm_f32}, {}};

}  // namespace engine

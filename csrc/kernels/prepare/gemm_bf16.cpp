// Plan building for matrix products in bf16. Attributes of gemm_bf16:
//
//   m, n, k                                        a_f32, c_f32, residual_f32 (0): f32 instead of bf16
//   a_layout, c_layout, residual_layout (0): rows, or blocks of 16 columns
//   a_row, c_row, residual_row (dense): elements between rows, or between blocks
//   bias, scale, residual, activation, alpha, beta, residual_after: as in convolutions
//   vectors (by n), which determines the format of B; pixels, tile_block: the tiling
//
// and of pack_gemm_bf16, which packs an f32 B: n, k, vectors; transposed (0): B is [N, K]; b_row (dense): floats
// between its rows. Its output has at most n and k, both rounded up to 32, bf16 values.
#include "kernels/gemm_bf16.hpp"

#include <algorithm>

#include "kernels/pack_bf16.hpp"
#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/tile_request.hpp"

namespace engine {
namespace {

constexpr std::int64_t kBlock = 16;
constexpr std::int32_t kStepDepth = kAmxStepBytes / 2;
constexpr std::int64_t kLargestGemmBf16 = std::int64_t{1} << 30;
// The size of a packed B that fits the L2 cache, and of an A that fits the last-level cache.
constexpr std::int64_t kCachedWeightBytes = 384 * 1024;
constexpr std::int64_t kCachedInputBytes = 4 * 1024 * 1024;
// The least work for a worker, in multiplications, and the number of multiplications that take as long as reading a
// value.
constexpr double kLeastWork = 2.0e5;
constexpr double kReadWork = 4.0;

std::int64_t read_or(const Attributes& attributes, const std::string& name, std::int64_t least, std::int64_t most,
                     std::int64_t otherwise) {
  return attributes.has(name) ? attributes.integer(name, least, most) : otherwise;
}

MixedMatrix read_matrix(const Attributes& attributes, const std::string& name, std::int64_t rows,
                        std::int64_t columns) {
  MixedMatrix matrix = {};
  const bool is_blocked = read_or(attributes, name + "_layout", 0, 1, 0) == 1;
  matrix.layout = is_blocked ? MatrixLayout::kBlocked : MatrixLayout::kRows;
  matrix.element_bytes = read_or(attributes, name + "_f32", 0, 1, 0) == 1 ? 4 : 2;
  const std::int64_t dense = is_blocked ? rows * kBlock : columns;
  matrix.row = read_or(attributes, name + "_row", dense, std::int64_t{1} << 46, dense);
  return matrix;
}

std::size_t matrix_bytes(const MixedMatrix& matrix, std::int64_t rows, std::int64_t columns) {
  if (rows == 0 || columns == 0) return 0;
  const bool is_blocked = matrix.layout == MatrixLayout::kBlocked;
  const std::int64_t steps = is_blocked ? divide_up(columns, kBlock) - 1 : rows - 1;
  const std::size_t last = is_blocked ? checked_product({rows, kBlock}) : static_cast<std::size_t>(columns);
  return checked_multiply(checked_add(checked_product({steps, matrix.row}), last),
                          static_cast<std::size_t>(matrix.element_bytes));
}

GemmTiling read_tiling(const Attributes& attributes, std::int64_t m, std::int64_t n, std::int64_t k,
                       const TileTraits& traits) {
  GemmTiling tiling;
  const auto read = [&](const char* name, std::int64_t most) {
    return static_cast<std::int32_t>(read_or(attributes, name, 0, most, 0));
  };
  tiling.vectors = read("vectors", traits.max_vectors);
  if (tiling.vectors == 0) {
    // Independent of M: a packed B serves products with any number of rows.
    tiling.vectors = traits.best_vectors;
    while (tiling.vectors > 1 && (tiling.vectors - 1) * traits.lanes >= n) --tiling.vectors;
  }
  tiling.pixels = read("pixels", traits.max_pixels[tiling.vectors]);
  tiling.tile_block = read("tile_block", kLargestGemmBf16);
  if (tiling.pixels > 0) return tiling;
  tiling.pixels = traits.max_pixels[tiling.vectors];
  const std::int64_t tiles = std::max<std::int64_t>(1, divide_up(m, tiling.pixels));
  if (n * k <= kCachedWeightBytes / traits.weight_bytes) {
    tiling.tile_block = 1;
  } else if (m * k > kCachedInputBytes / traits.weight_bytes) {
    const std::int64_t most =
        std::max<std::int64_t>(1, kCachedInputBytes / traits.weight_bytes / 4 / (tiling.pixels * k));
    tiling.tile_block = static_cast<std::int32_t>(divide_up(tiles, divide_up(tiles, most)));
  }
  return tiling;
}

PackArgs packing(std::int64_t n, std::int64_t k, const GemmTiling& tiling, const TileTraits& traits) {
  PackArgs pack = {};
  pack.groups = 1;
  pack.channels = n;
  pack.tile_channels = tiling.vectors * traits.lanes;
  const std::int64_t rest = n % pack.tile_channels;
  pack.tail_channels =
      rest == 0 ? pack.tile_channels : static_cast<std::int32_t>(divide_up(rest, traits.lanes) * traits.lanes);
  // For K = 0: one block of depth zero, so that the epilogue still runs, on zeros.
  pack.blocks = static_cast<std::int32_t>(std::max<std::int64_t>(1, divide_up(k, kBlock)));
  pack.rows = pack.cols = 1;
  pack.depth = kBlock;
  pack.last_depth = static_cast<std::int32_t>(k - kBlock * (pack.blocks - 1));
  return pack;
}

const TileTraits& find_traits(const StepRequest& request) {
  return *static_cast<const TileTraits*>(request.kernels.find("gemm_bf16").traits);
}

bool uses_tiles(const StepRequest& request) {
  return request.kernels.find_or_null("gemm_amx_bf16") != nullptr;
}

std::size_t packed_bytes(const StepRequest& request, const PackArgs& pack) {
  if (uses_tiles(request)) return checked_product({pack_amx_bytes(pack)});
  return checked_product({pack_bf16_group_size(pack), 2});
}

int useful_workers(double work) {
  return static_cast<int>(std::min(1e6, std::max(1.0, work / kLeastWork)));
}

GemmBf16Args read_gemm(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  GemmBf16Args args = {};
  args.m = attributes.integer("m", 0, kLargestGemmBf16);
  args.n = attributes.integer("n", 0, kLargestGemmBf16);
  args.k = attributes.integer("k", 0, kLargestGemmBf16);
  // Leaves room for the multiplications below.
  checked_product({args.m + 16, args.k + 16, 4096});
  checked_product({args.m + 16, args.n + 64, 4096});
  checked_product({args.n + 64, args.k + 16, 4096});
  const ConvOperands operands = read_conv_operands(attributes);
  args.operands = {operands.has_bias, operands.has_scale, operands.has_residual};
  args.epilogue = read_epilogue(attributes);
  args.a = read_matrix(attributes, "a", args.m, args.k);
  args.c = read_matrix(attributes, "c", args.m, args.n);
  if (operands.has_residual) args.residual = read_matrix(attributes, "residual", args.m, args.n);
  args.tiling = read_tiling(attributes, args.m, args.n, args.k, find_traits(request));
  args.pack = packing(args.n, args.k, args.tiling, find_traits(request));
  if (uses_tiles(request)) {
    args.pack = pack_for_tiles(args.n, args.k, kStepDepth);
    args.tiling = tiling_for_tiles(args.m, args.pack);
  }
  args.panel_block = args.a.row;
  args.c_at = 2 + operands.has_bias + operands.has_scale + operands.has_residual;
  return args;
}

PreparedStep prepare_gemm_bf16(const StepRequest& request) {
  GemmBf16Args args = read_gemm(request);
  const std::size_t column_bytes = blocked_bytes(1, args.n, 1, 1);
  request.expect_operands(static_cast<std::size_t>(args.c_at), 1);
  request.expect_input(0, matrix_bytes(args.a, args.m, args.k));
  request.expect_input(1, packed_bytes(request, args.pack));
  std::size_t index = 2;
  if (args.operands.has_bias) request.expect_input(index++, column_bytes);
  if (args.operands.has_scale) request.expect_input(index++, column_bytes);
  if (args.operands.has_residual) request.expect_input(index, matrix_bytes(args.residual, args.m, args.n));
  request.expect_output(0, matrix_bytes(args.c, args.m, args.n));

  PreparedStep step;
  step.work = 2.0 * args.m * args.n * args.k;
  if (uses_tiles(request)) {
    args.panel_at = args.c_at + 1;
    add_tile_phases(step, request, "gemm_panel_amx_bf16", "gemm_amx_bf16", args);
    return step;
  }
  if (args.a.layout != MatrixLayout::kBlocked || args.a.element_bytes != 2) {
    args.panel_at = args.c_at + 1;
    args.panel_block = 0;
    step.temporaries.push_back(checked_product({divide_up(args.k, kBlock) * kBlock, args.m, 2}));
    step.phases.push_back(PreparedPhase::of(request.kernels.find("gemm_panel_bf16"), args));
    step.phases.back().max_workers = useful_workers(kReadWork * args.m * args.k);
  }
  step.phases.push_back(PreparedPhase::of(request.kernels.find("gemm_bf16"), args));
  // Tiles of C and of the residual, for last columns that are not whole vectors.
  step.phases.back().scratch_bytes = 2 * static_cast<std::size_t>(args.tiling.pixels) * 64 * sizeof(float);
  step.phases.back().max_workers = useful_workers(std::max(step.work / 2, kReadWork * args.n * args.k));
  return step;
}

PreparedStep prepare_pack_gemm_bf16(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  const std::int64_t n = attributes.integer("n", 0, kLargestGemmBf16), k = attributes.integer("k", 0, kLargestGemmBf16);
  checked_product({n + 64, k + 16, 4096});
  const bool is_transposed = read_or(attributes, "transposed", 0, 1, 0) == 1;
  const std::int64_t rows = is_transposed ? n : k, columns = is_transposed ? k : n;
  const std::int64_t row = read_or(attributes, "b_row", columns, std::int64_t{1} << 46, columns);
  PackArgs pack = packing(n, k, read_tiling(attributes, 0, n, k, find_traits(request)), find_traits(request));
  if (uses_tiles(request)) pack = pack_for_tiles(n, k, kStepDepth);
  set_pack_strides(pack, row, is_transposed);
  request.expect_operands(1, 1);
  request.expect_input(0, matrix_bytes({MatrixLayout::kRows, 4, row}, rows, columns));
  request.expect_output(0, packed_bytes(request, pack));
  const char* kernel = uses_tiles(request) ? "pack_amx_bf16" : "pack_tiles_bf16";
  return one_phase(PreparedPhase::of(request.kernels.find(kernel), pack), 0, 0);
}

}  // namespace

extern const OperationEntry gemm_bf16_operations[] = {
    {"gemm_bf16", prepare_gemm_bf16}, {"pack_gemm_bf16", prepare_pack_gemm_bf16}, {}};

}  // namespace engine

// Plan building for matrix products of 8-bit integers. Attributes of gemm_int8: those of requantize_request.hpp, and
//
//   m, n, k                                              a_signed (0): whether A is i8
//   a_row, c_row, residual_row (dense): elements between rows
//   bias, middle_bias, residual (0): whether the operand is present; middle_bias needs `middle`
//   vectors (by n), pixels, tile_block: the tiling
//
// and of pack_gemm_int8, which packs an i8 B: n, k, vectors; transposed (0): B is [N, K].
#include "kernels/gemm_int8.hpp"

#include <algorithm>

#include "kernels/pack_int8.hpp"
#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/requantize_request.hpp"
#include "kernels/prepare/tile_request.hpp"

namespace engine {
namespace {

constexpr std::int64_t kBlock = 16;
constexpr std::int64_t kLargestGemmInt8 = std::int64_t{1} << 30;
// The size of a packed B that fits the L2 cache.
constexpr std::int64_t kCachedWeightBytes = 384 * 1024;
// The least work for a worker, in multiplications, and the number of multiplications that take as long as reading a
// value.
constexpr double kLeastWork = 4.0e5;
constexpr double kReadWork = 4.0;

std::size_t matrix_bytes(std::int64_t rows, std::int64_t columns, std::int64_t row, std::int64_t element_bytes) {
  if (rows == 0 || columns == 0) return 0;
  return checked_multiply(checked_add(checked_product({rows - 1, row}), checked_product({columns})),
                          static_cast<std::size_t>(element_bytes));
}

GemmTiling read_tiling(const Attributes& attributes, std::int64_t n, std::int64_t k, const TileTraits& traits) {
  GemmTiling tiling;
  const auto read = [&](const char* name, std::int64_t most) {
    return static_cast<std::int32_t>(attributes.has(name) ? attributes.integer(name, 0, most) : 0);
  };
  tiling.vectors = read("vectors", traits.max_vectors);
  if (tiling.vectors == 0) {
    // Independent of M: a packed B serves products with any number of rows.
    tiling.vectors = traits.best_vectors;
    while (tiling.vectors > 1 && (tiling.vectors - 1) * traits.lanes >= n) --tiling.vectors;
  }
  tiling.pixels = read("pixels", traits.max_pixels[tiling.vectors]);
  tiling.tile_block = read("tile_block", kLargestGemmInt8);
  if (tiling.pixels > 0) return tiling;
  tiling.pixels = traits.max_pixels[tiling.vectors];
  if (n * k <= kCachedWeightBytes) tiling.tile_block = 1;
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
  // For K = 0: one block of depth zero, so that the epilogue still runs, on the start of the sums.
  pack.blocks = static_cast<std::int32_t>(std::max<std::int64_t>(1, divide_up(k, kBlock)));
  pack.rows = pack.cols = 1;
  pack.depth = kBlock;
  pack.last_depth = static_cast<std::int32_t>(k - kBlock * (pack.blocks - 1));
  return pack;
}

const TileTraits& find_traits(const StepRequest& request) {
  const char* const kernel = read_pairs_fit(request.attributes) ? "tile_pairs_int8" : "gemm_int8";
  return *static_cast<const TileTraits*>(request.kernels.find(kernel).traits);
}

bool uses_tiles(const StepRequest& request) {
  return request.kernels.find_or_null("gemm_amx_int8") != nullptr;
}

std::size_t packed_bytes(const StepRequest& request, const PackArgs& pack) {
  return checked_product({uses_tiles(request) ? pack_amx_bytes(pack) : pack_int8_group_size(pack)});
}

int useful_workers(double work) {
  return static_cast<int>(std::min(1e6, std::max(1.0, work / kLeastWork)));
}

std::int64_t read_row(const Attributes& attributes, const char* name, std::int64_t dense) {
  return attributes.has(name) ? attributes.integer(name, dense, std::int64_t{1} << 46) : dense;
}

GemmInt8Args read_gemm(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  GemmInt8Args args = {};
  args.m = attributes.integer("m", 0, kLargestGemmInt8);
  args.n = attributes.integer("n", 0, kLargestGemmInt8);
  args.k = attributes.integer("k", 0, kLargestGemmInt8);
  // Leaves room for the multiplications below.
  checked_product({args.m + 16, args.k + 16, 4096});
  checked_product({args.m + 16, args.n + 64, 4096});
  checked_product({args.n + 64, args.k + 16, 4096});
  const ConvOperands operands = read_conv_operands(attributes);
  if (operands.has_scale) throw PlanError("attribute \"scale\" is 1, but the scale is not optional");
  args.operands = {operands.has_bias, false, operands.has_residual};
  args.requantize = read_requantize(attributes);
  args.has_middle_bias = attributes.has("middle_bias") && attributes.integer("middle_bias", 0, 1) == 1;
  if (args.has_middle_bias && !args.requantize.has_middle)
    throw PlanError("attribute \"middle_bias\" is 1, but there is no \"middle\"");
  args.pairs_fit = read_pairs_fit(attributes);
  args.a_row = read_row(attributes, "a_row", args.k);
  args.c_row = read_row(attributes, "c_row", args.n);
  if (operands.has_residual) args.residual_row = read_row(attributes, "residual_row", args.n);
  args.is_a_signed = attributes.has("a_signed") && attributes.integer("a_signed", 0, 1) == 1;
  args.tiling = read_tiling(attributes, args.n, args.k, find_traits(request));
  args.pack = packing(args.n, args.k, args.tiling, find_traits(request));
  if (uses_tiles(request)) {
    args.pack = pack_for_tiles(args.n, args.k, kAmxStepBytes);
    args.tiling = tiling_for_tiles(args.m, args.pack);
  }
  args.c_at = 4 + operands.has_bias + args.has_middle_bias + operands.has_residual;
  args.panel_at = args.c_at + 1;
  return args;
}

PreparedStep prepare_gemm_int8(const StepRequest& request) {
  const GemmInt8Args args = read_gemm(request);
  const std::size_t column_bytes = blocked_bytes(1, args.n, 1, 1);
  request.expect_operands(static_cast<std::size_t>(args.c_at), 1);
  request.expect_input(0, matrix_bytes(args.m, args.k, args.a_row, 1));
  request.expect_input(1, packed_bytes(request, args.pack));
  request.expect_input(2, column_bytes);
  request.expect_input(3, column_bytes);
  std::size_t index = 4;
  if (args.operands.has_bias) request.expect_input(index++, column_bytes);
  if (args.has_middle_bias) request.expect_input(index++, column_bytes);
  if (args.operands.has_residual)
    request.expect_input(index,
                         matrix_bytes(args.m, args.n, args.residual_row, element_bytes_of(args.requantize.residual)));
  request.expect_output(0, matrix_bytes(args.m, args.n, args.c_row, element_bytes_of(args.requantize.y)));

  PreparedStep step;
  step.work = 2.0 * args.m * args.n * args.k;
  if (uses_tiles(request)) {
    add_tile_phases(step, request, "gemm_panel_amx_int8", "gemm_amx_int8", args);
    return step;
  }
  step.temporaries.push_back(checked_product({divide_up(args.k, kBlock) * kBlock, args.m}));
  step.phases.push_back(PreparedPhase::of(request.kernels.find("gemm_panel_int8"), args));
  step.phases.back().max_workers = useful_workers(kReadWork * args.m * args.k);
  step.phases.push_back(PreparedPhase::of(request.kernels.find("gemm_int8"), args));
  // Tiles of C and of the residual, for last columns that are not whole vectors.
  step.phases.back().scratch_bytes = 2 * static_cast<std::size_t>(args.tiling.pixels) * 64 * sizeof(float);
  step.phases.back().max_workers = useful_workers(std::max(step.work / 2, kReadWork * args.n * args.k));
  return step;
}

PreparedStep prepare_pack_gemm_int8(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  const std::int64_t n = attributes.integer("n", 0, kLargestGemmInt8), k = attributes.integer("k", 0, kLargestGemmInt8);
  checked_product({n + 64, k + 16, 4096});
  const bool is_transposed = attributes.has("transposed") && attributes.integer("transposed", 0, 1) == 1;
  PackArgs pack = packing(n, k, read_tiling(attributes, n, k, find_traits(request)), find_traits(request));
  if (uses_tiles(request)) pack = pack_for_tiles(n, k, kAmxStepBytes);
  set_pack_strides(pack, is_transposed ? k : n, is_transposed);
  request.expect_operands(1, 1);
  request.expect_input(0, checked_product({n, k}));
  request.expect_output(0, packed_bytes(request, pack));
  const char* kernel = uses_tiles(request) ? "pack_amx_int8" : "pack_tiles_int8";
  return one_phase(PreparedPhase::of(request.kernels.find(kernel), pack), 0, 0);
}

}  // namespace

extern const OperationEntry gemm_int8_operations[] = {
    {"gemm_int8", prepare_gemm_int8}, {"pack_gemm_int8", prepare_pack_gemm_int8}, {}};

}  // namespace engine

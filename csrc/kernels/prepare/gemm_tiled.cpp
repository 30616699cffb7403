// Plan building for matrix products by tiles that read A in blocks. Attributes of gemm_bf16 and gemm_int8:
//
//   m, n, k
//   a_row, c_row, residual_row (dense): elements between rows, or between blocks
//   bias, residual (0), activation, alpha, beta, residual_after: as in convolutions
//   vectors (by n), which determines the format of B; pixels, tile_block: the tiling
//
// of gemm_bf16 also
//
//   a_f32, c_f32, residual_f32 (0): f32 instead of bf16
//   a_layout, c_layout, residual_layout (0): rows, or blocks of 16 columns
//   scale (0): as in convolutions
//   widened (for few rows, where products of bf16 are slow): whether B is widened and multiplied in f32
//   repeatable (0): a row of C has the same bits for any M; never widened by default
//
// of gemm_int8 also those of requantize_request.hpp, and
//
//   a_signed (0): whether A is i8         middle_bias (0): whether the operand is present; it needs `middle`
//   b_zeros (0): whether B has zero points, so that factors are present; then B is not packed for tiles
//
// and of pack_gemm_bf16 and pack_gemm_int8, which pack a B of f32 or of i8: n, k, vectors, b_zeros; transposed (0): B
// is [N, K]; b_row (dense): elements between its rows. Their output has at most n and k, both rounded up to 32,
// elements.
#include "kernels/gemm_few.hpp"

#include <algorithm>
#include <limits>

#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/product_rates.hpp"
#include "kernels/prepare/requantize_request.hpp"
#include "kernels/prepare/tile_request.hpp"

namespace engine {
namespace {

constexpr std::int64_t kBlock = 16;
constexpr std::int64_t kLargestTiledGemm = std::int64_t{1} << 30;
// The size of a packed B that fits the L2 cache.
constexpr std::int64_t kCachedWeightBytes = 384 * 1024;
// The number of multiplications that take as long as reading a value.
constexpr double kReadWork = 4.0;

// What differs between the types of operands.
struct OperandType {
  std::string name;            // in the names of kernels
  std::int32_t element_bytes;  // of a packed B, and of A in blocks
  std::int32_t source_bytes;   // of a B before it is packed
  // The size of an A that is divided into blocks of rows, since it does not fit the last-level cache.
  std::int64_t cached_input_bytes;
  double least_work;  // for a worker, in multiplications
};
const OperandType kBf16 = {"bf16", 2, 4, 4 * 1024 * 1024, 2.0e5};
const OperandType kInt8 = {"int8", 1, 1, std::numeric_limits<std::int64_t>::max(), 4.0e5};

SizedMatrix read_matrix(const Attributes& attributes, const std::string& name, std::int64_t rows, std::int64_t columns,
                        std::int32_t element_bytes, MatrixLayout layout = MatrixLayout::kRows) {
  const std::int64_t dense = layout == MatrixLayout::kBlocked ? rows * kBlock : columns;
  return {layout, element_bytes, attributes.integer_or(name + "_row", dense, std::int64_t{1} << 46, dense)};
}

std::size_t matrix_bytes(const SizedMatrix& matrix, std::int64_t rows, std::int64_t columns) {
  return checked_multiply(matrix_elements(matrix, rows, columns), static_cast<std::size_t>(matrix.element_bytes));
}

GemmTiling read_tiling(const Attributes& attributes, const TiledGemmArgs& args, const OperandType& type,
                       const TileTraits& traits) {
  GemmTiling tiling;
  const auto read = [&](const char* name, std::int64_t most) {
    return static_cast<std::int32_t>(attributes.integer_or(name, 0, most, 0));
  };
  tiling.vectors = read("vectors", traits.max_vectors);
  // Independent of M: a packed B serves products with any number of rows.
  if (tiling.vectors == 0) tiling.vectors = needed_vectors(traits.best_vectors, args.n, traits);
  tiling.pixels = read("pixels", traits.max_pixels[tiling.vectors]);
  tiling.tile_block = read("tile_block", kLargestTiledGemm);
  if (tiling.pixels > 0) return tiling;
  tiling.pixels = traits.max_pixels[tiling.vectors];
  const std::int64_t cached_inputs = type.cached_input_bytes / type.element_bytes;
  if (args.n * args.k <= kCachedWeightBytes / type.element_bytes) {
    tiling.tile_block = 1;
  } else if (args.m * args.k > cached_inputs) {
    const std::int64_t tiles = std::max<std::int64_t>(1, divide_up(args.m, tiling.pixels));
    const std::int64_t most = std::max<std::int64_t>(1, cached_inputs / 4 / (tiling.pixels * args.k));
    tiling.tile_block = static_cast<std::int32_t>(divide_up(tiles, divide_up(tiles, most)));
  }
  return tiling;
}

bool uses_tiles(const StepRequest& request, const OperandType& type) {
  return !request.attributes.flag("b_zeros") && request.kernels.find_or_null("gemm_amx_" + type.name) != nullptr;
}

std::size_t packed_bytes(const StepRequest& request, const OperandType& type, const PackArgs& pack) {
  return checked_product({uses_tiles(request, type) ? pack_amx_bytes(pack) : pack_group_words(pack) * 4});
}

// Sets the tiling and the packing of B, whose strides are still to be filled in.
void choose_tiling(const StepRequest& request, const OperandType& type, TiledGemmArgs& args) {
  // Leaves room for the multiplications below.
  checked_product({args.m + 16, args.k + 16, 4096});
  checked_product({args.m + 16, args.n + 64, 4096});
  checked_product({args.n + 64, args.k + 16, 4096});
  const bool pairs_fit = type.element_bytes == 1 && read_pairs_fit(request.attributes);
  const std::string kernel = (pairs_fit ? "tile_pairs_" : "gemm_") + type.name;
  const TileTraits& traits = *static_cast<const TileTraits*>(request.kernels.find(kernel).traits);
  args.tiling = read_tiling(request.attributes, args, type, traits);
  args.pack = pack_columns(args.n, args.k, args.tiling.vectors, traits);
  if (!uses_tiles(request, type)) return;
  args.pack = pack_for_tiles(args.n, args.k, kAmxStepBytes / type.element_bytes);
  args.tiling = tiling_for_tiles(args.m, args.pack);
}

void read_gemm(const StepRequest& request, const OperandType& type, TiledGemmArgs& args) {
  const Attributes& attributes = request.attributes;
  args.m = attributes.integer("m", 0, kLargestTiledGemm);
  args.n = attributes.integer("n", 0, kLargestTiledGemm);
  args.k = attributes.integer("k", 0, kLargestTiledGemm);
  const ConvOperands operands = read_conv_operands(attributes);
  args.operands = {operands.has_bias, operands.has_scale, operands.has_residual};
  args.epilogue = read_epilogue(attributes);
  choose_tiling(request, type, args);
}

// Between B and the residual, operands are a value for each column.
void expect_product_operands(const StepRequest& request, const OperandType& type, const TiledGemmArgs& args) {
  request.expect_operands(static_cast<std::size_t>(args.c_at), 1);
  request.expect_input(0, matrix_bytes(args.a, args.m, args.k));
  request.expect_input(1, packed_bytes(request, type, args.pack));
  const int vectors_end = args.c_at - args.operands.has_residual;
  for (int i = 2; i < vectors_end; ++i)
    request.expect_input(static_cast<std::size_t>(i), blocked_bytes(1, args.n, 1, 1));
  if (args.operands.has_residual)
    request.expect_input(static_cast<std::size_t>(vectors_end), matrix_bytes(args.residual, args.m, args.n));
  request.expect_output(0, matrix_bytes(args.c, args.m, args.n));
}

template <class Args>
PreparedStep prepare_product(const StepRequest& request, const OperandType& type, Args& args) {
  expect_product_operands(request, type, args);
  PreparedStep step;
  step.work = 2.0 * args.m * args.n * args.k;
  if (uses_tiles(request, type)) {
    args.panel_at = args.c_at + 1;
    add_tile_phases(step, request, "gemm_panel_amx_" + type.name, "gemm_amx_" + type.name, args);
    return step;
  }
  const auto add_phase = [&](const std::string& kernel, double work) {
    step.phases.push_back(PreparedPhase::of(request.kernels.find(kernel), args));
    step.phases.back().max_workers = static_cast<int>(std::clamp(work / type.least_work, 1.0, 1e6));
  };
  args.panel_block = args.a.row;
  if (args.a.layout != MatrixLayout::kBlocked || args.a.element_bytes != type.element_bytes) {
    args.panel_at = args.c_at + 1;
    args.panel_block = 0;
    step.temporaries.push_back(checked_product({divide_up(args.k, kBlock) * kBlock, args.m, type.element_bytes}));
    add_phase("gemm_panel_" + type.name, kReadWork * args.m * args.k);
  }
  add_phase("gemm_" + type.name, std::max(step.work / 2, kReadWork * args.n * args.k));
  // Tiles of C and of the residual, for last columns that are not whole vectors.
  step.phases.back().scratch_bytes = 2 * static_cast<std::size_t>(args.tiling.pixels) * 64 * sizeof(float);
  return step;
}

// Whether gemm_few_bf16 can compute a product.
bool is_few(const StepRequest& request, const GemmBf16Args& args) {
  const KernelEntry* kernel = request.kernels.find_or_null("gemm_few_bf16");
  if (kernel == nullptr || args.m < 1 || args.m > kFewRows || args.k > kMaxFewDepth) return false;
  const std::int64_t lanes = *static_cast<const std::int32_t*>(kernel->traits);
  return args.a.layout == MatrixLayout::kRows && args.c.layout == MatrixLayout::kRows &&
         (!args.operands.has_residual || args.residual.layout == MatrixLayout::kRows) &&
         (uses_tiles(request, kBf16) || args.pack.tile_channels == args.tiling.vectors * lanes);
}

// Whether it should: unless vectors multiply bf16 faster than f32. Tiles of AMX take as long for one row as for
// sixteen.
bool is_widened(const StepRequest& request, const GemmBf16Args& args) {
  const bool is_repeatable = request.attributes.flag("repeatable");
  const bool may = !is_repeatable && is_few(request, args);
  const std::int64_t given = request.attributes.integer_or("widened", 0, may ? 1 : 0, -1);
  if (given >= 0) return given == 1;
  if (!may || uses_tiles(request, kBf16)) return may;
  const std::optional<ProductRates> rates = product_rates(request.kernels);
  return !rates || rates->bf16 <= rates->f32;
}

PreparedStep prepare_few(const StepRequest& request, const GemmBf16Args& gemm) {
  expect_product_operands(request, kBf16, gemm);
  const GemmFewArgs args = {gemm, uses_tiles(request, kBf16)};
  PreparedStep step;
  step.work = 2.0 * gemm.m * gemm.n * gemm.k;
  step.phases.push_back(PreparedPhase::of(request.kernels.find("gemm_few_bf16"), args));
  step.phases[0].scratch_bytes = static_cast<std::size_t>(few_scratch_bytes(gemm));
  const double work = std::max(step.work / 2, kReadWork * gemm.n * gemm.k);
  step.phases[0].max_workers = static_cast<int>(std::clamp(work / kBf16.least_work, 1.0, 1e6));
  return step;
}

PreparedStep prepare_gemm_bf16(const StepRequest& request) {
  GemmBf16Args args = {};
  read_gemm(request, kBf16, args);
  const auto read = [&](const std::string& name, std::int64_t columns) {
    const bool is_blocked = request.attributes.flag(name + "_layout");
    const std::int32_t element_bytes = read_element_bytes(request.attributes, name + "_f32");
    return read_matrix(request.attributes, name, args.m, columns, element_bytes,
                       is_blocked ? MatrixLayout::kBlocked : MatrixLayout::kRows);
  };
  args.a = read("a", args.k);
  args.c = read("c", args.n);
  if (args.operands.has_residual) args.residual = read("residual", args.n);
  args.c_at = 2 + args.operands.has_bias + args.operands.has_scale + args.operands.has_residual;
  return is_widened(request, args) ? prepare_few(request, args) : prepare_product(request, kBf16, args);
}

PreparedStep prepare_gemm_int8(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  GemmInt8Args args = {};
  read_gemm(request, kInt8, args);
  if (args.operands.has_scale) throw PlanError("attribute \"scale\" is 1, but the scale is not optional");
  args.requantize = read_requantize(attributes);
  args.has_middle_bias = attributes.flag("middle_bias");
  if (args.has_middle_bias && !args.requantize.has_middle)
    throw PlanError("attribute \"middle_bias\" is 1, but there is no \"middle\"");
  args.pairs_fit = read_pairs_fit(attributes);
  args.is_a_signed = attributes.flag("a_signed");
  args.a = read_matrix(attributes, "a", args.m, args.k, 1);
  args.c = read_matrix(attributes, "c", args.m, args.n, element_bytes_of(args.requantize.y));
  if (args.operands.has_residual)
    args.residual = read_matrix(attributes, "residual", args.m, args.n, element_bytes_of(args.requantize.residual));
  args.has_factors = attributes.flag("b_zeros");
  args.c_at = 4 + args.operands.has_bias + args.has_middle_bias + args.has_factors + args.operands.has_residual;
  PreparedStep step = prepare_product(request, kInt8, args);
  if (args.has_factors) step.temporaries.push_back(checked_product({args.m, 4}));
  return step;
}

PreparedStep prepare_pack(const StepRequest& request, const OperandType& type) {
  const Attributes& attributes = request.attributes;
  TiledGemmArgs args = {};
  args.n = attributes.integer("n", 0, kLargestTiledGemm);
  args.k = attributes.integer("k", 0, kLargestTiledGemm);
  const bool is_transposed = attributes.flag("transposed");
  const std::int64_t rows = is_transposed ? args.n : args.k, columns = is_transposed ? args.k : args.n;
  const SizedMatrix b = read_matrix(attributes, "b", rows, columns, type.source_bytes);
  choose_tiling(request, type, args);
  set_pack_strides(args.pack, b.row, is_transposed);
  request.expect_operands(1, 1);
  request.expect_input(0, matrix_bytes(b, rows, columns));
  request.expect_output(0, packed_bytes(request, type, args.pack));
  const char* kernel = uses_tiles(request, type) ? "pack_amx_" : "pack_tiles_";
  return one_phase(PreparedPhase::of(request.kernels.find(kernel + type.name), args.pack), 0, 0);
}

PreparedStep prepare_pack_gemm_bf16(const StepRequest& request) {
  return prepare_pack(request, kBf16);
}
PreparedStep prepare_pack_gemm_int8(const StepRequest& request) {
  return prepare_pack(request, kInt8);
}

}  // namespace

extern const OperationEntry gemm_tiled_operations[] = {{"gemm_bf16", prepare_gemm_bf16},
                                                       {"pack_gemm_bf16", prepare_pack_gemm_bf16},
                                                       {"gemm_int8", prepare_gemm_int8},
                                                       {"pack_gemm_int8", prepare_pack_gemm_int8},
                                                       {}};

}  // namespace engine

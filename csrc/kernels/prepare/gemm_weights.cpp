// Plan building for products with blocked weights. Attributes that describe the weights:
//
//   n, k, block, bits (4 or 8)
//   half_scales (0): whether the packed scales are f16       zero_points (0): whether each block has its own
//   center (0): otherwise the zero point of all codes, as unsigned numbers
//
// and of gemm_weights: m; bias, residual, activation, alpha, beta, residual_after as in convolutions; digits (by m): of
// an activation, 3 or 1; 0: weights are dequantized; repeatable (0): 3 for any m. Of pack_weights: is_signed (0):
// whether codes and zero points are i8 rather than u8; column_bytes (0): the bytes of a column, if codes are stored by
// columns and those of 4 bits in pairs, rather than by rows and in a byte each.
#include "kernels/gemm_weights.hpp"

#include <algorithm>

#include "kernels/prepare/conv_request.hpp"

namespace engine {
namespace {

constexpr std::int64_t kLargestGemmWeights = std::int64_t{1} << 30;
// The number of elements of A up to which each worker makes all digits: less than a barrier costs.
constexpr std::int64_t kOwnDigits = 16 * 1024;
// The size of digits that stay in the L2 cache beside a group of weights.
constexpr std::int64_t kCachedDigitBytes = 384 * 1024;
constexpr std::int64_t kMinRows = 16;
constexpr std::int64_t kRowMultiple = 4;
// The rows of 32 dequantized columns that stay in the L2 cache, and the size of an A that stays in the last-level
// cache.
constexpr std::int64_t kCachedWeightRows = 4096;
constexpr std::int64_t kCachedInputFloats = 1024 * 1024;
constexpr std::int64_t kMinTiles = 8;
// The least work for a worker, in bytes of weights times rows.
constexpr double kMinWork = 3.0e4;
constexpr std::int64_t kPieceMultiple = 16;

std::int64_t round_up(std::int64_t value, std::int64_t to) {
  return divide_up(value, to) * to;
}

// The size of parts of `count` items, which are about equal and at most `most`.
std::int64_t even_part(std::int64_t count, std::int64_t most) {
  return count == 0 ? 0 : divide_up(count, divide_up(count, most));
}

WeightsFormat read_format(const Attributes& attributes) {
  WeightsFormat format = {};
  format.n = attributes.integer("n", 0, kLargestGemmWeights);
  format.k = attributes.integer("k", 0, kLargestGemmWeights);
  format.block = std::max<std::int64_t>(1, std::min(attributes.integer("block", 1, kLargestGemmWeights), format.k));
  format.bits = static_cast<std::int32_t>(attributes.integer("bits", 4, 8));
  if (format.bits != 4 && format.bits != 8) throw PlanError("attribute \"bits\" must be 4 or 8");
  format.scale_bytes = attributes.flag("half_scales") ? 2 : 4;
  format.has_zero_points = attributes.flag("zero_points");
  if (attributes.has("center")) {
    if (format.has_zero_points) throw PlanError("attribute \"center\" is given, but each block has a zero point");
    format.center = static_cast<std::int32_t>(attributes.integer("center", 0, format.bits == 4 ? 15 : 255));
  }
  format.blocks = divide_up(format.k, format.block);
  format.pieces = divide_up(format.block, kMaxPiece);
  format.length = round_up(divide_up(format.block, format.pieces), kPieceMultiple);
  format.pieces = divide_up(format.block, format.length);
  return format;
}

std::size_t packed_bytes(const WeightsFormat& format) {
  return checked_product({weight_groups(format), weight_records(format), record_bytes(format)});
}

DigitsLayout digits_layout(const WeightsFormat& format, std::int32_t digits) {
  const std::int64_t records = weight_records(format);
  DigitsLayout layout = {};
  layout.digits = digits;
  layout.digits_at = round_up(records * static_cast<std::int64_t>(sizeof(PieceStart)), 64);
  layout.row_bytes = layout.digits_at + round_up(records * digits * format.length, 64);
  return layout;
}

int useful_workers(double work) {
  return static_cast<int>(std::min(1e6, std::max(1.0, work / kMinWork)));
}

// What both forms of the product have.
template <class Args>
Args read_product(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  Args args = {};
  args.m = attributes.integer("m", 0, kLargestGemmWeights);
  args.format = read_format(attributes);
  const ConvOperands operands = read_conv_operands(attributes);
  if (operands.has_scale) throw PlanError("attribute \"scale\" is 1, but the scales are part of the weights");
  args.has_bias = operands.has_bias;
  args.has_residual = operands.has_residual;
  args.epilogue = read_epilogue(attributes);
  args.c_at = 2 + args.has_bias + args.has_residual;
  const WeightsFormat& format = args.format;
  const std::size_t a_bytes = checked_product({args.m, format.k, 4}), c_bytes = checked_product({args.m, format.n, 4});
  request.expect_operands(static_cast<std::size_t>(args.c_at), 1);
  request.expect_input(0, a_bytes);
  request.expect_input(1, packed_bytes(format));
  std::size_t index = 2;
  if (args.has_bias) request.expect_input(index++, checked_product({format.n, 4}));
  if (args.has_residual) request.expect_input(index, c_bytes);
  request.expect_output(0, c_bytes);
  return args;
}

PreparedStep prepare_digits(const StepRequest& request, std::int32_t digits) {
  GemmWeightsArgs args = read_product<GemmWeightsArgs>(request);
  const WeightsFormat& format = args.format;
  args.layout = digits_layout(format, digits);
  const std::size_t digit_bytes = checked_product({args.m, args.layout.row_bytes});
  const std::int64_t most = std::max(kMinRows, kCachedDigitBytes / std::max<std::int64_t>(1, args.layout.row_bytes));
  args.row_block = std::max(kRowMultiple, round_up(even_part(args.m, most), kRowMultiple));
  PreparedStep step;
  step.work = 2.0 * args.m * format.n * format.k;
  const bool is_few = args.m * format.k <= kOwnDigits;
  if (!is_few) {
    args.digits_at = args.c_at + 1;
    step.temporaries.push_back(digit_bytes);
    step.phases.push_back(PreparedPhase::of(request.kernels.find("weight_digits_int8"), args));
    step.phases.back().max_workers = useful_workers(static_cast<double>(digit_bytes));
  }
  step.phases.push_back(PreparedPhase::of(request.kernels.find("gemm_weights_int8"), args));
  step.phases.back().scratch_bytes = is_few ? digit_bytes : 0;
  step.phases.back().max_workers = useful_workers(static_cast<double>(packed_bytes(format)) * args.m);
  return step;
}

PreparedStep prepare_dequantized(const StepRequest& request) {
  GemmDequantizedArgs args = read_product<GemmDequantizedArgs>(request);
  const WeightsFormat& format = args.format;
  const KernelEntry& kernel = request.kernels.find("gemm_dequantized_f32");
  const TileTraits& traits = *static_cast<const TileTraits*>(kernel.traits);
  args.pixels = traits.max_pixels[2];
  args.panel_at = args.c_at + 1;
  args.chunk = std::max(kPieceMultiple, round_up(even_part(format.k, kCachedWeightRows), kPieceMultiple));
  const std::int64_t tiles = divide_up(args.m, args.pixels);
  const std::int64_t most = kCachedInputFloats / args.pixels / std::max<std::int64_t>(1, format.k);
  args.row_block = std::max<std::int64_t>(1, even_part(tiles, std::max(kMinTiles, most)));
  PreparedStep step;
  step.work = 2.0 * args.m * format.n * format.k;
  step.temporaries.push_back(checked_product({args.m, round_up(format.k, kPieceMultiple), 4}));
  step.phases.push_back(PreparedPhase::of(request.kernels.find("dequantized_panel_f32"), args));
  step.phases.back().max_workers = useful_workers(static_cast<double>(step.temporaries.back()));
  step.phases.push_back(PreparedPhase::of(kernel, args));
  step.phases.back().scratch_bytes =
      checked_product({args.chunk * kWeightColumns + args.pixels * 2 * traits.lanes, sizeof(float)});
  step.phases.back().max_workers = useful_workers(static_cast<double>(packed_bytes(format)) * args.m);
  return step;
}

PreparedStep prepare_gemm_weights(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  const auto& traits = *static_cast<const WeightsTraits*>(request.kernels.find("gemm_weights_int8").traits);
  const std::int64_t few = attributes.integer("bits", 4, 8) == 4 ? traits.few_rows_4 : traits.few_rows_8;
  const bool has_digits = attributes.flag("repeatable") || attributes.integer("m", 0, kLargestGemmWeights) <= few;
  const std::int64_t by_rows = has_digits ? kMaxDigits : 0;
  const std::int64_t digits = attributes.integer_or("digits", 0, kMaxDigits, by_rows);
  if (digits == 2) throw PlanError("attribute \"digits\" must be 0, 1 or 3");
  return digits == 0 ? prepare_dequantized(request) : prepare_digits(request, static_cast<std::int32_t>(digits));
}

PreparedStep prepare_pack_weights(const StepRequest& request) {
  PackWeightsArgs args = {};
  args.format = read_format(request.attributes);
  const WeightsFormat& format = args.format;
  if (request.attributes.flag("is_signed")) args.flip = format.bits == 4 ? 8 : 128;
  request.expect_operands(2 + static_cast<std::size_t>(format.has_zero_points), 1);
  const std::int64_t least = (format.k * format.bits + 7) / 8;
  args.column_bytes = request.attributes.integer_or("column_bytes", least, kLargestGemmWeights, 0);
  if (args.column_bytes > 0 && format.blocks > 1 && format.block % 2 != 0)
    throw PlanError("blocks of " + std::to_string(format.block) + " codes; expected an even number with column_bytes");
  request.expect_input(0, args.column_bytes > 0 ? checked_product({format.n, args.column_bytes})
                                                : checked_product({format.k, format.n}));
  request.expect_input(1, checked_product({format.blocks, format.n, 4}));
  if (format.has_zero_points) request.expect_input(2, checked_product({format.blocks, format.n}));
  request.expect_output(0, packed_bytes(format));
  return one_phase(PreparedPhase::of(request.kernels.find("pack_weights"), args), 0, 0);
}

}  // namespace

extern const OperationEntry gemm_weights_operations[] = {
    {"gemm_weights", prepare_gemm_weights}, {"pack_weights", prepare_pack_weights}, {}};

}  // namespace engine

// Plan building for transposed convolutions of 8-bit maps: see conv_int8.hpp. Attributes: as for
// conv_blocked_int8, without a computed zero point.
#include <algorithm>

#include "kernels/conv_int8.hpp"
#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/conv_residues.hpp"
#include "kernels/prepare/requantize_request.hpp"

namespace engine {
namespace {

const TileTraits& find_transposed_traits(const StepRequest& request) {
  const char* const kernel = read_pairs_fit(request.attributes) ? "tile_pairs_int8" : "conv_blocked_int8";
  return *static_cast<const TileTraits*>(request.kernels.find(kernel).traits);
}

// The pixels that all parts together read: x with margins.
struct Margins {
  std::int64_t top = 0, left = 0, bottom = 0, right = 0;
  bool any() const { return top > 0 || left > 0 || bottom > 0 || right > 0; }
};

bool has_products(const ConvShape& part) {
  return part.out_h > 0 && part.out_w > 0 && part.kernel_h > 0 && part.kernel_w > 0;
}

Margins margins_of(const std::vector<ResiduePart>& parts) {
  Margins margins;
  for (const ResiduePart& part : parts) {
    const ConvShape& s = part.shape;
    if (!has_products(s)) continue;
    const std::int64_t end_h = s.out_h + (s.kernel_h - 1) * s.dilation_h - s.pad_top;
    const std::int64_t end_w = s.out_w + (s.kernel_w - 1) * s.dilation_w - s.pad_left;
    margins.top = std::max(margins.top, s.pad_top);
    margins.left = std::max(margins.left, s.pad_left);
    margins.bottom = std::max(margins.bottom, end_h - s.in_h);
    margins.right = std::max(margins.right, end_w - s.in_w);
  }
  return margins;
}

struct TransposedInt8 {
  ConvShape shape;
  Margins margins;
  std::vector<ConvInt8Args> parts;  // some may have no outputs, but still have weights
  std::int64_t packed_bytes;
};

TransposedInt8 read_transposed_int8(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  const TileTraits& traits = find_transposed_traits(request);
  const ConvShape shape = read_conv_shape(attributes, true);
  expect_whole_groups(shape);
  const std::vector<ResiduePart> residues = residue_parts(shape);
  TransposedInt8 whole = {shape, margins_of(residues), {}, 0};
  const Margins& margins = whole.margins;
  const ConvOperands operands = read_conv_operands(attributes);
  if (operands.has_scale) throw PlanError("attribute \"scale\" is 1, but the scale is not optional");
  const RequantizeArgs requantize = read_requantize(attributes);
  const std::int64_t vectors = attributes.integer_or("vectors", 0, traits.max_vectors, 0);
  const std::int64_t channels = (shape.out_channels + 15) / 16 * 16;
  for (const ResiduePart& residue : residues) {
    ConvShape read = residue.shape;
    read.in_h += margins.top + margins.bottom;
    read.in_w += margins.left + margins.right;
    read.pad_top -= margins.top;  // 0 or below: rows of the copy that are skipped
    read.pad_left -= margins.left;
    ConvTiling tiling = choose_conv_tiling(read, traits, static_cast<std::int32_t>(vectors));
    tiling.flat = false;  // outputs are not adjacent
    ConvInt8Args args = {};
    args.conv = make_conv_args(read, operands, requantize.epilogue, tiling, traits);
    set_residue(shape, residue, args.conv);
    args.conv.y_batch = args.conv.residual_batch = shape.groups * args.conv.y_group;
    args.conv.pack.packed_offset = whole.packed_bytes;
    whole.packed_bytes += shape.groups * pack_group_words(args.conv.pack) * args.conv.pack.adjacent;
    args.requantize = requantize;
    args.pairs_fit = read_pairs_fit(attributes);
    std::memset(args.padding, read_input_zero_point(attributes), sizeof args.padding);
    args.in_h = shape.in_h;
    args.in_w = shape.in_w;
    args.pad_top = margins.top;
    args.pad_left = margins.left;
    args.step_h = args.step_w = 1;
    args.start_offset = static_cast<std::int64_t>(whole.parts.size()) * channels;
    args.copy_at = margins.any() ? 5 + operands.has_bias + operands.has_residual : 0;
    args.conv.x_at = args.copy_at;
    whole.parts.push_back(args);
  }
  return whole;
}

PreparedStep prepare_conv_transpose_int8(const StepRequest& request) {
  const TransposedInt8 whole = read_transposed_int8(request);
  const ConvShape& s = whole.shape;
  const ConvInt8Args& first = whole.parts.front();
  const ConvOperands& operands = first.conv.operands;
  const std::size_t channel_bytes = blocked_bytes(1, s.out_channels, 1, 1);
  const auto output_bytes = [&](ElementCode code) {
    return blocked_bytes(s.batch, s.out_channels, s.out_h, s.out_w, element_bytes_of(code));
  };
  request.expect_operands(4 + std::size_t{operands.has_bias} + operands.has_residual, 1);
  request.expect_input(0, blocked_bytes(s.batch, s.in_channels, s.in_h, s.in_w, 1));
  request.expect_input(1, checked_product({whole.packed_bytes}));
  request.expect_input(2, checked_multiply(channel_bytes, whole.parts.size()));
  request.expect_input(3, channel_bytes);
  if (operands.has_bias) request.expect_input(4, channel_bytes);
  if (operands.has_residual)
    request.expect_input(4 + std::size_t{operands.has_bias}, output_bytes(first.requantize.residual));
  request.expect_output(0, output_bytes(first.requantize.y));

  PreparedStep step;
  step.work = 2.0 * s.batch * s.in_channels * s.in_h * s.in_w * (s.out_channels / s.groups) * s.kernel_h * s.kernel_w;
  const KernelEntry& kernel = request.kernels.find("conv_blocked_int8");
  for (const ConvInt8Args& part : whole.parts) {
    const ConvShape& read = part.conv.shape;
    if (read.out_h == 0 || read.out_w == 0) continue;
    if (part.copy_at != 0 && step.phases.empty()) {
      step.temporaries.push_back(blocked_bytes(s.batch, s.in_channels, read.in_h, read.in_w, 1));
      step.phases.push_back(PreparedPhase::of(request.kernels.find("conv_copy_int8"), part));
    }
    step.phases.push_back(PreparedPhase::of(kernel, part));
    step.phases.back().scratch_bytes = conv_scratch_bytes(part.conv);
  }
  // A step without outputs needs a phase that does nothing.
  if (step.phases.empty()) step.phases.push_back(PreparedPhase::of(kernel, first));
  return step;
}

// w as i8 [in, out / groups, kernel height, kernel width] -> packed. The step has the attributes of the convolution.
PreparedStep prepare_pack_conv_transpose_int8(const StepRequest& request) {
  const TransposedInt8 whole = read_transposed_int8(request);
  const ConvShape& s = whole.shape;
  request.expect_operands(1, 1);
  request.expect_input(0, checked_product({s.in_channels, s.out_channels / s.groups, s.kernel_h, s.kernel_w}));
  request.expect_output(0, checked_product({whole.packed_bytes}));
  PreparedStep step;
  for (const ConvInt8Args& part : whole.parts)
    step.phases.push_back(PreparedPhase::of(request.kernels.find("pack_tiles_int8"), part.conv.pack));
  return step;
}

}  // namespace

extern const OperationEntry conv_transpose_int8_operations[] = {
    {"conv_transpose_int8", prepare_conv_transpose_int8, true},
    {"pack_conv_transpose_int8", prepare_pack_conv_transpose_int8},
    {}};

}  // namespace engine

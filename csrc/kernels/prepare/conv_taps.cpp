// Convolution as the sum of one pointwise convolution for each tap of the kernel, on NCHWc16.
//
// A tap of a dilated kernel lies in the padding for many outputs of a small map: of a kernel of 3x3 with a dilation of
// 24 on a map of 28x28, 1.65 of 9 taps are inside on average. The outputs of a tap that are not in the padding are a
// rectangle, on which a pointwise convolution adds to y; the last tap is one that all outputs have, with the epilogue.
// Besides, the weights of a tap for a tile of channels stay in an L2 cache, where those of all taps may not.
//
// conv_taps_f32 has one group, and neither a scale nor residual_after: partial sums are in y.
#include <algorithm>
#include <utility>

#include "kernels/prepare/conv_request.hpp"

namespace engine {
namespace {

struct TapsRequest {
  ConvShape shape;
  ConvOperands operands;
  EpilogueArgs epilogue;
  std::int32_t vectors;  // 0: chosen by size
};

TapsRequest read_taps(const StepRequest& request, const TileTraits& traits) {
  const Attributes& attributes = request.attributes;
  const TapsRequest found = {read_conv_shape(attributes), read_conv_operands(attributes), read_epilogue(attributes),
                             static_cast<std::int32_t>(attributes.integer_or("vectors", 0, traits.max_vectors, 0))};
  if (found.shape.groups != 1)
    throw PlanError(std::to_string(found.shape.groups) + " groups for a convolution by taps; expected 1");
  if (found.operands.has_scale || found.epilogue.residual_after)
    throw PlanError("a convolution by taps has no scale, and adds the residual before the activation");
  return found;
}

// The outputs of an axis whose tap, `offset` from the first one's input, is inside of the map.
struct Outputs {
  std::int64_t begin, end;
};
Outputs outputs_of(std::int64_t offset, std::int64_t in, std::int64_t out, std::int64_t stride) {
  const std::int64_t begin = offset < 0 ? (-offset + stride - 1) / stride : 0;
  const std::int64_t end = offset < in ? (in - 1 - offset) / stride + 1 : 0;
  return {std::min(begin, out), std::max(std::min(begin, out), std::min(end, out))};
}

// The pointwise convolution of a tap; without outputs if all of them are in the padding. Its weights do not depend on
// image sizes.
ConvArgs tap_args(const TapsRequest& whole, const TileTraits& traits, std::int64_t row, std::int64_t col) {
  const ConvShape& s = whole.shape;
  const std::int64_t top = row * s.dilation_h - s.pad_top, left = col * s.dilation_w - s.pad_left;
  const Outputs rows = outputs_of(top, s.in_h, s.out_h, s.stride_h);
  const Outputs cols = outputs_of(left, s.in_w, s.out_w, s.stride_w);
  ConvShape part = s;
  part.kernel_h = part.kernel_w = part.dilation_h = part.dilation_w = 1;
  part.out_h = rows.end - rows.begin;
  part.out_w = cols.end - cols.begin;
  part.pad_top = -(rows.begin * s.stride_h + top);
  part.pad_left = -(cols.begin * s.stride_w + left);
  ConvTiling tiling = choose_conv_tiling(part, traits, whole.vectors);
  // Rows of outputs are adjacent only if they are whole.
  tiling.flat = tiling.flat && part.out_w == s.out_w;
  ConvOperands operands;
  operands.has_residual = true;  // the sum so far
  ConvArgs args = make_conv_args(part, operands, {}, tiling, traits);
  const std::int64_t taps = s.kernel_h * s.kernel_w, tap = row * s.kernel_w + col;
  args.y_at = 2 + whole.operands.has_bias + whole.operands.has_residual;
  args.residual_at = args.y_at;
  args.y_offset = (rows.begin * s.out_w + cols.begin) * args.y_pixel;
  args.y_row = s.out_w * args.y_pixel;
  args.y_block = s.out_h * args.y_row;
  PackArgs& pack = args.pack;
  pack.channel_stride = s.in_channels * taps;
  pack.block_stride = 16 * taps;
  pack.depth_stride = taps;
  pack.source_offset = tap;
  pack.packed_offset = tap * pack_group_words(pack);
  return args;
}

bool has_all_outputs(const ConvShape& s, const ConvArgs& tap) {
  return tap.shape.out_h == s.out_h && tap.shape.out_w == s.out_w;
}

// The taps that have outputs; last, one that has them all.
std::vector<ConvArgs> make_taps(const TapsRequest& whole, const TileTraits& traits) {
  const ConvShape& s = whole.shape;
  std::vector<ConvArgs> taps;
  for (std::int64_t row = 0; row < s.kernel_h; ++row)
    for (std::int64_t col = 0; col < s.kernel_w; ++col) {
      ConvArgs args = tap_args(whole, traits, row, col);
      if (args.shape.out_h > 0 && args.shape.out_w > 0) taps.push_back(args);
    }
  const auto last =
      std::find_if(taps.begin(), taps.end(), [&](const ConvArgs& tap) { return has_all_outputs(s, tap); });
  if (last == taps.end()) throw PlanError("no tap of a convolution by taps is inside of the map for all outputs");
  std::rotate(last, last + 1, taps.end());
  ConvArgs& ending = taps.back();
  ending.operands.has_bias = whole.operands.has_bias;
  ending.epilogue = whole.epilogue;
  return taps;
}

std::int64_t packed_words(const TapsRequest& whole, const TileTraits& traits) {
  return whole.shape.kernel_h * whole.shape.kernel_w * pack_group_words(tap_args(whole, traits, 0, 0).pack);
}

PreparedStep prepare_conv_taps_f32(const StepRequest& request) {
  const KernelEntry& kernel = request.kernels.find(kBlockedF32.conv);
  const TileTraits& traits = find_traits(request, kBlockedF32);
  const TapsRequest whole = read_taps(request, traits);
  const ConvShape& s = whole.shape;
  const std::int64_t x_image = blocked_floats(s.in_channels, s.in_h, s.in_w);
  const std::int64_t y_image = blocked_floats(s.out_channels, s.out_h, s.out_w);
  const ImageSteps steps = read_image_steps(request.attributes, x_image, y_image, whole.operands.has_residual);
  expect_conv_operands(request, s, whole.operands, x_image, steps, packed_words(whole, traits));
  if (s.batch * s.out_h * s.out_w == 0) return one_phase(PreparedPhase::of(kernel, ConvArgs{}), 0, 0);
  PreparedStep step;
  std::vector<ConvArgs> taps = make_taps(whole, traits);
  for (ConvArgs& args : taps) {
    args.x_batch = steps.x;
    args.y_batch = args.residual_batch = steps.y;
  }
  if (taps.size() == 1 && !whole.operands.has_residual) {
    taps.front().operands.has_residual = false;
  } else {
    ConvStartArgs start = {};
    start.batch = s.batch;
    start.image = y_image;
    start.y_batch = steps.y;
    start.residual_batch = steps.residual;
    start.y_at = taps.front().y_at;
    start.residual_at = whole.operands.has_residual ? start.y_at - 1 : -1;
    step.phases.push_back(PreparedPhase::of(request.kernels.find("conv_start_f32"), start));
  }
  for (const ConvArgs& args : taps) {
    step.phases.push_back(PreparedPhase::of(kernel, args));
    step.phases.back().scratch_bytes = conv_scratch_bytes(args);
  }
  step.work = conv_work(s);
  return step;
}

// w as f32 [out, in, kernel height, kernel width] -> packed. The step has the attributes of the convolution.
PreparedStep prepare_pack_conv_taps_f32(const StepRequest& request) {
  const TileTraits& traits = find_traits(request, kBlockedF32);
  const TapsRequest whole = read_taps(request, traits);
  const ConvShape& s = whole.shape;
  request.expect_operands(1, 1);
  request.expect_input(0, checked_product({s.out_channels, s.in_channels, s.kernel_h, s.kernel_w, 4}));
  request.expect_output(0, checked_product({packed_words(whole, traits), 4}));
  PreparedStep step;
  for (std::int64_t row = 0; row < s.kernel_h; ++row)
    for (std::int64_t col = 0; col < s.kernel_w; ++col)
      step.phases.push_back(
          PreparedPhase::of(request.kernels.find(kBlockedF32.pack), tap_args(whole, traits, row, col).pack));
  return step;
}

}  // namespace

extern const OperationEntry conv_taps_operations[] = {
    {"conv_taps_f32", prepare_conv_taps_f32, true}, {"pack_conv_taps_f32", prepare_pack_conv_taps_f32}, {}};

}  // namespace engine

// Transposed convolution on NCHWc16, composed of ordinary convolutions.
//
// Along one axis, output o uses kernel tap k if (o + pad - k dilation) is a multiple of the stride. So outputs with the
// same residue modulo the stride use the same taps, and form an ordinary convolution of stride 1 over the input, whose
// outputs are `stride` apart. If kernel and stride are equal, every output has one tap, and all residues together are
// one pointwise convolution, with the residues as groups that share the input.
//
// conv_transpose_bf16 has bf16 maps, one group, and the attributes y_f32 and residual_f32 of conv_blocked_bf16.
#include "kernels/prepare/conv_grouped.hpp"
#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/conv_residues.hpp"

namespace engine {
namespace {

struct Transposed {
  ConvShape shape;
  ConvOperands operands;
  EpilogueArgs epilogue;
  std::int32_t vectors;  // 0: chosen by size
};

Transposed read_transposed(const StepRequest& request, const TileTraits& traits) {
  const Attributes& attributes = request.attributes;
  const std::int64_t vectors = attributes.integer_or("vectors", 0, traits.max_vectors, 0);
  return {read_conv_shape(attributes, true), read_conv_operands(attributes), read_epilogue(attributes),
          static_cast<std::int32_t>(vectors)};
}

bool is_one_tap(const ConvShape& s) {
  return s.groups == 1 && s.kernel_h == s.stride_h && s.kernel_w == s.stride_w && s.dilation_h == 1 &&
         s.dilation_w == 1 && s.pad_top == 0 && s.pad_left == 0 && s.out_h == s.in_h * s.stride_h &&
         s.out_w == s.in_w * s.stride_w;
}

ConvArgs one_tap_args(const Transposed& whole, const TileTraits& traits) {
  const ConvShape& s = whole.shape;
  const std::int64_t residues = s.kernel_h * s.kernel_w;
  ConvShape part = s;
  part.kernel_h = part.kernel_w = part.stride_h = part.stride_w = 1;
  part.out_h = s.in_h;
  part.out_w = s.in_w;
  // The weights of all residues determine the division of work, the channels of one residue the tile.
  ConvShape all = part;
  all.out_channels = residues * s.out_channels;
  const ConvTiling one = choose_conv_tiling(part, traits, whole.vectors);
  ConvTiling tiling = choose_conv_tiling(all, traits, one.vectors);
  tiling.vectors = one.vectors;
  tiling.pixels = one.pixels;
  tiling.flat = false;  // outputs are not adjacent
  ConvArgs args = make_conv_args(part, whole.operands, whole.epilogue, tiling, traits);
  set_transposed_strides(s, args);
  args.pack.groups = residues;
  args.pack.group_stride = 1;
  args.x_group = args.channel_group = 0;
  args.y_group = 16;
  args.y_group_row = s.out_w * 16;
  args.y_group_columns = s.kernel_w;
  return args;
}

// The convolutions that together compute the transposed one. Some may have no outputs, but still have weights, which do
// not depend on image sizes.
std::vector<ConvArgs> make_parts(const Transposed& whole, const TileTraits& traits) {
  const ConvShape& s = whole.shape;
  if (is_one_tap(s)) return {one_tap_args(whole, traits)};
  std::vector<ConvArgs> parts;
  std::int64_t packed = 0;
  for (const ResiduePart& residue : residue_parts(s)) {
    ConvTiling tiling = choose_conv_tiling(residue.shape, traits, whole.vectors);
    tiling.flat = false;  // outputs are not adjacent
    ConvArgs args = make_conv_args(residue.shape, whole.operands, whole.epilogue, tiling, traits);
    set_residue(s, residue, args);
    args.pack.packed_offset = packed;
    packed += args.pack.groups * pack_group_words(args.pack) * args.pack.adjacent;
    parts.push_back(args);
  }
  return parts;
}

std::int64_t packed_words(const std::vector<ConvArgs>& parts) {
  if (parts.empty()) return 0;
  const PackArgs& last = parts.back().pack;
  return last.packed_offset / last.adjacent + last.groups * pack_group_words(last);
}

template <const ConvKernels& kernels>
PreparedStep prepare_conv_transpose(const StepRequest& request) {
  const KernelEntry& kernel = request.kernels.find(kernels.conv);
  const TileTraits& traits = find_traits(request, kernels);
  const Transposed whole = read_transposed(request, traits);
  const ConvShape& s = whole.shape;
  if (kernels.is_bf16 && s.groups != 1)
    throw PlanError(std::to_string(s.groups) + " groups for a transposed convolution in bf16; expected 1");
  ConvArgs types = {};
  read_map_types(request.attributes, kernels, types);
  const std::int64_t x_image = blocked_floats(s.in_channels, s.in_h, s.in_w);
  const ImageSteps steps = read_image_steps(
      request.attributes, x_image, blocked_floats(s.out_channels, s.out_h, s.out_w), whole.operands.has_residual);
  expect_conv_operands(request, s, whole.operands, x_image, steps, packed_words(make_parts(whole, traits)),
                       {kernels.x_bytes, types.y_bytes, types.residual_bytes});
  const auto make_phases = [&](const GroupedPlaces& places, PreparedStep& step) {
    Transposed inner = whole;
    inner.operands = places.operands;
    inner.epilogue = places.epilogue;
    for (ConvArgs& args : make_parts(inner, traits)) {
      if (args.shape.out_h == 0 || args.shape.out_w == 0) continue;
      place(places, args);
      args.y_bytes = types.y_bytes;
      args.residual_bytes = types.residual_bytes;
      PreparedPhase phase = PreparedPhase::of(kernel, args);
      phase.scratch_bytes = conv_scratch_bytes(args);
      step.phases.push_back(std::move(phase));
    }
  };
  PreparedStep step;
  if (s.groups > 1)
    step = with_padded_groups(request, s, steps, whole.operands, whole.epilogue, make_phases);
  else
    make_phases({0, static_cast<std::int32_t>(request.inputs.size()), steps.x, steps.y, steps.residual, whole.operands,
                 whole.epilogue},
                step);
  // A step without outputs needs a phase that does nothing.
  if (step.phases.empty()) step.phases.push_back(PreparedPhase::of(kernel, ConvArgs{}));
  step.work = 2.0 * s.batch * s.in_channels * s.in_h * s.in_w * (s.out_channels / s.groups) * s.kernel_h * s.kernel_w;
  return step;
}

// w as [in, out / groups, kernel height, kernel width] -> packed. The step has the attributes of the convolution.
template <const ConvKernels& kernels>
PreparedStep prepare_pack_conv_transpose(const StepRequest& request) {
  const TileTraits& traits = find_traits(request, kernels);
  const Transposed whole = read_transposed(request, traits);
  const ConvShape& s = whole.shape;
  const std::vector<ConvArgs> parts = make_parts(whole, traits);
  request.expect_operands(1, 1);
  request.expect_input(0, checked_product({s.in_channels, s.out_channels / s.groups, s.kernel_h, s.kernel_w, 4}));
  request.expect_output(0, checked_product({packed_words(parts), 4}));
  PreparedStep step;
  for (const ConvArgs& part : parts)
    step.phases.push_back(PreparedPhase::of(request.kernels.find(kernels.pack), part.pack));
  return step;
}

}  // namespace

extern const OperationEntry conv_transpose_operations[] = {
    {"conv_transpose_f32", prepare_conv_transpose<kBlockedF32>, true},
    {"pack_conv_transpose_f32", prepare_pack_conv_transpose<kBlockedF32>},
    {"conv_transpose_bf16", prepare_conv_transpose<kBlockedBf16>, true},
    {"pack_conv_transpose_bf16", prepare_pack_conv_transpose<kBlockedBf16>},
    {}};

}  // namespace engine

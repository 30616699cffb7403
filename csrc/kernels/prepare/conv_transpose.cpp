// Transposed convolution on NCHWc16, composed of ordinary convolutions.
//
// Along one axis, output o uses kernel tap k if (o + pad - k dilation) is a multiple of the stride. So outputs with the
// same residue modulo the stride use the same taps, and form an ordinary convolution of stride 1 over the input, whose
// outputs are `stride` apart. If kernel and stride are equal, every output has one tap, and all residues together are
// one pointwise convolution, with the residues as groups that share the input.
//
// conv_transpose_bf16 has bf16 maps, one group, and the attributes y_f32 and residual_f32 of conv_blocked_bf16.
#include "kernels/conv_bf16.hpp"
#include "kernels/pack_bf16.hpp"
#include "kernels/prepare/conv_grouped.hpp"
#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/conv_residues.hpp"

namespace engine {
namespace {

// The parts that differ between element types.
struct Kernels {
  const char *conv, *pack;
  std::int64_t (*packed_group)(const PackArgs& args);  // elements
  std::int64_t element_bytes;
};
constexpr Kernels kF32 = {"conv_blocked_f32", "pack_tiles_f32", pack_group_floats, 4};
constexpr Kernels kBf16 = {"conv_blocked_bf16", "pack_tiles_bf16", pack_bf16_group_size, 2};

const TileTraits& find_traits(const StepRequest& request, const Kernels& kernels) {
  return *static_cast<const TileTraits*>(request.kernels.find(kernels.conv).traits);
}

struct Transposed {
  ConvShape shape;
  ConvOperands operands;
  EpilogueArgs epilogue;
  std::int32_t vectors;  // 0: chosen by size
};

Transposed read_transposed(const StepRequest& request, const TileTraits& traits) {
  const Attributes& attributes = request.attributes;
  const std::int64_t vectors = attributes.has("vectors") ? attributes.integer("vectors", 0, traits.max_vectors) : 0;
  return {read_conv_shape(attributes, true), read_conv_operands(attributes), read_epilogue(attributes),
          static_cast<std::int32_t>(vectors)};
}

// Sets the strides of a source [in, out / groups, kernel height, kernel width].
void set_pack_strides(const ConvShape& s, PackArgs& pack) {
  pack.channel_stride = s.kernel_h * s.kernel_w;
  pack.depth_stride = s.out_channels / s.groups * pack.channel_stride;
  pack.block_stride = 16 * pack.depth_stride;
  pack.group_stride = s.in_channels / s.groups * pack.depth_stride;
}

// Sets the strides of y, in which the outputs of a part are not adjacent.
void set_output_steps(const ConvShape& s, ConvArgs& args) {
  args.y_pixel = s.stride_w * 16;
  args.y_row = s.stride_h * s.out_w * 16;
  args.y_block = s.out_h * s.out_w * 16;
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
  set_output_steps(s, args);
  set_pack_strides(s, args.pack);
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
std::vector<ConvArgs> make_parts(const Transposed& whole, const TileTraits& traits, const Kernels& kernels) {
  const ConvShape& s = whole.shape;
  if (is_one_tap(s)) return {one_tap_args(whole, traits)};
  std::vector<ConvArgs> parts;
  std::int64_t packed = 0;
  for (const ResiduePart& residue : residue_parts(s)) {
    ConvTiling tiling = choose_conv_tiling(residue.shape, traits, whole.vectors);
    tiling.flat = false;  // outputs are not adjacent
    ConvArgs args = make_conv_args(residue.shape, whole.operands, whole.epilogue, tiling, traits);
    set_output_steps(s, args);
    set_pack_strides(s, args.pack);
    args.y_group = args.channel_group / 16 * args.y_block;
    args.y_offset = residue.first_output * 16;
    args.pack.row_stride = residue.row_stride;
    args.pack.col_stride = residue.col_stride;
    args.pack.source_offset = residue.first_weight;
    args.pack.packed_offset = packed;
    packed += args.pack.groups * kernels.packed_group(args.pack);
    parts.push_back(args);
  }
  return parts;
}

std::int64_t packed_floats(const std::vector<ConvArgs>& parts, const Kernels& kernels) {
  if (parts.empty()) return 0;
  const PackArgs& last = parts.back().pack;
  return (last.packed_offset + last.groups * kernels.packed_group(last)) * kernels.element_bytes / 4;
}

PreparedStep with_work(PreparedStep step, const ConvShape& s) {
  step.work = 2.0 * s.batch * s.in_channels * s.in_h * s.in_w * (s.out_channels / s.groups) * s.kernel_h * s.kernel_w;
  return step;
}

PreparedStep prepare_conv_transpose_f32(const StepRequest& request) {
  const KernelEntry& kernel = request.kernels.find(kF32.conv);
  const TileTraits& traits = find_traits(request, kF32);
  const Transposed whole = read_transposed(request, traits);
  const ConvShape& s = whole.shape;
  const std::int64_t x_image = blocked_floats(s.in_channels, s.in_h, s.in_w);
  const ImageSteps steps = read_image_steps(
      request.attributes, x_image, blocked_floats(s.out_channels, s.out_h, s.out_w), whole.operands.has_residual);
  expect_conv_operands(request, s, whole.operands, x_image, steps,
                       packed_floats(make_parts(whole, traits, kF32), kF32));
  const auto make_phases = [&](const GroupedPlaces& places, PreparedStep& step) {
    Transposed inner = whole;
    inner.operands = places.operands;
    inner.epilogue = places.epilogue;
    for (ConvArgs& args : make_parts(inner, traits, kF32)) {
      if (args.shape.out_h == 0 || args.shape.out_w == 0) continue;
      place(places, args);
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
  return with_work(std::move(step), s);
}

PreparedStep prepare_conv_transpose_bf16(const StepRequest& request) {
  const KernelEntry& kernel = request.kernels.find(kBf16.conv);
  const TileTraits& traits = find_traits(request, kBf16);
  const Transposed whole = read_transposed(request, traits);
  const ConvShape& s = whole.shape;
  if (s.groups != 1)
    throw PlanError(std::to_string(s.groups) + " groups for a transposed convolution in bf16; expected 1");
  const std::int32_t y_bytes = read_element_bytes(request.attributes, "y_f32");
  const std::int32_t residual_bytes = read_element_bytes(request.attributes, "residual_f32");
  const std::int64_t x_image = blocked_floats(s.in_channels, s.in_h, s.in_w);
  const ImageSteps steps = read_image_steps(
      request.attributes, x_image, blocked_floats(s.out_channels, s.out_h, s.out_w), whole.operands.has_residual);
  const std::vector<ConvArgs> parts = make_parts(whole, traits, kBf16);
  expect_conv_operands(request, s, whole.operands, x_image, steps, packed_floats(parts, kBf16),
                       {2, y_bytes, residual_bytes});
  PreparedStep step;
  for (const ConvArgs& part : parts) {
    if (part.shape.out_h == 0 || part.shape.out_w == 0) continue;
    ConvBf16Args args = {part, y_bytes, residual_bytes};
    args.conv.x_batch = steps.x;
    args.conv.y_batch = steps.y;
    args.conv.residual_batch = steps.residual;
    PreparedPhase phase = PreparedPhase::of(kernel, args);
    phase.scratch_bytes = conv_scratch_bytes(part);
    step.phases.push_back(std::move(phase));
  }
  if (step.phases.empty()) step.phases.push_back(PreparedPhase::of(kernel, ConvBf16Args{}));
  return with_work(std::move(step), s);
}

// w as [in, out / groups, kernel height, kernel width] -> packed. The step has the attributes of the convolution.
PreparedStep prepare_pack(const StepRequest& request, const Kernels& kernels) {
  const TileTraits& traits = find_traits(request, kernels);
  const Transposed whole = read_transposed(request, traits);
  const ConvShape& s = whole.shape;
  const std::vector<ConvArgs> parts = make_parts(whole, traits, kernels);
  request.expect_operands(1, 1);
  request.expect_input(0, checked_product({s.in_channels, s.out_channels / s.groups, s.kernel_h, s.kernel_w, 4}));
  request.expect_output(0, checked_product({packed_floats(parts, kernels), 4}));
  PreparedStep step;
  for (const ConvArgs& part : parts)
    step.phases.push_back(PreparedPhase::of(request.kernels.find(kernels.pack), part.pack));
  return step;
}

PreparedStep prepare_pack_conv_transpose_f32(const StepRequest& request) {
  return prepare_pack(request, kF32);
}
PreparedStep prepare_pack_conv_transpose_bf16(const StepRequest& request) {
  return prepare_pack(request, kBf16);
}

}  // namespace

extern const OperationEntry conv_transpose_operations[] = {
    {"conv_transpose_f32", prepare_conv_transpose_f32, true},
    {"pack_conv_transpose_f32", prepare_pack_conv_transpose_f32},
    {"conv_transpose_bf16", prepare_conv_transpose_bf16, true},
    {"pack_conv_transpose_bf16", prepare_pack_conv_transpose_bf16},
    {}};

}  // namespace engine

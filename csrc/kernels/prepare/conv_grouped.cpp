// Plan building for grouped convolution.
#include "kernels/conv_grouped.hpp"

#include <algorithm>

#include "kernels/prepare/conv_grouped.hpp"
#include "kernels/prepare/conv_request.hpp"

namespace engine {
namespace {

std::int64_t blocks_of(std::int64_t channels) {
  return (channels + 15) / 16;
}
std::int64_t in_group(const ConvShape& s) {
  return s.in_channels / s.groups;
}
std::int64_t out_group(const ConvShape& s) {
  return s.out_channels / s.groups;
}

}  // namespace

ExpandedConvArgs make_expanded_conv_args(const ConvShape& shape, const ConvOperands& operands,
                                         const EpilogueArgs& epilogue) {
  // A band that fits the L2 cache.
  constexpr std::int64_t kBandFloats = 64 * 1024;
  ExpandedConvArgs args = {};
  args.shape = shape;
  args.operands = operands;
  args.epilogue = epilogue;
  PackArgs& pack = args.pack;
  pack.groups = 1;
  pack.channels = shape.out_channels;
  pack.tile_channels = pack.tail_channels = 16;
  pack.blocks = static_cast<std::int32_t>(in_group(shape));
  pack.rows = static_cast<std::int32_t>(shape.kernel_h);
  pack.cols = static_cast<std::int32_t>(shape.kernel_w);
  pack.depth = pack.last_depth = 1;
  pack.channel_stride = in_group(shape) * shape.kernel_h * shape.kernel_w;
  pack.block_stride = shape.kernel_h * shape.kernel_w;
  pack.row_stride = shape.kernel_w;
  pack.col_stride = 1;
  const std::int64_t span_h = (shape.kernel_h - 1) * shape.dilation_h + 1;
  args.band_w = shape.out_w == 0 ? 0 : (shape.out_w - 1) * shape.stride_w + (shape.kernel_w - 1) * shape.dilation_w + 1;
  args.band_rows = 1;
  const auto band_floats = [&](std::int64_t rows) {
    return in_group(shape) * ((rows - 1) * shape.stride_h + span_h) * args.band_w * 16;
  };
  while (args.band_rows < 16 && band_floats(args.band_rows + 1) <= kBandFloats) ++args.band_rows;
  args.band_h = (args.band_rows - 1) * shape.stride_h + span_h;
  args.x_batch = blocks_of(shape.in_channels) * 16 * shape.in_h * shape.in_w;
  args.y_batch = args.residual_batch = blocks_of(shape.out_channels) * 16 * shape.out_h * shape.out_w;
  return args;
}

std::size_t expanded_conv_scratch_bytes(const ExpandedConvArgs& args) {
  return checked_product({in_group(args.shape), args.band_h, args.band_w, 16, 4});
}

bool prefers_expanded(const ConvShape& s) {
  // For each output pixel, expanding gathers a vector for every channel of a group (three operations), and loads one
  // with each multiplication; padding multiplies padded groups, with two operations for every block that is moved, and
  // loads a value with each multiplication, too, where a group is a single vector.
  const std::int64_t taps = s.kernel_h * s.kernel_w;
  const std::int64_t expanded = blocks_of(s.out_channels) * in_group(s) * (3 + 2 * taps);
  const std::int64_t moved =
      in_group(s) % 16 == 0 && out_group(s) % 16 == 0 ? 0 : blocks_of(in_group(s)) + blocks_of(out_group(s));
  const std::int64_t blocks = blocks_of(out_group(s)), each = blocks == 1 ? 2 : blocks;
  const std::int64_t padded = s.groups * (each * in_group(s) * taps + 2 * moved);
  return expanded <= padded;
}

PreparedStep with_padded_groups(const StepRequest& request, const ConvShape& s, const ImageSteps& steps,
                                const ConvOperands& operands, const EpilogueArgs& epilogue,
                                const MakeConvPhases& make_phases) {
  const bool moves_in = in_group(s) % 16 != 0, moves_out = out_group(s) % 16 != 0;
  const KernelEntry& regroup = request.kernels.find("regroup_f32");
  const auto operand_count =
      static_cast<std::int32_t>(3 + operands.has_bias + operands.has_scale + operands.has_residual);
  PreparedStep step;
  RegroupArgs args = {};
  args.batch = s.batch;
  args.groups = s.groups;
  GroupedPlaces places = {0, operand_count - 1, steps.x, steps.y, steps.residual, operands, epilogue};
  if (moves_in) {
    args.pixels = s.in_h * s.in_w;
    args.channels = args.from_pitch = in_group(s);
    args.to_pitch = blocks_of(in_group(s)) * 16;
    args.from_batch = steps.x;
    args.to_batch = places.x_batch = s.groups * args.to_pitch * args.pixels;
    args.from_at = 0;
    args.to_at = places.x_at = operand_count;
    step.temporaries.push_back(checked_product({s.batch, args.to_batch, 4}));
    step.phases.push_back(PreparedPhase::of(regroup, args));
  }
  if (!moves_out) {
    make_phases(places, step);
    return step;
  }
  args.pixels = s.out_h * s.out_w;
  args.channels = args.to_pitch = out_group(s);
  args.from_pitch = blocks_of(out_group(s)) * 16;
  args.from_batch = places.y_batch = s.groups * args.from_pitch * args.pixels;
  args.to_batch = steps.y;
  args.from_at = places.y_at = operand_count + static_cast<std::int32_t>(step.temporaries.size());
  args.to_at = operand_count - 1;
  args.has_epilogue = true;
  args.operands = operands;
  args.epilogue = epilogue;
  args.residual_batch = steps.residual;
  step.temporaries.push_back(checked_product({s.batch, args.from_batch, 4}));
  places.operands = {};
  places.epilogue = {};
  make_phases(places, step);
  step.phases.push_back(PreparedPhase::of(regroup, args));
  return step;
}

namespace {

// The algorithm of a grouped convolution; the packed weights depend on it.
struct Grouped {
  ConvShape shape;
  ConvOperands operands;
  EpilogueArgs epilogue;
  ConvTiling tiling;
  bool is_expanded;
};

// Attribute `expanded`: 1 or 0; if absent, chosen by size.
Grouped read_grouped(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  const TileTraits& traits = *static_cast<const TileTraits*>(request.kernels.find("conv_blocked_f32").traits);
  const ConvShape shape = read_conv_shape(attributes);
  Grouped grouped = {shape, read_conv_operands(attributes), read_epilogue(attributes),
                     read_conv_tiling(attributes, shape, traits), false};
  grouped.is_expanded =
      attributes.has("expanded") ? attributes.integer("expanded", 0, 1) == 1 : prefers_expanded(grouped.shape);
  return grouped;
}

ConvArgs padded_args(const StepRequest& request, const Grouped& grouped, const ConvOperands& operands,
                     const EpilogueArgs& epilogue) {
  const TileTraits& traits = *static_cast<const TileTraits*>(request.kernels.find("conv_blocked_f32").traits);
  return make_conv_args(grouped.shape, operands, epilogue, grouped.tiling, traits);
}

PreparedStep prepare_expanded(const StepRequest& request, const Grouped& grouped) {
  ExpandedConvArgs args = make_expanded_conv_args(grouped.shape, grouped.operands, grouped.epilogue);
  const std::int64_t x_image = args.x_batch;
  const ImageSteps steps = read_image_steps(request.attributes, args);
  expect_conv_operands(request, args.shape, args.operands, x_image, steps, pack_group_words(args.pack));
  return one_phase(PreparedPhase::of(request.kernels.find("conv_expanded_f32"), args),
                   expanded_conv_scratch_bytes(args), conv_work(args.shape));
}

PreparedStep prepare_conv_grouped_f32(const StepRequest& request) {
  const Grouped grouped = read_grouped(request);
  if (grouped.is_expanded) return prepare_expanded(request, grouped);
  const ConvShape& s = grouped.shape;
  const std::int64_t x_image = blocked_floats(s.in_channels, s.in_h, s.in_w);
  const ImageSteps steps = read_image_steps(
      request.attributes, x_image, blocked_floats(s.out_channels, s.out_h, s.out_w), grouped.operands.has_residual);
  const ConvArgs packed = padded_args(request, grouped, {}, {});
  expect_conv_operands(request, s, grouped.operands, x_image, steps, s.groups * pack_group_words(packed.pack));
  PreparedStep step = with_padded_groups(
      request, s, steps, grouped.operands, grouped.epilogue, [&](const GroupedPlaces& places, PreparedStep& to) {
        ConvArgs args = padded_args(request, grouped, places.operands, places.epilogue);
        place(places, args);
        PreparedPhase phase = PreparedPhase::of(request.kernels.find("conv_blocked_f32"), args);
        phase.scratch_bytes = conv_scratch_bytes(args);
        to.phases.push_back(std::move(phase));
      });
  step.work = conv_work(s);
  return step;
}

PreparedStep prepare_pack_conv_grouped_f32(const StepRequest& request) {
  const Grouped grouped = read_grouped(request);
  const ConvShape& s = grouped.shape;
  const PackArgs pack =
      grouped.is_expanded ? make_expanded_conv_args(s, {}, {}).pack : padded_args(request, grouped, {}, {}).pack;
  return pack_phase(request, "pack_tiles_f32", pack,
                    checked_product({s.out_channels, in_group(s), s.kernel_h, s.kernel_w, 4}));
}

}  // namespace

void place(const GroupedPlaces& places, ConvArgs& args) {
  args.x_at = places.x_at;
  args.y_at = places.y_at;
  args.x_batch = places.x_batch;
  args.y_batch = places.y_batch;
  args.residual_batch = places.residual_batch;
}

extern const OperationEntry conv_grouped_operations[] = {
    {"conv_grouped_f32", prepare_conv_grouped_f32, true}, {"pack_conv_grouped_f32", prepare_pack_conv_grouped_f32}, {}};

}  // namespace engine

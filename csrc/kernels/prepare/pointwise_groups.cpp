// Plan building for grouped 1x1 convolution.
#include "kernels/pointwise_groups.hpp"

#include <algorithm>
#include <string>

#include "kernels/prepare/conv_request.hpp"

namespace engine {
namespace {

PointwiseGroupsArgs read_pointwise(const Attributes& attributes) {
  PointwiseGroupsArgs args = {};
  ConvShape& s = args.shape = read_conv_shape(attributes);
  args.operands = read_conv_operands(attributes);
  args.epilogue = read_epilogue(attributes);
  const bool is_pointwise = s.kernel_h == 1 && s.kernel_w == 1 && s.stride_h == 1 && s.stride_w == 1 &&
                            s.pad_top == 0 && s.pad_left == 0 && s.out_h == s.in_h && s.out_w == s.in_w;
  if (!is_pointwise || s.out_h * s.out_w < kPointwisePixels) {
    throw PlanError("conv_pointwise_groups_f32 takes a 1x1 kernel of stride 1 without padding, and maps of " +
                    std::to_string(kPointwisePixels) + " pixels or more");
  }
  PackArgs& pack = args.pack;
  pack.groups = s.groups;
  pack.channels = s.out_channels / s.groups;
  const std::int64_t blocked = divide_up(pack.channels, 16) * 16;
  pack.tile_channels = static_cast<std::int32_t>(std::min(blocked, kPointwiseChannels));
  pack.tail_channels = static_cast<std::int32_t>(blocked - (pack_tiles(pack) - 1) * pack.tile_channels);
  pack.blocks = pack.rows = pack.cols = 1;
  pack.depth = pack.last_depth = static_cast<std::int32_t>(s.in_channels / s.groups);
  pack.group_stride = pack.channels * pack.depth;
  pack.channel_stride = pack.depth;
  pack.depth_stride = 1;
  args.x_batch = blocked_floats(s.in_channels, s.in_h, s.in_w);
  args.y_batch = args.residual_batch = blocked_floats(s.out_channels, s.out_h, s.out_w);
  return args;
}

PreparedStep prepare_conv_pointwise_groups_f32(const StepRequest& request) {
  PointwiseGroupsArgs args = read_pointwise(request.attributes);
  const std::int64_t x_image = args.x_batch;
  const ImageSteps steps = read_image_steps(request.attributes, args);
  expect_conv_operands(request, args.shape, args.operands, x_image, steps,
                       static_cast<std::int64_t>(checked_product({args.pack.groups, pack_group_words(args.pack)})));
  return one_phase(PreparedPhase::of(request.kernels.find("conv_pointwise_groups_f32"), args),
                   checked_product({kPointwisePixels, pointwise_row(args.shape), 4}), conv_work(args.shape));
}

PreparedStep prepare_pack_conv_pointwise_groups_f32(const StepRequest& request) {
  const PointwiseGroupsArgs args = read_pointwise(request.attributes);
  return pack_phase(request, "pack_tiles_f32", args.pack,
                    checked_product({args.shape.out_channels, args.pack.depth, 4}));
}

}  // namespace

extern const OperationEntry pointwise_groups_operations[] = {
    {"conv_pointwise_groups_f32", prepare_conv_pointwise_groups_f32, true},
    {"pack_conv_pointwise_groups_f32", prepare_pack_conv_pointwise_groups_f32},
    {}};

}  // namespace engine

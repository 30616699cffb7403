// Plan building for grouped convolution with the channels of each lane's group.
#include "kernels/conv_lanes.hpp"

#include <numeric>
#include <string>

#include "kernels/prepare/conv_request.hpp"

namespace engine {
namespace {

// A channel of the groups of 16 lanes is in at most two vectors: the lanes belong to two groups at most, or to groups
// that divide a block.
bool has_two_sources(std::int64_t in_group, std::int64_t out_group) {
  return out_group + std::gcd(out_group, std::int64_t{16}) >= 16 || (16 % out_group == 0 && out_group % in_group == 0);
}

LanesConvArgs read_lanes(const Attributes& attributes) {
  LanesConvArgs args = {};
  ConvShape& s = args.shape = read_conv_shape(attributes);
  args.operands = read_conv_operands(attributes);
  args.epilogue = read_epilogue(attributes);
  const std::int64_t in_group = s.in_channels / s.groups, out_group = s.out_channels / s.groups;
  if (!has_two_sources(in_group, out_group)) {
    throw PlanError("groups of " + std::to_string(in_group) + " input and " + std::to_string(out_group) +
                    " output channels; expected outputs that divide 16 and are a multiple of the inputs, or whose "
                    "number plus its greatest common divisor with 16 is 16 or more");
  }
  const std::int64_t taps = s.kernel_h * s.kernel_w;
  PackArgs& pack = args.pack;
  pack.groups = 1;
  pack.channels = s.out_channels;
  pack.tile_channels = pack.tail_channels = 16;
  pack.blocks = static_cast<std::int32_t>(s.kernel_h);
  pack.rows = static_cast<std::int32_t>(in_group);
  pack.cols = static_cast<std::int32_t>(s.kernel_w);
  pack.depth = pack.last_depth = 1;
  pack.channel_stride = in_group * taps;
  pack.block_stride = s.kernel_w;
  pack.row_stride = taps;
  pack.col_stride = 1;
  args.x_batch = blocked_floats(s.in_channels, s.in_h, s.in_w);
  args.y_batch = args.residual_batch = blocked_floats(s.out_channels, s.out_h, s.out_w);
  return args;
}

PreparedStep prepare_conv_lanes_f32(const StepRequest& request) {
  LanesConvArgs args = read_lanes(request.attributes);
  const std::int64_t x_image = args.x_batch;
  const ImageSteps steps = read_image_steps(request.attributes, args);
  expect_conv_operands(request, args.shape, args.operands, x_image, steps, pack_group_words(args.pack));
  return one_phase(PreparedPhase::of(request.kernels.find("conv_lanes_f32"), args),
                   checked_product({args.pack.rows, sizeof(LaneSource)}), conv_work(args.shape));
}

PreparedStep prepare_pack_conv_lanes_f32(const StepRequest& request) {
  const LanesConvArgs args = read_lanes(request.attributes);
  const ConvShape& s = args.shape;
  return pack_phase(request, "pack_tiles_f32", args.pack,
                    checked_product({s.out_channels, args.pack.rows, s.kernel_h, s.kernel_w, 4}));
}

}  // namespace

extern const OperationEntry conv_lanes_operations[] = {
    {"conv_lanes_f32", prepare_conv_lanes_f32, true}, {"pack_conv_lanes_f32", prepare_pack_conv_lanes_f32}, {}};

}  // namespace engine

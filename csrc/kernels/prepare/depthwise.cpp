// Plan-time half of depthwise convolution.
#include "kernels/depthwise.hpp"

namespace engine {

DepthwiseArgs make_depthwise_args(const ConvShape& shape, const ConvOperands& operands, const EpilogueArgs& epilogue) {
  DepthwiseArgs args = {};
  args.shape = shape;
  args.operands = operands;
  args.epilogue = epilogue;
  args.pack.groups = 1;
  args.pack.channels = shape.out_channels;
  args.pack.tile_channels = args.pack.tail_channels = 16;
  args.pack.blocks = args.pack.depth = args.pack.last_depth = 1;
  args.pack.rows = static_cast<std::int32_t>(shape.kernel_h);
  args.pack.cols = static_cast<std::int32_t>(shape.kernel_w);
  args.pack.channel_stride = shape.kernel_h * shape.kernel_w;
  args.pack.row_stride = shape.kernel_w;
  args.pack.col_stride = 1;
  const std::int64_t blocks = (shape.out_channels + 15) / 16;
  args.x_batch = blocks * 16 * shape.in_h * shape.in_w;
  args.y_batch = args.residual_batch = blocks * 16 * shape.out_h * shape.out_w;
  return args;
}

}  // namespace engine

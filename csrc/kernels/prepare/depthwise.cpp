// Plan building for depthwise convolution. pack_depthwise_f32 packs the weights for maps of both types.
#include "kernels/depthwise.hpp"
#include "kernels/prepare/conv_request.hpp"

namespace engine {

void expect_depthwise(const ConvShape& shape) {
  if (shape.groups == shape.in_channels && shape.groups == shape.out_channels) return;
  throw PlanError(std::to_string(shape.groups) + " groups of " + std::to_string(shape.in_channels) + " input and " +
                  std::to_string(shape.out_channels) + " output channels; expected as many of each");
}

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
  args.x_block = 16 * shape.in_h * shape.in_w;
  args.y_block = 16 * shape.out_h * shape.out_w;
  args.x_batch = blocks * args.x_block;
  args.y_batch = args.residual_batch = blocks * args.y_block;
  return args;
}

namespace {

DepthwiseArgs read_depthwise(const StepRequest& request) {
  const ConvShape shape = read_conv_shape(request.attributes);
  expect_depthwise(shape);
  return make_depthwise_args(shape, read_conv_operands(request.attributes), read_epilogue(request.attributes));
}

PreparedStep prepare_depthwise(const StepRequest& request, const char* kernel, std::int64_t element_bytes) {
  DepthwiseArgs args = read_depthwise(request);
  const ConvShape& s = args.shape;
  const std::int64_t x_image = args.x_batch;
  const ImageSteps steps = read_image_steps(request.attributes, args);
  expect_conv_operands(request, s, args.operands, x_image, steps, pack_group_words(args.pack),
                       {element_bytes, element_bytes, element_bytes});
  const std::size_t scratch = element_bytes == 2 ? depthwise_bf16_scratch_bytes(args) : 0;
  return one_phase(PreparedPhase::of(request.kernels.find(kernel), args), scratch, conv_work(s));
}

PreparedStep prepare_depthwise_f32(const StepRequest& request) {
  return prepare_depthwise(request, "depthwise_f32", 4);
}
PreparedStep prepare_depthwise_bf16(const StepRequest& request) {
  return prepare_depthwise(request, "depthwise_bf16", 2);
}

PreparedStep prepare_pack_depthwise_f32(const StepRequest& request) {
  const DepthwiseArgs args = read_depthwise(request);
  return pack_phase(request, "pack_tiles_f32", args.pack,
                    checked_product({args.shape.out_channels, args.shape.kernel_h, args.shape.kernel_w, 4}));
}

}  // namespace

extern const OperationEntry depthwise_operations[] = {{"depthwise_f32", prepare_depthwise_f32, true},
                                                      {"depthwise_bf16", prepare_depthwise_bf16, true},
                                                      {"pack_depthwise_f32", prepare_pack_depthwise_f32},
                                                      {}};

}  // namespace engine

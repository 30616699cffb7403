// Plan building for pooling.
#include "kernels/pool.hpp"
#include "kernels/prepare/conv_request.hpp"

namespace engine {

PoolArgs make_pool_args(const ConvShape& shape, bool counts_padding, std::int64_t pad_bottom, std::int64_t pad_right) {
  PoolArgs args = {};
  args.shape = shape;
  args.counts_padding = counts_padding;
  args.pad_bottom = pad_bottom;
  args.pad_right = pad_right;
  const std::int64_t blocks = (shape.in_channels + 15) / 16;
  args.x_batch = blocks * 16 * shape.in_h * shape.in_w;
  args.y_batch = blocks * 16 * shape.out_h * shape.out_w;
  return args;
}

namespace {

PreparedStep prepare_pool(const StepRequest& request, const char* kernel, std::int64_t element_bytes) {
  const Attributes& attributes = request.attributes;
  const ConvShape shape = read_conv_shape(attributes);
  if (shape.in_channels != shape.out_channels) throw PlanError("pooling does not change the number of channels");
  const std::vector<std::int64_t> pads =
      attributes.has("pads") ? attributes.integers("pads") : std::vector<std::int64_t>(4, 0);
  const bool counts_padding = attributes.integer_or("count_include_pad", 0) != 0;
  PoolArgs args = make_pool_args(shape, counts_padding, pads[2], pads[3]);
  const std::int64_t x_image = args.x_batch, y_image = args.y_batch;
  const ImageSteps steps = read_image_steps(attributes, x_image, y_image, false);
  args.x_batch = steps.x;
  args.y_batch = steps.y;
  request.expect_operands(1, 1);
  request.expect_input(0, strided_bytes(shape.batch, steps.x, x_image, element_bytes));
  request.expect_output(0, strided_bytes(shape.batch, steps.y, y_image, element_bytes));
  return one_phase(PreparedPhase::of(request.kernels.find(kernel), args), 0, 0);
}

PreparedStep prepare_max_pool_f32(const StepRequest& request) {
  return prepare_pool(request, "max_pool_f32", 4);
}
PreparedStep prepare_average_pool_f32(const StepRequest& request) {
  return prepare_pool(request, "average_pool_f32", 4);
}
PreparedStep prepare_max_pool_bf16(const StepRequest& request) {
  return prepare_pool(request, "max_pool_bf16", 2);
}
PreparedStep prepare_average_pool_bf16(const StepRequest& request) {
  return prepare_pool(request, "average_pool_bf16", 2);
}
PreparedStep prepare_max_pool_u8(const StepRequest& request) {
  return prepare_pool(request, "max_pool_u8", 1);
}
PreparedStep prepare_max_pool_i8(const StepRequest& request) {
  return prepare_pool(request, "max_pool_i8", 1);
}

}  // namespace

extern const OperationEntry pool_operations[] = {{"max_pool_f32", prepare_max_pool_f32},
                                                 {"average_pool_f32", prepare_average_pool_f32},
                                                 {"max_pool_bf16", prepare_max_pool_bf16},
                                                 {"average_pool_bf16", prepare_average_pool_bf16},
                                                 {"max_pool_u8", prepare_max_pool_u8},
                                                 {"max_pool_i8", prepare_max_pool_i8},
                                                 {}};

}  // namespace engine

// Plan building for depthwise convolution of 8-bit maps. Attributes: as for conv_blocked_int8, without a tiling;
// the horizontal dilation must be 1.
#include "kernels/depthwise_int8.hpp"

#include "kernels/depthwise.hpp"
#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/requantize_request.hpp"

namespace engine {
namespace {

constexpr std::int64_t kQuad = 64;  // bytes of four pixels of a channel block

DepthwiseInt8Args read_depthwise(const StepRequest& request) {
  const ConvShape shape = read_conv_shape(request.attributes);
  expect_depthwise(shape);
  if (shape.dilation_w != 1)
    throw PlanError("the horizontal dilation is " + std::to_string(shape.dilation_w) + "; expected 1");
  DepthwiseInt8Args args = {};
  args.shape = shape;
  args.operands = read_conv_operands(request.attributes);
  args.requantize = read_requantize(request.attributes);
  args.pairs_fit = read_pairs_fit(request.attributes);
  args.zero_point = read_input_zero_point(request.attributes);
  // Tiles of eight outputs are computed whole.
  const std::int64_t windows = (shape.out_w + 7) / 8 * 8;
  args.row_quads = (windows * shape.stride_w + shape.kernel_w + 6) / 4;
  return args;
}

std::size_t weight_bytes(const ConvShape& s) {
  return checked_product({(s.out_channels + 15) / 16, s.kernel_h, 4, depthwise_int8_quads(s.kernel_w), kQuad});
}

PreparedStep prepare_depthwise_int8(const StepRequest& request) {
  const DepthwiseInt8Args args = read_depthwise(request);
  const ConvShape& s = args.shape;
  if (args.operands.has_scale) throw PlanError("attribute \"scale\" is 1, but the scale is not optional");
  const std::size_t channel_bytes = blocked_bytes(1, s.out_channels, 1, 1);
  request.expect_operands(4 + std::size_t{args.operands.has_bias} + args.operands.has_residual, 1);
  request.expect_input(0, blocked_bytes(s.batch, s.in_channels, s.in_h, s.in_w, 1));
  request.expect_input(1, weight_bytes(s));
  request.expect_input(2, channel_bytes);
  request.expect_input(3, channel_bytes);
  std::size_t index = 4;
  if (args.operands.has_bias) request.expect_input(index++, channel_bytes);
  if (args.operands.has_residual)
    request.expect_input(
        index, blocked_bytes(s.batch, s.out_channels, s.out_h, s.out_w, element_bytes_of(args.requantize.residual)));
  request.expect_output(0,
                        blocked_bytes(s.batch, s.out_channels, s.out_h, s.out_w, element_bytes_of(args.requantize.y)));
  const std::size_t rows = checked_product({depthwise_int8_rows(s) + 1, args.row_quads, kQuad});
  const std::size_t addresses = checked_product({s.kernel_h + depthwise_int8_rows(s), 8});
  return one_phase(PreparedPhase::of(request.kernels.find("depthwise_int8"), args), checked_add(rows, addresses),
                   conv_work(s));
}

PreparedStep prepare_pack_depthwise_int8(const StepRequest& request) {
  const DepthwiseInt8Args args = read_depthwise(request);
  request.expect_operands(1, 1);
  request.expect_input(0, checked_product({args.shape.out_channels, args.shape.kernel_h, args.shape.kernel_w}));
  request.expect_output(0, weight_bytes(args.shape));
  return one_phase(PreparedPhase::of(request.kernels.find("pack_depthwise_int8"), args), 0, 0);
}

}  // namespace

extern const OperationEntry depthwise_int8_operations[] = {
    {"depthwise_int8", prepare_depthwise_int8, true}, {"pack_depthwise_int8", prepare_pack_depthwise_int8}, {}};

}  // namespace engine

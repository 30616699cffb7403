// Plan building for convolutions with bf16 products. Attributes: those of conv_blocked_f32 and conv_planar_f32, and
//
//   y_f32 (0), residual_f32 (0): whether that map is f32 instead of bf16
#include "kernels/conv_bf16.hpp"

#include "kernels/pack_bf16.hpp"
#include "kernels/prepare/conv_request.hpp"

namespace engine {
namespace {

ConvBf16Args read_conv(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  const TileTraits& traits = *static_cast<const TileTraits*>(request.kernels.find("conv_blocked_bf16").traits);
  const ConvShape shape = read_conv_shape(attributes);
  expect_whole_groups(shape);
  ConvBf16Args args = {};
  args.conv = make_conv_args(shape, read_conv_operands(attributes), read_epilogue(attributes),
                             read_conv_tiling(attributes, shape, traits), traits);
  args.y_bytes = read_element_bytes(attributes, "y_f32");
  args.residual_bytes = read_element_bytes(attributes, "residual_f32");
  return args;
}

// The number of bf16 pairs in the packed weights.
std::int64_t weight_floats(const PackArgs& pack) {
  return pack.groups * pack_bf16_group_size(pack) / 2;
}

PreparedStep prepare_conv_blocked_bf16(const StepRequest& request) {
  ConvBf16Args args = read_conv(request);
  const ConvShape& s = args.conv.shape;
  const std::int64_t x_image = args.conv.x_batch;
  const ImageSteps steps = read_image_steps(request.attributes, args.conv);
  expect_conv_operands(request, s, args.conv.operands, x_image, steps, weight_floats(args.conv.pack),
                       {2, args.y_bytes, args.residual_bytes});
  return one_phase(PreparedPhase::of(request.kernels.find("conv_blocked_bf16"), args), conv_scratch_bytes(args.conv),
                   conv_work(s));
}

// w as f32 [out, in / groups, kernel height, kernel width] -> packed bf16. The step has the convolution's attributes.
PreparedStep prepare_pack_conv_blocked_bf16(const StepRequest& request) {
  const ConvArgs args = read_conv(request).conv;
  const ConvShape& s = args.shape;
  request.expect_operands(1, 1);
  request.expect_input(0, checked_product({s.out_channels, s.in_channels / s.groups, s.kernel_h, s.kernel_w, 4}));
  request.expect_output(0, checked_product({weight_floats(args.pack), 4}));
  return one_phase(PreparedPhase::of(request.kernels.find("pack_tiles_bf16"), args.pack), 0, 0);
}

PlanarConvBf16Args read_planar(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  const TileTraits& traits = *static_cast<const TileTraits*>(request.kernels.find("conv_planar_bf16").traits);
  const ConvShape shape = read_conv_shape(attributes);
  if (shape.groups != 1) throw PlanError(std::to_string(shape.groups) + " groups; expected 1 for a plain input");
  PlanarConvBf16Args args = {};
  args.conv = make_planar_conv_args(shape, read_conv_operands(attributes), read_epilogue(attributes),
                                    read_conv_tiling(attributes, shape, traits).vectors, traits);
  args.y_bytes = read_element_bytes(attributes, "y_f32");
  args.residual_bytes = read_element_bytes(attributes, "residual_f32");
  return args;
}

PreparedStep prepare_conv_planar_bf16(const StepRequest& request) {
  PlanarConvBf16Args args = read_planar(request);
  const ConvShape& s = args.conv.shape;
  const std::int64_t x_image = args.conv.x_batch;
  const ImageSteps steps = read_image_steps(request.attributes, args.conv);
  expect_conv_operands(request, s, args.conv.operands, x_image, steps, weight_floats(args.conv.pack),
                       {4, args.y_bytes, args.residual_bytes});
  return one_phase(PreparedPhase::of(request.kernels.find("conv_planar_bf16"), args),
                   planar_conv_scratch_bytes(args.conv), conv_work(s));
}

PreparedStep prepare_pack_conv_planar_bf16(const StepRequest& request) {
  const PlanarConvArgs args = read_planar(request).conv;
  const ConvShape& s = args.shape;
  request.expect_operands(1, 1);
  request.expect_input(0, checked_product({s.out_channels, s.in_channels, s.kernel_h, s.kernel_w, 4}));
  request.expect_output(0, checked_product({weight_floats(args.pack), 4}));
  return one_phase(PreparedPhase::of(request.kernels.find("pack_tiles_bf16"), args.pack), 0, 0);
}

}  // namespace

extern const OperationEntry conv_bf16_operations[] = {{"conv_blocked_bf16", prepare_conv_blocked_bf16, true},
                                                      {"pack_conv_blocked_bf16", prepare_pack_conv_blocked_bf16},
                                                      {"conv_planar_bf16", prepare_conv_planar_bf16, true},
                                                      {"pack_conv_planar_bf16", prepare_pack_conv_planar_bf16},
                                                      {}};

}  // namespace engine

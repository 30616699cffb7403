// Plan-time half of the convolution on plain input.
#include "kernels/conv_planar.hpp"
#include "kernels/prepare/conv_request.hpp"

#include <algorithm>

namespace engine {

PlanarConvArgs make_planar_conv_args(const ConvShape& shape, const ConvOperands& operands, const EpilogueArgs& epilogue,
                                     int vectors, const TileTraits& traits) {
  PlanarConvArgs args = {};
  args.shape = shape;
  args.operands = operands;
  args.epilogue = epilogue;
  vectors = vectors == 0 ? traits.best_vectors : vectors;
  while (vectors > 1 && (vectors - 1) * traits.lanes >= shape.out_channels) --vectors;
  args.pixels = vectors == 1 && has_long_tiles(traits, shape.out_w) ? traits.long_pixels : traits.max_pixels[vectors];
  PackArgs& pack = args.pack;
  pack.groups = 1;
  pack.channels = shape.out_channels;
  pack.tile_channels = vectors * traits.lanes;
  const std::int64_t rest = shape.out_channels % pack.tile_channels;
  pack.tail_channels = rest == 0 ? pack.tile_channels
                                 : static_cast<std::int32_t>((rest + traits.lanes - 1) / traits.lanes * traits.lanes);
  pack.blocks = static_cast<std::int32_t>(shape.in_channels);
  pack.rows = static_cast<std::int32_t>(shape.kernel_h);
  // Without dilation, the taps of a kernel row are adjacent floats of the input.
  const bool is_dilated = shape.dilation_w != 1;
  pack.cols = is_dilated ? static_cast<std::int32_t>(shape.kernel_w) : 1;
  pack.depth = pack.last_depth = is_dilated ? 1 : static_cast<std::int32_t>(shape.kernel_w);
  pack.channel_stride = shape.in_channels * shape.kernel_h * shape.kernel_w;
  pack.block_stride = shape.kernel_h * shape.kernel_w;
  pack.row_stride = shape.kernel_w;
  pack.col_stride = pack.depth_stride = 1;

  args.band_rows = std::max<std::int64_t>(1, std::min<std::int64_t>(4, shape.out_h));
  args.band_h = (args.band_rows - 1) * shape.stride_h + (shape.kernel_h - 1) * shape.dilation_h + 1;
  args.band_w = std::max(shape.pad_left + shape.in_w,
                         (shape.out_w - 1) * shape.stride_w + (shape.kernel_w - 1) * shape.dilation_w + 1);
  args.x_batch = shape.in_channels * shape.in_h * shape.in_w;
  args.y_batch = args.residual_batch = (shape.out_channels + 15) / 16 * 16 * shape.out_h * shape.out_w;
  return args;
}

std::size_t planar_conv_scratch_bytes(const PlanarConvArgs& args) {
  const std::size_t offsets = static_cast<std::size_t>(args.pack.rows) * args.pack.cols * args.pixels * 2;
  return (offsets + static_cast<std::size_t>(args.shape.in_channels * args.band_h * args.band_w)) * sizeof(float);
}

namespace {

PlanarConvArgs read_planar(const StepRequest& request) {
  const TileTraits& traits = *static_cast<const TileTraits*>(request.kernels.find("conv_planar_f32").traits);
  const ConvShape shape = read_conv_shape(request.attributes);
  if (shape.groups != 1) throw PlanError(std::to_string(shape.groups) + " groups; expected 1 for a plain input");
  return make_planar_conv_args(shape, read_conv_operands(request.attributes), read_epilogue(request.attributes),
                               read_conv_tiling(request.attributes, shape, traits).vectors, traits);
}

PreparedStep prepare_conv_planar_f32(const StepRequest& request) {
  PlanarConvArgs args = read_planar(request);
  const ConvShape& s = args.shape;
  const std::int64_t x_image = args.x_batch;
  const ImageSteps steps = read_image_steps(request.attributes, args);
  expect_conv_operands(request, s, args.operands, x_image, steps, pack_group_floats(args.pack));
  return one_phase(PreparedPhase::of(request.kernels.find("conv_planar_f32"), args), planar_conv_scratch_bytes(args),
                   conv_work(s));
}

PreparedStep prepare_pack_conv_planar_f32(const StepRequest& request) {
  const PlanarConvArgs args = read_planar(request);
  request.expect_operands(1, 1);
  request.expect_input(0, checked_product({args.shape.out_channels, args.shape.in_channels, args.shape.kernel_h,
                                           args.shape.kernel_w, 4}));
  request.expect_output(0, checked_product({pack_group_floats(args.pack), 4}));
  return one_phase(PreparedPhase::of(request.kernels.find("pack_tiles_f32"), args.pack), 0, 0);
}

}  // namespace

extern const OperationEntry conv_planar_operations[] = {
    {"conv_planar_f32", prepare_conv_planar_f32, true}, {"pack_conv_planar_f32", prepare_pack_conv_planar_f32}, {}};

}  // namespace engine

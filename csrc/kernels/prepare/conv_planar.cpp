// Plan-time half of the convolution on plain input. Attributes are those of conv_blocked_f32 and conv_blocked_bf16.
#include "kernels/conv_planar.hpp"

#include <algorithm>

#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/tile_request.hpp"

namespace engine {

PlanarConvArgs make_planar_conv_args(const ConvShape& shape, const ConvOperands& operands, const EpilogueArgs& epilogue,
                                     int vectors, const TileTraits& traits) {
  PlanarConvArgs args = {};
  args.shape = shape;
  args.operands = operands;
  args.epilogue = epilogue;
  vectors = needed_vectors(vectors == 0 ? traits.best_vectors : vectors, shape.out_channels, traits);
  args.pixels = vectors == 1 && has_long_tiles(traits, shape.out_w) ? traits.long_pixels : traits.max_pixels[vectors];
  PackArgs& pack = args.pack;
  pack.groups = 1;
  set_tile_channels(pack, shape.out_channels, vectors, traits);
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

constexpr ConvKernels kPlanarF32 = {"conv_planar_f32", "pack_tiles_f32", 4, false};
constexpr ConvKernels kPlanarBf16 = {"conv_planar_bf16", "pack_tiles_bf16", 4, true};

PlanarConvArgs read_planar(const StepRequest& request, const ConvKernels& kernels) {
  const Attributes& attributes = request.attributes;
  const TileTraits& traits = find_traits(request, kernels);
  const ConvShape shape = read_conv_shape(attributes);
  if (shape.groups != 1) throw PlanError(std::to_string(shape.groups) + " groups; expected 1 for a plain input");
  PlanarConvArgs args = make_planar_conv_args(shape, read_conv_operands(attributes), read_epilogue(attributes),
                                              read_conv_tiling(attributes, shape, traits).vectors, traits);
  read_map_types(attributes, kernels, args);
  return args;
}

template <const ConvKernels& kernels>
PreparedStep prepare_conv_planar(const StepRequest& request) {
  PlanarConvArgs args = read_planar(request, kernels);
  const ConvShape& s = args.shape;
  const std::int64_t x_image = args.x_batch;
  const ImageSteps steps = read_image_steps(request.attributes, args);
  expect_conv_operands(request, s, args.operands, x_image, steps, pack_group_words(args.pack),
                       {kernels.x_bytes, args.y_bytes, args.residual_bytes});
  return one_phase(PreparedPhase::of(request.kernels.find(kernels.conv), args), planar_conv_scratch_bytes(args),
                   conv_work(s));
}

template <const ConvKernels& kernels>
PreparedStep prepare_pack_conv_planar(const StepRequest& request) {
  const PlanarConvArgs args = read_planar(request, kernels);
  const ConvShape& s = args.shape;
  return pack_phase(request, kernels.pack, args.pack,
                    checked_product({s.out_channels, s.in_channels, s.kernel_h, s.kernel_w, 4}));
}

}  // namespace

extern const OperationEntry conv_planar_operations[] = {
    {"conv_planar_f32", prepare_conv_planar<kPlanarF32>, true},
    {"pack_conv_planar_f32", prepare_pack_conv_planar<kPlanarF32>},
    {"conv_planar_bf16", prepare_conv_planar<kPlanarBf16>, true},
    {"pack_conv_planar_bf16", prepare_pack_conv_planar<kPlanarBf16>},
    {}};

}  // namespace engine

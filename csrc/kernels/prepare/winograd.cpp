// Plan building for Winograd convolution. winograd_bf16 has bf16 maps and the packed weights of winograd_f32.
#include "kernels/winograd.hpp"

#include <algorithm>

#include "kernels/prepare.hpp"
#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/tile_request.hpp"

namespace engine {
namespace {

// Weights of this size are read from memory, so transforming the input once for each worker pays off: the weights are
// then read only once.
constexpr std::int64_t kStreamedWeightBytes = 3 * 1024 * 1024;

// Between the largest values of a tile and of a window, see winograd.hpp.
constexpr float kRange2 = 1024.0f, kRange4 = 32.0f;

std::int64_t points(const WinogradArgs& args) {
  return std::int64_t{args.output_tile + 2} * (args.output_tile + 2);
}

// Floats of weights with `taps` values for each pair of channels, if outputs of the last group fill whole `lanes`.
std::int64_t weight_floats(const WinogradArgs& args, std::int64_t taps, std::int64_t lanes) {
  const std::int64_t before = args.groups - 1;
  const std::int64_t ins = args.shape.in_channels - before * args.in_group;
  const std::int64_t outs = args.shape.out_channels - before * args.out_group;
  return taps * (before * args.in_group * args.out_group + ins * divide_up(outs, lanes) * lanes);
}

// Whether each output meets two taps or more.
bool fits_axis(std::int64_t in, std::int64_t out, std::int64_t pad, std::int64_t dilation) {
  const std::int64_t pad_end = out + 2 * dilation - in - pad;
  return std::max(pad, pad_end) <= dilation && in >= 2 * dilation;
}

// Tiles of up to `output_tile` outputs that are `dilation` apart.
std::int64_t tiles_along(std::int64_t out, std::int64_t output_tile, std::int64_t dilation) {
  const std::int64_t whole = out / (output_tile * dilation);
  return whole * dilation + std::min(dilation, out - whole * output_tile * dilation);
}

}  // namespace

WinogradArgs make_winograd_args(const ConvShape& shape, const ConvOperands& operands, const EpilogueArgs& epilogue,
                                int output_tile, int vectors, int block_tiles, std::int64_t merge,
                                const TileTraits& traits) {
  WinogradArgs args = {};
  args.shape = shape;
  args.operands = operands;
  args.epilogue = epilogue;
  args.output_tile = output_tile;
  args.groups = divide_up(shape.groups, merge);
  args.in_group = shape.in_channels / shape.groups * std::min(merge, shape.groups);
  args.out_group = shape.out_channels / shape.groups * std::min(merge, shape.groups);
  vectors = needed_vectors(vectors == 0 ? traits.best_vectors : vectors, args.out_group, traits);
  args.tile_channels = vectors * traits.lanes;
  args.lanes = traits.lanes;
  args.pixels = traits.max_pixels[vectors];
  args.tiles_h = tiles_along(shape.out_h, output_tile, shape.dilation_h);
  args.tiles_w = tiles_along(shape.out_w, output_tile, shape.dilation_w);
  args.tiles = shape.batch * args.tiles_h * args.tiles_w;
  args.block_tiles = block_tiles == 0 ? 2 * args.pixels : block_tiles;
  args.range = output_tile == 2 ? kRange2 : kRange4;
  args.has_merged_groups = args.groups < shape.groups;
  args.weights_at = weight_floats(args, points(args), args.lanes);
  args.limit_at = args.weights_at + weight_floats(args, 9, args.lanes);
  args.by_channels = args.groups == 1 && args.weights_at * std::int64_t{sizeof(float)} > kStreamedWeightBytes;
  args.x_batch = divide_up(shape.in_channels, 16) * 16 * shape.in_h * shape.in_w;
  args.y_batch = divide_up(shape.out_channels, 16) * 16 * shape.out_h * shape.out_w;
  args.residual_batch = args.y_batch;
  return args;
}

std::int64_t winograd_weight_floats(const WinogradArgs& args) {
  return args.limit_at + 1;
}

std::int64_t winograd_input_floats(const WinogradArgs& args) {
  const std::int64_t blocks = divide_up(args.shape.in_channels, 16);
  const std::int64_t marks = args.groups * args.tiles * std::int64_t{sizeof(WinogradMarks)};
  return points(args) * winograd_point_stride(blocks, args.tiles) + divide_up(marks, sizeof(float));
}

std::int64_t winograd_product_floats(const WinogradArgs& args) {
  return points(args) * winograd_point_stride(divide_up(args.shape.out_channels, 16), args.tiles);
}

std::size_t winograd_scratch_bytes(const WinogradArgs& args) {
  static_assert(sizeof(WinogradTile) == 8 * sizeof(float) && sizeof(WinogradMarks) <= 2 * sizeof(float));
  return static_cast<std::size_t>(winograd_scratch(args).all) * sizeof(float);
}

namespace {

WinogradArgs read_winograd(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  const TileTraits& traits = *static_cast<const TileTraits*>(request.kernels.find("winograd_fused_f32").traits);
  const ConvShape shape = read_conv_shape(attributes);
  if (shape.kernel_h != 3 || shape.kernel_w != 3 || shape.stride_h != 1 || shape.stride_w != 1)
    throw PlanError("Winograd convolution takes a 3x3 kernel of stride 1");
  if (!fits_axis(shape.in_h, shape.out_h, shape.pad_top, shape.dilation_h) ||
      !fits_axis(shape.in_w, shape.out_w, shape.pad_left, shape.dilation_w)) {
    throw PlanError(
        "Winograd convolution takes maps of at least twice the dilation, with paddings of at most the "
        "dilation");
  }
  const std::int64_t tile = attributes.integer("output_tile", 2, 4);
  if (tile == 3) throw PlanError("attribute \"output_tile\" is 3; expected 2 or 4");
  const auto read_or_zero = [&](const char* name, std::int64_t most) {
    return static_cast<int>(attributes.integer_or(name, 0, most, 0));
  };
  const int vectors = read_or_zero("vectors", traits.max_vectors);
  const int block = read_or_zero("block_tiles", 1 << 16);
  const std::int64_t merge = attributes.integer_or("merge", 1, shape.groups, 1);
  WinogradArgs args = make_winograd_args(shape, read_conv_operands(attributes), read_epilogue(attributes),
                                         static_cast<int>(tile), vectors, block, merge, traits);
  if (args.groups > 1 && (args.in_group % 16 != 0 || args.out_group % 16 != 0)) {
    throw PlanError("attribute \"merge\" is " + std::to_string(merge) + ": groups of " + std::to_string(args.in_group) +
                    " and " + std::to_string(args.out_group) + " channels; expected multiples of 16");
  }
  args.in_phases = attributes.flag("phases");
  if (attributes.has("by_channels")) args.by_channels = attributes.integer("by_channels", 0, args.groups == 1) == 1;
  return args;
}

// The kernels that access maps, which may be bf16; products are f32.
struct MapKernels {
  const char *fused, *judge, *input, *output;
  std::int64_t element_bytes;
};

// Attributes `merge` (1): groups that are computed as one; `phases` (0): in phases with V and M as temporaries,
// instead of fused; `by_channels` (by the size of the weights): see WinogradArgs.
PreparedStep prepare_winograd(const StepRequest& request, const MapKernels& kernels) {
  WinogradArgs args = read_winograd(request);
  const ConvShape& s = args.shape;
  const std::int64_t x_image = args.x_batch;
  const ImageSteps steps = read_image_steps(request.attributes, args);
  expect_conv_operands(request, s, args.operands, x_image, steps, winograd_weight_floats(args),
                       {kernels.element_bytes, kernels.element_bytes, kernels.element_bytes});
  if (!args.in_phases)
    return one_phase(PreparedPhase::of(request.kernels.find(kernels.fused), args), winograd_scratch_bytes(args),
                     conv_work(s));
  PreparedStep step;
  for (const char* kernel : {kernels.judge, kernels.input, "winograd_gemm_f32", kernels.output}) {
    step.phases.push_back(PreparedPhase::of(request.kernels.find(kernel), args));
    step.phases.back().scratch_bytes = winograd_scratch_bytes(args);
  }
  step.temporaries = {checked_product({winograd_input_floats(args), 4}),
                      checked_product({winograd_product_floats(args), 4})};
  step.work = conv_work(s);
  return step;
}

PreparedStep prepare_winograd_f32(const StepRequest& request) {
  return prepare_winograd(request,
                          {"winograd_fused_f32", "winograd_judge_f32", "winograd_input_f32", "winograd_output_f32", 4});
}
PreparedStep prepare_winograd_bf16(const StepRequest& request) {
  return prepare_winograd(
      request, {"winograd_fused_bf16", "winograd_judge_bf16", "winograd_input_bf16", "winograd_output_bf16", 2});
}

PreparedStep prepare_pack_winograd_f32(const StepRequest& request) {
  const WinogradArgs args = read_winograd(request);
  request.expect_operands(1, 1);
  request.expect_input(0, checked_product({args.shape.out_channels, args.shape.in_channels / args.shape.groups, 9, 4}));
  request.expect_output(0, checked_product({winograd_weight_floats(args), 4}));
  return one_phase(PreparedPhase::of(request.kernels.find("winograd_weights_f32"), args), 0, 0);
}

}  // namespace

extern const OperationEntry winograd_operations[] = {{"winograd_f32", prepare_winograd_f32, true},
                                                     {"winograd_bf16", prepare_winograd_bf16, true},
                                                     {"pack_winograd_f32", prepare_pack_winograd_f32},
                                                     {}};

}  // namespace engine

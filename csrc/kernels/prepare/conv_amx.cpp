// Plan building for convolutions on tiles of AMX, of one group. conv_amx_bf16 has the attributes of conv_blocked_bf16,
// and conv_amx_int8 the attributes of conv_blocked_int8. The tiling is ignored. In addition:
//
//   plain (0): x is plain, of f32 (conv_amx_bf16) or u8, with up to four channels, and a kernel row fits a step
//
// conv_transpose_amx_bf16 has the attributes of conv_transpose_bf16. It computes one convolution for each residue of
// the stride, whose weights follow each other. pack_conv_amx_bf16, pack_conv_amx_int8 and pack_conv_transpose_amx_bf16
// take the convolution's attributes.
#include "kernels/conv_amx.hpp"

#include <algorithm>

#include "kernels/pack_amx.hpp"
#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/conv_residues.hpp"
#include "kernels/prepare/requantize_request.hpp"
#include "kernels/prepare/tile_request.hpp"

namespace engine {
namespace {

constexpr std::int64_t kPlainChannels = 4;
constexpr std::int64_t kRowBytes = kAmxStepBytes;

void expect_shape(const ConvShape& s, bool is_plain, std::int64_t pixels_of_step) {
  if (s.groups != 1) throw PlanError(std::to_string(s.groups) + " groups; expected 1 for tiles");
  if (!is_plain) return;
  if (s.in_channels > kPlainChannels || s.kernel_w > pixels_of_step || s.dilation_w != 1) {
    throw PlanError(std::to_string(s.in_channels) + " channels, and kernel rows of " + std::to_string(s.kernel_w) +
                    " pixels with dilation " + std::to_string(s.dilation_w) + "; expected at most 4 and " +
                    std::to_string(pixels_of_step) + " with dilation 1 for a plain input");
  }
}

// Kernels count pixels in 32 bits.
std::int64_t checked_pixels(std::int64_t height, std::int64_t width) {
  const std::size_t pixels = checked_product({height, width});
  if (pixels > INT32_MAX) throw PlanError(std::to_string(pixels) + " pixels; expected at most 2^31 - 1 for tiles");
  return static_cast<std::int64_t>(pixels);
}

// The packing of w [out, in, kernel height, kernel width], or [out, kernel height, kernel width, 4].
PackArgs packing(const ConvShape& s, std::int64_t step_values, bool is_plain) {
  const std::int64_t depth = is_plain ? s.kernel_w * kPlainChannels : s.in_channels;
  PackArgs pack = pack_for_tiles(s.out_channels, depth, static_cast<std::int32_t>(step_values));
  pack.rows = static_cast<std::int32_t>(s.kernel_h);
  pack.cols = is_plain ? 1 : static_cast<std::int32_t>(s.kernel_w);
  pack.channel_stride = depth * s.kernel_h * pack.cols;
  pack.row_stride = is_plain ? depth : s.kernel_w;
  pack.col_stride = 1;
  pack.depth_stride = is_plain ? 1 : s.kernel_h * s.kernel_w;
  pack.block_stride = pack.depth_stride * step_values;
  return pack;
}

ConvAmxArgs make_conv(const ConvShape& shape, bool is_plain, bool is_bytes) {
  const std::int64_t value_bytes = is_bytes ? 1 : 2, step_values = kRowBytes / value_bytes;
  ConvAmxArgs args = {};
  const ConvShape& s = args.shape = shape;
  args.is_plain = is_plain;
  expect_shape(s, args.is_plain, step_values / kPlainChannels);
  args.pack = packing(s, step_values, args.is_plain);
  args.blocks = args.pack.blocks;
  args.value_bytes = static_cast<std::int32_t>(args.is_plain && !is_bytes ? 4 : value_bytes);
  const std::int64_t reach_h = (s.kernel_h - 1) * s.dilation_h, reach_w = (s.kernel_w - 1) * s.dilation_w;
  args.phases_h = std::min(s.stride_h, reach_h + 1);
  args.phases_w = args.is_plain ? 1 : std::min(s.stride_w, reach_w + 1);
  args.rows = s.out_h + reach_h / s.stride_h;
  if (args.is_plain) {
    args.pixel = s.stride_w * kPlainChannels * value_bytes;
    // Every row of a tile is read whole.
    args.virtual_w = divide_up((s.out_w - 1) * args.pixel + kRowBytes, args.pixel);
  } else {
    args.pixel = kRowBytes;
    args.virtual_w = s.out_w + reach_w / s.stride_w;
  }
  args.row = args.virtual_w * args.pixel;
  args.x_batch = args.is_plain ? s.in_channels * s.in_h * s.in_w : blocked_floats(s.in_channels, s.in_h, s.in_w);
  args.y_batch = args.residual_batch = blocked_floats(s.out_channels, s.out_h, s.out_w);
  args.y_row = s.out_w;
  args.y_pixel = 1;
  args.y_plane = checked_pixels(s.out_h, s.out_w);
  return args;
}

ConvAmxArgs read_conv(const StepRequest& request, bool is_bytes) {
  const Attributes& attributes = request.attributes;
  if (is_bytes) read_pairs_fit(attributes);  // products on tiles are exact for all weights
  const bool is_plain = attributes.flag("plain");
  ConvAmxArgs args = make_conv(read_conv_shape(attributes), is_plain, is_bytes);
  args.operands = read_conv_operands(attributes);
  if (is_bytes && args.operands.has_scale) throw PlanError("attribute \"scale\" is 1, but the scale is not optional");
  return args;
}

// Strips are used where their copy, up to kMaxStripBytes, and the weights, up to kMaxStripWeights, stay in an L2
// cache, and the result has kMinStripRows rows for the workers to share.
constexpr std::size_t kMaxStripBytes = 256 << 10;
constexpr std::int64_t kMaxStripWeights = 256 << 10;
constexpr std::int64_t kMinStripRows = 24;

// Bytes of the copies of `images` images or strips.
std::size_t copy_bytes(const ConvAmxArgs& args, std::int64_t images) {
  const std::size_t image = checked_product(
      {args.phases_h, args.phases_w, args.blocks, std::max<std::int64_t>(0, args.rows), args.virtual_w, args.pixel});
  // The last tile of the last tap reads up to 31 pixels more.
  return checked_add(checked_product({images, static_cast<std::int64_t>(image)}),
                     checked_product({31, args.pixel}) + static_cast<std::size_t>(kRowBytes));
}

void choose_strips(ConvAmxArgs& args) {
  const std::int64_t out_h = args.shape.out_h, reach = args.rows - out_h;
  if (out_h < kMinStripRows || pack_amx_bytes(args.pack) > kMaxStripWeights) return;
  for (std::int64_t count = 1; count <= out_h; ++count) {
    ConvAmxArgs strip = args;
    strip.strip_h = divide_up(out_h, count);
    strip.rows = strip.strip_h + reach;
    const std::size_t bytes = copy_bytes(strip, 1);
    if (bytes > kMaxStripBytes && strip.strip_h > 1) continue;
    if (bytes > kMaxStripBytes) return;
    args = strip;
    args.strip_bytes = static_cast<std::int64_t>(checked_add(bytes, 63) / 64 * 64);
    return;
  }
}

// Adds the copy, unless it is by strips, and the product. Several share the memory of the copy.
void add_phases(PreparedStep& step, const StepRequest& request, ConvAmxArgs args, const char* copy,
                const char* product) {
  choose_strips(args);
  step.work += conv_work(args.shape);
  if (args.strip_bytes == 0) {
    if (step.temporaries.empty()) step.temporaries.push_back(0);
    step.temporaries[0] = std::max(step.temporaries[0], copy_bytes(args, args.shape.batch));
    step.phases.push_back(PreparedPhase::of(request.kernels.find(copy), args));
  }
  step.phases.push_back(PreparedPhase::of(request.kernels.find(product), args));
  const std::int64_t rows = conv_amx_rows(args, args.strip_bytes > 0 ? args.strip_h : args.shape.out_h);
  step.phases.back().scratch_bytes =
      checked_add(static_cast<std::size_t>(args.strip_bytes),
                  checked_add(checked_product({args.pack.blocks, args.pack.rows, args.pack.cols, sizeof(std::int64_t)}),
                              checked_product({std::max<std::int64_t>(0, rows), sizeof(std::int32_t)})));
}

PreparedStep prepare_conv_amx_bf16(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  ConvAmxArgs args = read_conv(request, false);
  args.epilogue = read_epilogue(attributes);
  args.y_bytes = read_element_bytes(attributes, "y_f32");
  args.residual_bytes = read_element_bytes(attributes, "residual_f32");
  const std::int64_t x_image = args.x_batch;
  const ImageSteps steps = read_image_steps(attributes, args);
  expect_conv_operands(request, args.shape, args.operands, x_image, steps, pack_amx_bytes(args.pack) / 4,
                       {args.value_bytes, args.y_bytes, args.residual_bytes});
  const ConvOperands& operands = args.operands;
  args.y_at = 2 + operands.has_bias + operands.has_scale + operands.has_residual;
  args.copy_at = args.y_at + 1;
  PreparedStep step;
  add_phases(step, request, args, "conv_copy_amx_bf16", "conv_amx_bf16");
  return step;
}

// The parts of a transposed convolution, and the bytes of their packed weights.
struct TransposedParts {
  std::vector<ConvAmxArgs> parts;
  std::int64_t packed_bytes;
};

TransposedParts read_transposed(const StepRequest& request) {
  const ConvShape s = read_conv_shape(request.attributes, true);
  if (s.kernel_h < s.stride_h || s.kernel_w < s.stride_w || s.dilation_h != 1 || s.dilation_w != 1)
    throw PlanError(
        "a kernel smaller than its stride, or a dilation; expected neither in a transposed convolution "
        "on tiles");
  TransposedParts result = {};
  for (const ResiduePart& residue : residue_parts(s)) {
    ConvAmxArgs args = make_conv(residue.shape, false, false);
    args.operands = read_conv_operands(request.attributes);
    args.y_first = residue.first_output;
    args.y_row = s.stride_h * s.out_w;
    args.y_pixel = s.stride_w;
    args.y_plane = checked_pixels(s.out_h, s.out_w);
    args.pack.channel_stride = s.kernel_h * s.kernel_w;
    args.pack.depth_stride = s.out_channels * args.pack.channel_stride;
    args.pack.block_stride = args.pack.depth_stride * args.pack.depth;
    args.pack.row_stride = residue.row_stride;
    args.pack.col_stride = residue.col_stride;
    args.pack.source_offset = residue.first_weight;
    args.pack.packed_offset = result.packed_bytes / 2;
    args.w_offset = result.packed_bytes;
    result.packed_bytes += pack_amx_bytes(args.pack);
    result.parts.push_back(args);
  }
  return result;
}

PreparedStep prepare_conv_transpose_amx_bf16(const StepRequest& request) {
  const ConvShape s = read_conv_shape(request.attributes, true);
  const TransposedParts transposed = read_transposed(request);
  const ConvOperands operands = read_conv_operands(request.attributes);
  const EpilogueArgs epilogue = read_epilogue(request.attributes);
  const std::int32_t y_bytes = read_element_bytes(request.attributes, "y_f32");
  const std::int32_t residual_bytes = read_element_bytes(request.attributes, "residual_f32");
  const std::int64_t x_image = blocked_floats(s.in_channels, s.in_h, s.in_w);
  const ImageSteps steps = read_image_steps(request.attributes, x_image,
                                            blocked_floats(s.out_channels, s.out_h, s.out_w), operands.has_residual);
  expect_conv_operands(request, s, operands, x_image, steps, transposed.packed_bytes / 4, {2, y_bytes, residual_bytes});
  PreparedStep step;
  for (ConvAmxArgs args : transposed.parts) {
    args.epilogue = epilogue;
    args.y_bytes = y_bytes;
    args.residual_bytes = residual_bytes;
    args.x_batch = steps.x;
    args.y_batch = steps.y;
    args.residual_batch = steps.residual;
    args.y_at = 2 + operands.has_bias + operands.has_scale + operands.has_residual;
    args.copy_at = args.y_at + 1;
    add_phases(step, request, args, "conv_copy_amx_bf16", "conv_amx_bf16");
  }
  return step;
}

PreparedStep prepare_pack_conv_transpose_amx_bf16(const StepRequest& request) {
  const ConvShape s = read_conv_shape(request.attributes, true);
  const TransposedParts transposed = read_transposed(request);
  request.expect_operands(1, 1);
  request.expect_input(0, checked_product({s.in_channels, s.out_channels, s.kernel_h, s.kernel_w, 4}));
  request.expect_output(0, checked_product({transposed.packed_bytes}));
  PreparedStep step;
  for (const ConvAmxArgs& part : transposed.parts)
    step.phases.push_back(PreparedPhase::of(request.kernels.find("pack_amx_bf16"), part.pack));
  return step;
}

PreparedStep prepare_conv_amx_int8(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  ConvAmxArgs args = read_conv(request, true);
  args.requantize = read_requantize(attributes);
  args.padding = read_input_zero_point(attributes);
  const ConvShape& s = args.shape;
  const ConvOperands& operands = args.operands;
  const std::size_t channel_bytes = blocked_bytes(1, s.out_channels, 1, 1);
  const auto output_bytes = [&](ElementCode code) {
    return blocked_bytes(s.batch, s.out_channels, s.out_h, s.out_w, element_bytes_of(code));
  };
  args.y_at = 4 + operands.has_bias + operands.has_residual;
  args.copy_at = args.y_at + 1;
  request.expect_operands(static_cast<std::size_t>(args.y_at), 1);
  request.expect_input(0, args.is_plain ? checked_product({s.batch, s.in_channels, s.in_h, s.in_w})
                                        : blocked_bytes(s.batch, s.in_channels, s.in_h, s.in_w, 1));
  request.expect_input(1, checked_product({pack_amx_bytes(args.pack)}));
  request.expect_input(2, channel_bytes);
  request.expect_input(3, channel_bytes);
  if (operands.has_bias) request.expect_input(4, channel_bytes);
  if (operands.has_residual)
    request.expect_input(4 + std::size_t{operands.has_bias}, output_bytes(args.requantize.residual));
  request.expect_output(0, output_bytes(args.requantize.y));
  PreparedStep step;
  add_phases(step, request, args, "conv_copy_amx_int8", "conv_amx_int8");
  return step;
}

PreparedStep prepare_pack(const StepRequest& request, bool is_bytes) {
  const ConvAmxArgs args = read_conv(request, is_bytes);
  const ConvShape& s = args.shape;
  const std::int64_t inputs = args.is_plain ? kPlainChannels : s.in_channels;
  request.expect_operands(1, 1);
  request.expect_input(0, checked_product({s.out_channels, inputs, s.kernel_h, s.kernel_w, is_bytes ? 1 : 4}));
  request.expect_output(0, checked_product({pack_amx_bytes(args.pack)}));
  const char* kernel = is_bytes ? "pack_amx_int8" : "pack_amx_bf16";
  return one_phase(PreparedPhase::of(request.kernels.find(kernel), args.pack), 0, 0);
}

PreparedStep prepare_pack_conv_amx_bf16(const StepRequest& request) {
  return prepare_pack(request, false);
}
PreparedStep prepare_pack_conv_amx_int8(const StepRequest& request) {
  return prepare_pack(request, true);
}

}  // namespace

extern const OperationEntry conv_amx_operations[] = {
    {"conv_amx_bf16", prepare_conv_amx_bf16, true},
    {"pack_conv_amx_bf16", prepare_pack_conv_amx_bf16},
    {"conv_transpose_amx_bf16", prepare_conv_transpose_amx_bf16, true},
    {"pack_conv_transpose_amx_bf16", prepare_pack_conv_transpose_amx_bf16},
    {"conv_amx_int8", prepare_conv_amx_int8, true},
    {"pack_conv_amx_int8", prepare_pack_conv_amx_int8},
    {}};

}  // namespace engine

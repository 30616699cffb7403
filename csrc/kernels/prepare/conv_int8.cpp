// Plan building for convolutions of 8-bit maps. Attributes: as for conv_blocked_f32 except scale, as in
// requantize_request.hpp, and
//
//   x_zero_point (0): the value of the padding
//   x_zero_computed (0): the padding's value is an operand              x_signed (0): which is of i8
//   w_zeros (0): whether the weights have zero points: factors are the operand before y
//
// conv_planar_int8 reads a plain x of up to four channels.
#include "kernels/conv_int8.hpp"

#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/requantize_request.hpp"

namespace engine {
namespace {

constexpr std::int64_t kPlainChannels = 4;  // bytes of a pixel copied from a plain x

const TileTraits& find_traits(const StepRequest& request) {
  const char* const kernel = read_pairs_fit(request.attributes) ? "tile_pairs_int8" : "conv_blocked_int8";
  return *static_cast<const TileTraits*>(request.kernels.find(kernel).traits);
}

// The shape of x with its padding, as far as windows reach.
ConvShape padded_shape(const ConvShape& shape) {
  ConvShape padded = shape;
  padded.in_h = shape.out_h == 0 ? 0 : (shape.out_h - 1) * shape.stride_h + (shape.kernel_h - 1) * shape.dilation_h + 1;
  padded.in_w = shape.out_w == 0 ? 0 : (shape.out_w - 1) * shape.stride_w + (shape.kernel_w - 1) * shape.dilation_w + 1;
  padded.pad_top = padded.pad_left = 0;
  return padded;
}

bool is_padded(const ConvShape& shape) {
  const ConvShape padded = padded_shape(shape);
  return shape.pad_top > 0 || shape.pad_left > 0 || padded.in_h > shape.in_h || padded.in_w > shape.in_w;
}

// The shape of a strided 1x1 convolution on the pixels that it reads.
ConvShape sampled_shape(ConvShape shape) {
  shape.in_h = shape.out_h;
  shape.in_w = shape.out_w;
  shape.stride_h = shape.stride_w = 1;
  return shape;
}

bool is_sampled(const ConvShape& shape) {
  return shape.kernel_h == 1 && shape.kernel_w == 1 && (shape.stride_h > 1 || shape.stride_w > 1);
}

ConvInt8Args read_conv(const StepRequest& request, bool is_plain) {
  const Attributes& attributes = request.attributes;
  const TileTraits& traits = find_traits(request);
  const ConvShape shape = read_conv_shape(attributes);
  expect_whole_groups(shape);
  if (is_plain && (shape.groups != 1 || shape.in_channels > kPlainChannels)) {
    throw PlanError(std::to_string(shape.in_channels) + " input channels in " + std::to_string(shape.groups) +
                    " groups; expected at most " + std::to_string(kPlainChannels) + " in one for a plain input");
  }
  if (is_plain && shape.dilation_w != 1) {
    throw PlanError("the horizontal dilation is " + std::to_string(shape.dilation_w) +
                    "; expected 1 for a plain input");
  }
  ConvInt8Args args = {};
  const bool has_border = is_plain || is_padded(shape), is_sparse = !has_border && is_sampled(shape);
  const bool is_copied = has_border || is_sparse;
  const ConvShape read = is_sparse ? sampled_shape(shape) : has_border ? padded_shape(shape) : shape;
  ConvTiling tiling = read_conv_tiling(attributes, read, traits);
  // Tiles within a row need no test for its end.
  if (has_border) tiling.flat = false;
  args.conv = make_conv_args(read, read_conv_operands(attributes), read_epilogue(attributes), tiling, traits);
  args.requantize = read_requantize(attributes);
  args.pairs_fit = read_pairs_fit(attributes);
  std::memset(args.padding, read_input_zero_point(attributes), sizeof args.padding);
  args.in_h = shape.in_h;
  args.in_w = shape.in_w;
  args.pad_top = shape.pad_top;
  args.pad_left = shape.pad_left;
  args.step_h = is_sparse ? shape.stride_h : 1;
  args.step_w = is_sparse ? shape.stride_w : 1;
  args.is_plain = is_plain;
  args.plain_channels = shape.in_channels;
  ConvOperands& operands = args.conv.operands;
  if (operands.has_scale) throw PlanError("attribute \"scale\" is 1, but the scale is not optional");
  const bool is_computed = attributes.flag("x_zero_computed");
  args.zero_at = is_computed ? 4 + operands.has_bias + operands.has_residual : 0;
  args.zero_flip = attributes.flag("x_signed") ? 128 : 0;
  const bool has_factors = attributes.flag("w_zeros");
  const std::int32_t y_at = 4 + operands.has_bias + operands.has_residual + is_computed + has_factors;
  args.factors_at = has_factors ? y_at - 1 : 0;
  args.copy_at = is_copied ? y_at + 1 : 0;
  args.sums_at = has_factors ? y_at + 1 + is_copied : 0;
  args.conv.x_at = args.copy_at;
  if (is_plain) {
    PackArgs& pack = args.conv.pack;
    args.conv.x_pixel = kPlainChannels;
    args.conv.x_group = args.conv.x_batch = read.in_h * read.in_w * kPlainChannels;
    pack.blocks = pack.cols = 1;
    pack.depth = pack.last_depth = static_cast<std::int32_t>(shape.kernel_w * kPlainChannels);
    pack.channel_stride = shape.kernel_h * shape.kernel_w * kPlainChannels;
    pack.row_stride = shape.kernel_w * kPlainChannels;
    pack.depth_stride = 1;
  }
  return args;
}

PreparedStep prepare_conv(const StepRequest& request, bool is_plain) {
  const ConvInt8Args args = read_conv(request, is_plain);
  const ConvShape& s = args.conv.shape;
  const ConvOperands& operands = args.conv.operands;
  const std::size_t channel_bytes = blocked_bytes(1, s.out_channels, 1, 1);
  const auto output_bytes = [&](ElementCode code) {
    return blocked_bytes(s.batch, s.out_channels, s.out_h, s.out_w, element_bytes_of(code));
  };
  request.expect_operands(
      4 + std::size_t{operands.has_bias} + operands.has_residual + (args.zero_at != 0) + (args.factors_at != 0), 1);
  if (args.factors_at != 0) request.expect_input(static_cast<std::size_t>(args.factors_at), channel_bytes);
  if (args.zero_at != 0) request.expect_input(static_cast<std::size_t>(args.zero_at), 1);
  request.expect_input(0, is_plain ? checked_product({s.batch, s.in_channels, args.in_h, args.in_w})
                                   : blocked_bytes(s.batch, s.in_channels, args.in_h, args.in_w, 1));
  request.expect_input(1, checked_product({args.conv.pack.groups, pack_group_words(args.conv.pack), 4}));
  request.expect_input(2, channel_bytes);
  request.expect_input(3, channel_bytes);
  if (operands.has_bias) request.expect_input(4, channel_bytes);
  if (operands.has_residual)
    request.expect_input(4 + std::size_t{operands.has_bias}, output_bytes(args.requantize.residual));
  request.expect_output(0, output_bytes(args.requantize.y));

  PreparedStep step;
  step.work = conv_work(s);
  if (args.copy_at != 0) {
    step.temporaries.push_back(is_plain ? checked_product({s.batch, s.in_h, s.in_w, kPlainChannels})
                                        : blocked_bytes(s.batch, s.in_channels, s.in_h, s.in_w, 1));
    step.phases.push_back(PreparedPhase::of(request.kernels.find("conv_copy_int8"), args));
  }
  if (args.factors_at != 0) {
    step.temporaries.push_back(checked_product({s.batch, s.groups, s.out_h, s.out_w, 4}));
    step.phases.push_back(PreparedPhase::of(request.kernels.find("conv_sums_int8"), args));
    step.phases.back().scratch_bytes = checked_product({s.in_w, 4});
  }
  const char* kernel = is_plain ? "conv_planar_int8" : "conv_blocked_int8";
  step.phases.push_back(PreparedPhase::of(request.kernels.find(kernel), args));
  step.phases.back().scratch_bytes = conv_scratch_bytes(args.conv);
  return step;
}

PreparedStep prepare_conv_blocked_int8(const StepRequest& request) {
  return prepare_conv(request, false);
}
PreparedStep prepare_conv_planar_int8(const StepRequest& request) {
  return prepare_conv(request, true);
}

PreparedStep prepare_pack(const StepRequest& request, bool is_plain) {
  const ConvArgs args = read_conv(request, is_plain).conv;
  const ConvShape& s = args.shape;
  const std::int64_t inputs = is_plain ? kPlainChannels : s.in_channels / s.groups;
  return pack_phase(request, "pack_tiles_int8", args.pack,
                    checked_product({s.out_channels, inputs, s.kernel_h, s.kernel_w}));
}

// w as i8 [out, in / groups, kernel height, kernel width] -> packed. The step has the convolution's attributes.
PreparedStep prepare_pack_conv_blocked_int8(const StepRequest& request) {
  return prepare_pack(request, false);
}
// w as i8 [out, kernel height, kernel width, 4], zero beyond the input channels.
PreparedStep prepare_pack_conv_planar_int8(const StepRequest& request) {
  return prepare_pack(request, true);
}

}  // namespace

extern const OperationEntry conv_int8_operations[] = {{"conv_blocked_int8", prepare_conv_blocked_int8, true},
                                                      {"pack_conv_blocked_int8", prepare_pack_conv_blocked_int8},
                                                      {"conv_planar_int8", prepare_conv_planar_int8},
                                                      {"pack_conv_planar_int8", prepare_pack_conv_planar_int8},
                                                      {}};

}  // namespace engine

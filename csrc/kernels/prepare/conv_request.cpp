#include "kernels/prepare/conv_request.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "kernels/prepare/codes.hpp"

namespace engine {
namespace {

// Products of two larger sizes could overflow inside a kernel.
constexpr std::int64_t kLargestConv = std::int64_t{1} << 30;
constexpr std::int64_t kLargestKernel = 1 << 12;

// Leaves room for the factors that plan building multiplies these products with, so that it need not check each one.
void check_magnitude(const ConvShape& shape) {
  constexpr std::int64_t kRoom = 4096;
  checked_product({std::max<std::int64_t>(shape.batch, 1), shape.in_channels + 15, shape.in_h, shape.in_w, kRoom});
  checked_product({std::max<std::int64_t>(shape.batch, 1), shape.out_channels + 15, shape.out_h, shape.out_w, kRoom});
  checked_product({shape.in_channels + 15, shape.out_channels + 63, shape.kernel_h, shape.kernel_w, kRoom});
}

}  // namespace

ConvShape read_conv_shape(const Attributes& attributes, bool is_transposed) {
  ConvShape shape;
  shape.batch = attributes.integer("batch", 0, kLargestConv);
  shape.groups = attributes.integer_or("groups", 1, kLargestConv, 1);
  shape.in_channels = attributes.integer("in_channels", 1, kLargestConv);
  shape.out_channels = attributes.integer("out_channels", 1, kLargestConv);
  const auto& in = attributes.integers("in", 2, 0, kLargestConv);
  const auto& out = attributes.integers("out", 2, 0, kLargestConv);
  const auto& kernel = attributes.integers("kernel", 2, 1, kLargestConv);
  const auto read_or = [&](const char* name, std::size_t count, std::int64_t least, std::int64_t most,
                           std::int64_t otherwise) {
    return attributes.has(name) ? attributes.integers(name, count, least, most)
                                : std::vector<std::int64_t>(count, otherwise);
  };
  const auto strides = read_or("strides", 2, 1, kLargestKernel, 1);
  const auto dilations = read_or("dilations", 2, 1, kLargestKernel, 1);
  const auto pads = read_or("pads", 4, is_transposed ? -kLargestConv : 0, kLargestConv, 0);
  shape.in_h = in[0];
  shape.in_w = in[1];
  shape.out_h = out[0];
  shape.out_w = out[1];
  shape.kernel_h = kernel[0];
  shape.kernel_w = kernel[1];
  shape.stride_h = strides[0];
  shape.stride_w = strides[1];
  shape.dilation_h = dilations[0];
  shape.dilation_w = dilations[1];
  shape.pad_top = pads[0];
  shape.pad_left = pads[1];
  if (shape.in_channels % shape.groups != 0 || shape.out_channels % shape.groups != 0) {
    throw PlanError(std::to_string(shape.in_channels) + " input and " + std::to_string(shape.out_channels) +
                    " output channels are not divisible into " + std::to_string(shape.groups) + " groups");
  }
  check_magnitude(shape);
  return shape;
}

ConvOperands read_conv_operands(const Attributes& attributes) {
  return {attributes.flag("bias"), attributes.flag("scale"), attributes.flag("residual")};
}

EpilogueArgs read_epilogue(const Attributes& attributes) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  EpilogueArgs epilogue;
  epilogue.activation = read_code_or(attributes, "activation", epilogue.activation);
  epilogue.alpha = static_cast<float>(attributes.real_or("alpha", -kInf));
  epilogue.beta = static_cast<float>(attributes.real_or("beta", kInf));
  epilogue.residual_after = attributes.flag("residual_after");
  return epilogue;
}

ConvTiling read_conv_tiling(const Attributes& attributes, const ConvShape& shape, const TileTraits& traits) {
  constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
  const auto read = [&](const char* name, std::int64_t least, std::int64_t most) {
    return static_cast<std::int32_t>(attributes.integer(name, least, most));
  };
  const std::int32_t vectors = attributes.has("vectors") ? read("vectors", 0, traits.max_vectors) : 0;
  ConvTiling tiling = choose_conv_tiling(shape, traits, vectors);
  if (attributes.has("pixels")) tiling.pixels = read("pixels", 1, traits.max_pixels[tiling.vectors]);
  if (attributes.has("tile_block")) tiling.tile_block = read("tile_block", 0, kMaxInt32);
  if (attributes.has("channel_split")) tiling.channel_split = read("channel_split", 1, kMaxInt32);
  if (attributes.has("flat")) tiling.flat = attributes.flag("flat");
  return tiling;
}

std::size_t blocked_bytes(std::int64_t batch, std::int64_t channels, std::int64_t h, std::int64_t w,
                          std::int64_t element_bytes) {
  return checked_product({batch, (channels + 15) / 16 * 16, h, w, element_bytes});
}

std::int32_t read_element_bytes(const Attributes& attributes, std::string_view is_f32) {
  return attributes.flag(is_f32) ? 4 : 2;
}

std::int64_t blocked_floats(std::int64_t channels, std::int64_t h, std::int64_t w) {
  return static_cast<std::int64_t>(blocked_bytes(1, channels, h, w) / sizeof(float));
}

ImageSteps read_image_steps(const Attributes& attributes, std::int64_t x_image, std::int64_t y_image,
                            bool has_residual) {
  // With larger values, the bytes of two images overflow.
  constexpr std::int64_t kMaxStep = std::int64_t{1} << 60;
  const auto read = [&](const char* name, std::int64_t least) {
    return attributes.integer_or(name, least, kMaxStep, least);
  };
  return {read("x_batch", x_image), read("y_batch", y_image), has_residual ? read("residual_batch", y_image) : y_image};
}

std::size_t strided_bytes(std::int64_t batch, std::int64_t step, std::int64_t image, std::int64_t element_bytes) {
  if (batch == 0) return 0;
  return checked_multiply(checked_add(checked_product({batch - 1, step}), checked_product({image})),
                          static_cast<std::size_t>(element_bytes));
}

void expect_conv_operands(const StepRequest& request, const ConvShape& shape, const ConvOperands& operands,
                          std::int64_t x_image, const ImageSteps& steps, std::int64_t weight_words,
                          const ConvElementBytes& bytes) {
  const std::size_t channel_bytes = blocked_bytes(1, shape.out_channels, 1, 1);
  const std::int64_t y_image = blocked_floats(shape.out_channels, shape.out_h, shape.out_w);
  request.expect_operands(2 + std::size_t{operands.has_bias} + operands.has_scale + operands.has_residual, 1);
  request.expect_input(0, strided_bytes(shape.batch, steps.x, x_image, bytes.x));
  request.expect_input(1, checked_product({weight_words, 4}));
  std::size_t index = 2;
  if (operands.has_bias) request.expect_input(index++, channel_bytes);
  if (operands.has_scale) request.expect_input(index++, channel_bytes);
  if (operands.has_residual)
    request.expect_input(index, strided_bytes(shape.batch, steps.residual, y_image, bytes.residual));
  request.expect_output(0, strided_bytes(shape.batch, steps.y, y_image, bytes.y));
}

void expect_whole_groups(const ConvShape& shape) {
  const std::int64_t in = shape.in_channels / shape.groups, out = shape.out_channels / shape.groups;
  if (shape.groups > 1 && (in % 16 != 0 || out % 16 != 0)) {
    throw PlanError("groups of " + std::to_string(in) + " input and " + std::to_string(out) +
                    " output channels; expected multiples of 16, or a depthwise convolution");
  }
}

double conv_work(const ConvShape& s) {
  return 2.0 * s.batch * s.out_channels * s.out_h * s.out_w * (s.in_channels / s.groups) * s.kernel_h * s.kernel_w;
}

const TileTraits& find_traits(const StepRequest& request, const ConvKernels& kernels) {
  return *static_cast<const TileTraits*>(request.kernels.find(kernels.conv).traits);
}

PreparedStep one_phase(PreparedPhase phase, std::size_t scratch_bytes, double work) {
  phase.scratch_bytes = scratch_bytes;
  PreparedStep step;
  step.phases.push_back(std::move(phase));
  step.work = work;
  return step;
}

PreparedStep pack_phase(const StepRequest& request, const char* kernel, const PackArgs& pack,
                        std::size_t weight_bytes) {
  request.expect_operands(1, 1);
  request.expect_input(0, weight_bytes);
  request.expect_output(0, checked_product({pack.groups, pack_group_words(pack), 4}));
  return one_phase(PreparedPhase::of(request.kernels.find(kernel), pack), 0, 0);
}

}  // namespace engine

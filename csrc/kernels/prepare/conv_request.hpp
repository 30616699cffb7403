// Reads the attributes that all convolutions share.
//
//   batch, groups (1), in_channels, out_channels: integers
//   in, out: [height, width]          kernel: [height, width]
//   strides ([1, 1]), dilations ([1, 1]), pads ([0, 0, 0, 0]: top, left, bottom, right)
//   bias, scale, residual (0): whether the operand is present    activation (clip), alpha (-inf), beta (inf),
//   residual_after (0): see EpilogueArgs                          vectors (0), pixels, tile_block, channel_split, flat
//   x_batch, y_batch, residual_batch: elements between images, if a map is a range of channels of a larger one
#pragma once

#include "kernels/conv.hpp"
#include "kernels/prepare.hpp"

namespace engine {

// Elements between images: at least the size of an image, which is the default.
struct ImageSteps {
  std::int64_t x, y, residual;
};

// Pads are below 0, where outputs precede the full result, only for a transposed convolution.
ConvShape read_conv_shape(const Attributes& attributes, bool is_transposed = false);
ConvOperands read_conv_operands(const Attributes& attributes);
EpilogueArgs read_epilogue(const Attributes& attributes);
// The tiling chosen for the shape, unless overridden by attributes. Throws PlanError unless tiles of that shape exist.
ConvTiling read_conv_tiling(const Attributes& attributes, const ConvShape& shape, const TileTraits& traits);

// Bytes of a map in blocks of 16 channels. Throws PlanError if they overflow.
std::size_t blocked_bytes(std::int64_t batch, std::int64_t channels, std::int64_t h, std::int64_t w,
                          std::int64_t element_bytes = 4);

// Bytes of an element of a convolution's maps.
struct ConvElementBytes {
  std::int64_t x = 4;
  std::int64_t y = 4;
  std::int64_t residual = 4;
};

// 4 if the attribute `is_f32` is 1, otherwise 2.
std::int32_t read_element_bytes(const Attributes& attributes, std::string_view is_f32);

std::int64_t blocked_floats(std::int64_t channels, std::int64_t h, std::int64_t w);
// Bytes of images of `image` elements, `step` elements apart.
std::size_t strided_bytes(std::int64_t batch, std::int64_t step, std::int64_t image, std::int64_t element_bytes = 4);

ImageSteps read_image_steps(const Attributes& attributes, std::int64_t x_image, std::int64_t y_image,
                            bool has_residual);

// Checks x with images of `x_image` elements, w of `weight_words`, bias, scale, residual and y.
void expect_conv_operands(const StepRequest& request, const ConvShape& shape, const ConvOperands& operands,
                          std::int64_t x_image, const ImageSteps& steps, std::int64_t weight_words,
                          const ConvElementBytes& bytes = {});

// Replaces the distances between images of dense maps in a family's arguments by distances from attributes.
template <class Args>
ImageSteps read_image_steps(const Attributes& attributes, Args& args) {
  const ImageSteps steps = read_image_steps(attributes, args.x_batch, args.y_batch, args.operands.has_residual);
  args.x_batch = steps.x;
  args.y_batch = steps.y;
  args.residual_batch = steps.residual;
  return steps;
}

// Throws PlanError unless a convolution has one group, or its groups are whole blocks of channels.
void expect_whole_groups(const ConvShape& shape);

double conv_work(const ConvShape& shape);

// What differs between convolutions with products of f32 and of bf16.
struct ConvKernels {
  const char *conv, *pack;
  std::int32_t x_bytes;  // of an element
  bool is_bf16;
};
inline constexpr ConvKernels kBlockedF32 = {"conv_blocked_f32", "pack_tiles_f32", 4, false};
inline constexpr ConvKernels kBlockedBf16 = {"conv_blocked_bf16", "pack_tiles_bf16", 2, true};

// Reads whether y and the residual are f32 (attributes y_f32 and residual_f32), if products are of bf16.
template <class Args>
void read_map_types(const Attributes& attributes, const ConvKernels& kernels, Args& args) {
  if (!kernels.is_bf16) return;
  args.y_bytes = read_element_bytes(attributes, "y_f32");
  args.residual_bytes = read_element_bytes(attributes, "residual_f32");
}

const TileTraits& find_traits(const StepRequest& request, const ConvKernels& kernels);

// A step of one phase.
PreparedStep one_phase(PreparedPhase phase, std::size_t scratch_bytes, double work);

// A step that packs `weight_bytes` of w by the kernel `pack`.
PreparedStep pack_phase(const StepRequest& request, const char* kernel, const PackArgs& pack, std::size_t weight_bytes);

}  // namespace engine

// Depthwise convolution on NCHWc16: one filter for each channel, channel multiplier 1.
#pragma once

#include "kernels/conv.hpp"

namespace engine {

// shape.groups == shape.in_channels == shape.out_channels. Weights: packed [channels / 16][kernel_h][kernel_w][16].
struct DepthwiseArgs {
  ConvShape shape;
  ConvOperands operands;
  EpilogueArgs epilogue;
  PackArgs pack;
  std::int64_t x_batch, y_batch, residual_batch;
  std::int64_t x_block, y_block;  // between blocks of 16 channels; y's also applies to the residual
};

// Whether a row's sums need more than scale, bias, a residual and a clip.
static inline bool depthwise_finishes(const DepthwiseArgs& args) {
  return args.epilogue.activation != Activation::kClip || (args.operands.has_residual && args.epilogue.residual_after);
}

// Scratch bytes for each worker if maps are bf16.
static inline std::size_t depthwise_bf16_scratch_bytes(const DepthwiseArgs& args) {
  return depthwise_finishes(args) ? static_cast<std::size_t>(args.shape.out_w) * 16 * sizeof(float) : 0;
}

// Throws PlanError unless there are as many groups as input and output channels.
void expect_depthwise(const ConvShape& shape);

DepthwiseArgs make_depthwise_args(const ConvShape& shape, const ConvOperands& operands, const EpilogueArgs& epilogue);

}  // namespace engine

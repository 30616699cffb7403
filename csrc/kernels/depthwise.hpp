// Depthwise convolution on NCHWc16: one filter a channel, channel multiplier one.
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
};

DepthwiseArgs make_depthwise_args(const ConvShape& shape, const ConvOperands& operands, const EpilogueArgs& epilogue);

}  // namespace engine

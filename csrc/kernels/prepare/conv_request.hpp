// Reading of what the convolutions' operations have in common from a step's attributes.
//
//   batch, groups (1), in_channels, out_channels: integers
//   in, out: [height, width]          kernel: [height, width]
//   strides ([1, 1]), dilations ([1, 1]), pads ([0, 0, 0, 0]: top, left, bottom, right)
//   bias, scale, residual (0): whether the operand is there      activation (0), alpha (-inf), beta (inf),
//   residual_after (0): see EpilogueArgs                          vectors (0), pixels, tile_block, channel_split, flat
#pragma once

#include "kernels/conv.hpp"
#include "kernels/prepare.hpp"

namespace engine {

ConvShape read_conv_shape(const Attributes& attributes);
ConvOperands read_conv_operands(const Attributes& attributes);
EpilogueArgs read_epilogue(const Attributes& attributes);
// Throws PlanError unless tiles of that shape exist.
ConvTiling read_conv_tiling(const Attributes& attributes, const TileTraits& traits);

// Bytes of a map in blocks of 16 channels. Throws PlanError where they overflow.
std::size_t blocked_bytes(std::int64_t batch, std::int64_t channels, std::int64_t h, std::int64_t w);

// Checks x, w of `weight_floats`, bias, scale, residual and y.
void expect_conv_operands(const StepRequest& request, const ConvShape& shape, const ConvOperands& operands,
                          std::size_t x_bytes, std::int64_t weight_floats);

double conv_work(const ConvShape& shape);

// A step of one phase.
PreparedStep one_phase(PreparedPhase phase, std::size_t scratch_bytes, double work);

}  // namespace engine

// Grouped convolution on NCHWc16 where groups are not whole blocks of 16 channels.
//
// Padded groups: channels are moved so that each group has blocks of its own, convolved, and moved back. No work is
// lost but the padding's, so this is for groups of a dozen channels and more, on both sides.
// Expanded: for each output block and each channel of a group, the vector that holds, for every output channel, the
// input it is multiplied with; what then remains is a depthwise convolution, without a wasted multiplication. For small
// groups, and for depthwise convolution with several outputs a channel.
#pragma once

#include "kernels/conv.hpp"

namespace engine {

// Moves groups of channels between maps: group g starts at channel g * from_pitch of the one, g * to_pitch of the
// other. Channels of the result that belong to no group become zero (the epilogue sees them, too).
struct RegroupArgs {
  std::int64_t batch;
  std::int64_t pixels;
  std::int64_t groups;
  std::int64_t channels;  // of a group
  std::int64_t from_pitch, to_pitch;
  std::int64_t from_batch, to_batch;  // floats between images
  std::int32_t from_at, to_at;        // which of the step's buffers they are
  bool has_epilogue;
  ConvOperands operands;  // with an epilogue: from buffer 2 on
  EpilogueArgs epilogue;
  std::int64_t residual_batch;
};

// Operands: x, w (packed), [bias], [scale], [residual], y.
struct ExpandedConvArgs {
  ConvShape shape;
  ConvOperands operands;
  EpilogueArgs epilogue;
  PackArgs pack;
  std::int64_t band_rows;  // output rows computed from one expansion of the input rows they need
  std::int64_t band_h;     // input rows of a band
  std::int64_t band_w;     // padded width
  std::int64_t x_batch, y_batch, residual_batch;
};

ExpandedConvArgs make_expanded_conv_args(const ConvShape& shape, const ConvOperands& operands,
                                         const EpilogueArgs& epilogue);

std::size_t expanded_conv_scratch_bytes(const ExpandedConvArgs& args);

// Whether expanding takes less time than padding, by a count of vector operations.
bool prefers_expanded(const ConvShape& shape);

}  // namespace engine

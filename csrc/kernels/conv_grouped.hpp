// Grouped convolution on NCHWc16 whose groups are not whole blocks of 16 channels.
//
// Padded groups: channels are moved so that each group has separate blocks, convolved, and moved back. Only the padding
// is wasted work, so this is for groups with at least a dozen input and output channels.
// Expanded: for each output block and each channel of a group, a vector holds the input that each output channel is
// multiplied with; the rest is a depthwise convolution, without wasted multiplications. For small groups, and for
// depthwise convolution with several outputs for each channel.
#pragma once

#include "kernels/conv.hpp"

namespace engine {

// Moves groups of channels between maps: group g starts at channel g * from_pitch of the source, and g * to_pitch of
// the destination. Channels of the result that belong to no group are set to zero (and pass through the epilogue).
struct RegroupArgs {
  std::int64_t batch;
  std::int64_t pixels;
  std::int64_t groups;
  std::int64_t channels;  // of a group
  std::int64_t from_pitch, to_pitch;
  std::int64_t from_batch, to_batch;  // floats between images
  std::int32_t from_at, to_at;        // indices of their buffers in the step
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
  std::int64_t band_rows;  // output rows computed from one expansion of their input rows
  std::int64_t band_h;     // input rows of a band
  std::int64_t band_w;     // padded width
  std::int64_t x_batch, y_batch, residual_batch;
};

ExpandedConvArgs make_expanded_conv_args(const ConvShape& shape, const ConvOperands& operands,
                                         const EpilogueArgs& epilogue);

std::size_t expanded_conv_scratch_bytes(const ExpandedConvArgs& args);

// Whether expanding is faster than padding, by a count of vector operations.
bool prefers_expanded(const ConvShape& shape);

}  // namespace engine

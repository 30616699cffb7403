// Convolution on maps in NCHWc16: [batch][channels / 16][height][width][16], rows contiguous.
//
// Lanes of the last block beyond the channel count hold anything on output, and are not read on input.
#pragma once

#include "kernels/pack.hpp"
#include "kernels/tile.hpp"

namespace engine {

// The geometry of a convolution. Output sizes follow from ONNX's formula; pads at the end need not be given, since
// taps outside the input contribute nothing.
struct ConvShape {
  std::int64_t batch = 1;
  std::int64_t groups = 1;
  std::int64_t in_channels = 0;   // of all groups
  std::int64_t out_channels = 0;  // of all groups
  std::int64_t in_h = 1, in_w = 1;
  std::int64_t out_h = 1, out_w = 1;
  std::int64_t kernel_h = 1, kernel_w = 1;
  std::int64_t stride_h = 1, stride_w = 1;
  std::int64_t pad_top = 0, pad_left = 0;  // below zero: rows and columns of the input that are left out
  std::int64_t dilation_h = 1, dilation_w = 1;
};

// Which part of a step's operands is there: x, w, then those of bias, scale and residual that are, then y.
struct ConvOperands {
  bool has_bias = false;      // [out_channels], padded to a multiple of 16
  bool has_scale = false;     // the same
  bool has_residual = false;  // laid out as y; y itself is allowed
};

// How the work is cut. Every choice gives the same result, up to rounding.
struct ConvTiling {
  std::int32_t vectors = 0;        // output channels of a tile, in vectors; packed weights depend on it
  std::int32_t pixels = 0;         // most pixels of a tile
  std::int32_t tile_block = 0;     // pixel tiles for which one group of output channels stays; 0: all of them
  std::int32_t channel_split = 1;  // workers that share the output channels; the others share the pixels
  bool flat = false;               // tiles may span rows
};

// Tiles whose tap offsets a worker keeps while it goes over the output channels.
constexpr std::int64_t kConvOffsetSlots = 16;

struct ConvArgs {
  ConvShape shape;
  ConvOperands operands;
  ConvTiling tiling;
  EpilogueArgs epilogue;
  PackArgs pack;                // the layout of w
  std::int32_t x_at, y_at;      // which of the step's buffers they are
  std::int64_t x_batch;         // floats between images, of which a map may be a part (concatenation without a copy)
  std::int64_t y_batch;         // y's distances hold within the residual, too, but for
  std::int64_t residual_batch;  // this one
  std::int64_t x_group;         // between the inputs of pack.groups groups
  std::int64_t y_group;         // between their outputs; groups may be pixels of a grid `y_group_columns` wide,
  std::int64_t y_group_row;     // with this distance between its rows
  std::int64_t y_group_columns;
  std::int64_t channel_group;   // between the groups' biases and scales
  std::int64_t y_offset;        // of the first output
  std::int64_t y_block;         // between blocks of 16 channels
  std::int64_t y_row, y_pixel;  // between output rows and pixels; flat tiles need a row of out_w * y_pixel
};

// Fills what follows from the shape: strides of dense maps, packing and, where tiling.vectors is 0, a tiling chosen by
// size alone. The shape must be valid. Each group's channels begin a block of 16 of their own, in x, y, bias and scale.
ConvArgs make_conv_args(const ConvShape& shape, const ConvOperands& operands, const EpilogueArgs& epilogue,
                        const ConvTiling& tiling, const TileTraits& traits);

// A tiling chosen by size alone; of tiles of `vectors`, where that is not 0 and so many are not more than needed.
ConvTiling choose_conv_tiling(const ConvShape& shape, const TileTraits& traits, std::int32_t vectors = 0);

// Scratch of a worker.
std::size_t conv_scratch_bytes(const ConvArgs& args);

}  // namespace engine

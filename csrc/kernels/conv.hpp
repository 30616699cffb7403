// Convolution on maps in NCHWc16: [batch][channels / 16][height][width][16], rows contiguous.
//
// Lanes of the last block beyond the channel count are undefined in outputs, and not read in inputs.
#pragma once

#include "kernels/pack.hpp"
#include "kernels/tile.hpp"

namespace engine {

// The geometry of a convolution. Output sizes follow ONNX's formula; pads at the end are not needed, since taps outside
// the input contribute nothing.
struct ConvShape {
  std::int64_t batch = 1;
  std::int64_t groups = 1;
  std::int64_t in_channels = 0;   // of all groups
  std::int64_t out_channels = 0;  // of all groups
  std::int64_t in_h = 1, in_w = 1;
  std::int64_t out_h = 1, out_w = 1;
  std::int64_t kernel_h = 1, kernel_w = 1;
  std::int64_t stride_h = 1, stride_w = 1;
  std::int64_t pad_top = 0, pad_left = 0;  // negative: rows and columns of the input that are skipped
  std::int64_t dilation_h = 1, dilation_w = 1;
};

// The optional operands of a step: x, w, then bias, scale and residual if present, then y.
struct ConvOperands {
  bool has_bias = false;      // [out_channels], padded to a multiple of 16
  bool has_scale = false;     // the same
  bool has_residual = false;  // with the layout of y; may be y itself
};

// How the work is divided. Every choice gives the same result, up to rounding.
struct ConvTiling {
  std::int32_t vectors = 0;        // output channels of a tile, in vectors; packed weights depend on it
  std::int32_t pixels = 0;         // maximum number of pixels in a tile
  std::int32_t tile_block = 0;     // consecutive pixel tiles that use the same group of output channels; 0: all
  std::int32_t channel_split = 1;  // workers that share the output channels; the others share the pixels
  bool flat = false;               // tiles may span rows
};

// The number of tiles whose tap offsets a worker keeps while it iterates over the output channels.
constexpr std::int64_t kConvOffsetSlots = 16;

struct ConvArgs {
  ConvShape shape;
  ConvOperands operands;
  ConvTiling tiling;
  EpilogueArgs epilogue;
  PackArgs pack;            // the layout of w
  std::int32_t x_at, y_at;  // indices of their buffers in the step
  std::int32_t residual_at;
  std::int32_t y_bytes = 4;  // of an element; 2: bf16
  std::int32_t residual_bytes = 4;
  std::int64_t x_pixel;         // elements of a pixel of x: 16
  std::int64_t x_batch;         // elements between images; a map may be part of a larger one (Concat without a copy)
  std::int64_t y_batch;         // the strides of y apply to the residual, too, except for
  std::int64_t residual_batch;  // this one
  std::int64_t x_group;         // between the inputs of pack.groups groups
  std::int64_t y_group;         // between their outputs; groups may be pixels of a grid with `y_group_columns` columns,
  std::int64_t y_group_row;     // with this distance between its rows
  std::int64_t y_group_columns;
  std::int64_t channel_group;   // between the groups' biases and scales
  std::int64_t y_offset;        // of the first output
  std::int64_t y_block;         // between blocks of 16 channels
  std::int64_t y_row, y_pixel;  // between output rows and pixels; flat tiles need a row of out_w * y_pixel
  bool copies;                  // 1x1 without padding or groups: tiles read copies of their pixels, which are adjacent
};

// Starts the sums of a map of outputs, in y, with the residual, which may be y itself, or with zeros.
struct ConvStartArgs {
  std::int64_t batch, image;  // elements of an image
  std::int64_t y_batch, residual_batch;
  std::int32_t y_at, residual_at;  // -1: zeros
};

// Fills in the values that depend on the shape: strides of dense maps, packing and, if tiling.vectors is 0, a tiling
// chosen by size alone. The shape must be valid. The channels of each group begin a new block of 16, in x, y, bias and
// scale.
ConvArgs make_conv_args(const ConvShape& shape, const ConvOperands& operands, const EpilogueArgs& epilogue,
                        const ConvTiling& tiling, const TileTraits& traits);

// A tiling chosen by size alone; with tiles of `vectors` vectors, unless that is 0 or more than needed.
ConvTiling choose_conv_tiling(const ConvShape& shape, const TileTraits& traits, std::int32_t vectors = 0);

// Makes tiles of f32 read copies of their pixels, and chooses the tiling, if that is faster.
void choose_copies(ConvArgs& args);

// Scratch bytes for each worker.
std::size_t conv_scratch_bytes(const ConvArgs& args);

}  // namespace engine

// Convolution from a plain NCHW input to NCHWc16: a network's first layer, with few channels.
#pragma once

#include "kernels/conv.hpp"

namespace engine {

struct PlanarConvArgs {
  ConvShape shape;  // groups 1
  ConvOperands operands;
  EpilogueArgs epilogue;
  PackArgs pack;
  std::int32_t pixels;
  std::int64_t band_rows;  // output rows computed from one padded copy of their input rows
  std::int64_t band_h;     // input rows of a band
  std::int64_t band_w;     // padded width
  std::int64_t x_batch, y_batch, residual_batch;
  std::int32_t y_bytes = 4, residual_bytes = 4;  // of an element; 2: bf16
};

PlanarConvArgs make_planar_conv_args(const ConvShape& shape, const ConvOperands& operands, const EpilogueArgs& epilogue,
                                     int vectors, const TileTraits& traits);

std::size_t planar_conv_scratch_bytes(const PlanarConvArgs& args);

}  // namespace engine

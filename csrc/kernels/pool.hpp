// Pooling on NCHWc16.
#pragma once

#include "kernels/conv.hpp"

namespace engine {

struct PoolArgs {
  ConvShape shape;  // groups and channels: in_channels == out_channels
  // Average: the divisor counts the positions in [-pad_top, in_h + pad_bottom) x [-pad_left, in_w + pad_right) if
  // counts_padding, otherwise those inside the input. Windows may extend further (ONNX's ceil_mode).
  bool counts_padding;
  std::int64_t pad_bottom, pad_right;
  std::int64_t x_batch, y_batch;
};

PoolArgs make_pool_args(const ConvShape& shape, bool counts_padding, std::int64_t pad_bottom, std::int64_t pad_right);

}  // namespace engine

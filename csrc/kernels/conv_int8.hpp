// Convolution of 8-bit maps in NCHWc16, with exact sums.
#pragma once

#include "kernels/conv.hpp"
#include "kernels/requantize.hpp"

namespace engine {

// Operands: x (u8), w (packed, pack_int8.hpp), start (i32), scale (f32), [bias] (f32), [residual], y; last, if x is
// padded, the temporary. Start, scale and bias have a value for each output channel, padded to a multiple of 16.
// Strides in `conv` are in elements.
//
// The tiles read x without tests for padding: a map with padding, and a plain x of up to four channels, is copied by
// the step's first phase. `conv.shape` is that of the copy, whose pads are 0. From a plain x, pixels of the copy have
// four bytes, and the taps of a kernel row are one run of depth: weights are [out, kernel height, kernel width, 4].
struct ConvInt8Args {
  ConvArgs conv;
  RequantizeArgs requantize;
  std::uint8_t padding[16];  // the zero point of x, which padding has
  bool is_plain;
  std::int64_t plain_channels;  // of a plain x
  std::int64_t in_h, in_w;      // of x
  std::int64_t pad_top, pad_left;
  std::int32_t copy_at;  // the index of the temporary
};

}  // namespace engine

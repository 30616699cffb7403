// Convolution of 8-bit maps in NCHWc16, with exact sums.
#pragma once

#include "kernels/conv.hpp"
#include "kernels/requantize.hpp"

namespace engine {

// Operands: x (u8), w (packed, pack.hpp), start (i32), scale (f32), [bias] (f32), [residual], [zero point of x],
// [factors] (i32), y; then, if x is padded, its copy, and if there are factors, the sums. The zero point is there if it
// is computed. Start, scale and bias have a value for each output channel, padded to a multiple of 16; factors, too:
// those of the sum of x in the window, which are the negative zero points of weights. A phase computes these sums,
// [batch][groups][pixels]. Strides in `conv` are in elements.
//
// The tiles read x without tests for padding: a map with padding, and a plain x of up to four channels, is copied by
// the step's first phase. `conv.shape` is the shape of the copy, whose pads are 0. From a plain x, pixels of the copy
// have four bytes, and the taps of a kernel row are one run of depth: weights are [out, kernel height, kernel width,
// 4].
// conv_transpose_int8 is one convolution for each residue of the outputs modulo the strides (conv_residues.hpp). Since
// they have different taps, start has values for each of them, in the order of rows and columns.
//
// For a strided 1x1 kernel, the copy has only the pixels that are read, so that tiles may span rows.
struct ConvInt8Args {
  ConvArgs conv;
  RequantizeArgs requantize;
  std::uint8_t padding[16];  // the zero point of x, which is the value of padding
  bool is_plain;
  std::int64_t plain_channels;  // of a plain x
  std::int64_t in_h, in_w;      // of x
  std::int64_t pad_top, pad_left;
  std::int64_t step_h, step_w;  // in x, between rows and pixels of the copy
  std::int32_t copy_at;         // the index of the temporary
  bool pairs_fit;               // see requantize_request.hpp
  std::int32_t zero_at;         // the index of a computed zero point, or 0
  std::uint8_t zero_flip;       // 128 if the zero point is of i8
  std::int64_t start_offset;    // of the first channel's start
  std::int32_t factors_at;      // the indices of the factors, or 0, and of the sums
  std::int32_t sums_at;
};

}  // namespace engine

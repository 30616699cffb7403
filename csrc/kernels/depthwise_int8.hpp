// Depthwise convolution of 8-bit maps in NCHWc16, with exact sums.
#pragma once

#include "kernels/conv.hpp"
#include "kernels/requantize.hpp"

namespace engine {

// Four adjacent pixels of a channel lie in one dword, a quad, so that one instruction multiplies them. An output pixel
// whose window starts at position s of a quad (0 to 3) has its weights moved by s, with zeros in the other bytes:
//
//   w [channels / 16][kernel_h][shift 0..3][quads][16][4], quads = depthwise_int8_quads(kernel_w)
//
// Operands as in conv_int8.hpp; shape.groups == shape.in_channels == shape.out_channels, dilation_w 1.
struct DepthwiseInt8Args {
  ConvShape shape;
  ConvOperands operands;
  RequantizeArgs requantize;
  std::int64_t row_quads;  // quads of an input row with its padding, and further ones that the last windows read
  std::uint8_t zero_point;
  bool pairs_fit;  // see requantize_request.hpp
};

// The quads that a window of any shift spans.
static inline std::int64_t depthwise_int8_quads(std::int64_t kernel_w) {
  return (kernel_w + 6) / 4;
}

// The rows of x that a window spans.
static inline std::int64_t depthwise_int8_rows(const ConvShape& s) {
  return (s.kernel_h - 1) * s.dilation_h + 1;
}

}  // namespace engine

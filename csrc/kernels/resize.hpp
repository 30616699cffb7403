// Resampling of maps [maps, height, width, inner] along height and width: `inner` is 1 for NCHW, 16 for maps in blocks
// of channels, the channels for NHWC. Tables given at plan build say what each row and column is made of.
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

// What a row or column of the destination is made of: the sum of weight * source, over the taps.
// index[0] < 0: it is the value outside. only >= 0: that tap has all the weight, and the others are not looked at,
// because zero times infinity would spoil the sum.
struct ResizeTap {
  const std::int32_t* index;
  const float* weight;
  std::int32_t only;
};

// Words of 32 bits that a tap takes in a table: its indices, its weights, and `only`.
static constexpr std::int64_t resize_tap_words(std::int64_t taps) {
  return 2 * taps + 1;
}

// Followed by out_h taps for rows, then out_w for columns.
struct ResizeArgs {
  std::int64_t maps, in_h, in_w, out_h, out_w, inner;
  std::int64_t element;  // bytes of the nearest one's elements
  std::int64_t pattern;  // eight bytes of the value outside, repeated
  std::int32_t taps;     // 1 for the nearest
  float outside;
  std::int64_t chunk;               // columns of the destination for which a row of the source is combined at once
  std::int64_t ascends;             // 0: columns are in no order, and a row of the source is combined as a whole
  std::int64_t has_single_columns;  // 0: in no column has one tap all the weight
};

}  // namespace engine

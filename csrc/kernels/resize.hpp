// Resampling of maps [maps, height, width, inner] along height and width: `inner` is 1 for NCHW, 16 for maps in blocks
// of channels, the number of channels for NHWC. Tables given at plan build have the taps of each row and column.
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

// A row or column of the destination: the sum of weight * source, over the taps.
// index[0] < 0: the value outside. only >= 0: that tap has all the weight, and the others are not read, because zero
// times infinity would make the sum NaN.
struct ResizeTap {
  const std::int32_t* index;
  const float* weight;
  std::int32_t only;
};

// The number of 32-bit words of a ResizeTap in a table: its indices, its weights, and `only`.
static constexpr std::int64_t resize_tap_words(std::int64_t taps) {
  return 2 * taps + 1;
}

// Followed by out_h taps for rows, then out_w for columns.
struct ResizeArgs {
  std::int64_t maps, in_h, in_w, out_h, out_w, inner;
  std::int64_t element;  // bytes of an element, for nearest
  std::int64_t pattern;  // eight bytes of the value outside, repeated
  std::int32_t taps;     // 1 for nearest
  float outside;
  std::int64_t chunk;               // destination columns for which source rows are combined at a time
  std::int64_t ascends;             // 0: columns are not in ascending order, so whole source rows are combined
  std::int64_t has_single_columns;  // 0: no column has a single tap with all the weight
};

}  // namespace engine

// Resampling of maps [maps, height, width, inner] along height and width: `inner` is 1 for NCHW, 16 for maps in blocks
// of channels, the channels for NHWC. Tables made at plan build say where each row and column comes from.
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

constexpr int kMaxTaps = 4;

// Where a row or column of the destination comes from: the sum of weight * source; of the nearest one, only index[0]
// counts. index[0] < 0: from outside, which has one value. only >= 0: that tap has all the weight, and the others are
// not looked at, lest zero times infinity spoil the sum.
struct ResizeTap {
  std::int32_t index[kMaxTaps];
  float weight[kMaxTaps];
  std::int32_t only;
};

// Followed by out_h taps for rows, then out_w for columns.
struct ResizeArgs {
  std::int64_t maps, in_h, in_w, out_h, out_w, inner;
  std::int64_t element;  // bytes of the nearest one's elements
  std::int64_t pattern;  // eight bytes of the value outside, repeated
  std::int32_t taps;     // 2 (linear) or 4 (cubic)
  float outside;
  std::int64_t chunk;  // columns of the destination for which a row of the source is combined at once
};

}  // namespace engine

// Maps [batch, channels, height, width] sampled where a grid [batch, out_h, out_w, 2] of pairs (x, y) says, each from
// -1 to 1 over the map, as ONNX GridSample-20 describes it.
#pragma once

#include "kernels/codes.hpp"
#include "kernels/kernel.hpp"

namespace engine {

struct GridSampleArgs {
  std::int64_t batch, channels, height, width;
  std::int64_t points;  // of the grid, for each image
  std::int32_t taps;    // along each axis: 1 (nearest), 2 (linear) or 4 (cubic)
  GridPadding padding;
  std::int32_t aligns_corners;
};

}  // namespace engine

// Samples maps [batch, channels, height, width] at the points of a grid [batch, out_h, out_w, 2] of pairs (x, y), which
// range from -1 to 1 over the map (ONNX GridSample-20); or maps with a depth before the height at triples (x, y, z).
#pragma once

#include "kernels/codes.hpp"
#include "kernels/kernel.hpp"

namespace engine {

struct GridSampleArgs {
  std::int64_t batch, channels, depth, height, width;
  std::int32_t axes;    // 2, or 3 with a depth; the depth is 1 otherwise
  std::int64_t points;  // grid points for each image
  std::int32_t taps;    // along each axis: 1 (nearest), 2 (linear) or 4 (cubic)
  GridPadding padding;
  std::int32_t aligns_corners;
};

}  // namespace engine

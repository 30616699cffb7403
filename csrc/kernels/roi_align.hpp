// Averages or maxima of samples in the cells of regions of maps [images, channels, height, width] (ONNX RoiAlign-22).
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

constexpr std::int64_t kRoiChannels = 32;  // the channels that a worker computes for a region

struct RoiAlignArgs {
  std::int64_t images, channels, height, width;
  std::int64_t regions, cells_h, cells_w;
  std::int64_t samples;  // along each side of a cell; 0: about one for each pixel
  float scale;           // from coordinates of regions to coordinates of the map
  bool is_max, is_half_pixel;
};

}  // namespace engine

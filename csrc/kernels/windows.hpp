// Windows of images as columns of a matrix, so that convolutions of any number of axes, transposed and deformed ones
// are matrix products.
//
// Columns are [group][channel of the group][tap][position], and one row of ones for each group if `ones` is set: the
// product with a bias. Positions are windows in row-major order; the columns have the positions of `rows` rows of the
// last axis, from row `first` on.
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

constexpr int kWindowAxes = 4;

struct WindowsArgs {
  std::int64_t groups, channels;  // of an image
  std::int64_t first, rows;
  std::int64_t images[kWindowAxes], windows[kWindowAxes];  // lengths
  std::int64_t kernel[kWindowAxes], strides[kWindowAxes], dilations[kWindowAxes], pads[kWindowAxes];
  std::int64_t offset_groups;  // of deformed windows
  bool has_ones, has_mask;
  bool begins;  // window_add: the images are set to the bias, or zero, before the windows are added
  bool has_bias;
};

}  // namespace engine

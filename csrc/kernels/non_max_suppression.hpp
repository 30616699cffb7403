// Boxes of high scores that overlap little with better ones, for each batch and class (ONNX NonMaxSuppression-11).
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

struct NonMaxSuppressionArgs {
  std::int64_t batches, classes, boxes;
  std::int64_t limit;  // of selected boxes for each batch and class, 0..boxes
  bool is_centered;    // boxes are centre and size, otherwise two corners
  bool has_overlap;    // operand 2 is the largest allowed ratio of intersection and union; otherwise it is 0
  bool has_least;      // the last input is a score that selected boxes exceed
};

// A box's corners of smallest and of largest coordinates, and its area.
struct BoxCorners {
  float low[2], high[2];
  float area;
};

}  // namespace engine

// The tables of a resize; apart from the operation, so that tests can make them.
#pragma once

#include <vector>

#include "kernels/prepare.hpp"
#include "kernels/resize.hpp"

namespace engine {

enum class Coordinates : int {
  half_pixel,
  half_pixel_symmetric,
  pytorch_half_pixel,
  align_corners,
  asymmetric,
  tf_crop_and_resize,
  kCount
};
enum class Nearest : int { round_prefer_floor, round_prefer_ceil, floor, ceil, kCount };

// One dimension, as ONNX Resize-19 describes it.
struct ResizeDim {
  std::int64_t in, out;
  double scale;
  double roi_begin = 0, roi_end = 1;
};

struct ResizeRule {
  int taps;  // 1 (nearest), 2 (linear), 4 (cubic)
  Coordinates coordinates = Coordinates::half_pixel;
  Nearest nearest = Nearest::round_prefer_floor;
  double cubic_a = -0.75;
  bool exclude_outside = false;
};

// One entry for each index of the destination. Indices lie in the source, or -1 outside of the region of interest.
std::vector<ResizeTap> make_taps(const ResizeDim& dim, const ResizeRule& rule);

// The step's arguments; `shape` has all but the tables' place and the chunk. Returns the scratch in `scratch_bytes`.
PreparedPhase make_resize(const KernelEntry& kernel, ResizeArgs args, const std::vector<ResizeTap>& rows,
                          const std::vector<ResizeTap>& columns);

}  // namespace engine

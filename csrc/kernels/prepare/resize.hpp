// The tables of a resize; apart from the operation, so that tests can make them.
#pragma once

#include <vector>

#include "kernels/codes.hpp"
#include "kernels/prepare.hpp"
#include "kernels/resize.hpp"

namespace engine {

// One dimension, as ONNX Resize-19 describes it.
struct ResizeDim {
  std::int64_t in, out;
  double scale;
  double roi_begin = 0, roi_end = 1;
};

struct ResizeRule {
  int taps;  // 1 (nearest), 2 (linear), 4 (cubic)
  Coordinates coordinates = Coordinates::kHalfPixel;
  Nearest nearest = Nearest::kRoundPreferFloor;
  double cubic_a = -0.75;
  bool exclude_outside = false;
};

// One entry for each index of the destination. Indices lie in the source, or -1 outside of the region of interest.
std::vector<ResizeTap> make_taps(const ResizeDim& dim, const ResizeRule& rule);

// The step's arguments; `shape` has all but the tables' place and the chunk. Returns the scratch in `scratch_bytes`.
PreparedPhase make_resize(const KernelEntry& kernel, ResizeArgs args, const std::vector<ResizeTap>& rows,
                          const std::vector<ResizeTap>& columns);

}  // namespace engine

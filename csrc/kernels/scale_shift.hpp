// A scale and a shift for each channel of maps, and an activation: BatchNormalization at inference.
#pragma once

#include "kernels/tile.hpp"

namespace engine {

// Floats of a row that a worker processes at a time.
constexpr std::int64_t kScaleShiftRun = 4096;

// Operands: x, scale: channels, shift: channels; y.
struct ScaleShiftArgs {
  std::int64_t batch, channels, pixels;
  EpilogueArgs epilogue;  // without a residual
};

}  // namespace engine

// Local response normalization across the channels of maps.
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

// Pixels that a worker processes at a time; for a blocked map, their squares are in scratch together.
constexpr std::int64_t kLrnRun = 64;
constexpr std::int64_t kLrnTile = 8;

// Powers computed by square roots; any other uses the C library.
enum class LrnPower : std::int32_t { kGeneral, kHalf, kThreeQuarters, kOne };

struct LrnArgs {
  std::int64_t batch, channels, pixels;
  std::int64_t before, after;  // channels of the window before and after the current one
  std::int64_t lead, row;      // for a pixel's squares in scratch: the position of channel 0, and floats between pixels
  float alpha;                 // already divided by the size of the window
  float beta, bias;
  LrnPower power;
};

}  // namespace engine

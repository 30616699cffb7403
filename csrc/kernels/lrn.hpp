// Local response normalization across the channels of maps.
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

// Pixels that a worker takes at a time, and of a blocked map those whose squares lie in scratch together.
constexpr std::int64_t kLrnRun = 64;
constexpr std::int64_t kLrnTile = 8;

// Powers that are made of roots, in quarters; any other goes through the C library.
enum class LrnPower : std::int32_t { kGeneral, kHalf, kThreeQuarters, kOne };

struct LrnArgs {
  std::int64_t batch, channels, pixels;
  std::int64_t before, after;  // channels of the window besides its own
  std::int64_t lead, row;      // of a pixel's squares in scratch: where channel 0 is, and floats between pixels
  float alpha;                 // already divided by the size of the window
  float beta, bias;
  LrnPower power;
};

}  // namespace engine

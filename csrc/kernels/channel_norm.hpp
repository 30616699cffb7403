// LayerNormalization over the channels of maps, separately for each pixel.
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

// Pixels that a worker processes at a time.
constexpr std::int64_t kChannelNormRun = 64;

// Operands, in this order, those in brackets if their flag is set: x, [scale: channels], [bias: channels]; y.
struct ChannelNormArgs {
  std::int64_t batch, channels, pixels;
  float epsilon;            // added to the variance
  float deviation_epsilon;  // added to the standard deviation
  bool has_scale, has_bias;
};

}  // namespace engine

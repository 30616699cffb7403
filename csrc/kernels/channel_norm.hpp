// LayerNormalization over the channels of maps, of each pixel by itself.
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

// Pixels that a worker takes at a time.
constexpr std::int64_t kChannelNormRun = 64;

// Operands, in this order, those in brackets where their flag is set: x, [scale: channels], [bias: channels]; y.
struct ChannelNormArgs {
  std::int64_t batch, channels, pixels;
  float epsilon;            // added to the variance
  float deviation_epsilon;  // added to its root
  bool has_scale, has_bias;
};

}  // namespace engine

// GroupNormalization of maps, plain or NCHWc16; InstanceNormalization is one channel a group.
#pragma once

#include "kernels/kernel.hpp"
#include "simd/isa.hpp"

namespace engine {

// Pixels of a channel (of a block of channels, where maps are blocked) that are summed at a time: 16 KB of map.
constexpr std::int64_t kGroupNormPlainChunk = 4096;
constexpr std::int64_t kGroupNormBlockedChunk = 256;

// Operands, in this order, those in brackets where their flag is set:
//   x, [scale: channels], [bias: channels]; y; the kernels in phases only: moments, coefficients
// Moments are [image][channels / 16][chunk][mean, squares][16], coefficients [image][channels / 16][mean, a, b][16]:
// y = (x - mean) * a + b.
struct GroupNormArgs {
  std::int64_t batch, channels, groups, pixels;
  std::int64_t chunk, chunks;  // of the pixels
  std::int64_t unit;           // channels that hold whole groups, and whole blocks where maps are blocked
  float epsilon;               // added to the variance
  float deviation_epsilon;     // added to its root
  bool has_scale, has_bias;
  bool is_blocked;
  bool spans_batch;  // a group has its channels of all images
};

// Floats of moments and of coefficients for so many channels of one image.
ENGINE_INLINE std::int64_t group_norm_moments(const GroupNormArgs& args, std::int64_t channels) {
  return (channels + 15) / 16 * args.chunks * 32;
}
ENGINE_INLINE std::int64_t group_norm_coefficients(std::int64_t channels) {
  return (channels + 15) / 16 * 48;
}

}  // namespace engine

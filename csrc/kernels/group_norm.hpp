// GroupNormalization of maps, plain or NCHWc16; InstanceNormalization has one channel in each group.
#pragma once

#include "kernels/kernel.hpp"
#include "simd/isa.hpp"

namespace engine {

// Pixels of a channel (or block of channels, if maps are blocked) that are summed at a time: 16 KB.
constexpr std::int64_t kGroupNormPlainChunk = 4096;
constexpr std::int64_t kGroupNormBlockedChunk = 256;

// Operands, in this order, those in brackets if their flag is set:
//   x, [scale: channels], [bias: channels]; y; for the kernels in phases: moments, coefficients
// Moments are [image][channels / 16][chunk][mean, squares][16], coefficients [image][channels / 16][mean, a, b][16]:
// y = (x - mean) * a + b.
struct GroupNormArgs {
  std::int64_t batch, channels, groups, pixels;
  std::int64_t chunk, chunks;  // of the pixels
  std::int64_t unit;           // channels that form whole groups, and whole blocks if maps are blocked
  float epsilon;               // added to the variance
  float deviation_epsilon;     // added to the standard deviation
  bool has_scale, has_bias;
  bool is_blocked;
  bool spans_batch;  // a group spans its channels in all images
};

// Floats of moments and of coefficients for `channels` channels of one image.
ENGINE_INLINE std::int64_t group_norm_moments(const GroupNormArgs& args, std::int64_t channels) {
  return (channels + 15) / 16 * args.chunks * 32;
}
ENGINE_INLINE std::int64_t group_norm_coefficients(std::int64_t channels) {
  return (channels + 15) / 16 * 48;
}

}  // namespace engine

// Assembles maps in blocks of sixteen channels from any channels of other maps: a Concat, Split or Slice whose offsets
// are not multiples of sixteen, a channel shuffle, a Gather of channels.
#pragma once

#include "kernels/kernel.hpp"

namespace engine {

// Lanes of one vector that come from one vector of a source.
struct SelectSource {
  std::int32_t operand;
  std::int32_t is_identity;            // every lane comes from the same lane
  std::int64_t offset;                 // in floats, of the vector of pixel 0 in image 0
  std::int64_t batch;                  // floats between images
  alignas(64) std::int32_t index[16];  // of each lane; only as many as the instruction set has lanes are used
  alignas(64) std::int32_t mask[16];   // -1: taken from this source
};

// One vector of the result, at each pixel. A block of channels that equals a block of one source is one vector of
// sixteen lanes on every instruction set.
struct SelectTarget {
  std::int64_t offset;
  std::int32_t first_source;
  std::int32_t sources;  // 0: these channels do not exist
  std::int32_t is_block;
  std::int32_t padding;
};

// Followed by the targets, then, aligned to 64 bytes, by the sources.
struct SelectChannelsArgs {
  std::int64_t batch;
  std::int64_t pixels;
  std::int64_t targets;
  std::int64_t sources_offset;  // bytes from the start of this structure
  std::int64_t destination;     // operand
  std::int64_t destination_batch;
};

struct SelectChannelsTraits {
  int lanes;
};

}  // namespace engine

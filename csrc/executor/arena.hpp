// Lays buffers out in one block of memory, so that buffers that are never alive together share addresses.
#pragma once

#include <cstddef>
#include <vector>

namespace engine {

// A buffer that is alive from time `first` to time `last`, inclusive.
struct Lifetime {
  std::size_t bytes = 0;
  std::size_t alignment = 64;  // a power of two
  int first = 0;
  int last = 0;
};

struct ArenaLayout {
  std::vector<std::size_t> offsets;   // of each buffer, in the order given; aligned
  std::size_t total_bytes = 0;        // of the block
  std::size_t naive_bytes = 0;        // without sharing: the sum of all sizes
  std::size_t lower_bound_bytes = 0;  // the maximum that is alive at one time; no layout is smaller
  std::size_t alignment = 64;         // of the block
};

// Greedy by size: the largest buffer first, each into the smallest gap that fits (Pisarchyk and Lee, "Efficient
// memory management for deep neural net inference", 2020, section 5.2). O(n^2) in time. Deterministic.
// Throws PlanError if a size overflows.
ArenaLayout lay_out_arena(const std::vector<Lifetime>& buffers);

}  // namespace engine

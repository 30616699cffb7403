// Devices as a caller numbers them, and without gaps.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/dag.hpp"

namespace engine::graph {

struct Devices {
  std::vector<std::int64_t> used;     // the caller's numbers, ascending
  std::vector<std::int32_t> of_node;  // the place in `used` of each node's device
};

// Throws PartitionError unless there is one number >= 0 for each node.
Devices number_devices(const Dag& dag, Span<std::int64_t> affinity);

}  // namespace engine::graph

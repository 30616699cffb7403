// Renumbers the caller's devices without gaps.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/dag.hpp"

namespace engine::graph {

struct Devices {
  std::vector<std::int64_t> used;     // the caller's numbers, ascending
  std::vector<std::int32_t> of_node;  // the index in `used` of each node's device
};

// Throws PartitionError unless `affinity` has one number >= 0 for each node.
Devices number_devices(const Dag& dag, Span<std::int64_t> affinity);

}  // namespace engine::graph

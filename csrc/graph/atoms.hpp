// Atoms: nodes that stay together, each seen as one node of a smaller graph.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/dag.hpp"

namespace engine::graph {

// The atom of each node, numbered 0..count-1 by their first nodes; most are of one node.
struct Atoms {
  std::vector<Node> of;
  Node count = 0;
};

// Groups nodes of equal number >= 0. Where a path leaves a group and comes back, all nodes between belong to it, too;
// groups that wait for each other become one. Throws PartitionError where that joins nodes of different devices, and
// names the path. O(V + E).
Atoms group_atoms(const Dag& dag, Span<std::int64_t> numbers, Span<std::int64_t> affinity);

}  // namespace engine::graph

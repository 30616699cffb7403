// Atoms: groups of nodes that stay together; each becomes one node of a smaller graph.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/dag.hpp"

namespace engine::graph {

// The atom of each node, numbered 0..count-1 by their first nodes; most atoms have one node.
struct Atoms {
  std::vector<Node> of;
  Node count = 0;
};

// Groups nodes with equal numbers >= 0. If a path leaves a group and returns to it, the nodes on the path join the
// group; groups that depend on each other are merged. Throws PartitionError, naming the path, if that joins nodes of
// different devices. O(V + E).
Atoms group_atoms(const Dag& dag, Span<std::int64_t> numbers, Span<std::int64_t> affinity);

}  // namespace engine::graph

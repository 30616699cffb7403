// Strongly connected components of a graph that may have cycles.
#pragma once

#include <vector>

#include "graph/dag.hpp"

namespace engine::graph {

struct Components {
  std::vector<Node> of;  // the component of each node; successors' components have lower or equal numbers
  Node count = 0;
};

// Tarjan's algorithm (SIAM J. Comput. 1, 1972), without recursion. O(V + E).
Components strong_components(Node nodes, const Adjacency& forward);

}  // namespace engine::graph

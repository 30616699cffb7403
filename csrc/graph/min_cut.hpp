// Minimum cuts: the cheapest assignment of nodes to two sides.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/dag.hpp"

namespace engine::graph {

// The costs of an assignment, all 0 or more. Each list has one number for each node or edge.
struct CutCosts {
  Span<std::int64_t> first;     // of each node if it is on the first side
  Span<std::int64_t> second;    // of each node if it is on the second side
  Span<std::int64_t> forward;   // of each edge if `from` is on the first side and `to` on the second
  Span<std::int64_t> backward;  // of each edge if `from` is on the second side and `to` on the first
};

struct Cut {
  std::vector<bool> is_second;  // of each node
  std::int64_t cost = 0;
};

// The minimum cut; of several, the one with the fewest nodes on the first side. The graph may have cycles. Finds a
// maximum flow with two search trees that are reused for each path (Boykov and Kolmogorov, PAMI 26, 2004): near-linear
// in practice. Throws PartitionError if a cost is below 0, or the sum does not fit into 64 bits.
Cut min_cut(Node nodes, const std::vector<Edge>& edges, const CutCosts& costs);

}  // namespace engine::graph

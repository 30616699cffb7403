// Least cuts: the cheapest way to give each node one of two sides.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/dag.hpp"

namespace engine::graph {

// What each choice costs; all 0 or more. Lists have a number for each node or for each edge.
struct CutCosts {
  Span<std::int64_t> first;     // of each node: on the first side
  Span<std::int64_t> second;    // of each node: on the second side
  Span<std::int64_t> forward;   // of each edge: from on the first side, to on the second
  Span<std::int64_t> backward;  // of each edge: from on the second side, to on the first
};

struct Cut {
  std::vector<bool> is_second;  // of each node
  std::int64_t cost = 0;
};

// The cheapest choice; of several, the one with fewest nodes on the first side. The graph may have cycles. Finds a
// maximum flow by growing two search trees that are kept from one path to the next (Boykov and Kolmogorov, PAMI 26,
// 2004): near-linear in practice. Throws PartitionError for costs below 0, or whose sum does not fit into 64 bits.
Cut min_cut(Node nodes, const std::vector<Edge>& edges, const CutCosts& costs);

}  // namespace engine::graph

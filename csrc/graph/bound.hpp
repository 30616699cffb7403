// A lower bound on the number of subgraphs of any partition.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/dag.hpp"

namespace engine::graph {

// A lower bound on the number of subgraphs of all acyclic partitions with one device for each subgraph; exact for two
// devices. `device` has 0..devices-1 for each node.
//
// The subgraphs of two devices, run one after the other, take turns. The minimum number of turns can be computed for
// each pair of devices; nodes of other devices then only transmit dependencies. The turns of disjoint pairs add up;
// three devices need at least half the sum of their pairs. O(V + E) for each pair; if there are too many pairs, only
// pairs of the devices with the most nodes are used. Small graphs, and graphs that reduce to small ones, are searched
// exhaustively, which makes the bound exact for more devices, too.
// `searched` is the bound of an earlier search, or 0.
std::int64_t lower_bound(const Dag& dag, Span<std::int32_t> device, std::int32_t devices, std::int64_t searched = 0);

// The same for devices with any numbers >= 0. Throws PartitionError for negative numbers.
std::int64_t lower_bound_of(const Dag& dag, Span<std::int64_t> affinity);

}  // namespace engine::graph

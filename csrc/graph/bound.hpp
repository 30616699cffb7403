// How few subgraphs any partition can have.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/dag.hpp"

namespace engine::graph {

// The number of subgraphs that no acyclic partition with one device a subgraph can be below; exact for two devices.
// `device` has 0..devices-1 for each node.
//
// The subgraphs of two devices, run one after the other, take turns: how many turns are needed is known for each
// pair, where other devices' nodes only carry what depends on what. Turns of disjoint pairs add up, and of three
// devices half of what their pairs need. O(V + E) for each pair; where there are too many pairs, those of the devices
// with most nodes. Small graphs, and those that reduce to small ones, are searched exhaustively: then it is exact for
// more devices, too.
// `searched` is the bound of a search that was already made, or 0.
std::int64_t lower_bound(const Dag& dag, Span<std::int32_t> device, std::int32_t devices, std::int64_t searched = 0);

// The same for devices of any numbers >= 0. Throws PartitionError for others.
std::int64_t lower_bound_of(const Dag& dag, Span<std::int64_t> affinity);

}  // namespace engine::graph

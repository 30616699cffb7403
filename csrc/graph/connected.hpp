// Connected subgraphs.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/problem.hpp"
#include "graph/runs.hpp"

namespace engine::graph {

// The weakly connected parts of nodes with equal labels: the part of each node, numbered by their first nodes.
std::vector<Node> connected_parts(const Problem& problem, const std::vector<std::int32_t>& label, Node& count);

// Splits runs into connected parts, and joins parts of one device if an edge and no other path leads from one to the
// other, so that no cycle can arise. Near-linear, since the search of each join is bounded.
Labels connect(const Problem& problem, const Runs& runs);

}  // namespace engine::graph

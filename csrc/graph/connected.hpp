// Subgraphs whose nodes are connected with each other.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/problem.hpp"
#include "graph/runs.hpp"

namespace engine::graph {

// The weakly connected parts of the nodes of equal label: the part of each node, numbered by their first nodes.
std::vector<Node> connected_parts(const Problem& problem, const std::vector<std::int32_t>& label, Node& count);

// Splits runs into their connected parts, and joins parts of a device where an edge leads from one to the other and no
// other path does, so that no cycle can come about. Near-linear: what a join may search is bounded.
Labels connect(const Problem& problem, const Runs& runs);

}  // namespace engine::graph

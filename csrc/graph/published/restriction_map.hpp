// The strategy `restriction_map`: nodes join the subgraphs of their parents, unless a path leads from these to another
// parent. A published algorithm, for comparison.
#pragma once

#include "graph/problem.hpp"

namespace engine::graph {

// The algorithm of TVM's proposal for partitioning. From the outputs, lowest index first, nodes are visited depth-first
// after their parents, lowest index first. A node joins, and thereby merges, the subgraphs of its parents that are on
// its device, except restricted ones, on which another parent's subgraph depends. If none is left, the node begins a
// new subgraph. Subgraphs are numbered by their first node.
//
// In the proposal, a subgraph's restrictions are derived from its dependencies when a node is added. If one of these
// gains a dependency later, the restrictions become stale, and two subgraphs may depend on each other. Here,
// restrictions are always current, so the result is acyclic; if the proposal's result is acyclic, too, both are equal.
//
// `statistics`: moved (how many times a subgraph was moved in the order from which restrictions are computed).
Labels restriction_map(const Problem& problem, Statistics& statistics);

// The same from the given outputs; every node must lead to one of them.
Labels restriction_map(const Problem& problem, const std::vector<Node>& outputs, Statistics& statistics);

}  // namespace engine::graph

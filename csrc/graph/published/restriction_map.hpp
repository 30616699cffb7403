// The strategy `restriction_map`: nodes join subgraphs of their parents, unless a path has left these for another
// parent. A published algorithm, here for comparison.
#pragma once

#include "graph/problem.hpp"

namespace engine::graph {

// The algorithm of TVM's proposal for partitioning. From the outputs, lowest index first, nodes are visited depth-first
// after their parents, lowest index first. A node joins the subgraphs of its device that its parents are in, which
// merge, but for those that are restricted: that another parent's subgraph depends on. Where none is left it begins a
// subgraph. Subgraphs are numbered by their first node.
//
// The proposal restricts a subgraph from what it depends on when a node is added. A subgraph that gains a dependency
// later does not tell those that depend on it, whose restrictions go stale: two subgraphs may come to wait for each
// other. Here restrictions are what is true at the time, so that the result is acyclic; where the proposal's is, too,
// it is the same.
//
// `statistics`: moved (how many times a subgraph changed its place in the order that restrictions are read from).
Labels restriction_map(const Problem& problem, Statistics& statistics);

// The same from the given outputs, which every node has to be reached from against the edges.
Labels restriction_map(const Problem& problem, const std::vector<Node>& outputs, Statistics& statistics);

}  // namespace engine::graph

// The strategy `rollback`: subgraphs grow from roots by adjacent nodes, and return nodes when they refer to themselves;
// the largest is chosen in each round. A published algorithm, for comparison.
#pragma once

#include "graph/problem.hpp"

namespace engine::graph {

// The algorithm of OpenVINO's hetero design ("Subgraphs selection"). Choices that the text leaves open: adjacent nodes
// are tried depth-first from the node added last, successors before predecessors, lowest index first; nodes of chosen
// subgraphs are rejected when reached; of equally large subgraphs, the one with the lowest root is chosen. The size of
// a subgraph is its number of the caller's nodes. Subgraphs are numbered as they are chosen, device by device.
//
// Each subgraph is convex, but two may depend on each other, which the text does not check. The caller must repair
// this.
//
// `statistics`: candidates (how many have grown), closure_bytes. In a connected part of N nodes of a device, each
// choice grows up to N candidates of up to N nodes; each node takes O(V / 64), or O(V + E) if the closure does not fit.
Labels rollback(const Problem& problem, Statistics& statistics);

}  // namespace engine::graph

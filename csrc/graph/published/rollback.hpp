// The strategy `rollback`: subgraphs grow from roots by adjacent nodes, and give nodes back where they refer to
// themselves; the largest is chosen, always. A published algorithm, here for comparison.
#pragma once

#include "graph/problem.hpp"

namespace engine::graph {

// The algorithm of OpenVINO's hetero design ("Subgraphs selection"). What the text leaves open: adjacent nodes are
// tried depth-first from the node added last, successors before predecessors, lowest index first; nodes of subgraphs
// that were chosen are rejected when reached; of equal subgraphs the one of the lowest root is chosen. The size of a
// subgraph is counted in nodes of the caller's. Subgraphs are numbered as they are chosen, device by device.
//
// Each subgraph is convex, but two may wait for each other: the text checks no more. To be repaired by the caller.
//
// `statistics`: candidates (how many have grown), closure_bytes. In a connected part of a device's nodes of N nodes,
// each choice grows up to N candidates of up to N nodes, each O(V / 64), or O(V + E) where the closure would not fit.
Labels rollback(const Problem& problem, Statistics& statistics);

}  // namespace engine::graph

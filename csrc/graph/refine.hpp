// Reduces the bytes that cross between the runs of a partition, without adding runs.
#pragma once

#include <cstdint>

#include "graph/problem.hpp"
#include "graph/runs.hpp"

namespace engine::graph {

// The bytes of all edges between different runs.
std::int64_t crossing_bytes(const Problem& problem, const std::vector<std::int32_t>& run_of);

// Moves nodes between the runs of their device, within the limits set by their neighbours, if that saves bytes: first
// single nodes, then connected nodes of one device and run together, then, unless the graph is too large, the best set
// for a run, found as a minimum cut. Never adds a run or increases the bytes. Near-linear. The bytes of edges between
// different devices do not change: these always cross.
void refine(const Problem& problem, Runs& runs);

}  // namespace engine::graph

// Fewer bytes between the runs of a partition, with no more runs.
#pragma once

#include <cstdint>

#include "graph/problem.hpp"
#include "graph/runs.hpp"

namespace engine::graph {

// The bytes of the edges between different runs.
std::int64_t crossing_bytes(const Problem& problem, const std::vector<std::int32_t>& run_of);

// Moves nodes between the runs of their device, as far as their neighbours leave room, where that saves bytes: one by
// one, then together with all of their device that they are connected with in a run, then, in graphs that are not too
// large, any set that is best for a run, found as a least cut. Never adds a run; the bytes never rise.
// Near-linear. What edges between different devices carry stays as it is: they cross in any case.
void refine(const Problem& problem, Runs& runs);

}  // namespace engine::graph

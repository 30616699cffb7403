// Runs: a partition as a sequence of devices that take turns, each doing what is possible in its turn.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/dag.hpp"
#include "graph/problem.hpp"

namespace engine::graph {

struct Runs {
  std::vector<std::int32_t> device;  // of each run
  std::vector<std::int32_t> of;      // the run of each node, of its device; never falls along an edge
};

// Fewest runs: exactly for two devices, closely for more. Nodes are in the earliest run that they can be in.
Runs find_runs(const Problem& problem);

}  // namespace engine::graph

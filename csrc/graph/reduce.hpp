// A smaller graph that takes as few turns.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/dag.hpp"

namespace engine::graph {

// Graphs above are not worth it: what is left takes no search that would be too long for the whole.
constexpr Node kMaxReduced = 50'000;

struct Reduced {
  Dag dag;
  std::vector<std::int32_t> device;  // of each node
};

// Joins a node with one of its device that it can always follow at once, as it reads from that alone, or always precede
// directly, as that alone reads from it. A sequence of turns does for the smaller graph if and only if it does for the
// whole one. Near-linear.
Reduced reduce(const Dag& dag, Span<std::int32_t> device);

}  // namespace engine::graph

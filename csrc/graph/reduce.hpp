// Reduces a graph to a smaller one with the same minimum number of turns.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/dag.hpp"

namespace engine::graph {

// Larger graphs are not reduced: the reduced graph would still be too large for the searches that it enables.
constexpr Node kMaxReduced = 50'000;

struct Reduced {
  Dag dag;
  std::vector<std::int32_t> device;  // of each node
};

// Merges a node with a node of the same device that is its only predecessor, or its only successor, so that both can
// always run in the same turn. A sequence of turns is valid for the reduced graph if and only if it is valid for the
// original. Near-linear.
Reduced reduce(const Dag& dag, Span<std::int32_t> device);

}  // namespace engine::graph

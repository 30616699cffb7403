// The default strategy: every node gets the number of a run, which never falls along an edge, so that no cycle of
// subgraphs can be.
#pragma once

#include "graph/problem.hpp"

namespace engine::graph {

Labels potential(const Problem& problem, Statistics& statistics);

}  // namespace engine::graph

// The default strategy: every node gets a run number, which never decreases along an edge, so subgraphs cannot form a
// cycle.
#pragma once

#include "graph/problem.hpp"

namespace engine::graph {

Labels potential(const Problem& problem, Statistics& statistics);

}  // namespace engine::graph

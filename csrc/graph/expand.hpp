// The best expansion of one run, computed as a minimum cut.
#pragma once

#include "graph/problem.hpp"
#include "graph/runs.hpp"

namespace engine::graph {

// For each run in turn, moves the set of nodes of its device into it that saves the most bytes, until no run can
// improve (alpha-expansion: Boykov, Veksler and Zabih, PAMI 23, 2001) or the work limit is reached. Does nothing in
// large graphs.
void expand_runs(const Problem& problem, Runs& runs);

}  // namespace engine::graph

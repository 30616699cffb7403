// The best way to let one run grow, as a least cut.
#pragma once

#include "graph/problem.hpp"
#include "graph/runs.hpp"

namespace engine::graph {

// For one run after the other, moves the nodes of its device into it whose move together saves most bytes, until no run
// can gain (alpha-expansion: Boykov, Veksler and Zabih, PAMI 23, 2001) or a bound on the work is reached. Does nothing
// in large graphs.
void expand_runs(const Problem& problem, Runs& runs);

}  // namespace engine::graph

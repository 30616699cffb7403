// How long subgraphs take when devices work side by side.
#pragma once

#include "graph/problem.hpp"

namespace engine::graph {

// The seconds of a list schedule: each device runs one subgraph at a time, of those whose inputs are there the one with
// the longest way to the end. A subgraph takes its nodes' seconds and the overhead; a tensor that goes to a subgraph of
// another device takes its edge's seconds once, beside what devices do. The quotient graph has to be acyclic.
// O((V + E) log V).
double schedule_seconds(const Problem& problem, const Labels& labels);

}  // namespace engine::graph

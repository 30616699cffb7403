// The predicted time of subgraphs on devices that work in parallel.
#pragma once

#include "graph/problem.hpp"

namespace engine::graph {

// The seconds of a list schedule: each device runs one subgraph at a time; of those whose inputs are available, the one
// with the longest way to the end. A subgraph takes its nodes' seconds and the overhead; a tensor that is transferred
// to a subgraph on another device takes its edge's seconds once, in parallel with the devices. The quotient graph must
// be acyclic. O((V + E) log V).
double schedule_seconds(const Problem& problem, const Labels& labels);

}  // namespace engine::graph

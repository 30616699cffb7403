// The input and output of the strategies of `partition`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/dag.hpp"
#include "graph/trace.hpp"

namespace engine::graph {

enum class Mode { min_subgraphs, connected, automatic };

// Predicted times in seconds. Lists may be empty; `partition` then fills in defaults.
struct Costs {
  std::vector<double> node_seconds;  // of each node
  std::vector<double> edge_seconds;  // to transfer the value of an edge to another device
  double overhead_seconds = 5e-6;    // of each subgraph
};

// Nodes may be atoms, which represent several of the caller's nodes. Devices are numbered 0..devices-1; all are used.
struct Problem {
  const Dag& dag;
  std::vector<std::int32_t> device = {};  // of each node
  std::int32_t devices = 0;
  std::vector<std::int64_t> size = {};   // of each node: the number of the caller's nodes that it represents
  std::vector<std::int64_t> bytes = {};  // of each edge; 1 if the caller gave no bytes
  bool has_bytes = false;
  Costs costs = {};  // used by Mode::automatic
  Mode mode = Mode::min_subgraphs;
  std::size_t closure_bytes = 0;  // the memory limit for a transitive closure
  int threads = 1;
  Trace* trace = nullptr;  // records steps if not null, with this problem's nodes and devices
};

// Figures by name, for reports.
using Statistics = std::map<std::string, double>;

// The subgraph of each node, 0..count-1, each with nodes of one device. `partition` checks whether the quotient graph
// is acyclic.
struct Labels {
  std::vector<std::int32_t> subgraph;
  Node count = 0;
  std::int64_t bound = 0;  // a lower bound on the number of subgraphs, if the strategy has computed one
};

using Strategy = Labels (*)(const Problem& problem, Statistics& statistics);

}  // namespace engine::graph

// What the strategies of `partition` are given and give back.
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

// The seconds that running takes. Lists may be empty: then `partition` fills in defaults.
struct Costs {
  std::vector<double> node_seconds;  // of each node
  std::vector<double> edge_seconds;  // to take what an edge carries from one device to another
  double overhead_seconds = 5e-6;    // of each subgraph
};

// Nodes here may be atoms, which stand for several nodes of the caller's. Devices are numbered 0..devices-1, all used.
struct Problem {
  const Dag& dag;
  std::vector<std::int32_t> device = {};  // of each node
  std::int32_t devices = 0;
  std::vector<std::int64_t> size = {};   // of each node: how many nodes of the caller's it stands for
  std::vector<std::int64_t> bytes = {};  // of each edge; where the caller gave none, 1
  bool has_bytes = false;
  Costs costs = {};  // in Mode::automatic
  Mode mode = Mode::min_subgraphs;
  std::size_t closure_bytes = 0;  // the most memory that a transitive closure may take
  int threads = 1;
  Trace* trace = nullptr;  // where steps go, if anywhere: nodes and devices as in this problem
};

// Figures by name, for reports.
using Statistics = std::map<std::string, double>;

// The subgraph of each node, 0..count-1, each with nodes of one device. Whether its quotient graph is acyclic is for
// `partition` to check.
struct Labels {
  std::vector<std::int32_t> subgraph;
  Node count = 0;
  std::int64_t bound = 0;  // where the strategy has searched for it: no partition has fewer subgraphs
};

using Strategy = Labels (*)(const Problem& problem, Statistics& statistics);

}  // namespace engine::graph

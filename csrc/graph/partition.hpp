// Partitions of a graph whose nodes have devices: one call for all strategies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/dag.hpp"
#include "graph/problem.hpp"

namespace engine::graph {

// Lists are of each node or of each edge of the graph; those that may be empty say so.
struct Request {
  std::string strategy = "potential";
  std::string mode = "min_subgraphs";
  Span<std::int64_t> affinity;
  Span<std::int64_t> bytes;  // or empty
  Span<std::int64_t> atoms;  // or empty: nodes of one number >= 0 stay together
  Costs costs;
  std::size_t closure_bytes = std::size_t{1} << 30;
  int threads = 1;
  Trace* trace = nullptr;
};

struct Partition {
  std::vector<std::int64_t> subgraph;  // of each node
  std::vector<std::int64_t> run;       // of each node: the certificate that verify_runs takes
  std::vector<std::int64_t> order;     // of subgraphs: one in which they can be run
  std::vector<std::int64_t> device;    // of each subgraph
  std::int64_t lower_bound = 0;
  std::int64_t crossing_bytes = 0;  // of the edges between subgraphs
  std::int64_t splits = 0;          // subgraphs that the repair of a cyclic result added
  Statistics statistics;
};

// The names that `Request::strategy` takes; the first is the default.
std::vector<std::string> strategies();

// Partitions, checks the quotient graph, and repairs it where the strategy's result is cyclic. Throws PartitionError
// for a request that cannot be met. What it returns is acyclic, has one device a subgraph and splits no atom.
Partition partition(const Dag& dag, const Request& request);

}  // namespace engine::graph

// Partitions a graph whose nodes are assigned to devices: one entry point for all strategies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/dag.hpp"
#include "graph/problem.hpp"

namespace engine::graph {

// Lists have an element for each node or each edge of the graph; optional lists may be empty.
struct Request {
  std::string strategy = "potential";
  std::string mode = "min_subgraphs";
  Span<std::int64_t> affinity;
  Span<std::int64_t> bytes;  // optional
  Span<std::int64_t> atoms;  // optional: nodes with equal numbers >= 0 stay together
  Costs costs;
  std::size_t closure_bytes = std::size_t{1} << 30;
  int threads = 1;
  Trace* trace = nullptr;
};

struct Partition {
  std::vector<std::int64_t> subgraph;  // of each node
  std::vector<std::int64_t> run;       // of each node: the certificate that verify_runs checks
  std::vector<std::int64_t> order;     // an order in which the subgraphs can run
  std::vector<std::int64_t> device;    // of each subgraph
  std::int64_t lower_bound = 0;
  std::int64_t crossing_bytes = 0;  // of the edges between subgraphs
  std::int64_t splits = 0;          // subgraphs added by the repair of a cyclic result
  Statistics statistics;
};

// The allowed values of `Request::strategy`; the first is the default.
std::vector<std::string> strategies();

// Partitions, checks the quotient graph, and repairs it if the strategy's result is cyclic. Throws PartitionError for
// an invalid request. The result is acyclic, has one device for each subgraph, and splits no atom.
Partition partition(const Dag& dag, const Request& request);

}  // namespace engine::graph

// The quotient graph of a partition: one node for each subgraph. Subgraphs can run one after the other only if it is
// acyclic.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/dag.hpp"

namespace engine::graph {

// The result of checking a partition.
struct QuotientOrder {
  std::vector<Node> order;  // the subgraphs, each after those that it reads from
  std::vector<Node> level;  // of each subgraph: the maximum number of edges on a path to it
};

// The number of subgraphs in `subgraph`, which has the subgraph of each node. Throws PartitionError unless these are
// 0..count-1, each of them used.
Node count_subgraphs(const Dag& dag, Span<std::int64_t> subgraph);

// Orders the subgraphs by level, then by number, in O(V + E). Throws PartitionError if the quotient graph has a cycle,
// naming its subgraphs.
QuotientOrder check_quotient(const Dag& dag, Span<std::int32_t> subgraph, Node count);

// Whether the quotient graph is acyclic.
bool is_acyclic_quotient(const Dag& dag, Span<std::int32_t> subgraph, Node count);

// Verifies a certificate in O(V + E), without sorting: `run` is equal for all nodes of a subgraph, and increases on
// each edge between two subgraphs, which is impossible if subgraphs form a cycle. Throws PartitionError, naming the
// edge or node.
void verify_runs(const Dag& dag, Span<std::int64_t> subgraph, Span<std::int64_t> run);

// Splits subgraphs so that the quotient graph becomes acyclic; subgraphs that are not on a cycle are unchanged. Changes
// `subgraph` and returns the number of subgraphs, which are numbered by their first node. Near-linear.
Node repair(const Dag& dag, std::vector<std::int32_t>& subgraph, Node count);

}  // namespace engine::graph

// The quotient graph of a partition: one node for each subgraph. Only where it is acyclic can the subgraphs be run one
// after the other.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/dag.hpp"

namespace engine::graph {

// What is known of a partition once it is checked.
struct QuotientOrder {
  std::vector<Node> order;  // the subgraphs, each after those that it reads from
  std::vector<Node> level;  // of each subgraph: the most edges on a path to it
};

// The number of subgraphs of `subgraph`, which has the subgraph of each node. Throws PartitionError unless that is
// 0..count-1, all of them used.
Node count_subgraphs(const Dag& dag, Span<std::int64_t> subgraph);

// Orders the subgraphs, in O(V + E). Subgraphs come by level, then by number. Throws PartitionError where the quotient
// graph has a cycle, naming the subgraphs of one.
QuotientOrder check_quotient(const Dag& dag, Span<std::int32_t> subgraph, Node count);

// Whether the quotient graph has no cycle.
bool is_acyclic_quotient(const Dag& dag, Span<std::int32_t> subgraph, Node count);

// Verifies a certificate in O(V + E), without sorting: `run` is one number for all nodes of a subgraph, and rises on
// each edge between two subgraphs, which no cycle of subgraphs could do. Throws PartitionError, naming the edge or
// node.
void verify_runs(const Dag& dag, Span<std::int64_t> subgraph, Span<std::int64_t> run);

// Splits subgraphs so that the quotient graph is acyclic; those on no cycle stay as they are. Changes `subgraph` and
// returns the number of subgraphs, numbered 0.. by their first node. Near-linear.
Node repair(const Dag& dag, std::vector<std::int32_t>& subgraph, Node count);

}  // namespace engine::graph

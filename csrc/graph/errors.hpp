// Errors of the graph algorithms.
#pragma once

#include <stdexcept>

namespace engine::graph {

// A graph is malformed: a node out of range, an edge from a node to itself, a cycle.
class GraphError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A partition cannot be computed as requested, or is invalid; the message names nodes and subgraphs.
class PartitionError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace engine::graph

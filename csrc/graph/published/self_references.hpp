// Whether a subgraph that grows and shrinks refers to itself: through rejected nodes on paths between its nodes.
#pragma once

#include <cstddef>
#include <memory>

#include "graph/dag.hpp"

namespace engine::graph {

// A subgraph, some other nodes that are rejected, and what lies between: nodes that the subgraph reaches and that reach
// it. That is the union of the path nodes of all pairs of nodes of the subgraph: if a reaches v and v reaches b, v is a
// path node of the pair (a, b); a is not b, as there would be a cycle. So no pair is looked at: the unions of what
// nodes of the subgraph reach, and of what reaches them, are kept instead, and change by one node's share at a time.
class SelfReferences {
 public:
  virtual ~SelfReferences() = default;

  // Adds a node last. Where that would put a rejected node between, returns false, and changes nothing unless `anyway`.
  virtual bool add(Node node, bool anyway) = 0;

  // Takes out the node that was added last.
  virtual void remove_last() = 0;

  // Rejects a node, which is not of the subgraph.
  virtual void reject(Node node) = 0;

  // Whether a node, of the subgraph or not, lies between.
  virtual bool is_between(Node node) const = 0;

  // Empties the subgraph, and rejects no node.
  virtual void clear() = 0;

  // Memory beyond the graph's.
  virtual std::size_t bytes() const = 0;
};

// The transitive closure in both directions, V * V / 8 bytes: adding and removing take O(V / 64).
std::unique_ptr<SelfReferences> self_references_by_closure(const Dag& dag, int threads);

// Searches as far as what is reached was not reached before: adding takes O(V + E), and there is no closure.
std::unique_ptr<SelfReferences> self_references_by_search(const Dag& dag);

// By closure where that fits into `max_bytes`, else by search.
std::unique_ptr<SelfReferences> make_self_references(const Dag& dag, std::size_t max_bytes, int threads);

}  // namespace engine::graph

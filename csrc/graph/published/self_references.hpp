// Whether a subgraph that grows and shrinks refers to itself: through rejected nodes on paths between its nodes.
#pragma once

#include <cstddef>
#include <memory>

#include "graph/dag.hpp"

namespace engine::graph {

// A subgraph, other nodes that are rejected, and the nodes in between: those that the subgraph reaches and that reach
// it. These are the union of the path nodes of all pairs of nodes of the subgraph: if a reaches v and v reaches b, v is
// a path node of the pair (a, b), and a is not b, since there is no cycle. So pairs need not be examined: the sets of
// nodes that the subgraph reaches, and that reach it, are maintained incrementally instead.
class SelfReferences {
 public:
  virtual ~SelfReferences() = default;

  // Adds a node. If a rejected node would then lie in between, returns false, and changes nothing unless `anyway`.
  virtual bool add(Node node, bool anyway) = 0;

  // Removes the node that was added last.
  virtual void remove_last() = 0;

  // Rejects a node that is not in the subgraph.
  virtual void reject(Node node) = 0;

  // Whether a node, in the subgraph or not, lies in between.
  virtual bool is_between(Node node) const = 0;

  // Removes all nodes from the subgraph and from the rejected nodes.
  virtual void clear() = 0;

  // The memory used in addition to the graph's.
  virtual std::size_t bytes() const = 0;
};

// Uses the transitive closure in both directions, V * V / 8 bytes: adding and removing take O(V / 64).
std::unique_ptr<SelfReferences> self_references_by_closure(const Dag& dag, int threads);

// Searches only nodes that were not reached before, without a closure: adding takes O(V + E).
std::unique_ptr<SelfReferences> self_references_by_search(const Dag& dag);

// By closure if it fits into `max_bytes`, otherwise by search.
std::unique_ptr<SelfReferences> make_self_references(const Dag& dag, std::size_t max_bytes, int threads);

}  // namespace engine::graph

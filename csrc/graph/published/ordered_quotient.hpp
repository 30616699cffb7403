// A quotient graph that supports adding and merging parts, and stays acyclic and topologically ordered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "graph/dag.hpp"
#include "graph/published/maintained_order.hpp"

namespace engine::graph {

// Parts with edges between them, in a topological order. If a new edge contradicts the order, its source and the
// source's ancestors are moved directly before its target; only the parts between the two are searched.
class OrderedQuotient {
 public:
  // The part into which a part has been merged.
  Node find(Node part);

  // Removes from `some` the parts from which a path of at least one edge leads to one of `others`. Both may contain the
  // same parts.
  void remove_ancestors(std::vector<Node>& some, const std::vector<Node>& others);

  // Merges the parts `merged`, or creates a new part, with the next number, if there are none; adds edges to it from
  // the other `parents`. No path may lead from one of `merged` to one of `parents`. Returns the part.
  Node join(const std::vector<Node>& merged, const std::vector<Node>& parents);

  // The number of times that a part has been moved.
  std::int64_t moved() const { return moved_; }

 private:
  // The sources of edges; may contain duplicates and parts that have been merged.
  struct Ends {
    std::vector<Node> parts;
    std::size_t distinct = 0;  // after the last compaction
  };

  void compact(Ends& ends, Node self);
  void connect(Node from, Node to);
  template <class Stop>
  std::vector<Node> search_back(const std::vector<Node>& starts, Node lowest, const Stop& stop);
  Node first_of(const std::vector<Node>& parts) const;
  Node add();
  Node merge(const std::vector<Node>& merged, const std::vector<Node>& parents);

  MaintainedOrder order_;
  std::vector<Node> merged_into_;
  std::vector<Ends> before_;
  std::vector<std::uint32_t> seen_;  // the last search that visited each part
  std::uint32_t searches_ = 0;
  std::vector<char> is_wanted_;
  std::int64_t moved_ = 0;
};

}  // namespace engine::graph

// A quotient graph that grows and merges, and stays acyclic and in topological order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "graph/dag.hpp"
#include "graph/published/maintained_order.hpp"

namespace engine::graph {

// Parts with edges between them, in a topological order. What an edge against the order comes from is moved, together
// with all that leads to it, to right before the part that the edge leads to: only what lies between the two is
// searched.
class OrderedQuotient {
 public:
  // The part that a part has become by merging.
  Node find(Node part);

  // Removes from `some` those that a path leads from to one of `others`, of one edge or more. Both may have the same
  // parts.
  void remove_ancestors(std::vector<Node>& some, const std::vector<Node>& others);

  // Merges `merged`, or makes a new part where they are none, the next number; adds edges to it from the other
  // `parents`. No path may lead from one of `merged` to one of `parents`. Returns the part.
  Node join(const std::vector<Node>& merged, const std::vector<Node>& parents);

  // How many times a part has been moved.
  std::int64_t moved() const { return moved_; }

 private:
  // Where edges come from; some parts may be merged by now, or come twice.
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
  std::vector<std::uint32_t> seen_;  // the last search that met each part
  std::uint32_t searches_ = 0;
  std::vector<char> is_wanted_;
  std::int64_t moved_ = 0;
};

}  // namespace engine::graph

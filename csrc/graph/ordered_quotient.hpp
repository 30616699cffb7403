// A quotient graph that grows and merges, and stays acyclic and in topological order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "graph/dag.hpp"

namespace engine::graph {

// Parts with edges between them, each with a place in a topological order. The order is kept up to date as by Pearce
// and Kelly (ACM J. Exp. Algorithmics 11, 2006): only parts between the ends of a new edge that goes against it change
// places, and only what lies between two places is searched.
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

  // How many parts have changed places.
  std::int64_t reordered() const { return reordered_; }

 private:
  // Ends of edges, some of which may be merged by now or come twice.
  struct Ends {
    std::vector<Node> parts;
    std::size_t distinct = 0;  // after the last compaction
  };

  void compact(Ends& ends, Node self);
  void connect(Node from, Node to);
  // Parts reached from `starts` by edges of `direction`, that are at places from `lowest` to `highest`.
  std::vector<Node> search(const std::vector<Node>& starts, std::vector<Ends>& direction, std::int64_t lowest,
                           std::int64_t highest);
  void reorder(const std::vector<Node>& merged, const std::vector<Node>& parents);

  std::vector<Node> merged_into_;
  std::vector<std::int64_t> place_;
  std::vector<Ends> before_;
  std::vector<Ends> after_;
  std::vector<std::uint32_t> seen_;  // the last search that met each part
  std::uint32_t searches_ = 0;
  std::int64_t next_place_ = 0;
  std::int64_t reordered_ = 0;
};

}  // namespace engine::graph

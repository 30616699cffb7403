// An ordered list whose items can be moved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "graph/dag.hpp"

namespace engine::graph {

// Items have ascending numbers, so two items are compared in constant time. If no number is left between two
// neighbours, the items around them are spread out, over a range that depends on their density (Bender, Cole, Demaine,
// Farach-Colton and Zito, ESA 2002). Moving an item takes O(log n), amortised.
class MaintainedOrder {
 public:
  using Place = std::int64_t;

  // Adds the next item, at the end.
  void append();
  // Moves items before another one, in their order.
  void move_before(const std::vector<Node>& items, Node other);
  // Removes an item, which then has no place.
  void remove(Node item);
  // Puts an item in the place of another one, which is removed.
  void replace(Node other, Node item);

  Place place(Node item) const { return links_[item].place; }

 private:
  struct Link {
    Place place;
    Node before;
    Node after;
  };

  void insert(Node item, Node before, Node after, Place place);
  void make_room(Node item);

  std::vector<Link> links_;
  Node last_ = -1;
};

}  // namespace engine::graph

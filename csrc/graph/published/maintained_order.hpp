// An order of items that may be moved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "graph/dag.hpp"

namespace engine::graph {

// A list whose items have ascending numbers, so that two of them are compared in constant time. Where there is no
// number left between two neighbours, the items around them are spread, farther off the fuller it is there (Bender,
// Cole, Demaine, Farach-Colton and Zito, ESA 2002): moving an item takes O(log n), amortised.
class MaintainedOrder {
 public:
  using Place = std::int64_t;

  // Adds the next item, at the end.
  void append();
  // Moves items before another one, in their order.
  void move_before(const std::vector<Node>& items, Node other);
  // Takes an item out. It has no place any more.
  void remove(Node item);
  // Puts an item where another one is, which is taken out.
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

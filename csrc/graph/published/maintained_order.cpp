#include "graph/published/maintained_order.hpp"

#include <algorithm>

namespace engine::graph {
namespace {

// Places are 0..2^62-1. Items are appended at distances that leave room for 2^28 items.
constexpr int kBits = 62;
constexpr MaintainedOrder::Place kEnd = MaintainedOrder::Place{1} << kBits;
constexpr MaintainedOrder::Place kDistance = MaintainedOrder::Place{1} << 34;
// A window of 2^n places can be spread out if it has at most (2 / kFullness)^n items.
constexpr double kFullness = 1.5;

}  // namespace

void MaintainedOrder::append() {
  const auto item = static_cast<Node>(links_.size());
  links_.push_back({-1, -1, -1});
  if (last_ >= 0 && kEnd - links_[last_].place < 2) make_room(last_);
  const Place previous = last_ < 0 ? -1 : links_[last_].place;
  insert(item, last_, -1, previous + std::min(kDistance, (kEnd - previous) / 2));
}

void MaintainedOrder::move_before(const std::vector<Node>& items, Node other) {
  for (const Node item : items) remove(item);
  auto left = static_cast<Place>(items.size());
  const auto room = [&] {
    const Node before = links_[other].before;
    return links_[other].place - (before < 0 ? -1 : links_[before].place);
  };
  for (const Node item : items) {
    if (room() < 2) make_room(other);
    // Leaves as much room for the remaining items as for this one.
    insert(item, links_[other].before, other, links_[other].place - room() + std::max<Place>(1, room() / (left-- + 1)));
  }
}

void MaintainedOrder::remove(Node item) {
  const Link link = links_[item];
  if (link.before >= 0) links_[link.before].after = link.after;
  (link.after >= 0 ? links_[link.after].before : last_) = link.before;
}

void MaintainedOrder::replace(Node other, Node item) {
  const Link link = links_[other];
  insert(item, link.before, link.after, link.place);
}

void MaintainedOrder::insert(Node item, Node before, Node after, Place place) {
  links_[item] = {place, before, after};
  if (before >= 0) links_[before].after = item;
  (after >= 0 ? links_[after].before : last_) = item;
}

// Spreads out the items around `item`, over the range where they are dense, which makes room before and after it.
void MaintainedOrder::make_room(Node item) {
  Node first = item;
  Node last = item;
  Place count = 1;
  double most = 1;
  for (int bits = 1; bits <= kBits; ++bits) {
    most *= 2 / kFullness;
    const Place begin = links_[item].place >> bits << bits;
    const Place end = begin + (Place{1} << bits);
    for (; links_[first].before >= 0 && links_[links_[first].before].place >= begin; ++count) {
      first = links_[first].before;
    }
    for (; links_[last].after >= 0 && links_[links_[last].after].place < end; ++count) last = links_[last].after;
    const Place distance = (end - begin) / (count + 1);
    if (distance < 2 || (static_cast<double>(count) > most && bits < kBits)) continue;
    Place place = begin;
    for (Node at = first;; at = links_[at].after) {
      links_[at].place = place += distance;
      if (at == last) return;
    }
  }
}

}  // namespace engine::graph

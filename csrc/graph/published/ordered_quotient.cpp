#include "graph/published/ordered_quotient.hpp"

#include <algorithm>
#include <utility>

namespace engine::graph {

Node OrderedQuotient::find(Node part) {
  while (merged_into_[part] != part) {
    merged_into_[part] = merged_into_[merged_into_[part]];
    part = merged_into_[part];
  }
  return part;
}

Node OrderedQuotient::first_of(const std::vector<Node>& parts) const {
  return *std::min_element(parts.begin(), parts.end(),
                           [&](Node a, Node b) { return order_.place(a) < order_.place(b); });
}

// The ancestors of `starts` that are not before `lowest`, up to a part for which `stop` is true.
template <class Stop>
std::vector<Node> OrderedQuotient::search_back(const std::vector<Node>& starts, Node lowest, const Stop& stop) {
  if (++searches_ == 0) {
    std::fill(seen_.begin(), seen_.end(), 0);
    searches_ = 1;
  }
  const MaintainedOrder::Place end = order_.place(lowest);
  std::vector<Node> found;
  const auto expand = [&](Node part) {
    if (order_.place(part) <= end) return false;
    for (Node& before : before_[part].parts) {
      before = find(before);
      if (before == part || seen_[before] == searches_ || order_.place(before) < end) continue;
      seen_[before] = searches_;
      found.push_back(before);
      if (stop(before)) return true;
    }
    return false;
  };
  for (const Node start : starts) {
    if (expand(start)) return found;
  }
  for (std::size_t done = 0; done < found.size(); ++done) {
    if (expand(found[done])) return found;
  }
  return found;
}

void OrderedQuotient::remove_ancestors(std::vector<Node>& some, const std::vector<Node>& others) {
  if (some.empty() || others.size() < 2) return;
  for (const Node part : some) is_wanted_[part] = true;
  std::size_t missing = some.size();
  search_back(others, first_of(some), [&](Node part) { return is_wanted_[part] && --missing == 0; });
  for (const Node part : some) is_wanted_[part] = false;
  some.erase(std::remove_if(some.begin(), some.end(), [&](Node part) { return seen_[part] == searches_; }), some.end());
}

Node OrderedQuotient::join(const std::vector<Node>& merged, const std::vector<Node>& parents) {
  const Node part = merged.empty() ? add() : merge(merged, parents);
  for (const Node parent : parents) {
    if (find(parent) != part) connect(parent, part);
  }
  return part;
}

Node OrderedQuotient::add() {
  const auto part = static_cast<Node>(merged_into_.size());
  merged_into_.push_back(part);
  before_.emplace_back();
  seen_.push_back(0);
  is_wanted_.push_back(false);
  order_.append();
  return part;
}

// The merged part takes the place of its first part; its ancestors that come later move directly before it.
Node OrderedQuotient::merge(const std::vector<Node>& merged, const std::vector<Node>& parents) {
  const Node first = first_of(merged);
  std::vector<Node> moved = search_back(parents, first, [](Node) { return false; });
  for (const Node part : merged) seen_[part] = searches_;
  for (const Node part : parents) {
    if (seen_[part] != searches_ && order_.place(part) > order_.place(first)) moved.push_back(part);
  }
  std::sort(moved.begin(), moved.end(), [&](Node a, Node b) { return order_.place(a) < order_.place(b); });
  order_.move_before(moved, first);
  moved_ += static_cast<std::int64_t>(moved.size());
  // The part with the most edges is kept, so that each edge is copied O(log n) times.
  const Node part = *std::max_element(
      merged.begin(), merged.end(), [&](Node a, Node b) { return before_[a].parts.size() < before_[b].parts.size(); });
  for (const Node other : merged) {
    if (other != first) order_.remove(other);
    if (other == part) continue;
    merged_into_[other] = part;
    Ends& ends = before_[part];
    ends.parts.insert(ends.parts.end(), before_[other].parts.begin(), before_[other].parts.end());
    before_[other] = {};
    compact(ends, part);
  }
  if (part != first) order_.replace(first, part);
  return part;
}

void OrderedQuotient::connect(Node from, Node to) {
  before_[to].parts.push_back(from);
  compact(before_[to], to);
}

void OrderedQuotient::compact(Ends& ends, Node self) {
  if (ends.parts.size() < 2 * ends.distinct + 8) return;
  for (Node& end : ends.parts) end = find(end);
  std::sort(ends.parts.begin(), ends.parts.end());
  ends.parts.erase(std::unique(ends.parts.begin(), ends.parts.end()), ends.parts.end());
  ends.parts.erase(std::remove(ends.parts.begin(), ends.parts.end(), self), ends.parts.end());
  ends.distinct = ends.parts.size();
}

}  // namespace engine::graph

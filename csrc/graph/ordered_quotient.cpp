#include "graph/ordered_quotient.hpp"

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

void OrderedQuotient::remove_ancestors(std::vector<Node>& some, const std::vector<Node>& others) {
  if (some.empty() || others.size() < 2) return;
  std::int64_t lowest = place_[some.front()];
  for (const Node part : some) lowest = std::min(lowest, place_[part]);
  const std::vector<Node> found = search(others, before_, lowest, next_place_);
  some.erase(std::remove_if(some.begin(), some.end(), [&](Node part) { return seen_[part] == searches_; }), some.end());
}

std::vector<Node> OrderedQuotient::search(const std::vector<Node>& starts, std::vector<Ends>& direction,
                                          std::int64_t lowest, std::int64_t highest) {
  if (++searches_ == 0) {
    std::fill(seen_.begin(), seen_.end(), 0);
    searches_ = 1;
  }
  std::vector<Node> found;
  const auto expand = [&](Node part) {
    // Nothing beyond a part that is itself at or beyond the end of the search is within.
    if (&direction == &before_ ? place_[part] <= lowest : place_[part] >= highest) return;
    for (Node& end : direction[part].parts) {
      end = find(end);
      if (end == part || seen_[end] == searches_ || place_[end] < lowest || place_[end] > highest) continue;
      seen_[end] = searches_;
      found.push_back(end);
    }
  };
  for (const Node start : starts) expand(start);
  for (std::size_t done = 0; done < found.size(); ++done) expand(found[done]);
  return found;
}

Node OrderedQuotient::join(const std::vector<Node>& merged, const std::vector<Node>& parents) {
  Node part = 0;
  if (merged.empty()) {
    part = static_cast<Node>(merged_into_.size());
    merged_into_.push_back(part);
    place_.push_back(next_place_++);
    before_.emplace_back();
    after_.emplace_back();
    seen_.push_back(0);
  } else {
    reorder(merged, parents);
    part = *std::max_element(merged.begin(), merged.end(), [&](Node a, Node b) {
      return before_[a].parts.size() + after_[a].parts.size() < before_[b].parts.size() + after_[b].parts.size();
    });
    for (const Node other : merged) {
      if (other == part) continue;
      merged_into_[other] = part;
      for (std::vector<Ends>* direction : {&before_, &after_}) {
        std::vector<Node> moved = std::move((*direction)[other].parts);
        Ends& ends = (*direction)[part];
        ends.parts.insert(ends.parts.end(), moved.begin(), moved.end());
        (*direction)[other] = {};
        compact(ends, part);
      }
    }
  }
  for (const Node parent : parents) {
    if (find(parent) != part) connect(parent, part);
  }
  return part;
}

void OrderedQuotient::connect(Node from, Node to) {
  before_[to].parts.push_back(from);
  after_[from].parts.push_back(to);
  compact(before_[to], to);
  compact(after_[from], from);
}

void OrderedQuotient::compact(Ends& ends, Node self) {
  if (ends.parts.size() < 2 * ends.distinct + 8) return;
  for (Node& end : ends.parts) end = find(end);
  std::sort(ends.parts.begin(), ends.parts.end());
  ends.parts.erase(std::unique(ends.parts.begin(), ends.parts.end()), ends.parts.end());
  ends.parts.erase(std::remove(ends.parts.begin(), ends.parts.end(), self), ends.parts.end());
  ends.distinct = ends.parts.size();
}

// What leads to the merged part takes the lowest of all places concerned, then the part itself, and what it leads to
// takes the highest ones.
void OrderedQuotient::reorder(const std::vector<Node>& merged, const std::vector<Node>& parents) {
  std::int64_t lowest = place_[merged.front()];
  std::int64_t highest = lowest;
  for (const Node part : merged) lowest = std::min(lowest, place_[part]);
  for (const Node part : parents) highest = std::max(highest, place_[part]);  // merged ones are parents, too
  if (lowest == highest) return;
  const auto by_place = [&](Node a, Node b) { return place_[a] < place_[b]; };
  std::vector<Node> before = search(parents, before_, lowest, highest);
  for (const Node part : merged) seen_[part] = searches_;
  for (const Node part : parents) {
    if (seen_[part] != searches_ && place_[part] > lowest) before.push_back(part);
  }
  std::vector<Node> after = search(merged, after_, lowest, highest);
  std::sort(before.begin(), before.end(), by_place);
  std::sort(after.begin(), after.end(), by_place);
  std::vector<std::int64_t> places;
  for (const std::vector<Node>* parts :
       {static_cast<const std::vector<Node>*>(&before), &merged, static_cast<const std::vector<Node>*>(&after)}) {
    for (const Node part : *parts) places.push_back(place_[part]);
  }
  std::sort(places.begin(), places.end());
  reordered_ += static_cast<std::int64_t>(places.size());
  for (std::size_t i = 0; i < before.size(); ++i) place_[before[i]] = places[i];
  for (const Node part : merged) place_[part] = places[before.size()];
  for (std::size_t i = 0; i < after.size(); ++i) place_[after[after.size() - 1 - i]] = places[places.size() - 1 - i];
}

}  // namespace engine::graph

#include "graph/exhaustive.hpp"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "graph/node_set.hpp"

namespace engine::graph {
namespace {

// With more devices, there are too many possible turns.
constexpr std::int32_t kMaxDevices = 8;
// The limit of a complete search: the number of sets that it keeps, times the nodes of the graph; about 40 ms.
constexpr std::size_t kMaxVisits = 6'000'000;
// The first search keeps only this many sets, and provides an upper bound.
constexpr std::size_t kBeamWidth = 64;
// The number of sets with which another set is compared, to drop it if one of them contains it.
constexpr std::size_t kCompared = 16;

template <std::size_t words>
class Search {
 public:
  Search(const Dag& dag, Span<std::int32_t> device, std::int32_t devices)
      : of_device_(static_cast<std::size_t>(devices)) {
    // In topological order, so that one pass over the bits executes a whole turn.
    std::vector<Node> place(static_cast<std::size_t>(dag.nodes()));
    for (std::size_t i = 0; i < place.size(); ++i) place[dag.order()[i]] = static_cast<Node>(i);
    needs_.resize(place.size());
    way_.assign(place.size(), 1);
    for (std::size_t i = place.size(); i-- > 0;) {
      const Node node = dag.order()[i];
      of_device_[device[node]].add(static_cast<Node>(i));
      for (const Node before : dag.predecessors(node)) needs_[i].add(place[before]);
      for (const Node next : dag.successors(node)) {
        way_[i] = std::max(way_[i], way_[place[next]] + (device[next] != device[node]));
      }
    }
    by_way_.resize(place.size());
    std::iota(by_way_.begin(), by_way_.end(), 0);
    std::stable_sort(by_way_.begin(), by_way_.end(), [&](Node a, Node b) { return way_[a] > way_[b]; });
  }

  Exhaustive run() {
    Exhaustive result;
    result.sequence = search(static_cast<std::int32_t>(way_.size()) + 1, false).sequence;
    const auto known = static_cast<std::int32_t>(result.sequence.size());
    Exhaustive better = search(known, true);
    if (!better.sequence.empty()) return better;
    result.bound = std::min<std::int64_t>(better.bound, known);
    return result;
  }

 private:
  using Set = NodeSet<words>;

  struct State {
    Set done;
    int count;            // of nodes that are done
    std::int32_t parent;  // in the previous level
    std::int32_t device;  // the device of the last turn
  };

  // Searches for a sequence with fewer than `limit` turns. If `is_whole`, `bound` is proven by the search. Otherwise it
  // keeps only the most promising sets, and always finds a sequence if `limit` is above the number of nodes.
  Exhaustive search(std::int32_t limit, bool is_whole) const {
    std::vector<std::vector<State>> levels{{{Set(), 0, -1, -1}}};
    std::size_t states = 0;
    while (true) {
      const auto turns = static_cast<std::int32_t>(levels.size());
      std::vector<State> next = follow(levels.back(), turns, limit);
      if (next.empty()) return {{}, limit};
      const auto end =
          std::find_if(next.begin(), next.end(), [&](const State& state) { return state.count == nodes(); });
      if (end != next.end()) return {sequence_to(levels, *end), turns};
      states += next.size();
      if (is_whole && states * way_.size() > kMaxVisits) return {{}, turns + 1};
      if (!is_whole && next.size() > kBeamWidth) next.resize(kBeamWidth);
      levels.push_back(std::move(next));
    }
  }

  // The states after one more turn, most promising first, without those that cannot finish before `limit`.
  std::vector<State> follow(const std::vector<State>& level, std::int32_t turns, std::int32_t limit) const {
    std::vector<State> next;
    for (std::size_t parent = 0; parent < level.size(); ++parent) {
      for (std::size_t device = 0; device < of_device_.size(); ++device) {
        State state{level[parent].done, 0, static_cast<std::int32_t>(parent), static_cast<std::int32_t>(device)};
        take_turn(state.done, of_device_[device]);
        state.count = state.done.size();
        if (state.count > level[parent].count && turns + way_left(state.done) < limit) next.push_back(state);
      }
    }
    std::sort(next.begin(), next.end(),
              [](const State& a, const State& b) { return a.count != b.count ? a.count > b.count : a.done < b.done; });
    std::vector<State> kept;
    for (const State& state : next) {
      if (!kept.empty() && kept.back().done == state.done) continue;
      const auto compared = kept.begin() + static_cast<std::ptrdiff_t>(std::min(kept.size(), kCompared));
      // A state that has done a superset of the nodes is never worse.
      if (std::none_of(kept.begin(), compared, [&](const State& more) { return state.done.is_part_of(more.done); })) {
        kept.push_back(state);
      }
    }
    return kept;
  }

  void take_turn(Set& done, const Set& own) const {
    const Set before = done;
    own.for_each_not_in(before, [&](Node node) {
      if (needs_[node].is_part_of(done)) done.add(node);
    });
  }

  std::int32_t way_left(const Set& done) const {
    const auto first = std::find_if(by_way_.begin(), by_way_.end(), [&](Node node) { return !done.has(node); });
    return first == by_way_.end() ? 0 : way_[*first];
  }

  int nodes() const { return static_cast<int>(way_.size()); }

  static Sequence sequence_to(const std::vector<std::vector<State>>& levels, const State& end) {
    Sequence sequence{end.device};
    std::int32_t parent = end.parent;
    for (std::size_t level = levels.size() - 1; level > 0; --level) {
      const State& state = levels[level][parent];
      sequence.push_back(state.device);
      parent = state.parent;
    }
    std::reverse(sequence.begin(), sequence.end());
    return sequence;
  }

  std::vector<Set> of_device_;
  std::vector<Set> needs_;         // of each node
  std::vector<std::int32_t> way_;  // for each node, the maximum number of device changes on a path from it, plus one
  std::vector<Node> by_way_;       // longest first
};

}  // namespace

std::optional<Exhaustive> search_exhaustively(const Dag& dag, Span<std::int32_t> device, std::int32_t devices) {
  if (dag.nodes() == 0 || devices > kMaxDevices) return std::nullopt;
  if (dag.nodes() <= 64) return Search<1>(dag, device, devices).run();
  if (dag.nodes() <= 128) return Search<2>(dag, device, devices).run();
  if (dag.nodes() <= 256) return Search<4>(dag, device, devices).run();
  if (dag.nodes() <= 512) return Search<8>(dag, device, devices).run();
  if (dag.nodes() <= 1024) return Search<16>(dag, device, devices).run();
  return std::nullopt;
}

}  // namespace engine::graph

#include "graph/drain.hpp"

#include <algorithm>
#include <utility>

namespace engine::graph {
namespace {

// The state of a drain.
class Progress {
 public:
  Progress(const Problem& problem, const View& view, const std::vector<std::int32_t>& ways)
      : problem_(&problem), view_(&view), ways_(&ways) {
    const Node nodes = problem.dag.nodes();
    waiting_.resize(static_cast<std::size_t>(nodes));
    ready_.resize(static_cast<std::size_t>(problem.devices));
    way_.assign(ready_.size(), 0);
    for (Node node = 0; node < nodes; ++node) {
      waiting_[node] = static_cast<std::int32_t>(view.previous(node).size());
      if (waiting_[node] == 0) add(node);
    }
  }

  bool is_ready(std::int32_t device) const { return !ready_[device].empty(); }
  std::size_t done() const { return done_; }
  // The longest remaining way.
  std::int32_t way() const { return *std::max_element(way_.begin(), way_.end()); }
  // A hash of the set of nodes that are done.
  std::uint64_t fingerprint() const { return fingerprint_; }

  std::int32_t choose(Turn turn) const {
    std::int32_t best = 0;
    for (std::int32_t device = 1; device < problem_->devices; ++device) {
      const bool is_longer = way_[device] > way_[best];
      const bool is_fuller = ready_[device].size() > ready_[best].size();
      if (turn == Turn::most_ready ? is_fuller : is_longer || (way_[device] == way_[best] && is_fuller)) best = device;
    }
    return best;
  }

  void empty(std::int32_t device) {
    empty(device, [](Node) {});
  }

  template <class Visit>
  void empty(std::int32_t device, const Visit& visit) {
    std::vector<Node>& queue = ready_[device];
    while (!queue.empty()) {
      const Node node = queue.back();
      queue.pop_back();
      ++done_;
      visit(node);
      fingerprint_ += mix(static_cast<std::uint64_t>(node));
      for (const Node next : view_->next(node)) {
        if (--waiting_[next] == 0) add(next);
      }
    }
    way_[device] = 0;
  }

 private:
  void add(Node node) {
    const std::int32_t device = problem_->device[node];
    ready_[device].push_back(node);
    way_[device] = std::max(way_[device], (*ways_)[node]);
  }

  static std::uint64_t mix(std::uint64_t value) {
    value = (value + 1) * 0x9E3779B97F4A7C15u;
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9u;
    return value ^ value >> 27;
  }

  const Problem* problem_;
  const View* view_;
  const std::vector<std::int32_t>* ways_;
  std::vector<std::int32_t> waiting_;
  std::vector<std::vector<Node>> ready_;  // of each device
  std::vector<std::int32_t> way_;         // of each device's ready nodes
  std::size_t done_ = 0;
  std::uint64_t fingerprint_ = 0;
};

Sequence in_order(Sequence sequence, const View& view) {
  if (view.is_backward) std::reverse(sequence.begin(), sequence.end());
  return sequence;
}

// A possible next turn of a drain in a beam.
struct Candidate {
  Progress progress;
  std::size_t parent;  // in the previous beam
  std::int32_t device;
};

// Sorts candidates, best first; of those with equal sets of nodes that are done, keeps one.
void keep_best(std::vector<Candidate>& candidates, std::size_t width) {
  std::vector<std::size_t> order(candidates.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const Progress& one = candidates[a].progress;
    const Progress& other = candidates[b].progress;
    if (one.way() != other.way()) return one.way() < other.way();
    if (one.done() != other.done()) return one.done() > other.done();
    if (one.fingerprint() != other.fingerprint()) return one.fingerprint() < other.fingerprint();
    return a < b;
  });
  std::vector<Candidate> kept;
  for (const std::size_t i : order) {
    if (kept.size() == width) break;
    if (!kept.empty() && kept.back().progress.fingerprint() == candidates[i].progress.fingerprint()) continue;
    kept.push_back(std::move(candidates[i]));
  }
  candidates = std::move(kept);
}

}  // namespace

std::vector<std::int32_t> ways_ahead(const Problem& problem, const View& view) {
  const std::vector<Node>& order = problem.dag.order();
  std::vector<std::int32_t> ways(order.size(), 1);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Node node = order[view.is_backward ? i : order.size() - 1 - i];
    for (const Node next : view.next(node)) {
      ways[node] = std::max(ways[node], ways[next] + (problem.device[next] != problem.device[node]));
    }
  }
  return ways;
}

Sequence drain(const Problem& problem, const View& view, const std::vector<std::int32_t>& ways, Turn turn,
               std::int32_t first) {
  Progress progress(problem, view, ways);
  Sequence sequence;
  std::int32_t device = first == kBest ? progress.choose(turn) : first;
  for (; progress.is_ready(device); device = progress.choose(turn)) {
    progress.empty(device);
    sequence.push_back(device);
  }
  return in_order(std::move(sequence), view);
}

Sequence beam_drain(const Problem& problem, const View& view, const std::vector<std::int32_t>& ways,
                    std::size_t width) {
  const auto nodes = static_cast<std::size_t>(problem.dag.nodes());
  std::vector<Candidate> beam{{Progress(problem, view, ways), 0, -1}};
  std::vector<std::vector<std::pair<std::size_t, std::int32_t>>> taken;  // (parent, device) of each run's beam
  while (beam.front().progress.done() < nodes) {
    std::vector<Candidate> candidates;
    for (std::size_t parent = 0; parent < beam.size(); ++parent) {
      for (std::int32_t device = 0; device < problem.devices; ++device) {
        if (!beam[parent].progress.is_ready(device)) continue;
        candidates.push_back({beam[parent].progress, parent, device});
        candidates.back().progress.empty(device);
      }
    }
    keep_best(candidates, width);
    beam = std::move(candidates);
    taken.emplace_back();
    for (const Candidate& candidate : beam) taken.back().emplace_back(candidate.parent, candidate.device);
  }
  Sequence sequence;
  std::size_t at = 0;  // a finished drain has no remaining way, so it comes first
  for (auto run = taken.rbegin(); run != taken.rend(); ++run) {
    sequence.push_back((*run)[at].second);
    at = (*run)[at].first;
  }
  std::reverse(sequence.begin(), sequence.end());
  return in_order(std::move(sequence), view);
}

Sequence without_spare_runs(const Problem& problem, const View& view, const Sequence& sequence) {
  const auto runs = static_cast<std::int32_t>(sequence.size());
  const std::vector<std::int32_t> last =
      view.is_backward ? earliest_runs(problem, sequence) : latest_runs(problem, sequence);
  std::vector<std::int32_t> due(sequence.size(), 0);  // nodes that are not done and that no following run can contain
  for (const std::int32_t run : last) ++due[run];
  const std::vector<std::int32_t> no_ways(last.size(), 0);
  Progress progress(problem, view, no_ways);
  Sequence kept;
  for (std::int32_t i = 0; i < runs; ++i) {
    const std::int32_t run = view.is_backward ? runs - 1 - i : i;
    if (due[run] == 0) continue;
    kept.push_back(sequence[run]);
    progress.empty(sequence[run], [&](Node node) { --due[last[node]]; });
  }
  return in_order(std::move(kept), view);
}

}  // namespace engine::graph

#include "graph/expand.hpp"

#include <algorithm>
#include <utility>

#include "graph/min_cut.hpp"

namespace engine::graph {
namespace {

constexpr Node kLargestGraph = 20'000;
// The limit for nodes and edges in all cuts together: about 50 ms.
constexpr std::int64_t kVisits = 300'000;
// Sums of bytes and of prohibitive costs stay below 63 bits.
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 40;

class Expansion {
 public:
  Expansion(const Problem& problem, Runs& runs)
      : problem_(problem), runs_(runs), variable_(problem.device.size(), -1), candidates_(runs.device.size()) {
    for (const std::int64_t bytes : problem.bytes) all_bytes_ += bytes;
  }

  void run() {
    if (problem_.dag.nodes() > kLargestGraph || all_bytes_ > kMaxBytes) return;
    if (!find_candidates()) return;
    bool is_better = true;
    while (is_better && visits_ > 0) {
      is_better = false;
      for (std::int32_t run = 0; run < static_cast<std::int32_t>(runs_.device.size()) && visits_ > 0; ++run) {
        if (!candidates_[run].empty()) is_better |= expand(run);
      }
    }
  }

 private:
  // Finds the nodes that could be in each run. False if there are too many.
  bool find_candidates() {
    const std::vector<std::int32_t> earliest = earliest_runs(problem_, runs_.device);
    const std::vector<std::int32_t> latest = latest_runs(problem_, runs_.device);
    const Turns turns(runs_.device, problem_.devices);
    std::int64_t room = kVisits;
    for (const Node node : problem_.dag.order()) {
      if (earliest[node] == latest[node]) continue;
      for (std::int32_t run = earliest[node]; run >= 0 && run <= latest[node];
           run = turns.at_or_after(problem_.device[node], run + 1)) {
        if (--room < 0) return false;
        candidates_[run].push_back(node);
      }
    }
    return true;
  }

  bool expand(std::int32_t run) {
    collect(run);
    if (moving_.empty()) return false;
    const auto count = moving_.size();
    visits_ -= static_cast<std::int64_t>(count);
    stay_.assign(count, 0);
    go_.assign(count, 0);
    edges_.clear();
    apart_.clear();
    for (const Node node : moving_) {
      add_edges(node, run);
    }
    const std::vector<std::int64_t> never(edges_.size(), 0);
    const Cut cut =
        min_cut(static_cast<Node>(count), edges_, {span_of(stay_), span_of(go_), span_of(apart_), span_of(never)});
    std::int64_t now = 0;
    for (const std::int64_t cost : stay_) now += cost;
    const bool is_better = cut.cost < now;
    for (std::size_t i = 0; i < count; ++i) {
      if (is_better && cut.is_second[i]) runs_.of[moving_[i]] = run;
      variable_[moving_[i]] = -1;
    }
    return is_better;
  }

  // The nodes that can move into the run, given the current runs of other devices' nodes.
  void collect(std::int32_t run) {
    moving_.clear();
    for (const Node node : candidates_[run]) {
      if (runs_.of[node] == run) continue;
      const auto is_other = [&](Node other) { return problem_.device[other] != problem_.device[node]; };
      const Span<Node> before = problem_.dag.predecessors(node);
      const Span<Node> after = problem_.dag.successors(node);
      const bool is_late =
          std::any_of(before.begin(), before.end(), [&](Node n) { return is_other(n) && runs_.of[n] > run; });
      const bool is_early =
          std::any_of(after.begin(), after.end(), [&](Node n) { return is_other(n) && runs_.of[n] < run; });
      if (is_late || is_early) continue;
      variable_[node] = static_cast<Node>(moving_.size());
      moving_.push_back(node);
    }
  }

  void add_edges(Node node, std::int32_t run) {
    const Span<Node> after = problem_.dag.successors(node);
    const Span<Node> before = problem_.dag.predecessors(node);
    visits_ -= static_cast<std::int64_t>(after.size() + before.size());
    for (std::size_t i = 0; i < after.size(); ++i) {
      if (problem_.device[after[i]] != problem_.device[node]) continue;
      const std::int64_t bytes = problem_.bytes[problem_.dag.out_edges(node)[i]];
      if (variable_[after[i]] >= 0) {
        add_pair(node, after[i], run, bytes);
      } else {
        add_fixed(node, runs_.of[after[i]], run, bytes, runs_.of[after[i]] < run);
      }
    }
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (problem_.device[before[i]] != problem_.device[node] || variable_[before[i]] >= 0) continue;
      add_fixed(node, runs_.of[before[i]], run, problem_.bytes[problem_.dag.in_edges(node)[i]],
                runs_.of[before[i]] > run);
    }
  }

  // An edge to a node that does not move.
  void add_fixed(Node node, std::int32_t other, std::int32_t run, std::int64_t bytes, bool is_forbidden) {
    const Node i = variable_[node];
    if (other != runs_.of[node]) stay_[i] += bytes;
    if (other != run) go_[i] += bytes;
    if (is_forbidden) go_[i] += forbidden();
  }

  // An edge between two nodes that can both move: separately, together, or in the wrong order.
  void add_pair(Node from, Node to, std::int32_t run, std::int64_t bytes) {
    const std::int64_t both_stay = runs_.of[from] != runs_.of[to] ? bytes : 0;
    const std::int64_t to_goes = bytes + (runs_.of[from] > run ? forbidden() : 0);
    const std::int64_t from_goes = bytes + (runs_.of[to] < run ? forbidden() : 0);
    // Expressed as costs of single nodes, up to a constant, and a cost if `from` stays while `to` moves.
    go_[variable_[from]] += from_goes - both_stay;
    stay_[variable_[to]] += from_goes;
    edges_.push_back({variable_[from], variable_[to]});
    apart_.push_back(to_goes + from_goes - both_stay);
  }

  std::int64_t forbidden() const { return all_bytes_ + 1; }

  const Problem& problem_;
  Runs& runs_;
  std::vector<Node> variable_;                 // the index in `moving_` of each node; -1 if it stays
  std::vector<std::vector<Node>> candidates_;  // of each run
  std::vector<Node> moving_;
  std::vector<std::int64_t> stay_;
  std::vector<std::int64_t> go_;
  std::vector<Edge> edges_;
  std::vector<std::int64_t> apart_;
  std::int64_t all_bytes_ = 0;
  std::int64_t visits_ = kVisits;
};

}  // namespace

void expand_runs(const Problem& problem, Runs& runs) {
  Expansion(problem, runs).run();
}

}  // namespace engine::graph

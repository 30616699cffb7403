#include "graph/refine.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "graph/connected.hpp"
#include "graph/expand.hpp"

namespace engine::graph {
namespace {

constexpr int kMaxRounds = 4;
// The limit on nodes in all rounds together; keeps the time linear, and short for large graphs.
constexpr std::int64_t kVisits = 150'000;
// In larger graphs, nodes only move one by one.
constexpr std::int64_t kHugeGraph = 500'000;

// Groups of nodes that move together.
struct Groups {
  std::vector<Node> of;
  std::vector<Node> members;  // by group
  std::vector<Node> begin;    // of each group in `members`
};

Groups gather(std::vector<Node> of, Node count) {
  Groups groups;
  groups.begin.assign(static_cast<std::size_t>(count) + 2, 0);
  for (const Node group : of) ++groups.begin[static_cast<std::size_t>(group) + 2];
  std::partial_sum(groups.begin.begin(), groups.begin.end(), groups.begin.begin());
  groups.members.resize(of.size());
  for (std::size_t node = 0; node < of.size(); ++node) {
    groups.members[groups.begin[static_cast<std::size_t>(of[node]) + 1]++] = static_cast<Node>(node);
  }
  groups.begin.pop_back();
  groups.of = std::move(of);
  return groups;
}

class Refinement {
 public:
  Refinement(const Problem& problem, Runs& runs)
      : problem_(problem), runs_(runs), turns_(runs.device, problem.devices), best_(runs.of) {
    least_ = crossing_bytes(problem, best_);
  }

  void run() {
    const auto nodes = static_cast<std::int64_t>(problem_.dag.nodes());
    const std::int64_t rounds = std::clamp<std::int64_t>(kVisits / std::max<std::int64_t>(nodes, 1), 1, kMaxRounds);
    for (std::int64_t round = 0; round < rounds; ++round) {
      const std::int64_t before = least_;
      sweep_nodes_both_ways();
      if (nodes > kHugeGraph) break;
      Node parts = 0;
      std::vector<Node> part_of = connected_parts(problem_, runs_.of, parts);
      sweep_both_ways(gather(std::move(part_of), parts));
      if (least_ == before) break;
    }
    runs_.of = std::move(best_);
  }

 private:
  // The backward sweep moves groups as late as possible without cost, with their predecessors; the forward sweep as
  // early.
  void sweep_both_ways(const Groups& groups) {
    for (const bool is_backward : {true, false}) {
      const std::vector<Node> order = nodes_by_run();
      std::vector<bool> is_done(groups.begin.size());
      for (std::size_t i = 0; i < order.size(); ++i) {
        const Node group = groups.of[order[is_backward ? order.size() - 1 - i : i]];
        if (is_done[group]) continue;
        is_done[group] = true;
        const Node* const first = groups.members.data() + groups.begin[group];
        const Node* const last = groups.members.data() + groups.begin[static_cast<std::size_t>(group) + 1];
        move({first, last}, is_backward, [&](Node other) { return groups.of[other] == group; });
      }
      keep_if_better();
    }
  }

  void sweep_nodes_both_ways() {
    const std::vector<Node>& order = problem_.dag.order();
    const auto is_inside = [](Node) { return false; };
    for (auto node = order.rbegin(); node != order.rend(); ++node) move({&*node, &*node + 1}, true, is_inside);
    keep_if_better();
    for (const Node& node : order) move({&node, &node + 1}, false, is_inside);
    keep_if_better();
  }

  void keep_if_better() {
    const std::int64_t bytes = crossing_bytes(problem_, runs_.of);
    if (bytes >= least_) return;
    least_ = bytes;
    best_ = runs_.of;
  }

  std::vector<Node> nodes_by_run() const {
    std::vector<Node> begin(runs_.device.size() + 1);
    for (const std::int32_t run : runs_.of) ++begin[static_cast<std::size_t>(run) + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    std::vector<Node> sorted(runs_.of.size());
    for (const Node node : problem_.dag.order()) sorted[begin[runs_.of[node]]++] = node;
    return sorted;
  }

  // Moves nodes of one run and device to the run of their predecessors or successors, if possible: runs in between have
  // no neighbours of theirs on the same device.
  template <class IsInside>
  void move(Span<Node> members, bool is_backward, const IsInside& is_inside) {
    const std::int32_t device = problem_.device[members[0]];
    const std::int32_t now = runs_.of[members[0]];
    std::int32_t early = 0;
    auto late = static_cast<std::int32_t>(runs_.device.size()) - 1;
    for (const Node node : members) {
      for (const Node other : problem_.dag.predecessors(node)) {
        if (!is_inside(other)) early = std::max(early, runs_.of[other]);
      }
      for (const Node other : problem_.dag.successors(node)) {
        if (!is_inside(other)) late = std::min(late, runs_.of[other]);
      }
    }
    if (early == late) return;
    // A run has one device: if it is another one, none of these neighbours is in the device's next turn.
    const std::int32_t first = turns_.at_or_after(device, early);
    const std::int32_t last = turns_.at_or_before(device, late);
    if (first == last) return;
    std::int64_t gain_early = 0;
    std::int64_t gain_late = 0;
    for (const Node node : members) {
      if (first == early) {
        gain_early += bytes_in(early, problem_.dag.predecessors(node), problem_.dag.in_edges(node), is_inside);
      }
      if (last == late) {
        gain_late += bytes_in(late, problem_.dag.successors(node), problem_.dag.out_edges(node), is_inside);
      }
    }
    const bool is_late = is_backward ? gain_late >= gain_early : gain_late > gain_early;
    const std::int32_t target = is_late ? last : first;
    if (target == now) return;
    for (const Node node : members) runs_.of[node] = target;
  }

  // The bytes of the edges to neighbours in `run`.
  template <class IsInside>
  std::int64_t bytes_in(std::int32_t run, Span<Node> others, Span<std::int32_t> edges,
                        const IsInside& is_inside) const {
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < others.size(); ++i) {
      if (runs_.of[others[i]] == run && !is_inside(others[i])) bytes += problem_.bytes[edges[i]];
    }
    return bytes;
  }

  const Problem& problem_;
  Runs& runs_;
  Turns turns_;
  std::vector<std::int32_t> best_;
  std::int64_t least_;
};

// Removes runs that moving has left empty.
void drop_empty_runs(Runs& runs) {
  std::vector<std::int32_t> number(runs.device.size(), -1);
  for (const std::int32_t run : runs.of) number[run] = 0;
  std::int32_t count = 0;
  for (std::size_t run = 0; run < number.size(); ++run) {
    if (number[run] < 0) continue;
    number[run] = count;
    runs.device[count++] = runs.device[run];
  }
  runs.device.resize(static_cast<std::size_t>(count));
  for (std::int32_t& run : runs.of) run = number[run];
}

}  // namespace

std::int64_t crossing_bytes(const Problem& problem, const std::vector<std::int32_t>& run_of) {
  std::int64_t bytes = 0;
  const std::vector<Edge>& edges = problem.dag.edges();
  for (std::size_t i = 0; i < edges.size(); ++i) {
    if (run_of[edges[i].from] != run_of[edges[i].to]) bytes += problem.bytes[i];
  }
  return bytes;
}

void refine(const Problem& problem, Runs& runs) {
  if (problem.dag.edge_count() == 0) return;
  Refinement(problem, runs).run();
  expand_runs(problem, runs);
  drop_empty_runs(runs);
}

}  // namespace engine::graph

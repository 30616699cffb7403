#include "graph/published/rollback.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "graph/published/rollback_growth.hpp"

namespace engine::graph {
namespace {

struct Candidate {
  std::int64_t size = 0;  // 0 if there is none
  Node root = -1;
  std::vector<Node> nodes;

  bool is_better_than(const Candidate& other) const {
    return std::make_tuple(size, -root) > std::make_tuple(other.size, -other.root);
  }
};

// Candidates of earlier rounds, by root. A candidate stays valid until a node that it touched is chosen.
class KnownCandidates {
 public:
  explicit KnownCandidates(std::size_t nodes) : candidates_(nodes), touched_by_(nodes) {}

  // Has size 0 if there is none.
  const Candidate& find(Node root) const { return candidates_[root]; }

  const Candidate& keep(Candidate candidate, const std::vector<Node>& touched, const std::vector<char>& is_free) {
    if (entries_ > kMaxEntries) forget_all();
    const Node root = candidate.root;
    for (const Node node : touched) {
      if (!is_free[node]) continue;
      touched_by_[node].push_back(root);
      ++entries_;
    }
    entries_ += candidate.nodes.size();
    candidates_[root] = std::move(candidate);
    return candidates_[root];
  }

  void forget_touching(Node node) {
    for (const Node root : touched_by_[node]) candidates_[root] = {};
    touched_by_[node] = {};
  }

 private:
  static constexpr std::size_t kMaxEntries = std::size_t{1} << 25;  // of 4 bytes

  void forget_all() {
    candidates_.assign(candidates_.size(), {});
    touched_by_.assign(touched_by_.size(), {});
    entries_ = 0;
  }

  std::vector<Candidate> candidates_;
  std::vector<std::vector<Node>> touched_by_;  // for each node, roots of candidates, possibly outdated
  std::size_t entries_ = 0;
};

// A set of free nodes that are connected through free nodes.
struct Region {
  Candidate best;
  std::vector<Node> nodes;
};

class Rollback {
 public:
  explicit Rollback(const Problem& problem)
      : problem_(problem),
        neighbours_(problem.dag),
        growth_(problem, neighbours_),
        is_free_(static_cast<std::size_t>(problem.dag.nodes())),
        is_covered_(is_free_.size()),
        is_found_(is_free_.size()),
        known_(is_free_.size()) {
    labels_.subgraph.assign(is_free_.size(), -1);
  }

  Labels run(Statistics& statistics) {
    for (std::int32_t device = 0; device < problem_.devices; ++device) {
      std::vector<Node> nodes;
      for (Node node = 0; node < problem_.dag.nodes(); ++node) {
        if (problem_.device[node] == device) nodes.push_back(node);
      }
      for (const Node node : nodes) is_free_[node] = true;
      if (is_traced()) run_rounds(device, nodes);
      run_regions(device, nodes);
    }
    statistics["candidates"] = static_cast<double>(grown_);
    statistics["closure_bytes"] = static_cast<double>(growth_.bytes());
    return std::move(labels_);
  }

 private:
  bool is_traced() const { return problem_.trace != nullptr && !problem_.trace->is_full(); }

  // The text's rounds, until the trace is full: grows candidates from all roots, chooses the largest, and repeats with
  // the rest. Afterwards, `nodes` has the remaining nodes.
  void run_rounds(std::int32_t device, std::vector<Node>& nodes) {
    while (!nodes.empty() && is_traced()) {
      choose(best_of(nodes, device), device);
      nodes.erase(std::remove_if(nodes.begin(), nodes.end(), [&](Node node) { return !is_free_[node]; }), nodes.end());
    }
  }

  // The same in less time. A candidate grows through free nodes only, so it depends only on its region. As long as no
  // node of a region is chosen, each round finds the same best candidate in it.
  void run_regions(std::int32_t device, const std::vector<Node>& nodes) {
    const auto is_worse = [](const Region& a, const Region& b) { return b.best.is_better_than(a.best); };
    std::vector<Region> regions;  // a heap
    const auto add_regions = [&](const std::vector<Node>& starts) {
      for (const Node start : starts) {
        if (!is_free_[start] || is_found_[start]) continue;
        std::vector<Node> region = region_of(start);
        Candidate best = best_of(region, device);
        regions.push_back({std::move(best), std::move(region)});
        std::push_heap(regions.begin(), regions.end(), is_worse);
      }
    };
    add_regions(nodes);
    while (!regions.empty()) {
      std::pop_heap(regions.begin(), regions.end(), is_worse);
      const Region region = std::move(regions.back());
      regions.pop_back();
      choose(region.best, device);
      for (const Node node : region.nodes) is_found_[node] = false;
      add_regions(region.nodes);
    }
  }

  // Ascending.
  std::vector<Node> region_of(Node start) {
    std::vector<Node> nodes{start};
    is_found_[start] = true;
    for (std::size_t done = 0; done < nodes.size(); ++done) {
      for (const Node next : neighbours_.of(nodes[done])) {
        if (!is_free_[next] || is_found_[next]) continue;
        is_found_[next] = true;
        nodes.push_back(next);
      }
    }
    std::sort(nodes.begin(), nodes.end());
    return nodes;
  }

  // The best of the candidates grown from all nodes that no earlier candidate contains. `nodes` must be ascending.
  Candidate best_of(const std::vector<Node>& nodes, std::int32_t device) {
    Candidate best;
    for (const Node node : nodes) is_covered_[node] = false;
    for (const Node root : nodes) {
      if (is_covered_[root]) continue;
      record_roots(nodes, device);
      const Candidate& candidate = candidate_of(root, device);
      for (const Node node : candidate.nodes) is_covered_[node] = true;
      if (candidate.size > best.size) best = candidate;
    }
    record_roots(nodes, device);
    return best;
  }

  const Candidate& candidate_of(Node root, std::int32_t device) {
    // A trace includes the steps of unchanged candidates.
    if (!is_traced() && known_.find(root).size > 0) return known_.find(root);
    Candidate candidate{0, root, growth_.grow(root, device, is_free_)};
    for (const Node node : candidate.nodes) candidate.size += problem_.size[node];
    ++grown_;
    return known_.keep(std::move(candidate), growth_.touched(), is_free_);
  }

  void choose(const Candidate& candidate, std::int32_t device) {
    for (const Node node : candidate.nodes) {
      is_free_[node] = false;
      labels_.subgraph[node] = labels_.count;
      known_.forget_touching(node);
    }
    ++labels_.count;
    if (!is_traced()) return;
    std::vector<Node> nodes = candidate.nodes;
    std::sort(nodes.begin(), nodes.end());
    problem_.trace->add({TraceStep::Kind::choose, device, candidate.root, TraceStep::Condition::ok, std::move(nodes)});
  }

  void record_roots(const std::vector<Node>& nodes, std::int32_t device) {
    if (!is_traced()) return;
    TraceStep step{TraceStep::Kind::roots, device, -1, TraceStep::Condition::ok, {}};
    for (const Node node : nodes) {
      if (!is_covered_[node]) step.nodes.push_back(node);
    }
    problem_.trace->add(std::move(step));
  }

  const Problem& problem_;
  Neighbours neighbours_;
  Growth growth_;
  std::vector<char> is_free_;
  std::vector<char> is_covered_;
  std::vector<char> is_found_;
  KnownCandidates known_;
  Labels labels_;
  std::int64_t grown_ = 0;
};

}  // namespace

Labels rollback(const Problem& problem, Statistics& statistics) {
  return Rollback(problem).run(statistics);
}

}  // namespace engine::graph

#include "graph/schedule.hpp"

#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

namespace engine::graph {
namespace {

struct Transfer {
  Node from;
  Node to;
  double seconds;
};

// One transfer for each pair of subgraphs: their values are transferred one after the other.
std::vector<Transfer> find_transfers(const Problem& problem, const Labels& labels) {
  std::vector<Transfer> all;
  std::vector<Transfer> of_node;
  for (Node node = 0; node < problem.dag.nodes(); ++node) {
    const Node from = labels.subgraph[node];
    of_node.clear();
    const Span<Node> after = problem.dag.successors(node);
    for (std::size_t i = 0; i < after.size(); ++i) {
      if (labels.subgraph[after[i]] == from) continue;
      const bool is_near = problem.device[after[i]] == problem.device[node];
      const double seconds = is_near ? 0.0 : problem.costs.edge_seconds[problem.dag.out_edges(node)[i]];
      of_node.push_back({from, labels.subgraph[after[i]], seconds});
    }
    std::sort(of_node.begin(), of_node.end(), [](const Transfer& a, const Transfer& b) {
      return std::tie(a.to, b.seconds) < std::tie(b.to, a.seconds);
    });
    for (std::size_t i = 0; i < of_node.size(); ++i) {
      if (i == 0 || of_node[i].to != of_node[i - 1].to) all.push_back(of_node[i]);
    }
  }
  std::sort(all.begin(), all.end(),
            [](const Transfer& a, const Transfer& b) { return std::tie(a.from, a.to) < std::tie(b.from, b.to); });
  std::vector<Transfer> joined;
  for (const Transfer& transfer : all) {
    if (!joined.empty() && joined.back().from == transfer.from && joined.back().to == transfer.to) {
      joined.back().seconds += transfer.seconds;
    } else {
      joined.push_back(transfer);
    }
  }
  return joined;
}

class Schedule {
 public:
  Schedule(const Problem& problem, const Labels& labels)
      : transfers_(find_transfers(problem, labels)),
        forward_(labels.count, edges(), &Edge::from),
        backward_(labels.count, edges(), &Edge::to),
        device_(static_cast<std::size_t>(labels.count)),
        seconds_(static_cast<std::size_t>(labels.count), problem.costs.overhead_seconds),
        ready_at_(static_cast<std::size_t>(labels.count), 0.0),
        waiting_(static_cast<std::size_t>(labels.count)),
        available_(static_cast<std::size_t>(problem.devices)),
        is_busy_(static_cast<std::size_t>(problem.devices)) {
    for (Node node = 0; node < problem.dag.nodes(); ++node) {
      device_[labels.subgraph[node]] = problem.device[node];
      seconds_[labels.subgraph[node]] += problem.costs.node_seconds[node];
    }
    find_ways();
  }

  double run() {
    for (Node subgraph = 0; subgraph < static_cast<Node>(device_.size()); ++subgraph) {
      waiting_[subgraph] = static_cast<std::int32_t>(backward_.of(subgraph).size());
      if (waiting_[subgraph] == 0) events_.push({0.0, subgraph, false});
    }
    double now = 0.0;
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now = event.at;
      const std::int32_t device = device_[event.subgraph];
      if (event.is_end) {
        is_busy_[device] = false;
        finish(event.subgraph, now);
      } else {
        available_[device].emplace(way_[event.subgraph], -event.subgraph);
      }
      // All events of this time are processed first, so that the choice considers all available subgraphs.
      touched_.push_back(device);
      if (!events_.empty() && events_.top().at == now) continue;
      for (const std::int32_t one : touched_) start(one, now);
      touched_.clear();
    }
    return now;
  }

 private:
  struct Event {
    double at;
    Node subgraph;
    bool is_end;

    bool operator<(const Event& other) const {  // reversed, so that the top of a queue is the earliest event
      return std::tie(other.at, other.subgraph) < std::tie(at, subgraph);
    }
  };

  std::vector<Edge> edges() const {
    std::vector<Edge> edges;
    edges.reserve(transfers_.size());
    for (const Transfer& transfer : transfers_) edges.push_back({transfer.from, transfer.to});
    return edges;
  }

  // The seconds from the start of each subgraph to the end of all, assuming that devices are never busy.
  void find_ways() {
    const std::vector<Node> order = sort_topologically(static_cast<Node>(device_.size()), forward_, backward_).order;
    way_.assign(device_.size(), 0.0);
    for (auto subgraph = order.rbegin(); subgraph != order.rend(); ++subgraph) {
      double longest = 0.0;
      for (const std::int32_t i : forward_.edges_of(*subgraph)) {
        longest = std::max(longest, transfers_[i].seconds + way_[transfers_[i].to]);
      }
      way_[*subgraph] = seconds_[*subgraph] + longest;
    }
  }

  void start(std::int32_t device, double now) {
    if (is_busy_[device] || available_[device].empty()) return;
    const Node subgraph = -available_[device].top().second;
    available_[device].pop();
    is_busy_[device] = true;
    events_.push({now + seconds_[subgraph], subgraph, true});
  }

  void finish(Node subgraph, double now) {
    for (const std::int32_t i : forward_.edges_of(subgraph)) {
      const Node to = transfers_[i].to;
      ready_at_[to] = std::max(ready_at_[to], now + transfers_[i].seconds);
      if (--waiting_[to] == 0) events_.push({ready_at_[to], to, false});
    }
  }

  std::vector<Transfer> transfers_;
  Adjacency forward_;
  Adjacency backward_;
  std::vector<std::int32_t> device_;  // of each subgraph
  std::vector<double> seconds_;
  std::vector<double> way_;
  std::vector<double> ready_at_;
  std::vector<std::int32_t> waiting_;
  std::vector<std::priority_queue<std::pair<double, Node>>> available_;  // of each device: (way, -subgraph)
  std::vector<bool> is_busy_;
  std::priority_queue<Event> events_;
  std::vector<std::int32_t> touched_;  // devices with events at this time
};

}  // namespace

double schedule_seconds(const Problem& problem, const Labels& labels) {
  return Schedule(problem, labels).run();
}

}  // namespace engine::graph

// Implements `repair` of quotient.hpp: subgraphs on a cycle are run in turns, each as far as possible.
#include <algorithm>
#include <queue>
#include <tuple>

#include "graph/components.hpp"
#include "graph/quotient.hpp"

namespace engine::graph {
namespace {

class Repair {
 public:
  Repair(const Dag& dag, std::vector<std::int32_t>& subgraph, Node count)
      : dag_(dag), subgraph_(subgraph), knot_(find_knots(dag, subgraph, count)) {}

  // Subgraphs of one knot are run in turns: the one with the most ready nodes runs until it waits for another; the
  // nodes that it has run become a subgraph. Turns of one knot run one after the other, so no cycle is left.
  Node run() {
    const auto nodes = static_cast<std::size_t>(dag_.nodes());
    waiting_.assign(nodes, 0);
    ready_.assign(knot_.of.size(), {});
    for (const Edge& edge : dag_.edges()) waiting_[edge.to] += is_inside(edge);
    for (const Node node : dag_.order()) {
      if (waiting_[node] == 0) ready_[subgraph_[node]].push_back(node);
    }
    for (Node number = 0; number < static_cast<Node>(ready_.size()); ++number) offer(number);
    std::vector<std::int32_t> turn_of(nodes, 0);
    std::int32_t turns = 0;
    while (!offers_.empty()) {
      const auto [count, negative] = offers_.top();
      offers_.pop();
      const Node number = -negative;
      if (count != ready_[number].size()) continue;
      take_turn(number, turns++, turn_of);
    }
    return renumber(turn_of, turns);
  }

 private:
  static Components find_knots(const Dag& dag, const std::vector<std::int32_t>& subgraph, Node count) {
    std::vector<Edge> crossing;
    for (const Edge& edge : dag.edges()) {
      if (subgraph[edge.from] != subgraph[edge.to]) crossing.push_back({subgraph[edge.from], subgraph[edge.to]});
    }
    return strong_components(count, Adjacency(count, crossing, &Edge::from));
  }

  // Knots are acyclic already, so nodes do not wait for edges between knots.
  bool is_inside(const Edge& edge) const { return knot_.of[subgraph_[edge.from]] == knot_.of[subgraph_[edge.to]]; }

  void offer(Node number) {
    if (!ready_[number].empty()) offers_.emplace(ready_[number].size(), -number);
  }

  void take_turn(Node number, std::int32_t turn, std::vector<std::int32_t>& turn_of) {
    std::vector<Node> others;
    while (!ready_[number].empty()) {
      const Node node = ready_[number].back();
      ready_[number].pop_back();
      turn_of[node] = turn;
      for (const Node next : dag_.successors(node)) {
        if (!is_inside({node, next}) || --waiting_[next] > 0) continue;
        ready_[subgraph_[next]].push_back(next);
        if (subgraph_[next] != number) others.push_back(subgraph_[next]);
      }
    }
    std::sort(others.begin(), others.end());
    others.erase(std::unique(others.begin(), others.end()), others.end());
    for (const Node other : others) offer(other);
  }

  Node renumber(const std::vector<std::int32_t>& turn_of, std::int32_t turns) {
    std::vector<std::int32_t> number_of(static_cast<std::size_t>(turns), -1);
    std::int32_t count = 0;
    for (Node node = 0; node < dag_.nodes(); ++node) {
      std::int32_t& number = number_of[turn_of[node]];
      if (number < 0) number = count++;
      subgraph_[node] = number;
    }
    return count;
  }

  const Dag& dag_;
  std::vector<std::int32_t>& subgraph_;
  Components knot_;  // the knot of each subgraph: a set of subgraphs that wait for each other
  std::vector<std::int32_t> waiting_;
  std::vector<std::vector<Node>> ready_;                      // of each subgraph
  std::priority_queue<std::pair<std::size_t, Node>> offers_;  // (nodes ready, -subgraph), possibly outdated
};

}  // namespace

Node repair(const Dag& dag, std::vector<std::int32_t>& subgraph, Node count) {
  return Repair(dag, subgraph, count).run();
}

}  // namespace engine::graph

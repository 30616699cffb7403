#include "graph/reduce.hpp"

#include <algorithm>
#include <utility>

namespace engine::graph {
namespace {

constexpr int kMaxPasses = 8;

// One pass in one direction. The groups are numbered 0..count-1.
std::vector<Node> join(const Dag& dag, const std::vector<std::int32_t>& device, bool is_backward, Node& count) {
  const std::vector<Node>& order = dag.order();
  std::vector<Node> group(order.size());
  count = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Node node = order[is_backward ? order.size() - 1 - i : i];
    const Span<Node> others = is_backward ? dag.successors(node) : dag.predecessors(node);
    const bool is_joined =
        others.size() > 0 && device[others[0]] == device[node] &&
        std::all_of(others.begin(), others.end(), [&](Node other) { return group[other] == group[others[0]]; });
    group[node] = is_joined ? group[others[0]] : count++;
  }
  return group;
}

Reduced contract(const Dag& dag, const std::vector<std::int32_t>& device, const std::vector<Node>& group, Node count) {
  std::vector<Edge> edges;
  for (const Edge& edge : dag.edges()) {
    if (group[edge.from] != group[edge.to]) edges.push_back({group[edge.from], group[edge.to]});
  }
  const auto as_pair = [](const Edge& edge) { return std::pair(edge.from, edge.to); };
  std::sort(edges.begin(), edges.end(), [&](const Edge& a, const Edge& b) { return as_pair(a) < as_pair(b); });
  edges.erase(
      std::unique(edges.begin(), edges.end(), [&](const Edge& a, const Edge& b) { return as_pair(a) == as_pair(b); }),
      edges.end());
  std::vector<std::int32_t> device_of(static_cast<std::size_t>(count));
  for (std::size_t node = 0; node < group.size(); ++node) device_of[group[node]] = device[node];
  return {Dag(count, std::move(edges)), std::move(device_of)};
}

}  // namespace

Reduced reduce(const Dag& dag, Span<std::int32_t> device) {
  Reduced reduced{dag, {device.begin(), device.end()}};
  int unchanged = 0;
  for (int pass = 0; pass < kMaxPasses && unchanged < 2; ++pass) {
    Node count = 0;
    const std::vector<Node> group = join(reduced.dag, reduced.device, pass % 2 == 1, count);
    unchanged = count < reduced.dag.nodes() ? 0 : unchanged + 1;
    if (unchanged == 0) reduced = contract(reduced.dag, reduced.device, group, count);
  }
  return reduced;
}

}  // namespace engine::graph

#include "graph/published/restriction_map.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "graph/published/ordered_quotient.hpp"

namespace engine::graph {
namespace {

// The nodes, each after its parents, depth-first from the outputs.
std::vector<Node> visiting_order(const Dag& dag, const std::vector<Node>& outputs) {
  const auto nodes = static_cast<std::size_t>(dag.nodes());
  std::vector<Node> order;
  order.reserve(nodes);
  std::vector<char> is_seen(nodes);
  struct Visit {
    Node node;
    std::vector<Node> parents;  // still to be visited, highest index first
  };
  std::vector<Visit> visits;
  const auto enter = [&](Node node) {
    is_seen[node] = true;
    const Span<Node> parents = dag.predecessors(node);
    visits.push_back({node, {parents.begin(), parents.end()}});
    std::sort(visits.back().parents.rbegin(), visits.back().parents.rend());
  };
  for (const Node output : outputs) {
    if (!is_seen[output]) enter(output);
    while (!visits.empty()) {
      std::vector<Node>& parents = visits.back().parents;
      if (parents.empty()) {
        order.push_back(visits.back().node);
        visits.pop_back();
        continue;
      }
      const Node parent = parents.back();
      parents.pop_back();
      if (!is_seen[parent]) enter(parent);
    }
  }
  return order;
}

std::vector<Node> outputs_of(const Dag& dag) {
  std::vector<Node> outputs;
  for (Node node = 0; node < dag.nodes(); ++node) {
    if (dag.successors(node).size() == 0) outputs.push_back(node);
  }
  return outputs;
}

}  // namespace

Labels restriction_map(const Problem& problem, Statistics& statistics) {
  return restriction_map(problem, outputs_of(problem.dag), statistics);
}

Labels restriction_map(const Problem& problem, const std::vector<Node>& outputs, Statistics& statistics) {
  const Dag& dag = problem.dag;
  OrderedQuotient quotient;
  std::vector<Node> joined(static_cast<std::size_t>(dag.nodes()));
  std::vector<std::int32_t> device;  // of each subgraph
  std::vector<Node> parents;
  std::vector<Node> joinable;
  for (const Node node : visiting_order(dag, outputs)) {
    parents.clear();
    for (const Node parent : dag.predecessors(node)) parents.push_back(quotient.find(joined[parent]));
    std::sort(parents.begin(), parents.end());
    parents.erase(std::unique(parents.begin(), parents.end()), parents.end());
    joinable.clear();
    for (const Node parent : parents) {
      if (device[parent] == problem.device[node]) joinable.push_back(parent);
    }
    quotient.remove_ancestors(joinable, parents);
    joined[node] = quotient.join(joinable, parents);
    if (joinable.empty()) device.push_back(problem.device[node]);
  }
  Labels labels;
  labels.subgraph.resize(joined.size());
  std::vector<Node> number_of(device.size(), -1);
  for (std::size_t node = 0; node < joined.size(); ++node) {
    Node& number = number_of[quotient.find(joined[node])];
    if (number < 0) number = labels.count++;
    labels.subgraph[node] = number;
  }
  statistics["moved"] = static_cast<double>(quotient.moved());
  return labels;
}

}  // namespace engine::graph

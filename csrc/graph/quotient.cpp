#include "graph/quotient.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include "graph/errors.hpp"

namespace engine::graph {
namespace {

std::vector<Edge> crossing_edges(const Dag& dag, Span<std::int32_t> subgraph) {
  std::vector<Edge> crossing;
  for (const Edge& edge : dag.edges()) {
    if (subgraph[edge.from] != subgraph[edge.to]) crossing.push_back({subgraph[edge.from], subgraph[edge.to]});
  }
  return crossing;
}

void expect_length(const Dag& dag, std::size_t length, const char* what) {
  if (length == static_cast<std::size_t>(dag.nodes())) return;
  throw PartitionError(std::string(what) + " has " + std::to_string(length) + " numbers; expected one for each of " +
                       std::to_string(dag.nodes()) + " nodes");
}

}  // namespace

Node count_subgraphs(const Dag& dag, Span<std::int64_t> subgraph) {
  expect_length(dag, subgraph.size(), "subgraph");
  if (subgraph.size() == 0) return 0;
  const auto highest = std::max_element(subgraph.begin(), subgraph.end());
  const auto lowest = std::min_element(subgraph.begin(), subgraph.end());
  for (const std::int64_t* worst : {lowest, highest}) {
    if (*worst < 0 || *worst >= dag.nodes()) {
      throw PartitionError("node " + std::to_string(worst - subgraph.begin()) + " is in subgraph " +
                           std::to_string(*worst) + "; expected 0.." + std::to_string(dag.nodes() - 1));
    }
  }
  std::vector<bool> is_used(static_cast<std::size_t>(*highest) + 1);
  for (const std::int64_t number : subgraph) is_used[static_cast<std::size_t>(number)] = true;
  const auto unused = std::find(is_used.begin(), is_used.end(), false);
  if (unused != is_used.end()) {
    throw PartitionError("no node is in subgraph " + std::to_string(unused - is_used.begin()) + " of 0.." +
                         std::to_string(*highest) + "; number the subgraphs without gaps");
  }
  return static_cast<Node>(*highest) + 1;
}

QuotientOrder check_quotient(const Dag& dag, Span<std::int32_t> subgraph, Node count) {
  const std::vector<Edge> crossing = crossing_edges(dag, subgraph);
  const Adjacency forward(count, crossing, &Edge::from);
  const Sorting sorting = sort_topologically(count, forward, Adjacency(count, crossing, &Edge::to));
  if (!sorting.cycle.empty()) {
    throw PartitionError("the subgraphs wait for each other: " + describe_cycle(sorting.cycle) +
                         "; split one of them where a path leaves and enters it again");
  }
  QuotientOrder result;
  result.level.assign(static_cast<std::size_t>(count), 0);
  for (const Node from : sorting.order) {
    for (const Node to : forward.of(from)) result.level[to] = std::max(result.level[to], result.level[from] + 1);
  }
  // Sorted by level, then by number, with a counting sort.
  std::vector<Node> begin(static_cast<std::size_t>(count) + 1);
  for (const Node level : result.level) ++begin[static_cast<std::size_t>(level) + 1];
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  result.order.resize(static_cast<std::size_t>(count));
  for (Node number = 0; number < count; ++number) result.order[begin[result.level[number]]++] = number;
  return result;
}

bool is_acyclic_quotient(const Dag& dag, Span<std::int32_t> subgraph, Node count) {
  const std::vector<Edge> crossing = crossing_edges(dag, subgraph);
  return sort_topologically(count, Adjacency(count, crossing, &Edge::from), Adjacency(count, crossing, &Edge::to))
      .cycle.empty();
}

void verify_runs(const Dag& dag, Span<std::int64_t> subgraph, Span<std::int64_t> run) {
  const Node count = count_subgraphs(dag, subgraph);
  expect_length(dag, run.size(), "run");
  std::vector<Node> first(static_cast<std::size_t>(count), -1);
  for (Node node = 0; node < dag.nodes(); ++node) {
    Node& named = first[static_cast<std::size_t>(subgraph[node])];
    if (named < 0) named = node;
    if (run[node] == run[named]) continue;
    throw PartitionError("nodes " + std::to_string(named) + " and " + std::to_string(node) + " are both in subgraph " +
                         std::to_string(subgraph[node]) + " and have the runs " + std::to_string(run[named]) + " and " +
                         std::to_string(run[node]) + "; expected one run for each subgraph");
  }
  for (const Edge& edge : dag.edges()) {
    if (subgraph[edge.from] == subgraph[edge.to] || run[edge.from] < run[edge.to]) continue;
    throw PartitionError("the edge from node " + std::to_string(edge.from) + " (subgraph " +
                         std::to_string(subgraph[edge.from]) + ", run " + std::to_string(run[edge.from]) +
                         ") to node " + std::to_string(edge.to) + " (subgraph " + std::to_string(subgraph[edge.to]) +
                         ", run " + std::to_string(run[edge.to]) +
                         ") leads to a run that is not later; this is not a valid certificate");
  }
}

}  // namespace engine::graph

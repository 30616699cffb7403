#include "graph/dag.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "graph/errors.hpp"

namespace engine::graph {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max() - 1;

}  // namespace

std::vector<Edge> checked_edges(std::int64_t nodes, const std::int64_t* edges, std::int64_t edge_count) {
  if (nodes < 0 || nodes > kMax || edge_count < 0 || edge_count > kMax) {
    throw GraphError("a graph of " + std::to_string(nodes) + " nodes and " + std::to_string(edge_count) +
                     " edges; expected at most " + std::to_string(kMax) + " of each");
  }
  std::vector<Edge> checked(static_cast<std::size_t>(edge_count));
  for (std::int64_t i = 0; i < edge_count; ++i) {
    const std::int64_t from = edges[2 * i];
    const std::int64_t to = edges[2 * i + 1];
    if (from < 0 || from >= nodes || to < 0 || to >= nodes) {
      throw GraphError("edge " + std::to_string(i) + " leads from node " + std::to_string(from) + " to node " +
                       std::to_string(to) + "; expected nodes 0.." + std::to_string(nodes - 1) + " of " +
                       std::to_string(nodes));
    }
    checked[static_cast<std::size_t>(i)] = {static_cast<Node>(from), static_cast<Node>(to)};
  }
  return checked;
}

Dag::Dag(std::int64_t nodes, const std::int64_t* edges, std::int64_t edge_count)
    : Dag(static_cast<Node>(std::clamp<std::int64_t>(nodes, 0, kMax)), checked_edges(nodes, edges, edge_count)) {}

Dag::Dag(Node nodes, std::vector<Edge> edges)
    : nodes_(nodes),
      edges_(std::move(edges)),
      forward_(nodes, edges_, &Edge::from),
      backward_(nodes, edges_, &Edge::to) {
  for (std::size_t i = 0; i < edges_.size(); ++i) {
    if (edges_[i].from == edges_[i].to) {
      throw GraphError("edge " + std::to_string(i) + " leads from node " + std::to_string(edges_[i].from) +
                       " to itself; a graph to partition has no cycles");
    }
  }
  Sorting sorting = sort_topologically(nodes_, forward_, backward_);
  if (!sorting.cycle.empty()) {
    throw GraphError("the graph has a cycle: " + describe_cycle(sorting.cycle) +
                     "; only an acyclic graph can be partitioned");
  }
  order_ = std::move(sorting.order);
}

Adjacency::Adjacency(Node nodes, const std::vector<Edge>& edges, Node Edge::* at)
    : begin(static_cast<std::size_t>(nodes) + 2), target(edges.size()), edge(edges.size()) {
  Node Edge::* const other = at == &Edge::from ? &Edge::to : &Edge::from;
  // Counted two places ahead: the second pass moves each start to its end, which is the start of the next node.
  for (const Edge& item : edges) ++begin[static_cast<std::size_t>(item.*at) + 2];
  std::int32_t* next = begin.data() + 1;
  for (Node node = 1; node <= nodes; ++node) next[node] += next[node - 1];
  for (std::size_t i = 0; i < edges.size(); ++i) {
    const auto slot = static_cast<std::size_t>(next[edges[i].*at]++);
    target[slot] = edges[i].*other;
    edge[slot] = static_cast<std::int32_t>(i);
  }
  begin.pop_back();
}

namespace {

// Each node that still waits has a waiting predecessor, so following predecessors visits some node twice.
std::vector<Node> cycle_of(const std::vector<std::int32_t>& waiting, const Adjacency& backward) {
  const auto is_waiting = [&](Node node) { return waiting[node] > 0; };
  std::vector<bool> is_seen(waiting.size());
  std::vector<Node> path;
  auto node = static_cast<Node>(
      std::find_if(waiting.begin(), waiting.end(), [](std::int32_t count) { return count > 0; }) - waiting.begin());
  while (!is_seen[node]) {
    is_seen[node] = true;
    path.push_back(node);
    const Span<Node> before = backward.of(node);
    node = *std::find_if(before.begin(), before.end(), is_waiting);
  }
  path.erase(path.begin(), std::find(path.begin(), path.end(), node));
  std::reverse(path.begin(), path.end());
  std::rotate(path.begin(), std::min_element(path.begin(), path.end()), path.end());
  return path;
}

}  // namespace

Sorting sort_topologically(Node nodes, const Adjacency& forward, const Adjacency& backward) {
  Sorting sorting;
  std::vector<std::int32_t> waiting(static_cast<std::size_t>(nodes));
  sorting.order.reserve(static_cast<std::size_t>(nodes));
  for (Node node = 0; node < nodes; ++node) {
    waiting[node] = static_cast<std::int32_t>(backward.of(node).size());
    if (waiting[node] == 0) sorting.order.push_back(node);
  }
  for (std::size_t done = 0; done < sorting.order.size(); ++done) {
    for (const Node next : forward.of(sorting.order[done])) {
      if (--waiting[next] == 0) sorting.order.push_back(next);
    }
  }
  if (sorting.order.size() != static_cast<std::size_t>(nodes)) sorting.cycle = cycle_of(waiting, backward);
  return sorting;
}

std::string describe_cycle(const std::vector<Node>& nodes) {
  constexpr std::size_t kShown = 12;
  std::string text;
  const std::size_t left_out = nodes.size() > kShown + 1 ? nodes.size() - kShown : 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (left_out > 0 && i == kShown / 2) {
      text += "(" + std::to_string(left_out) + " more) -> ";
      i += left_out;
    }
    text += std::to_string(nodes[i]) + " -> ";
  }
  return text + (nodes.empty() ? "" : std::to_string(nodes.front()));
}

}  // namespace engine::graph

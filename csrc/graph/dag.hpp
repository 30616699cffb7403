// A directed acyclic graph that can be traversed in both directions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace engine::graph {

using Node = std::int32_t;

// A non-owning view of a part of an array.
template <class T>
struct Span {
  const T* first = nullptr;
  const T* last = nullptr;

  const T* begin() const { return first; }
  const T* end() const { return last; }
  std::size_t size() const { return static_cast<std::size_t>(last - first); }
  const T& operator[](std::size_t i) const { return first[i]; }
};

template <class T>
Span<T> span_of(const std::vector<T>& items) {
  return {items.data(), items.data() + items.size()};
}

struct Edge {
  Node from;
  Node to;
};

// Reads `edge_count` pairs (from, to). Throws GraphError if there are more nodes or edges than 32 bits can number, or a
// node is not in 0..nodes-1.
std::vector<Edge> checked_edges(std::int64_t nodes, const std::int64_t* edges, std::int64_t edge_count);

// The edges of a graph, grouped by one of their ends: the neighbours of each node in one direction.
struct Adjacency {
  std::vector<std::int32_t> begin;  // for each node, its start in `target`; has one more element than there are nodes
  std::vector<Node> target;
  std::vector<std::int32_t> edge;  // the number of each edge

  // Groups edges by the end `at`.
  Adjacency(Node nodes, const std::vector<Edge>& edges, Node Edge::* at);

  Span<Node> of(Node node) const { return {target.data() + begin[node], target.data() + begin[node + 1]}; }
  Span<std::int32_t> edges_of(Node node) const { return {edge.data() + begin[node], edge.data() + begin[node + 1]}; }
};

// An order of nodes in which each comes after its predecessors; if there is none, the nodes of one cycle.
struct Sorting {
  std::vector<Node> order;
  std::vector<Node> cycle;
};

// O(V + E). Nodes without predecessors come first, by number, then nodes whose predecessors are all sorted.
Sorting sort_topologically(Node nodes, const Adjacency& forward, const Adjacency& backward);

// "3 -> 5 -> 3" for {3, 5}; for a long cycle, the middle is replaced by the number of omitted nodes.
std::string describe_cycle(const std::vector<Node>& nodes);

// Immutable and always acyclic. Parallel edges are kept. Neighbours are in the order of the edges.
class Dag {
 public:
  // `edges` has `edge_count` pairs (from, to). O(V + E) time and memory. Throws GraphError if this is not an acyclic
  // graph; for a cycle, the message names the nodes.
  Dag(std::int64_t nodes, const std::int64_t* edges, std::int64_t edge_count);
  Dag(Node nodes, std::vector<Edge> edges);

  Node nodes() const { return nodes_; }
  std::int32_t edge_count() const { return static_cast<std::int32_t>(edges_.size()); }
  // In the given order.
  const std::vector<Edge>& edges() const { return edges_; }

  Span<Node> successors(Node node) const { return forward_.of(node); }
  Span<Node> predecessors(Node node) const { return backward_.of(node); }
  // The indices of the edges to the successors (from the predecessors), in the same order.
  Span<std::int32_t> out_edges(Node node) const { return forward_.edges_of(node); }
  Span<std::int32_t> in_edges(Node node) const { return backward_.edges_of(node); }

  // All nodes, each after its predecessors.
  const std::vector<Node>& order() const { return order_; }

 private:
  Node nodes_;
  std::vector<Edge> edges_;
  Adjacency forward_;
  Adjacency backward_;
  std::vector<Node> order_;
};

}  // namespace engine::graph

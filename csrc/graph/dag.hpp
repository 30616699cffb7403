// A directed acyclic graph, read in both directions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace engine::graph {

using Node = std::int32_t;

// A part of an array that lives elsewhere.
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

// Reads `edge_count` pairs (from, to). Throws GraphError for more nodes or edges than 32 bits number, and for nodes
// that are not in 0..nodes-1.
std::vector<Edge> checked_edges(std::int64_t nodes, const std::int64_t* edges, std::int64_t edge_count);

// The edges of a graph by one of their ends: the neighbours of each node in one direction.
struct Adjacency {
  std::vector<std::int32_t> begin;  // of each node, in `target`; one more than there are nodes
  std::vector<Node> target;
  std::vector<std::int32_t> edge;  // the number of each edge

  // By `at`, towards the other end.
  Adjacency(Node nodes, const std::vector<Edge>& edges, Node Edge::* at);

  Span<Node> of(Node node) const { return {target.data() + begin[node], target.data() + begin[node + 1]}; }
  Span<std::int32_t> edges_of(Node node) const { return {edge.data() + begin[node], edge.data() + begin[node + 1]}; }
};

// An order of nodes in which each comes after its predecessors; where there is none, the nodes of one cycle.
struct Sorting {
  std::vector<Node> order;
  std::vector<Node> cycle;
};

// O(V + E). Nodes without predecessors come first, by number, then what they free.
Sorting sort_topologically(Node nodes, const Adjacency& forward, const Adjacency& backward);

// "3 -> 5 -> 3" of {3, 5}; the middle of a long cycle is left out, and counted.
std::string describe_cycle(const std::vector<Node>& nodes);

// Immutable. A graph with a cycle cannot be made. Parallel edges are kept. Neighbours come in the order of the edges.
class Dag {
 public:
  // `edges` holds `edge_count` pairs (from, to). O(V + E) time and memory. Throws GraphError for what is no acyclic
  // graph; of a cycle the message names the nodes.
  Dag(std::int64_t nodes, const std::int64_t* edges, std::int64_t edge_count);
  Dag(Node nodes, std::vector<Edge> edges);

  Node nodes() const { return nodes_; }
  std::int32_t edge_count() const { return static_cast<std::int32_t>(edges_.size()); }
  // In the order in which they were given.
  const std::vector<Edge>& edges() const { return edges_; }

  Span<Node> successors(Node node) const { return forward_.of(node); }
  Span<Node> predecessors(Node node) const { return backward_.of(node); }
  // The numbers of the edges to the successors (from the predecessors), in the same order.
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

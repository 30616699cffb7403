// The transitive closure: as a table of bits if that fits into memory, otherwise by searching.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "graph/dag.hpp"

namespace engine::graph {

// Thread-safe. The graph must outlive the closure.
class Closure {
 public:
  // Uses about nodes^2 / 16 bytes if that is at most `max_bytes`; each query then takes constant time. Otherwise a
  // query searches the nodes between the two in topological order, O(V + E) at worst, one query at a time.
  Closure(const Dag& dag, std::size_t max_bytes, int threads);

  // The memory that the table of bits would take.
  static std::size_t table_bytes(Node nodes);

  bool is_dense() const { return !words_.empty() || dag_.nodes() == 0; }
  std::size_t bytes() const;

  // Whether a path of at least one edge leads from `from` to `to`.
  bool reaches(Node from, Node to) const;
  // The nodes on all paths from `from` to `to`, excluding both, ascending. O(V + E).
  std::vector<Node> path_nodes(Node from, Node to) const;

  // The position of a node in topological order.
  Node place(Node node) const { return place_[node]; }
  // The number of words in a full row of bits.
  std::size_t row_length() const { return row_length_; }
  // Only if the closure is dense: the nodes that a node reaches, as bits indexed by position. No earlier position is
  // reached, so a row begins with the word of its own node: words 0..place/64-1 do not exist.
  const std::uint64_t* row(Node place) const { return words_.data() + row_begin_[place] - place / 64; }

 private:
  std::size_t row_words(Node place) const { return row_length_ - static_cast<std::size_t>(place) / 64; }
  void fill(int threads);
  void fill_columns(std::size_t first, std::size_t last);
  bool search(Node from, Node to) const;

  const Dag& dag_;
  std::vector<Node> place_;  // of each node in topological order
  std::size_t row_length_ = 0;
  std::vector<std::size_t> row_begin_;
  std::vector<std::uint64_t> words_;

  mutable std::mutex searching_;
  mutable std::vector<std::uint32_t> seen_;  // the last search that visited each node
  mutable std::uint32_t searches_ = 0;
};

}  // namespace engine::graph

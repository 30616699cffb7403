// Which node reaches which: as a table of bits where that fits into memory, by searching where it does not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "graph/dag.hpp"

namespace engine::graph {

// Any number of threads may ask at once. The graph has to stay.
class Closure {
 public:
  // About nodes^2 / 16 bytes where that is `max_bytes` at most; then an answer takes constant time. Otherwise an answer
  // takes a search of what lies between the two nodes in topological order, O(V + E) at worst, one at a time.
  Closure(const Dag& dag, std::size_t max_bytes, int threads);

  // The memory that the table of bits takes (would take).
  static std::size_t table_bytes(Node nodes);

  bool is_dense() const { return !words_.empty() || dag_.nodes() == 0; }
  std::size_t bytes() const;

  // Whether a path of one edge or more leads from one node to the other.
  bool reaches(Node from, Node to) const;
  // The nodes on all paths from one to the other, without the two, ascending. O(V + E).
  std::vector<Node> path_nodes(Node from, Node to) const;

  // The place of a node in topological order.
  Node place(Node node) const { return place_[node]; }
  // The words of a whole row of bits.
  std::size_t row_length() const { return row_length_; }
  // Where it is dense: what a node reaches, by places, as bits. A row begins with the word of its own node, as nothing
  // before is reached: words 0..place/64-1 are not there.
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
  mutable std::vector<std::uint32_t> seen_;  // the last search that met each node
  mutable std::uint32_t searches_ = 0;
};

}  // namespace engine::graph

// Sets of the nodes of small graphs, as bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "graph/dag.hpp"

namespace engine::graph {

// A set of nodes 0..64 * words - 1.
template <std::size_t words>
class NodeSet {
 public:
  bool has(Node node) const { return bits_[static_cast<std::size_t>(node) / 64] >> (node % 64) & 1; }
  void add(Node node) { bits_[static_cast<std::size_t>(node) / 64] |= std::uint64_t{1} << (node % 64); }

  bool is_part_of(const NodeSet& other) const {
    std::uint64_t missing = 0;
    for (std::size_t i = 0; i < words; ++i) missing |= bits_[i] & ~other.bits_[i];
    return missing == 0;
  }

  int size() const {
    int count = 0;
    for (const std::uint64_t word : bits_) count += __builtin_popcountll(word);
    return count;
  }

  // Calls `visit` with each node of this set that is not in `other`, ascending.
  template <class Visit>
  void for_each_not_in(const NodeSet& other, const Visit& visit) const {
    for (std::size_t i = 0; i < words; ++i) {
      for (std::uint64_t left = bits_[i] & ~other.bits_[i]; left != 0; left &= left - 1) {
        visit(static_cast<Node>(64 * i) + __builtin_ctzll(left));
      }
    }
  }

  bool operator==(const NodeSet& other) const { return bits_ == other.bits_; }
  bool operator<(const NodeSet& other) const { return bits_ < other.bits_; }

 private:
  std::array<std::uint64_t, words> bits_{};
};

}  // namespace engine::graph

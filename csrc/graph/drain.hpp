// Kahn's algorithm with a queue for each device: one device empties its queue, then another device continues.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/runs.hpp"

namespace engine::graph {

// A graph traversed forward or backward.
struct View {
  const Dag& dag;
  bool is_backward;

  Span<Node> next(Node node) const { return is_backward ? dag.predecessors(node) : dag.successors(node); }
  Span<Node> previous(Node node) const { return is_backward ? dag.successors(node) : dag.predecessors(node); }
};

// The next device: the one with the most ready nodes, or the one whose ready nodes have the longest remaining way.
enum class Turn { most_ready, longest_way };

// For each node, the maximum number of device changes on a path from it in the direction of `view`, plus one.
std::vector<std::int32_t> ways_ahead(const Problem& problem, const View& view);

// As the first device of a drain: the device that `turn` chooses.
constexpr std::int32_t kBest = -1;

// The sequence of a drain that begins with the device `first`; empty if `first` has no ready node. A backward drain
// also yields the sequence of a partition. `ways` is the result of ways_ahead for the same view. O(V + E) plus the
// number of devices for each run.
Sequence drain(const Problem& problem, const View& view, const std::vector<std::int32_t>& ways, Turn turn,
               std::int32_t first);

// The same as a beam search with `width` drains: of all their next turns, keeps those with the shortest remaining way
// and the most nodes done. O(width * devices * V) for each run.
Sequence beam_drain(const Problem& problem, const View& view, const std::vector<std::int32_t>& ways, std::size_t width);

// Removes each run for which the following runs can execute all remaining nodes; traverses the sequence from the end if
// `view` is backward. O(V log(runs) + E).
Sequence without_spare_runs(const Problem& problem, const View& view, const Sequence& sequence);

}  // namespace engine::graph

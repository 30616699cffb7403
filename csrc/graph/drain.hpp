// Kahn's algorithm with a queue for each device: one device empties its queue, then another one goes on.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/runs.hpp"

namespace engine::graph {

// A graph read from its beginning or from its end.
struct View {
  const Dag& dag;
  bool is_backward;

  Span<Node> next(Node node) const { return is_backward ? dag.predecessors(node) : dag.successors(node); }
  Span<Node> previous(Node node) const { return is_backward ? dag.successors(node) : dag.predecessors(node); }
};

// Who goes next: the device with most nodes ready, or the one whose ready nodes have the longest way before them.
enum class Turn { most_ready, longest_way };

// The most changes of device on a path from each node in the direction of `view`, plus one.
std::vector<std::int32_t> ways_ahead(const Problem& problem, const View& view);

// The device that `turn` chooses, for a drain to begin with.
constexpr std::int32_t kBest = -1;

// The sequence of a drain that begins with the device `first`; empty where that has nothing to begin with. A drain that
// is read from the end gives the sequence of a partition, too. `ways` is that of the same view. O(V + E), and the
// number of devices for each run.
Sequence drain(const Problem& problem, const View& view, const std::vector<std::int32_t>& ways, Turn turn,
               std::int32_t first);

// The same with `width` drains side by side: of all next turns of all of them, those are kept that have the shortest
// way before them and have done most. O(width * devices * V) for each run.
Sequence beam_drain(const Problem& problem, const View& view, const std::vector<std::int32_t>& ways, std::size_t width);

// The sequence without the runs that are left out when each run is, as long as those that follow are enough for what is
// not done; seen from the end where `view` is backward. O(V log(runs) + E).
Sequence without_spare_runs(const Problem& problem, const View& view, const Sequence& sequence);

}  // namespace engine::graph

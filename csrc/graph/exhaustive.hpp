// The minimum number of turns of small graphs with more than two devices, by exhaustive search.
#pragma once

#include <cstdint>
#include <optional>

#include "graph/dag.hpp"
#include "graph/runs.hpp"

namespace engine::graph {

struct Exhaustive {
  Sequence sequence;       // the shortest sequence found
  std::int64_t bound = 0;  // no sequence is shorter; the length of `sequence` if the search was completed
};

// For graphs with at most 1024 nodes and 8 devices; nothing for larger ones. Examines the possible sets of finished
// nodes turn by turn, without those that cannot improve on a known sequence; stops early if there are too many.
std::optional<Exhaustive> search_exhaustively(const Dag& dag, Span<std::int32_t> device, std::int32_t devices);

}  // namespace engine::graph

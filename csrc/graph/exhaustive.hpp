// The fewest turns of small graphs with more than two devices, by trying what could be better.
#pragma once

#include <cstdint>
#include <optional>

#include "graph/dag.hpp"
#include "graph/runs.hpp"

namespace engine::graph {

struct Exhaustive {
  Sequence sequence;       // the shortest that was found
  std::int64_t bound = 0;  // no sequence is shorter; as long as `sequence` where the search came to its end
};

// Of a graph of 1024 nodes and 8 devices at most; nothing for larger ones. Sets of nodes that are done after each turn
// are tried level by level, less those that a known sequence beats; the search ends early where there are too many.
std::optional<Exhaustive> search_exhaustively(const Dag& dag, Span<std::int32_t> device, std::int32_t devices);

}  // namespace engine::graph

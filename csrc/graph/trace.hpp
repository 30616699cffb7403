// What a strategy did, step by step, for those who want to follow it.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/dag.hpp"

namespace engine::graph {

struct TraceStep {
  enum class Kind { root, merge, fail, rollback, end, choose };
  enum class Condition { ok, possible, violated };

  Kind kind;
  std::int32_t device;  // as the caller numbers them
  Node node;            // the node in question; of `end` and `choose`, the root of the candidate
  Condition condition;  // of the subgraph after the step
  Node through;         // the node that makes it possible or violated; -1 where it is ok
};

using Trace = std::vector<TraceStep>;

}  // namespace engine::graph

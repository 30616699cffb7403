// The steps of a strategy, for inspection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "graph/dag.hpp"

namespace engine::graph {

struct TraceStep {
  enum class Kind { roots, root, merge, fail, rollback, end, choose, cut };
  enum class Condition { ok, possible, violated };

  Kind kind;
  std::int32_t device;  // the caller's number
  Node node;            // the step's node; for `end` and `choose`, the root of the candidate; for `roots` and `cut`, -1
  Condition condition;  // of the candidate after the step
  // For `roots`, the nodes that a candidate may grow from; for `choose`, the subgraph; otherwise the nodes that
  // determine the condition. Ascending.
  std::vector<Node> nodes;
};

// Steps up to a limit on steps and on nodes shown with them; if there were more, the last one is `cut`.
class Trace {
 public:
  static constexpr std::size_t kMaxSteps = 100000;
  static constexpr std::size_t kMaxNodes = 5000000;

  const std::vector<TraceStep>& steps() const { return steps_; }
  std::vector<TraceStep>& steps() { return steps_; }
  bool is_full() const { return steps_.size() > kMaxSteps || shown_ > kMaxNodes; }

  // `shown` counts nodes shown in addition to the step's own: the candidate's and the rejected ones.
  void add(TraceStep step, std::size_t shown = 0) {
    if (is_full()) return;
    const std::int32_t device = step.device;
    shown_ += shown + step.nodes.size();
    steps_.push_back(std::move(step));
    if (is_full()) steps_.back() = {TraceStep::Kind::cut, device, -1, TraceStep::Condition::ok, {}};
  }

 private:
  std::vector<TraceStep> steps_;
  std::size_t shown_ = 0;
};

}  // namespace engine::graph

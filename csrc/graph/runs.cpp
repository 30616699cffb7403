#include "graph/runs.hpp"

#include <algorithm>

namespace engine::graph {
namespace {

// Kahn's algorithm with a queue for each device: the current device empties its queue, then another one goes on.
class Drain {
 public:
  explicit Drain(const Problem& problem) : problem_(problem) {}

  // Begins with the device `first`, and goes on with the one that has most nodes ready. No runs where `first` has
  // nothing to begin with.
  Runs run(std::int32_t first) {
    const Dag& dag = problem_.dag;
    waiting_.resize(static_cast<std::size_t>(dag.nodes()));
    ready_.assign(static_cast<std::size_t>(problem_.devices), {});
    for (Node node = 0; node < dag.nodes(); ++node) {
      waiting_[node] = static_cast<std::int32_t>(dag.predecessors(node).size());
      if (waiting_[node] == 0) ready_[problem_.device[node]].push_back(node);
    }
    Runs runs;
    runs.of.resize(waiting_.size());
    for (std::int32_t device = first; !ready_[device].empty(); device = next_device()) {
      empty(device, static_cast<std::int32_t>(runs.device.size()), runs.of);
      runs.device.push_back(device);
    }
    return runs;
  }

 private:
  void empty(std::int32_t device, std::int32_t run, std::vector<std::int32_t>& run_of) {
    std::vector<Node>& queue = ready_[device];
    while (!queue.empty()) {
      const Node node = queue.back();
      queue.pop_back();
      run_of[node] = run;
      for (const Node next : problem_.dag.successors(node)) {
        if (--waiting_[next] == 0) ready_[problem_.device[next]].push_back(next);
      }
    }
  }

  std::int32_t next_device() const {
    const auto most = std::max_element(ready_.begin(), ready_.end(),
                                       [](const auto& a, const auto& b) { return a.size() < b.size(); });
    return static_cast<std::int32_t>(most - ready_.begin());
  }

  const Problem& problem_;
  std::vector<std::int32_t> waiting_;
  std::vector<std::vector<Node>> ready_;
};

}  // namespace

Runs find_runs(const Problem& problem) {
  Runs best;
  Drain drain(problem);
  for (std::int32_t first = 0; first < problem.devices; ++first) {
    Runs runs = drain.run(first);
    if (runs.device.empty()) continue;
    if (best.device.empty() || runs.device.size() < best.device.size()) best = std::move(runs);
  }
  return best;
}

}  // namespace engine::graph

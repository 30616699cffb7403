// Runs: a partition as a sequence of devices that take turns, each running as many nodes as possible in its turn.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/dag.hpp"
#include "graph/problem.hpp"

namespace engine::graph {

// The device of each run.
using Sequence = std::vector<std::int32_t>;

struct Runs {
  Sequence device;
  std::vector<std::int32_t> of;  // the run of each node, on its device; never decreases along an edge
  std::int64_t bound = 0;        // the lower bound on their number proven by an exhaustive search, if there was one
};

// The turns of each device.
class Turns {
 public:
  // The sequence must outlive this object.
  Turns(const Sequence& sequence, std::int32_t devices);

  // The device's first turn at or after `run` (last turn at or before it); -1 if there is none.
  std::int32_t at_or_after(std::int32_t device, std::int32_t run) const;
  std::int32_t at_or_before(std::int32_t device, std::int32_t run) const;

 private:
  const Sequence& sequence_;
  std::vector<std::vector<std::int32_t>> of_device_;
};

// The earliest (latest) possible run of each node. Empty if the sequence is too short for some node.
// O(V log(runs) + E).
std::vector<std::int32_t> earliest_runs(const Problem& problem, const Sequence& sequence);
std::vector<std::int32_t> latest_runs(const Problem& problem, const Sequence& sequence);

// The fewest runs: exact for two devices; for more, the best result of several heuristics for the next device, then
// shortened. Nodes are in their earliest possible run. O(V + E) for two devices, near-linear for more.
Runs find_runs(const Problem& problem);

}  // namespace engine::graph

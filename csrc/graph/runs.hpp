// Runs: a partition as a sequence of devices that take turns, each doing what is possible in its turn.
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
  std::vector<std::int32_t> of;  // the run of each node, of its device; never falls along an edge
  std::int64_t bound = 0;        // what an exhaustive search has proven of their number, if there was one
};

// Where each device has its turns.
class Turns {
 public:
  // The sequence has to stay.
  Turns(const Sequence& sequence, std::int32_t devices);

  // The first turn of a device that is not before `run` (the last that is not after it); -1 where there is none.
  std::int32_t at_or_after(std::int32_t device, std::int32_t run) const;
  std::int32_t at_or_before(std::int32_t device, std::int32_t run) const;

 private:
  const Sequence& sequence_;
  std::vector<std::vector<std::int32_t>> of_device_;
};

// Each node in the earliest (latest) run that it can be in. Empty where the sequence ends (begins) too early for some
// node. O(V log(runs) + E).
std::vector<std::int32_t> earliest_runs(const Problem& problem, const Sequence& sequence);
std::vector<std::int32_t> latest_runs(const Problem& problem, const Sequence& sequence);

// Fewest runs: exactly for two devices; for more, the best of several ways to choose who goes next, shortened. Nodes
// are in the earliest run that they can be in. O(V + E) for two devices, near-linear for more.
Runs find_runs(const Problem& problem);

}  // namespace engine::graph

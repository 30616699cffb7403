#include "graph/potential.hpp"

#include <utility>

#include "graph/runs.hpp"

namespace engine::graph {

Labels potential(const Problem& problem, Statistics&) {
  Runs runs = find_runs(problem);
  return {std::move(runs.of), static_cast<Node>(runs.device.size())};
}

}  // namespace engine::graph

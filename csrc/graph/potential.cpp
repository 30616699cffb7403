#include "graph/potential.hpp"

#include <string>
#include <utility>

#include "graph/connected.hpp"
#include "graph/refine.hpp"
#include "graph/runs.hpp"
#include "graph/schedule.hpp"

namespace engine::graph {
namespace {

Labels as_labels(const Runs& runs) {
  return {runs.of, static_cast<Node>(runs.device.size()), runs.bound};
}

Labels as_connected(const Problem& problem, const Runs& runs) {
  Labels labels = connect(problem, runs);
  labels.bound = runs.bound;
  return labels;
}

// Compares both ways to divide one set of runs, by their predicted time.
Labels choose(const Problem& problem, const Runs& runs, Statistics& statistics) {
  const auto report = [&](const std::string& name, const Labels& labels) {
    const double seconds = schedule_seconds(problem, labels);
    statistics[name + ".seconds"] = seconds;
    statistics[name + ".count"] = labels.count;
    if (problem.has_bytes) {
      statistics[name + ".crossing_bytes"] = static_cast<double>(crossing_bytes(problem, labels.subgraph));
    }
    return seconds;
  };
  Labels fewest = as_labels(runs);
  Labels connected = as_connected(problem, runs);
  const bool is_connected = report("connected", connected) < report("min_subgraphs", fewest);
  statistics["is_connected"] = is_connected;
  return is_connected ? connected : fewest;
}

}  // namespace

Labels potential(const Problem& problem, Statistics& statistics) {
  Runs runs = find_runs(problem);
  refine(problem, runs);
  switch (problem.mode) {
    case Mode::connected:
      return as_connected(problem, runs);
    case Mode::automatic:
      return choose(problem, runs, statistics);
    default:
      return as_labels(runs);
  }
}

}  // namespace engine::graph

#include "graph/runs.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "graph/drain.hpp"
#include "graph/exhaustive.hpp"
#include "graph/reduce.hpp"

namespace engine::graph {
namespace {

// The number of passes that remove superfluous runs, alternating from both ends.
constexpr std::int64_t kMaxRunPasses = 6;
constexpr std::int64_t kPassVisits = 400'000;
// The limit for a beam of drains, in visits of nodes: about 20 ms.
constexpr std::int64_t kBeamVisits = 150'000'000;
// Narrower beams are not worthwhile; wider ones bring no further improvement.
constexpr std::int64_t kMinWidth = 2;
constexpr std::int64_t kMaxWidth = 16;
// Drains begin with every device, unless there are more devices than this, or the graph is huge.
constexpr std::int32_t kMaxFirst = 8;
constexpr Node kHugeGraph = 500'000;
// Turns that are searched linearly, since most are near.
constexpr std::int32_t kNear = 8;
// Larger graphs are neither drained backward nor with a beam, since each drain takes long.
constexpr Node kLargeGraph = 50'000;

// With two devices, only the first one can be chosen: computes the earliest turn of each node if the first device has
// the even turns, and if it has the odd turns.
Sequence alternate(const Problem& problem) {
  struct Earliest {
    std::int32_t even;
    std::int32_t odd;
  };
  std::vector<Earliest> turn_of(problem.device.size());
  std::int32_t last_even = 0;
  std::int32_t last_odd = 0;
  for (const Node node : problem.dag.order()) {
    Earliest turn{0, 0};
    for (const Node before : problem.dag.predecessors(node)) {
      turn.even = std::max(turn.even, turn_of[before].even);
      turn.odd = std::max(turn.odd, turn_of[before].odd);
    }
    turn.even += (turn.even & 1) ^ problem.device[node];
    turn.odd += (turn.odd & 1) ^ problem.device[node] ^ 1;
    last_even = std::max(last_even, turn.even);
    last_odd = std::max(last_odd, turn.odd);
    turn_of[node] = turn;
  }
  const std::int32_t first = last_odd < last_even ? 1 : 0;  // a single device begins, with even turns only
  Sequence sequence(static_cast<std::size_t>(std::min(last_even, last_odd)) + 1);
  for (std::size_t run = 0; run < sequence.size(); ++run) {
    sequence[run] = static_cast<std::int32_t>(run & 1) ^ first;
  }
  return sequence;
}

// More than two devices.
class Search {
 public:
  // The problem must outlive the search.
  explicit Search(const Problem& problem) : problem_(problem) {}

  Sequence run() {
    const std::optional<Exhaustive> small =
        search_exhaustively(problem_.dag, span_of(problem_.device), problem_.devices);
    if (small) {
      bound_ = small->bound;
      offer(small->sequence);
      if (bound_ == static_cast<std::int64_t>(best_.size())) return std::move(best_);
    }
    for (const bool is_backward : {false, true}) {
      if (is_backward && problem_.dag.nodes() > kLargeGraph) break;
      const View view{problem_.dag, is_backward};
      const std::vector<std::int32_t> ways = ways_ahead(problem_, view);
      offer(best_drain(view, ways, Turn::longest_way));
      Sequence other = best_drain(view, ways, Turn::most_ready);
      offer(problem_.dag.nodes() > kHugeGraph ? std::move(other) : shortened(std::move(other)));
      offer(shortened(best_));
      try_beam(view, ways);
    }
    return std::move(best_);
  }

  // The lower bound on the number of runs proven by an exhaustive search; 0 if there was none.
  std::int64_t bound() const { return bound_; }

 private:
  Sequence best_drain(const View& view, const std::vector<std::int32_t>& ways, Turn turn) const {
    if (problem_.devices > kMaxFirst || problem_.dag.nodes() > kHugeGraph)
      return drain(problem_, view, ways, turn, kBest);
    Sequence best;
    for (std::int32_t first = 0; first < problem_.devices; ++first) {
      Sequence sequence = drain(problem_, view, ways, turn, first);
      if (best.empty() || (!sequence.empty() && sequence.size() < best.size())) best = std::move(sequence);
    }
    return best;
  }

  void try_beam(const View& view, const std::vector<std::int32_t>& ways) {
    if (problem_.dag.nodes() > kLargeGraph) return;
    const std::int64_t visits = static_cast<std::int64_t>(best_.size()) * problem_.devices * problem_.dag.nodes();
    const std::int64_t width = std::min(kMaxWidth, kBeamVisits / std::max<std::int64_t>(visits, 1));
    if (width >= kMinWidth) offer(shortened(beam_drain(problem_, view, ways, static_cast<std::size_t>(width))));
  }

  void offer(Sequence sequence) {
    if (best_.empty() || sequence.size() < best_.size()) best_ = std::move(sequence);
  }

  Sequence shortened(Sequence sequence) const {
    const std::int64_t passes = std::clamp<std::int64_t>(kPassVisits / problem_.dag.nodes(), 2, kMaxRunPasses);
    int unchanged = 0;
    for (std::int64_t pass = 0; unchanged < 2 && pass < passes; ++pass) {
      const std::size_t before = sequence.size();
      sequence = without_spare_runs(problem_, View{problem_.dag, pass % 2 == 1}, sequence);
      unchanged = sequence.size() < before ? 0 : unchanged + 1;
    }
    return sequence;
  }

  const Problem& problem_;
  Sequence best_;
  std::int64_t bound_ = 0;
};

}  // namespace

Turns::Turns(const Sequence& sequence, std::int32_t devices)
    : sequence_(sequence), of_device_(static_cast<std::size_t>(devices)) {
  for (std::size_t run = 0; run < sequence.size(); ++run) {
    of_device_[sequence[run]].push_back(static_cast<std::int32_t>(run));
  }
}

std::int32_t Turns::at_or_after(std::int32_t device, std::int32_t run) const {
  const std::int32_t end = std::min(run + kNear, static_cast<std::int32_t>(sequence_.size()));
  for (std::int32_t near = run; near < end; ++near) {
    if (sequence_[near] == device) return near;
  }
  const std::vector<std::int32_t>& turns = of_device_[device];
  const auto found = std::lower_bound(turns.begin(), turns.end(), run);
  return found == turns.end() ? -1 : *found;
}

std::int32_t Turns::at_or_before(std::int32_t device, std::int32_t run) const {
  const std::int32_t end = std::max(run - kNear, -1);
  for (std::int32_t near = run; near > end; --near) {
    if (sequence_[near] == device) return near;
  }
  const std::vector<std::int32_t>& turns = of_device_[device];
  const auto found = std::upper_bound(turns.begin(), turns.end(), run);
  return found == turns.begin() ? -1 : found[-1];
}

std::vector<std::int32_t> earliest_runs(const Problem& problem, const Sequence& sequence) {
  const Turns turns(sequence, problem.devices);
  std::vector<std::int32_t> run_of(problem.device.size());
  for (const Node node : problem.dag.order()) {
    std::int32_t run = 0;
    for (const Node before : problem.dag.predecessors(node)) run = std::max(run, run_of[before]);
    run = turns.at_or_after(problem.device[node], run);
    if (run < 0) return {};
    run_of[node] = run;
  }
  return run_of;
}

std::vector<std::int32_t> latest_runs(const Problem& problem, const Sequence& sequence) {
  const Turns turns(sequence, problem.devices);
  std::vector<std::int32_t> run_of(problem.device.size());
  const std::vector<Node>& order = problem.dag.order();
  for (auto node = order.rbegin(); node != order.rend(); ++node) {
    auto run = static_cast<std::int32_t>(sequence.size()) - 1;
    for (const Node next : problem.dag.successors(*node)) run = std::min(run, run_of[next]);
    run = turns.at_or_before(problem.device[*node], run);
    if (run < 0) return {};
    run_of[*node] = run;
  }
  return run_of;
}

Runs find_runs(const Problem& problem) {
  Runs runs;
  if (problem.dag.nodes() == 0) return runs;
  if (problem.devices <= 2) {
    runs.device = alternate(problem);
  } else if (problem.dag.nodes() <= kMaxReduced) {
    const Reduced reduced = reduce(problem.dag, span_of(problem.device));
    const Problem smaller{reduced.dag, reduced.device, problem.devices};
    Search search(smaller);
    runs.device = search.run();
    runs.bound = search.bound();
  } else {
    runs.device = Search(problem).run();
  }
  runs.of = earliest_runs(problem, runs.device);
  return runs;
}

}  // namespace engine::graph

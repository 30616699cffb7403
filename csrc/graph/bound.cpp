#include "graph/bound.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

#include "graph/devices.hpp"
#include "graph/exhaustive.hpp"
#include "graph/reduce.hpp"

namespace engine::graph {
namespace {

// The largest number of devices for which all pairs are examined; the search over their sets takes 2^kMaxDevices steps.
constexpr std::int32_t kMaxDevices = 8;

std::vector<std::int64_t> count_nodes(Span<std::int32_t> device, std::int32_t devices) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(devices));
  for (const std::int32_t one : device) ++counts[one];
  return counts;
}

class Bound {
 public:
  Bound(const Dag& dag, Span<std::int32_t> device, std::int32_t devices) : dag_(dag), device_(device) {
    const std::vector<std::int64_t> counts = count_nodes(device, devices);
    chosen_.resize(static_cast<std::size_t>(devices));
    std::iota(chosen_.begin(), chosen_.end(), 0);
    std::stable_sort(chosen_.begin(), chosen_.end(), [&](auto a, auto b) { return counts[a] > counts[b]; });
    left_out_ = std::max(0, devices - kMaxDevices);
    chosen_.resize(static_cast<std::size_t>(devices - left_out_));
    reached_.resize(static_cast<std::size_t>(dag.nodes()));
  }

  std::int64_t value() {
    const std::size_t count = chosen_.size();
    turns_.assign(count, std::vector<std::int64_t>(count));
    for (std::size_t a = 0; a < count; ++a) {
      for (std::size_t b = 0; b < a; ++b) turns_[a][b] = turns_[b][a] = turns(chosen_[a], chosen_[b]);
    }
    return best_packing() + left_out_;
  }

 private:
  // The fewest turns of devices `a` and `b`, from the earliest turn of each node: if a begins, it has the even turns,
  // and b the odd ones.
  std::int64_t turns(std::int32_t a, std::int32_t b) {
    std::int64_t last_a_first = -1;
    std::int64_t last_b_first = -1;
    for (const Node node : dag_.order()) {
      Earliest turn{0, 0};
      for (const Node before : dag_.predecessors(node)) {
        turn.a_first = std::max(turn.a_first, reached_[before].a_first);
        turn.b_first = std::max(turn.b_first, reached_[before].b_first);
      }
      if (device_[node] == a || device_[node] == b) {
        const std::int32_t is_b = device_[node] == b;
        turn.a_first += (turn.a_first & 1) ^ is_b;
        turn.b_first += (turn.b_first & 1) ^ is_b ^ 1;
        last_a_first = std::max<std::int64_t>(last_a_first, turn.a_first);
        last_b_first = std::max<std::int64_t>(last_b_first, turn.b_first);
      }
      reached_[node] = turn;
    }
    return std::min(last_a_first, last_b_first) + 1;
  }

  // Divides the devices into sets of one, two and three so that the sum of the turns they need is largest.
  std::int64_t best_packing() const {
    const std::size_t count = chosen_.size();
    std::vector<std::int64_t> best(std::size_t{1} << count, 0);
    for (std::size_t set = 1; set < best.size(); ++set) {
      std::size_t a = 0;
      while (!(set >> a & 1)) ++a;
      const std::size_t others = set ^ std::size_t{1} << a;
      best[set] = best[others] + 1;
      for (std::size_t b = a + 1; b < count; ++b) {
        if (!(others >> b & 1)) continue;
        const std::size_t rest = others ^ std::size_t{1} << b;
        best[set] = std::max(best[set], best[rest] + turns_[a][b]);
        for (std::size_t c = b + 1; c < count; ++c) {
          if (!(rest >> c & 1)) continue;
          const std::int64_t halves = turns_[a][b] + turns_[a][c] + turns_[b][c];
          best[set] = std::max(best[set], best[rest ^ std::size_t{1} << c] + (halves + 1) / 2);
        }
      }
    }
    return best.back();
  }

  struct Earliest {
    std::int32_t a_first;
    std::int32_t b_first;
  };

  const Dag& dag_;
  Span<std::int32_t> device_;
  std::vector<std::int32_t> chosen_;
  std::int32_t left_out_;
  std::vector<Earliest> reached_;
  std::vector<std::vector<std::int64_t>> turns_;
};

// The maximum number of device changes along a path, plus one.
std::int64_t longest_changes(const Dag& dag, Span<std::int32_t> device) {
  std::vector<std::int32_t> changes(static_cast<std::size_t>(dag.nodes()), 1);
  std::int32_t most = 0;
  for (const Node node : dag.order()) {
    for (const Node before : dag.predecessors(node)) {
      changes[node] = std::max(changes[node], changes[before] + (device[before] != device[node]));
    }
    most = std::max(most, changes[node]);
  }
  return most;
}

// 0 if the graph is too large.
std::int64_t search_for_bound(const Dag& dag, Span<std::int32_t> device, std::int32_t devices) {
  if (dag.nodes() > kMaxReduced) return 0;
  const Reduced reduced = reduce(dag, device);
  const std::optional<Exhaustive> found = search_exhaustively(reduced.dag, span_of(reduced.device), devices);
  return found ? found->bound : 0;
}

}  // namespace

std::int64_t lower_bound(const Dag& dag, Span<std::int32_t> device, std::int32_t devices, std::int64_t searched) {
  if (devices <= 1) return std::min<std::int64_t>(devices, dag.nodes());
  const std::int64_t packed = Bound(dag, device, devices).value();
  if (devices == 2) return packed;
  const std::int64_t bound = std::max({packed, longest_changes(dag, device), searched});
  return searched > 0 ? bound : std::max(bound, search_for_bound(dag, device, devices));
}

std::int64_t lower_bound_of(const Dag& dag, Span<std::int64_t> affinity) {
  const Devices devices = number_devices(dag, affinity);
  return lower_bound(dag, span_of(devices.of_node), static_cast<std::int32_t>(devices.used.size()));
}

}  // namespace engine::graph

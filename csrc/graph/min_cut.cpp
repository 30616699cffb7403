#include "graph/min_cut.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <string>

#include "graph/errors.hpp"

namespace engine::graph {
namespace {

using Arc = std::int32_t;

constexpr Arc kNone = -1;      // a node that is in no tree
constexpr Arc kTerminal = -2;  // a child of the source or of the sink
constexpr Arc kOrphan = -3;    // a node of a tree that has lost its parent
constexpr std::int32_t kUnreachable = std::numeric_limits<std::int32_t>::max();

void check(Span<std::int64_t> costs, std::size_t expected, const char* what, std::int64_t& sum) {
  if (costs.size() != expected) {
    throw PartitionError(std::string(what) + " has " + std::to_string(costs.size()) + " numbers; expected " +
                         std::to_string(expected));
  }
  for (std::size_t i = 0; i < costs.size(); ++i) {
    if (costs[i] < 0) {
      throw PartitionError(std::string(what) + " number " + std::to_string(i) + " is " + std::to_string(costs[i]) +
                           "; expected 0 or more");
    }
    if (__builtin_add_overflow(sum, costs[i], &sum)) {
      throw PartitionError("the costs of a cut together do not fit into 64 bits; use a coarser unit");
    }
  }
}

// Two trees of unsaturated arcs grow from the source and from the sink until they meet. The path between them is then
// augmented; nodes that saturated arcs cut off from their tree look for another parent. Names as in the paper.
class Flow {
 public:
  Flow(Node nodes, const std::vector<Edge>& edges, const CutCosts& costs)
      : begin_(static_cast<std::size_t>(nodes) + 2),
        head_(2 * edges.size()),
        sister_(2 * edges.size()),
        residual_(2 * edges.size()),
        terminal_(static_cast<std::size_t>(nodes)),
        parent_(static_cast<std::size_t>(nodes), kNone),
        is_sink_(static_cast<std::size_t>(nodes)),
        is_active_(static_cast<std::size_t>(nodes)),
        stamp_(static_cast<std::size_t>(nodes)),
        distance_(static_cast<std::size_t>(nodes)) {
    link(edges, costs);
    for (Node node = 0; node < nodes; ++node) {
      // On the first side, the arc to the sink is cut. The smaller capacity of both arcs is cut in any case.
      const std::int64_t through = std::min(costs.first[node], costs.second[node]);
      total_ += through;
      terminal_[node] = costs.second[node] - costs.first[node];
      if (terminal_[node] == 0) continue;
      is_sink_[node] = terminal_[node] < 0;
      parent_[node] = kTerminal;
      distance_[node] = 1;
      activate(node);
    }
  }

  Cut run() {
    while (!active_.empty()) {
      const Node node = active_.front();
      const Arc meeting = parent_[node] == kNone ? kNone : grow(node);
      if (meeting == kNone) {
        active_.pop_front();
        is_active_[node] = false;
        continue;
      }
      ++time_;
      augment(meeting);
      adopt();
    }
    Cut cut;
    cut.cost = total_;
    cut.is_second.resize(parent_.size());
    for (std::size_t node = 0; node < parent_.size(); ++node) {
      cut.is_second[node] = parent_[node] == kNone || is_sink_[node];
    }
    return cut;
  }

 private:
  void link(const std::vector<Edge>& edges, const CutCosts& costs) {
    for (const Edge& edge : edges) {
      ++begin_[static_cast<std::size_t>(edge.from) + 2];
      ++begin_[static_cast<std::size_t>(edge.to) + 2];
    }
    for (std::size_t i = 2; i < begin_.size(); ++i) begin_[i] += begin_[i - 1];
    for (std::size_t i = 0; i < edges.size(); ++i) {
      const Arc there = begin_[static_cast<std::size_t>(edges[i].from) + 1]++;
      const Arc back = begin_[static_cast<std::size_t>(edges[i].to) + 1]++;
      head_[there] = edges[i].to;
      head_[back] = edges[i].from;
      sister_[there] = back;
      sister_[back] = there;
      residual_[there] = costs.forward[i];
      residual_[back] = costs.backward[i];
    }
  }

  void activate(Node node) {
    if (is_active_[node]) return;
    is_active_[node] = true;
    active_.push_back(node);
  }

  // The residual capacity between a node and a neighbour in the direction of the node's tree: away from the source, or
  // towards the sink.
  std::int64_t outward(Arc arc, bool is_sink) const { return residual_[is_sink ? sister_[arc] : arc]; }
  std::int64_t inward(Arc arc, bool is_sink) const { return residual_[is_sink ? arc : sister_[arc]]; }

  // Adds free neighbours to the node's tree. Returns an arc from the source's tree to the sink's, if there is one.
  Arc grow(Node node) {
    const bool is_sink = is_sink_[node];
    for (Arc arc = begin_[node]; arc < begin_[static_cast<std::size_t>(node) + 1]; ++arc) {
      if (outward(arc, is_sink) == 0) continue;
      const Node other = head_[arc];
      if (parent_[other] == kNone) {
        is_sink_[other] = is_sink;
        join(other, sister_[arc], node);
        activate(other);
      } else if (is_sink_[other] != is_sink) {
        return is_sink ? sister_[arc] : arc;
      } else if (stamp_[other] <= stamp_[node] && distance_[other] > distance_[node] + 1) {
        join(other, sister_[arc], node);  // a shorter way to the terminal
      }
    }
    return kNone;
  }

  void join(Node child, Arc to_parent, Node parent) {
    parent_[child] = to_parent;
    stamp_[child] = stamp_[parent];
    distance_[child] = distance_[parent] + 1;
  }

  void augment(Arc meeting) {
    std::int64_t amount = residual_[meeting];
    for (const bool is_sink : {false, true}) {
      Node node = is_sink ? head_[meeting] : head_[sister_[meeting]];
      for (; parent_[node] != kTerminal; node = head_[parent_[node]]) {
        amount = std::min(amount, inward(parent_[node], is_sink));
      }
      amount = std::min(amount, is_sink ? -terminal_[node] : terminal_[node]);
    }
    push(meeting, amount);
    for (const bool is_sink : {false, true}) {
      Node node = is_sink ? head_[meeting] : head_[sister_[meeting]];
      while (parent_[node] != kTerminal) {
        const Arc arc = parent_[node];
        const Node above = head_[arc];
        push(is_sink ? arc : sister_[arc], amount);
        if (inward(arc, is_sink) == 0) orphan(node);
        node = above;
      }
      terminal_[node] += is_sink ? amount : -amount;
      if (terminal_[node] == 0) orphan(node);
    }
    total_ += amount;
  }

  void push(Arc arc, std::int64_t amount) {
    residual_[arc] -= amount;
    residual_[sister_[arc]] += amount;
  }

  void orphan(Node node) {
    parent_[node] = kOrphan;
    orphans_.push_front(node);
  }

  void adopt() {
    while (!orphans_.empty()) {
      const Node node = orphans_.front();
      orphans_.pop_front();
      const Arc found = nearest_parent(node);
      if (found != kNone) {
        parent_[node] = found;
        stamp_[node] = time_;
        distance_[node] = distance_[head_[found]] + 1;
      } else {
        set_free(node);
      }
    }
  }

  // The arc to the neighbour in the same tree that is nearest to the terminal.
  Arc nearest_parent(Node node) {
    const bool is_sink = is_sink_[node];
    Arc best = kNone;
    std::int32_t least = kUnreachable;
    for (Arc arc = begin_[node]; arc < begin_[static_cast<std::size_t>(node) + 1]; ++arc) {
      const Node other = head_[arc];
      if (inward(arc, is_sink) == 0 || parent_[other] == kNone || is_sink_[other] != is_sink) continue;
      const std::int32_t far = distance_to_terminal(other);
      if (far >= least) continue;
      best = arc;
      least = far;
    }
    return best;
  }

  // The distance of a node to its terminal; kUnreachable if its ancestors end at an orphan. Stamps the visited nodes.
  std::int32_t distance_to_terminal(Node start) {
    std::int32_t steps = 0;
    Node node = start;
    while (stamp_[node] != time_) {
      if (parent_[node] == kOrphan) return kUnreachable;
      if (parent_[node] == kTerminal) {
        stamp_[node] = time_;
        distance_[node] = 1;
        break;
      }
      ++steps;
      node = head_[parent_[node]];
    }
    if (parent_[node] == kOrphan) return kUnreachable;
    const std::int32_t whole = distance_[node] + steps;
    std::int32_t far = whole;
    for (node = start; stamp_[node] != time_; node = head_[parent_[node]]) {
      stamp_[node] = time_;
      distance_[node] = far--;
    }
    return whole;
  }

  void set_free(Node node) {
    const bool is_sink = is_sink_[node];
    for (Arc arc = begin_[node]; arc < begin_[static_cast<std::size_t>(node) + 1]; ++arc) {
      const Node other = head_[arc];
      if (parent_[other] == kNone || is_sink_[other] != is_sink) continue;
      if (inward(arc, is_sink) > 0) activate(other);  // it may grow here again
      if (parent_[other] >= 0 && head_[parent_[other]] == node) {
        parent_[other] = kOrphan;
        orphans_.push_back(other);
      }
    }
    parent_[node] = kNone;
  }

  std::vector<Arc> begin_;  // of each node's arcs
  std::vector<Node> head_;
  std::vector<Arc> sister_;  // the reverse arc
  std::vector<std::int64_t> residual_;
  std::vector<std::int64_t> terminal_;  // residual capacity: above 0 from the source, below 0 to the sink
  std::vector<Arc> parent_;
  std::vector<bool> is_sink_;
  std::vector<bool> is_active_;
  std::vector<std::int64_t> stamp_;  // when the distance was last known to be correct
  std::vector<std::int32_t> distance_;
  std::deque<Node> active_;
  std::deque<Node> orphans_;
  std::int64_t time_ = 0;
  std::int64_t total_ = 0;
};

}  // namespace

Cut min_cut(Node nodes, const std::vector<Edge>& edges, const CutCosts& costs) {
  std::int64_t sum = 0;
  check(costs.first, static_cast<std::size_t>(nodes), "first", sum);
  check(costs.second, static_cast<std::size_t>(nodes), "second", sum);
  check(costs.forward, edges.size(), "forward", sum);
  check(costs.backward, edges.size(), "backward", sum);
  if (edges.size() > static_cast<std::size_t>(std::numeric_limits<Arc>::max() / 2)) {
    throw PartitionError("a cut over " + std::to_string(edges.size()) + " edges; expected at most " +
                         std::to_string(std::numeric_limits<Arc>::max() / 2));
  }
  return Flow(nodes, edges, costs).run();
}

}  // namespace engine::graph

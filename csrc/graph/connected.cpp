#include "graph/connected.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace engine::graph {
namespace {

// Limits on the nodes that one join may search, and all joins for each part; they keep the time linear.
constexpr std::int64_t kVisitsOfJoin = 20'000;
constexpr std::int64_t kVisitsOfPart = 50;
constexpr int kMaxRounds = 4;

// Joins parts of a graph and keeps it acyclic. Maintains a topological order of the parts, which each join repairs
// locally (Pearce and Kelly, ACM JEA 11, 2007).
class Joiner {
 public:
  Joiner(const Problem& problem, const std::vector<Node>& part_of, Node parts)
      : problem_(problem),
        edges_(edges_between(problem, part_of)),
        forward_(parts, edges_, &Edge::from),
        backward_(parts, edges_, &Edge::to),
        root_(static_cast<std::size_t>(parts)),
        next_member_(static_cast<std::size_t>(parts), -1),
        last_member_(static_cast<std::size_t>(parts)),
        place_(static_cast<std::size_t>(parts)),
        seen_(static_cast<std::size_t>(parts)),
        visits_left_(kVisitsOfPart * parts) {
    std::iota(root_.begin(), root_.end(), 0);
    std::iota(last_member_.begin(), last_member_.end(), 0);
    const std::vector<Node> order = sort_topologically(parts, forward_, backward_).order;
    for (std::size_t i = 0; i < order.size(); ++i) place_[order[i]] = static_cast<Node>(i);
  }

  // Along the edges that carry the most bytes first.
  void join_all(const std::vector<Node>& part_of) {
    std::vector<std::int32_t> wanted;
    for (std::size_t i = 0; i < problem_.dag.edges().size(); ++i) {
      const Edge& edge = problem_.dag.edges()[i];
      if (part_of[edge.from] != part_of[edge.to] && problem_.device[edge.from] == problem_.device[edge.to]) {
        wanted.push_back(static_cast<std::int32_t>(i));
      }
    }
    std::stable_sort(wanted.begin(), wanted.end(),
                     [&](auto a, auto b) { return problem_.bytes[a] > problem_.bytes[b]; });
    bool is_joined = true;
    for (int round = 0; round < kMaxRounds && is_joined; ++round) {
      is_joined = false;
      for (const std::int32_t i : wanted) {
        const Edge& edge = problem_.dag.edges()[i];
        is_joined |= join(root(part_of[edge.from]), root(part_of[edge.to]));
      }
    }
  }

  Node root(Node part) {
    while (root_[part] != part) part = root_[part] = root_[root_[part]];
    return part;
  }

 private:
  static std::vector<Edge> edges_between(const Problem& problem, const std::vector<Node>& part_of) {
    std::vector<Edge> edges;
    for (const Edge& edge : problem.dag.edges()) {
      if (part_of[edge.from] != part_of[edge.to]) edges.push_back({part_of[edge.from], part_of[edge.to]});
    }
    return edges;
  }

  bool join(Node from, Node to) {
    if (from == to || visits_left_ <= 0) return false;
    // All nodes of any other path are between the two in the order.
    std::vector<Node> after;
    std::vector<Node> before;
    const bool is_free = collect(from, to, forward_, after) && collect(to, from, backward_, before);
    for (const Node part : after) seen_[part] = false;
    for (const Node part : before) seen_[part] = false;
    if (!is_free) return false;
    // The new order, in the same places: the ancestors of the second, the joined part, the descendants of the first.
    std::vector<Node> places{place_[from], place_[to]};
    const auto by_place = [&](Node a, Node b) { return place_[a] < place_[b]; };
    std::sort(before.begin(), before.end(), by_place);
    std::sort(after.begin(), after.end(), by_place);
    for (const Node part : before) places.push_back(place_[part]);
    for (const Node part : after) places.push_back(place_[part]);
    std::sort(places.begin(), places.end());
    auto place = places.begin();
    for (const Node part : before) place_[part] = *place++;
    place_[from] = *place++;
    ++place;
    for (const Node part : after) place_[part] = *place++;
    root_[to] = from;
    next_member_[last_member_[from]] = to;
    last_member_[from] = last_member_[to];
    return true;
  }

  // Collects the parts that a search from `start` finds before `end`. False if the search reaches `end` other than by a
  // direct edge, or takes too long.
  bool collect(Node start, Node end, const Adjacency& adjacency, std::vector<Node>& found) {
    const auto [low, high] = std::minmax(place_[start], place_[end]);
    std::int64_t visits = kVisitsOfJoin;
    std::vector<Node> ahead{start};
    while (!ahead.empty()) {
      const Node part = ahead.back();
      ahead.pop_back();
      for (Node member = part; member >= 0; member = next_member_[member]) {
        for (const Node neighbour : adjacency.of(member)) {
          --visits_left_;
          if (--visits < 0) return false;
          const Node other = root(neighbour);
          if (other == end && part != start) return false;
          if (other == part || seen_[other] || place_[other] <= low || place_[other] >= high) continue;
          seen_[other] = true;
          found.push_back(other);
          ahead.push_back(other);
        }
      }
    }
    return true;
  }

  const Problem& problem_;
  std::vector<Edge> edges_;
  Adjacency forward_;
  Adjacency backward_;
  std::vector<Node> root_;         // the parent in the union-find forest; a root has its own number
  std::vector<Node> next_member_;  // linked lists of the joined parts, from their roots
  std::vector<Node> last_member_;
  std::vector<Node> place_;  // of roots, in a topological order
  std::vector<bool> seen_;
  std::int64_t visits_left_;
};

}  // namespace

std::vector<Node> connected_parts(const Problem& problem, const std::vector<std::int32_t>& label, Node& count) {
  std::vector<Node> part(label.size(), -1);
  std::vector<Node> ahead;
  count = 0;
  for (Node first = 0; first < problem.dag.nodes(); ++first) {
    if (part[first] >= 0) continue;
    part[first] = count;
    ahead.push_back(first);
    while (!ahead.empty()) {
      const Node node = ahead.back();
      ahead.pop_back();
      const auto visit = [&](Node other) {
        if (part[other] >= 0 || label[other] != label[node]) return;
        part[other] = count;
        ahead.push_back(other);
      };
      for (const Node other : problem.dag.successors(node)) visit(other);
      for (const Node other : problem.dag.predecessors(node)) visit(other);
    }
    ++count;
  }
  return part;
}

Labels connect(const Problem& problem, const Runs& runs) {
  Node parts = 0;
  const std::vector<Node> part_of = connected_parts(problem, runs.of, parts);
  Joiner joiner(problem, part_of, parts);
  joiner.join_all(part_of);
  Labels labels;
  labels.subgraph.resize(part_of.size());
  std::vector<Node> number(static_cast<std::size_t>(parts), -1);
  for (std::size_t node = 0; node < part_of.size(); ++node) {
    Node& named = number[joiner.root(part_of[node])];
    if (named < 0) named = labels.count++;
    labels.subgraph[node] = named;
  }
  return labels;
}

}  // namespace engine::graph

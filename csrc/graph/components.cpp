#include "graph/components.hpp"

#include <algorithm>

namespace engine::graph {
namespace {

constexpr Node kUnseen = -1;

// A node whose successors are being visited.
struct Visit {
  Node node;
  std::size_t next;
};

class ComponentSearch {
 public:
  ComponentSearch(Node nodes, const Adjacency& forward)
      : forward_(forward), number_(nodes, kUnseen), lowest_(nodes), component_(nodes, kUnseen) {}

  Components run() {
    for (Node root = 0; root < static_cast<Node>(number_.size()); ++root) {
      if (number_[root] == kUnseen) search_from(root);
    }
    return {std::move(component_), components_};
  }

 private:
  void enter(Node node) {
    number_[node] = lowest_[node] = visited_++;
    open_.push_back(node);
    path_.push_back({node, 0});
  }

  void search_from(Node root) {
    enter(root);
    while (!path_.empty()) {
      const Node node = path_.back().node;
      const Span<Node> successors = forward_.of(node);
      if (path_.back().next == successors.size()) {
        leave(node);
        continue;
      }
      const Node next = successors[path_.back().next++];
      if (number_[next] == kUnseen) {
        enter(next);
      } else if (component_[next] == kUnseen) {
        lowest_[node] = std::min(lowest_[node], number_[next]);
      }
    }
  }

  void leave(Node node) {
    path_.pop_back();
    if (!path_.empty()) lowest_[path_.back().node] = std::min(lowest_[path_.back().node], lowest_[node]);
    if (lowest_[node] != number_[node]) return;
    Node member;
    do {
      member = open_.back();
      open_.pop_back();
      component_[member] = components_;
    } while (member != node);
    ++components_;
  }

  const Adjacency& forward_;
  std::vector<Node> number_;  // in the order of visits
  std::vector<Node> lowest_;  // the lowest number reached through at most one edge back
  std::vector<Node> component_;
  std::vector<Node> open_;  // visited, but not yet in a component
  std::vector<Visit> path_;
  Node visited_ = 0;
  Node components_ = 0;
};

}  // namespace

Components strong_components(Node nodes, const Adjacency& forward) {
  return ComponentSearch(nodes, forward).run();
}

}  // namespace engine::graph

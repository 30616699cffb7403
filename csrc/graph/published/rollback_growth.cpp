#include "graph/published/rollback_growth.hpp"

#include <algorithm>
#include <utility>

namespace engine::graph {

Neighbours::Neighbours(const Dag& dag) {
  begin_.reserve(static_cast<std::size_t>(dag.nodes()) + 1);
  target_.reserve(dag.edges().size() * 2);
  for (Node node = 0; node < dag.nodes(); ++node) {
    begin_.push_back(target_.size());
    append(dag.successors(node));
    append(dag.predecessors(node));
  }
  begin_.push_back(target_.size());
}

void Neighbours::append(Span<Node> nodes) {
  const auto first = static_cast<std::ptrdiff_t>(target_.size());
  target_.insert(target_.end(), nodes.begin(), nodes.end());
  std::sort(target_.begin() + first, target_.end());
  target_.erase(std::unique(target_.begin() + first, target_.end()), target_.end());
}

Growth::Growth(const Problem& problem, const Neighbours& neighbours)
    : neighbours_(neighbours),
      trace_(problem.trace),
      references_(make_self_references(problem.dag, problem.closure_bytes, problem.threads)),
      nodes_(problem.dag.nodes()),
      status_(static_cast<std::size_t>(nodes_), Status::open),
      tried_(static_cast<std::size_t>(nodes_)) {}

const std::vector<Node>& Growth::grow(Node root, std::int32_t device, const std::vector<char>& is_free) {
  clear();
  device_ = device;
  references_->add(root, true);
  join(root);
  record(TraceStep::Kind::root, root);
  for (Node node = adjacent(); node >= 0; node = adjacent()) {
    if (is_free[node]) {
      merge(node);
    } else {
      reject(node);
      record(TraceStep::Kind::fail, node);
    }
    roll_back();
  }
  record(TraceStep::Kind::end, root);
  return subgraph_;
}

void Growth::clear() {
  for (const Node node : touched_) status_[node] = Status::open;
  touched_.clear();
  subgraph_.clear();
  unfinished_.clear();
  references_->clear();
}

// A neighbour that is neither taken nor rejected, of the most recently added member that has one. No neighbour reverts
// to that state, so each neighbour of a member is examined only once.
Node Growth::adjacent() {
  for (; !unfinished_.empty(); unfinished_.pop_back()) {
    const Node node = unfinished_.back();
    const Span<Node> neighbours = neighbours_.of(node);
    for (std::size_t& next = tried_[node]; next < neighbours.size(); ++next) {
      if (status_[neighbours[next]] == Status::open) return neighbours[next];
    }
  }
  return -1;
}

void Growth::merge(Node node) {
  // A trace also shows nodes that are taken and immediately returned.
  if (is_traced()) {
    references_->add(node, true);
    join(node);
    if (record(TraceStep::Kind::merge, node)) give_back();
  } else if (references_->add(node, false)) {
    join(node);
  } else {
    reject(node);
  }
}

void Growth::join(Node node) {
  status_[node] = Status::member;
  touched_.push_back(node);
  subgraph_.push_back(node);
  unfinished_.push_back(node);
  tried_[node] = 0;
}

void Growth::reject(Node node) {
  status_[node] = Status::rejected;
  touched_.push_back(node);
  references_->reject(node);
  if (references_->is_between(node)) violations_.push_back(node);
}

void Growth::give_back() {
  const Node node = subgraph_.back();
  subgraph_.pop_back();
  if (!unfinished_.empty() && unfinished_.back() == node) unfinished_.pop_back();
  references_->remove_last();
  reject(node);
  record(TraceStep::Kind::rollback, node);
}

// Removing members only shrinks the set of nodes in between, so resolved violations do not reappear.
void Growth::roll_back() {
  while (!violations_.empty()) {
    if (references_->is_between(violations_.back())) {
      give_back();
    } else {
      violations_.pop_back();
    }
  }
}

// Returns whether the subgraph refers to itself; false if nothing is recorded.
bool Growth::record(TraceStep::Kind kind, Node node) {
  if (!is_traced()) return false;
  TraceStep step{kind, device_, node, TraceStep::Condition::ok, {}};
  if (kind != TraceStep::Kind::end) {
    std::vector<Node> possible;
    for (Node other = 0; other < nodes_; ++other) {
      if (status_[other] == Status::member || !references_->is_between(other)) continue;
      (status_[other] == Status::rejected ? step.nodes : possible).push_back(other);
    }
    if (!step.nodes.empty()) {
      step.condition = TraceStep::Condition::violated;
    } else if (!possible.empty()) {
      step.condition = TraceStep::Condition::possible;
      step.nodes = std::move(possible);
    }
  }
  const bool is_violated = step.condition == TraceStep::Condition::violated;
  trace_->add(std::move(step), touched_.size());
  return is_violated;
}

}  // namespace engine::graph

// How a candidate of the strategy `rollback` grows from its root.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "graph/problem.hpp"
#include "graph/published/self_references.hpp"

namespace engine::graph {

// The neighbours of each node in the order they are tried: successors before predecessors, lowest index first, each
// once.
class Neighbours {
 public:
  explicit Neighbours(const Dag& dag);

  Span<Node> of(Node node) const { return {target_.data() + begin_[node], target_.data() + begin_[node + 1]}; }

 private:
  void append(Span<Node> nodes);

  std::vector<std::size_t> begin_;
  std::vector<Node> target_;
};

// Grows one candidate after the other.
class Growth {
 public:
  Growth(const Problem& problem, const Neighbours& neighbours);

  // Steps 1 to 7 of the text, from `root`; nodes that are not free fail to merge. Returns the candidate in the order of
  // addition, valid until the next call.
  const std::vector<Node>& grow(Node root, std::int32_t device, const std::vector<char>& is_free);

  // All nodes that the last candidate took or rejected, even temporarily. The candidate depends on no other nodes.
  const std::vector<Node>& touched() const { return touched_; }

  // The size of the closure.
  std::size_t bytes() const { return references_->bytes(); }

 private:
  enum class Status : std::uint8_t { open, member, rejected };

  bool is_traced() const { return trace_ != nullptr && !trace_->is_full(); }
  void clear();
  Node adjacent();
  void merge(Node node);
  void join(Node node);
  void reject(Node node);
  void give_back();
  void roll_back();
  bool record(TraceStep::Kind kind, Node node);

  const Neighbours& neighbours_;
  Trace* trace_;
  std::unique_ptr<SelfReferences> references_;
  Node nodes_;
  std::int32_t device_ = 0;
  std::vector<Status> status_;
  std::vector<std::size_t> tried_;  // of each member: how many of its neighbours have been tried
  std::vector<Node> touched_;
  std::vector<Node> subgraph_;    // in the order of addition
  std::vector<Node> unfinished_;  // members that may have neighbours to be tried, in the order of addition
  std::vector<Node> violations_;  // rejected nodes that may lie between members
};

}  // namespace engine::graph

#include "graph/path_nodes.hpp"

#include <utility>

namespace engine::graph {
namespace {

constexpr std::size_t kBytesOfEntry = 128;  // the size of an empty answer

}  // namespace

PathNodes::PathNodes(std::shared_ptr<const Closure> closure, std::size_t max_bytes)
    : closure_(std::move(closure)), max_bytes_(max_bytes) {}

std::shared_ptr<const std::vector<Node>> PathNodes::between(Node from, Node to) {
  const std::uint64_t key = static_cast<std::uint64_t>(from) << 32 | static_cast<std::uint32_t>(to);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = known_.find(key);
    if (known != known_.end()) return known->second;
  }
  auto found = std::make_shared<const std::vector<Node>>(closure_->path_nodes(from, to));
  const std::size_t bytes = kBytesOfEntry + found->capacity() * sizeof(Node);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (bytes > max_bytes_) return found;
  if (bytes_ + bytes > max_bytes_) {
    known_.clear();
    bytes_ = 0;
  }
  if (known_.emplace(key, found).second) bytes_ += bytes;
  return found;
}

}  // namespace engine::graph

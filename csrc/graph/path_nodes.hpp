// A cache of the nodes between pairs of nodes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "graph/closure.hpp"

namespace engine::graph {

// Thread-safe.
class PathNodes {
 public:
  // Caches answers up to `max_bytes`, and clears the cache when they exceed it.
  PathNodes(std::shared_ptr<const Closure> closure, std::size_t max_bytes);

  // The result of Closure::path_nodes.
  std::shared_ptr<const std::vector<Node>> between(Node from, Node to);

 private:
  std::shared_ptr<const Closure> closure_;
  std::size_t max_bytes_;
  std::mutex mutex_;
  std::size_t bytes_ = 0;
  std::unordered_map<std::uint64_t, std::shared_ptr<const std::vector<Node>>> known_;
};

}  // namespace engine::graph

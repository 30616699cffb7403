// The nodes between pairs of nodes, remembered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "graph/closure.hpp"

namespace engine::graph {

// Any number of threads may ask at once.
class PathNodes {
 public:
  // Remembers answers up to `max_bytes`, and forgets all of them when there are more.
  PathNodes(std::shared_ptr<const Closure> closure, std::size_t max_bytes);

  // What Closure::path_nodes says.
  std::shared_ptr<const std::vector<Node>> between(Node from, Node to);

 private:
  std::shared_ptr<const Closure> closure_;
  std::size_t max_bytes_;
  std::mutex mutex_;
  std::size_t bytes_ = 0;
  std::unordered_map<std::uint64_t, std::shared_ptr<const std::vector<Node>>> known_;
};

}  // namespace engine::graph

// Shared by the tests of graph algorithms.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "graph/dag.hpp"
#include "tests/expectations.hpp"

namespace engine::graph {

// A graph with a device for each node.
struct Case {
  Node nodes = 0;
  std::vector<Edge> edges;
  std::vector<std::int64_t> affinity;
  std::vector<std::int64_t> bytes;
};

// How many random cases a test takes: a tenth under sanitizers, which take ten times as long.
constexpr int random_cases(int count) {
#if defined(__SANITIZE_ADDRESS__)
  return count / 10;
#else
  return count;
#endif
}

// Up to `most_nodes` nodes in a random order, sparse or dense, wide or deep, with 1..`devices` devices that alternate,
// form blocks, or both.
Case random_case(std::mt19937_64& random, Node most_nodes, int devices);

}  // namespace engine::graph

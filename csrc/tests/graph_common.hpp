// Shared by the tests of graph algorithms.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "graph/dag.hpp"

namespace engine::graph {

void expect(bool condition, const std::string& what);
// The exit status of a program: 0 if nothing has failed.
int report();

template <class Error>
void expect_error(const std::string& part, const std::function<void()>& action) {
  try {
    action();
    expect(false, "no error for: " + part);
  } catch (const Error& error) {
    expect(std::string(error.what()).find(part) != std::string::npos, part + " is not in: " + error.what());
  }
}

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

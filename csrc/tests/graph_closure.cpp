// Closures against a search from every node, with and without tables, computed and queried by many threads.
#include "graph/closure.hpp"

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "graph/path_nodes.hpp"
#include "tests/graph_common.hpp"

namespace engine::graph {
namespace {

constexpr std::size_t kUnbounded = std::size_t{1} << 40;

std::vector<std::vector<bool>> search_all(const Dag& dag) {
  std::vector<std::vector<bool>> reached;
  for (Node from = 0; from < dag.nodes(); ++from) {
    std::vector<bool> seen(static_cast<std::size_t>(dag.nodes()));
    std::vector<Node> ahead{from};
    while (!ahead.empty()) {
      const Node node = ahead.back();
      ahead.pop_back();
      for (const Node next : dag.successors(node)) {
        if (!seen[next]) ahead.push_back(next);
        seen[next] = true;
      }
    }
    reached.push_back(std::move(seen));
  }
  return reached;
}

void check(const Closure& closure, const std::vector<std::vector<bool>>& expected, const std::string& name) {
  const auto nodes = static_cast<Node>(expected.size());
  for (Node from = 0; from < nodes; ++from) {
    for (Node to = 0; to < nodes; ++to) {
      expect(closure.reaches(from, to) == expected[from][to], name + ": whether a node is reached");
    }
  }
  for (Node from = 0; from < nodes; from += 1 + nodes / 8) {
    for (Node to = 0; to < nodes; to += 1 + nodes / 8) {
      std::vector<Node> between;
      for (Node node = 0; node < nodes; ++node) {
        if (expected[from][node] && expected[node][to]) between.push_back(node);
      }
      expect(closure.path_nodes(from, to) == between, name + ": nodes between");
    }
  }
}

void test_random_graphs() {
  std::mt19937_64 random(1);
  for (int round = 0; round < 150; ++round) {
    const Case given = random_case(random, round % 10 == 0 ? 300 : 40, 2);
    const Dag dag(given.nodes, given.edges);
    const std::vector<std::vector<bool>> expected = search_all(dag);
    const Closure table(dag, kUnbounded, 1 + round % 3);
    const Closure search(dag, 0, 1);
    expect(table.is_dense() && !search.is_dense(), "a table where there is room");
    expect(table.bytes() >= Closure::table_bytes(dag.nodes()), "its memory is reported");
    check(table, expected, "table");
    check(search, expected, "search");
  }
}

// More nodes than a block of columns, and bits at the ends of words.
void test_wide_tables_are_equal_for_any_threads() {
  const Node nodes = 3000;
  std::vector<Edge> edges;
  std::mt19937_64 random(2);
  for (Node node = 1; node < nodes; ++node) {
    if (node % 64 != 1) edges.push_back({node - 1, node});
    if (node > 900) edges.push_back({static_cast<Node>(random() % 900), node});
  }
  const Dag dag(nodes, edges);
  const Closure one(dag, kUnbounded, 1);
  const Closure many(dag, kUnbounded, 4);
  const Closure none(dag, 0, 1);
  for (int i = 0; i < 20000; ++i) {
    const auto from = static_cast<Node>(random() % nodes);
    const auto to = static_cast<Node>(random() % nodes);
    expect(one.reaches(from, to) == many.reaches(from, to), "threads do not change answers");
    expect(one.reaches(from, to) == none.reaches(from, to), "a table and a search agree");
  }
}

// The limit applies to the table: with a limit one byte lower, no table is made.
void test_memory_is_bounded() {
  const Dag dag(1000, std::vector<Edge>{{0, 999}});
  const std::size_t bytes = Closure::table_bytes(1000);
  expect(Closure(dag, bytes, 1).is_dense(), "a table that just fits");
  expect(!Closure(dag, bytes - 1, 1).is_dense(), "no table that does not fit");
  expect(Closure(dag, bytes - 1, 1).bytes() < bytes / 4, "and then hardly any memory");
}

void test_many_ask_at_once() {
  std::mt19937_64 random(3);
  const Case given = random_case(random, 200, 2);
  const Dag dag(given.nodes, given.edges);
  const std::vector<std::vector<bool>> expected = search_all(dag);
  for (const std::size_t bytes : {std::size_t{0}, kUnbounded}) {
    const auto closure = std::make_shared<const Closure>(dag, bytes, 2);
    PathNodes paths(closure, 4096);  // clears its cache often
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        for (Node from = 0; from < dag.nodes(); ++from) {
          const Node to = (from * 7 + i) % dag.nodes();
          wrong += closure->reaches(from, to) != expected[from][to];
          wrong += *paths.between(from, to) != closure->path_nodes(from, to);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    expect(wrong == 0, "answers to concurrent queries");
  }
}

}  // namespace
}  // namespace engine::graph

int main() {
  using namespace engine::graph;
  test_random_graphs();
  test_wide_tables_are_equal_for_any_threads();
  test_memory_is_bounded();
  test_many_ask_at_once();
  return engine::report();
}

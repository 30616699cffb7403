// The published strategies: self-references of a subgraph against all pairs of its nodes, cached candidates against
// rounds without a cache, and restrictions against a search of a subgraph's dependencies. Equality with the published
// texts is tested in Python, against transcriptions of them.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "graph/closure.hpp"
#include "graph/published/maintained_order.hpp"
#include "graph/published/ordered_quotient.hpp"
#include "graph/published/restriction_map.hpp"
#include "graph/published/rollback.hpp"
#include "graph/published/self_references.hpp"
#include "graph/quotient.hpp"
#include "tests/graph_common.hpp"

namespace engine::graph {
namespace {

constexpr std::size_t kPlenty = std::size_t{1} << 30;

Problem problem_of(const Case& given, const Dag& dag) {
  Problem problem{dag};
  problem.device.assign(given.affinity.begin(), given.affinity.end());
  problem.devices = 4;
  problem.size.assign(static_cast<std::size_t>(dag.nodes()), 1);
  problem.closure_bytes = kPlenty;
  return problem;
}

std::vector<char> between_pairs(const Closure& closure, const std::vector<Node>& subgraph, Node nodes) {
  std::vector<char> is_between(static_cast<std::size_t>(nodes));
  for (const Node from : subgraph) {
    for (const Node to : subgraph) {
      for (const Node node : closure.path_nodes(from, to)) is_between[node] = true;
    }
  }
  return is_between;
}

// A random sequence of the operations of a growing candidate.
void play(SelfReferences& references, const Closure& closure, Node nodes, std::mt19937_64& random) {
  std::vector<Node> subgraph;
  std::vector<Node> open(static_cast<std::size_t>(nodes));
  std::iota(open.begin(), open.end(), 0);
  std::shuffle(open.begin(), open.end(), random);
  std::vector<Node> rejected;
  const auto is_violated = [&] {
    const std::vector<char> between = between_pairs(closure, subgraph, nodes);
    return std::any_of(rejected.begin(), rejected.end(), [&](Node node) { return between[node]; });
  };
  while (!open.empty()) {
    const Node node = open.back();
    const std::uint64_t kind = random() % 6;
    if (kind == 0 && !subgraph.empty()) {
      references.remove_last();
      rejected.push_back(subgraph.back());
      references.reject(subgraph.back());
      subgraph.pop_back();
    } else if (kind == 1) {
      references.reject(node);
      rejected.push_back(node);
      open.pop_back();
    } else {
      const bool was_violated = is_violated();
      const bool anyway = was_violated || random() % 4 == 0;
      const bool is_added = references.add(node, anyway);
      subgraph.push_back(node);
      expect(is_added == (anyway || !is_violated()), "a node is added unless the subgraph would refer to itself");
      open.pop_back();
      if (!is_added) {
        subgraph.pop_back();
        references.reject(node);
        rejected.push_back(node);
      }
    }
    const std::vector<char> between = between_pairs(closure, subgraph, nodes);
    for (Node other = 0; other < nodes; ++other) {
      expect(references.is_between(other) == static_cast<bool>(between[other]), "between are the path nodes of pairs");
    }
  }
  references.clear();
  for (Node other = 0; other < nodes; ++other) expect(!references.is_between(other), "nothing is between when cleared");
}

void test_self_references() {
  std::mt19937_64 random(1);
  for (int round = 0; round < random_cases(300); ++round) {
    // Spans several words of 64 bits.
    const Case given = random_case(random, round % 10 == 0 ? 200 : 20, 1);
    const Dag dag(given.nodes, given.edges);
    const Closure closure(dag, kPlenty, 1);
    const std::unique_ptr<SelfReferences> kinds[] = {self_references_by_closure(dag, 1),
                                                     self_references_by_search(dag)};
    for (const std::unique_ptr<SelfReferences>& references : kinds) {
      for (int again = 0; again < 2; ++again) play(*references, closure, given.nodes, random);
    }
  }
}

void test_rollback() {
  std::mt19937_64 random(2);
  for (int round = 0; round < random_cases(1500); ++round) {
    const Case given = random_case(random, round % 50 == 0 ? 150 : 30, 4);
    const Dag dag(given.nodes, given.edges);
    const Closure closure(dag, kPlenty, 1);
    Problem problem = problem_of(given, dag);
    for (std::int64_t& size : problem.size) size += static_cast<std::int64_t>(random() % 3);
    Statistics statistics;
    const Labels labels = rollback(problem, statistics);
    std::vector<std::vector<Node>> subgraphs(static_cast<std::size_t>(labels.count));
    for (Node node = 0; node < given.nodes; ++node) subgraphs[labels.subgraph[node]].push_back(node);
    for (const std::vector<Node>& subgraph : subgraphs) {
      const std::vector<char> between = between_pairs(closure, subgraph, given.nodes);
      for (Node node = 0; node < given.nodes; ++node) {
        expect(!between[node] || labels.subgraph[node] == labels.subgraph[subgraph[0]], "each subgraph is convex");
        expect(labels.subgraph[node] != labels.subgraph[subgraph[0]] ||
                   problem.device[node] == problem.device[subgraph[0]],
               "each subgraph has one device");
      }
    }
    Statistics others;
    problem.closure_bytes = 0;
    expect(rollback(problem, others).subgraph == labels.subgraph, "searching gives what the closure gives");
    Trace trace;
    problem.trace = &trace;
    expect(rollback(problem, others).subgraph == labels.subgraph, "rounds give what remembered candidates give");
    expect(others["candidates"] >= statistics["candidates"], "rounds grow candidates again");
    Node chosen = 0;
    for (const TraceStep& step : trace.steps()) {
      if (step.kind == TraceStep::Kind::choose) expect(step.nodes == subgraphs[chosen++], "the trace has each choice");
    }
    expect(chosen == labels.count, "the trace has all choices");
  }
}

// A chain on two devices in which each second node can be skipped: each round grows all remaining candidates.
Case ladder(Node nodes) {
  Case given;
  given.nodes = nodes;
  for (Node node = 0; node < nodes; ++node) {
    given.affinity.push_back(node % 2);
    if (node + 1 < nodes) given.edges.push_back({node, node + 1});
    if (node % 2 == 0 && node + 2 < nodes) given.edges.push_back({node, node + 2});
  }
  return given;
}

void test_a_trace_that_is_full() {
  // Few nodes with many steps; many nodes shown with few steps.
  for (const Node nodes : {400, 4000}) {
    const Case given = ladder(nodes);
    const Dag dag(given.nodes, given.edges);
    Problem problem = problem_of(given, dag);
    Statistics statistics;
    const Labels labels = rollback(problem, statistics);
    Trace trace;
    problem.trace = &trace;
    expect(rollback(problem, statistics).subgraph == labels.subgraph, "a full trace changes no result");
    expect((trace.steps().size() == Trace::kMaxSteps + 1) == (nodes == 400), "a trace has two limits");
    expect(trace.steps().back().kind == TraceStep::Kind::cut, "a full trace says so");
  }
}

void test_restriction_map() {
  std::mt19937_64 random(3);
  for (int round = 0; round < random_cases(3000); ++round) {
    const Case given = random_case(random, round % 50 == 0 ? 400 : 30, 4);
    const Dag dag(given.nodes, given.edges);
    const Problem problem = problem_of(given, dag);
    // All outputs, in any order.
    std::vector<Node> outputs(static_cast<std::size_t>(given.nodes));
    std::iota(outputs.begin(), outputs.end(), 0);
    std::shuffle(outputs.begin(), outputs.end(), random);
    Statistics statistics;
    for (const Labels& labels : {restriction_map(problem, statistics), restriction_map(problem, outputs, statistics)}) {
      expect(is_acyclic_quotient(dag, span_of(labels.subgraph), labels.count), "subgraphs do not wait for each other");
      std::vector<std::int32_t> device(static_cast<std::size_t>(labels.count), -1);
      for (Node node = 0; node < given.nodes; ++node) {
        std::int32_t& named = device[labels.subgraph[node]];
        if (named < 0) named = problem.device[node];
        expect(named == problem.device[node], "each subgraph has one device");
      }
    }
  }
}

void test_restrictions_that_would_be_stale() {
  // A = f(x); B = f(n0); B = f(x); A = f(n2, n0); B = f(n2, n1), with the outputs 1, 3 and 4 visited in this order.
  Case given;
  given.nodes = 5;
  given.edges = {{0, 1}, {2, 3}, {0, 3}, {2, 4}, {1, 4}};
  given.affinity = {0, 1, 1, 0, 1};
  const Dag dag(given.nodes, given.edges);
  Statistics statistics;
  const Labels labels = restriction_map(problem_of(given, dag), {1, 3, 4}, statistics);
  expect(labels.subgraph == std::vector<std::int32_t>{0, 1, 2, 0, 1}, "n0 depends on n2 through n3, and so does n1");
}

// Moves to random places and, which exhausts the room fastest, before the same few items, against a plain list.
void test_maintained_order() {
  std::mt19937_64 random(5);
  for (int round = 0; round < 60; ++round) {
    MaintainedOrder order;
    std::vector<Node> expected;
    Node items = 0;
    for (int step = 0; step < 600; ++step) {
      if (step < 40 || random() % 10 == 0) {
        expected.push_back(items++);
        order.append();
        continue;
      }
      const Node other = round % 2 == 0 ? expected[expected.size() / 2] : expected[random() % expected.size()];
      std::vector<Node> moved;
      for (const Node item : expected) {
        if (item != other && random() % 20 == 0) moved.push_back(item);
      }
      order.move_before(moved, other);
      for (const Node item : moved) expected.erase(std::find(expected.begin(), expected.end(), item));
      expected.insert(std::find(expected.begin(), expected.end(), other), moved.begin(), moved.end());
      for (std::size_t i = 1; i < expected.size(); ++i) {
        expect(order.place(expected[i - 1]) < order.place(expected[i]), "places ascend along the list");
      }
      expect(order.place(expected.front()) >= 0, "places are not negative");
    }
  }
}

// Random merges and additions of parts, with reachability recomputed each time.
void test_ordered_quotient() {
  std::mt19937_64 random(4);
  for (int round = 0; round < random_cases(300); ++round) {
    OrderedQuotient quotient;
    std::vector<std::pair<Node, Node>> edges;
    const Node rounds = round % 20 == 0 ? 150 : 25;
    for (Node count = 0; count < rounds;) {
      const auto reaches = [&](Node from, Node to) {
        std::vector<Node> ahead{from};
        std::vector<char> is_seen(static_cast<std::size_t>(count));
        while (!ahead.empty()) {
          const Node part = ahead.back();
          ahead.pop_back();
          for (const auto& [a, b] : edges) {
            if (quotient.find(a) != part || quotient.find(b) == part || is_seen[quotient.find(b)]) continue;
            is_seen[quotient.find(b)] = true;
            ahead.push_back(quotient.find(b));
          }
        }
        return is_seen[to] != 0;
      };
      std::vector<Node> parents;
      for (Node i = 0; count > 0 && i < static_cast<Node>(random() % 4); ++i) {
        parents.push_back(quotient.find(static_cast<Node>(random() % count)));
      }
      std::sort(parents.begin(), parents.end());
      parents.erase(std::unique(parents.begin(), parents.end()), parents.end());
      std::vector<Node> joinable;
      for (const Node parent : parents) {
        if (random() % 3 > 0) joinable.push_back(parent);
      }
      std::vector<Node> expected;
      for (const Node part : joinable) {
        if (std::none_of(parents.begin(), parents.end(), [&](Node parent) { return reaches(part, parent); })) {
          expected.push_back(part);
        }
      }
      quotient.remove_ancestors(joinable, parents);
      expect(joinable == expected, "exactly the ancestors of another parent are removed");
      const Node part = quotient.join(joinable, parents);
      count += joinable.empty();
      for (const Node parent : parents) edges.emplace_back(parent, part);
    }
  }
}

}  // namespace
}  // namespace engine::graph

int main() {
  using namespace engine::graph;
  test_self_references();
  test_rollback();
  test_a_trace_that_is_full();
  test_restriction_map();
  test_restrictions_that_would_be_stale();
  test_maintained_order();
  test_ordered_quotient();
  return engine::report();
}

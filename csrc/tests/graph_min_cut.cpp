// Minimum cuts against all assignments of sides, and on graphs of many sizes that are hard for tree search.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "graph/errors.hpp"
#include "graph/min_cut.hpp"
#include "tests/graph_common.hpp"

namespace engine::graph {
namespace {

struct Network {
  Node nodes = 0;
  std::vector<Edge> edges;
  std::vector<std::int64_t> first, second, forward, backward;

  CutCosts costs() const { return {span_of(first), span_of(second), span_of(forward), span_of(backward)}; }

  template <class Side>
  std::int64_t cost(const Side& is_second) const {
    std::int64_t sum = 0;
    for (Node node = 0; node < nodes; ++node) sum += is_second(node) ? second[node] : first[node];
    for (std::size_t i = 0; i < edges.size(); ++i) {
      const bool from = is_second(edges[i].from);
      const bool to = is_second(edges[i].to);
      if (from != to) sum += from ? backward[i] : forward[i];
    }
    return sum;
  }
};

Network random_network(std::mt19937_64& random, Node nodes, int edges, std::int64_t highest) {
  const auto draw = [&](std::int64_t bound) { return static_cast<std::int64_t>(random() % (bound + 1)); };
  Network network;
  network.nodes = nodes;
  for (Node node = 0; node < nodes; ++node) {
    network.first.push_back(draw(3) == 0 ? 0 : draw(highest));
    network.second.push_back(draw(3) == 0 ? 0 : draw(highest));
  }
  for (int i = 0; i < edges; ++i) {
    network.edges.push_back({static_cast<Node>(draw(nodes - 1)), static_cast<Node>(draw(nodes - 1))});
    network.forward.push_back(draw(highest));
    network.backward.push_back(draw(1) == 0 ? 0 : draw(highest));
  }
  return network;
}

void test_cheapest_of_all_choices() {
  std::mt19937_64 random(1);
  for (int round = 0; round < 20000; ++round) {
    const auto nodes = static_cast<Node>(1 + random() % 7);
    const Network network = random_network(random, nodes, static_cast<int>(random() % 14), round % 2 ? 3 : 100);
    std::int64_t best = std::numeric_limits<std::int64_t>::max();
    int fewest = nodes;
    for (std::uint32_t choice = 0; choice < (1U << nodes); ++choice) {
      const std::int64_t cost = network.cost([&](Node node) { return choice >> node & 1; });
      const int first = nodes - __builtin_popcount(choice);
      fewest = cost < best ? first : cost == best ? std::min(fewest, first) : fewest;
      best = std::min(best, cost);
    }
    const Cut cut = min_cut(nodes, network.edges, network.costs());
    expect(cut.cost == best, "round " + std::to_string(round) + ": cost " + std::to_string(cut.cost));
    expect(network.cost([&](Node node) { return cut.is_second[node]; }) == best, "the sides have the cost");
    expect(std::count(cut.is_second.begin(), cut.is_second.end(), false) == fewest, "fewest nodes on the first side");
  }
}

// The flow is a certificate: on larger graphs, the cost of the sides must equal it.
void test_sides_have_the_cost_of_larger_graphs() {
  std::mt19937_64 random(2);
  for (int round = 0; round < 300; ++round) {
    const auto nodes = static_cast<Node>(50 + random() % 400);
    const Network network = random_network(random, nodes, nodes * 3, 1000);
    const Cut cut = min_cut(nodes, network.edges, network.costs());
    expect(network.cost([&](Node node) { return cut.is_second[node]; }) == cut.cost, "sides of a larger graph");
  }
}

// A chain in which only the ends have costs: one path through all nodes, as in a deep network.
void test_long_chain() {
  Network network;
  network.nodes = 200000;
  network.first.assign(200000, 0);
  network.second.assign(200000, 0);
  network.second.front() = network.first.back() = 1000;
  for (Node node = 1; node < network.nodes; ++node) {
    network.edges.push_back({node - 1, node});
    network.forward.push_back(node == 777 ? 5 : 10 + node % 7);
    network.backward.push_back(0);
  }
  const Cut cut = min_cut(network.nodes, network.edges, network.costs());
  expect(cut.cost == 5, "the cheapest edge of a chain is cut");
  expect(!cut.is_second[776] && cut.is_second[777], "at that edge");
}

void test_refused() {
  const std::vector<std::int64_t> one{1};
  const std::vector<std::int64_t> negative{-1};
  const std::vector<std::int64_t> huge{std::numeric_limits<std::int64_t>::max()};
  const std::vector<std::int64_t> none;
  expect_error<PartitionError>("second has 0 numbers; expected 1",
                               [&] { min_cut(1, {}, {span_of(one), span_of(none), span_of(none), span_of(none)}); });
  expect_error<PartitionError>(
      "first number 0 is -1", [&] { min_cut(1, {}, {span_of(negative), span_of(one), span_of(none), span_of(none)}); });
  expect_error<PartitionError>("do not fit into 64 bits",
                               [&] { min_cut(1, {}, {span_of(huge), span_of(one), span_of(none), span_of(none)}); });
}

}  // namespace
}  // namespace engine::graph

int main() {
  using namespace engine::graph;
  test_cheapest_of_all_choices();
  test_sides_have_the_cost_of_larger_graphs();
  test_long_chain();
  test_refused();
  return engine::report();
}

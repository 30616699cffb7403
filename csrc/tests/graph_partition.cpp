// Partitions of random graphs by every strategy and in every mode: required properties of each result, and the minimum
// number of subgraphs.
#include "graph/partition.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "graph/bound.hpp"
#include "graph/errors.hpp"
#include "graph/quotient.hpp"
#include "tests/graph_common.hpp"

namespace engine::graph {
namespace {

const char* const kModes[] = {"min_subgraphs", "connected", "auto"};

std::string describe(const Case& given) {
  std::string text = "affinity";
  for (const std::int64_t device : given.affinity) text += " " + std::to_string(device);
  text += "; edges";
  for (const Edge& edge : given.edges) text += " " + std::to_string(edge.from) + "-" + std::to_string(edge.to);
  return text;
}

// The minimum number of turns, by trying all sequences: a turn runs all possible nodes of its device; sets of nodes
// that are done are memoized.
int fewest_turns(const Case& given) {
  const std::uint32_t all = (1U << given.nodes) - 1;
  std::vector<std::uint32_t> needs(static_cast<std::size_t>(given.nodes), 0);
  for (const Edge& edge : given.edges) needs[edge.to] |= 1U << edge.from;
  const auto turn = [&](std::uint32_t done, std::int64_t device) {
    for (bool is_changed = true; is_changed;) {
      is_changed = false;
      for (Node node = 0; node < given.nodes; ++node) {
        if (done >> node & 1 || given.affinity[node] != device || (needs[node] & ~done) != 0) continue;
        done |= 1U << node;
        is_changed = true;
      }
    }
    return done;
  };
  std::set<std::uint32_t> reached{0};
  std::set<std::uint32_t> known{0};
  for (int turns = 0;; ++turns) {
    if (reached.count(all) > 0) return turns;
    std::set<std::uint32_t> next;
    for (const std::uint32_t done : reached) {
      for (std::int64_t device = 0; device < 4; ++device) {
        const std::uint32_t more = turn(done, device);
        if (known.insert(more).second) next.insert(more);
      }
    }
    reached = std::move(next);
  }
}

bool is_valid_order(const Case& given, const Partition& made) {
  std::vector<std::int64_t> place(made.order.size(), -1);
  for (std::size_t i = 0; i < made.order.size(); ++i) place[made.order[i]] = static_cast<std::int64_t>(i);
  if (std::count(place.begin(), place.end(), -1) > 0) return false;
  return std::all_of(given.edges.begin(), given.edges.end(), [&](const Edge& edge) {
    const std::int64_t from = made.subgraph[edge.from];
    const std::int64_t to = made.subgraph[edge.to];
    return from == to || place[from] < place[to];
  });
}

bool are_parts_connected(const Case& given, const Partition& made) {
  std::vector<Node> part(static_cast<std::size_t>(given.nodes));
  for (Node node = 0; node < given.nodes; ++node) part[node] = node;
  for (bool is_changed = true; is_changed;) {
    is_changed = false;
    for (const Edge& edge : given.edges) {
      if (made.subgraph[edge.from] != made.subgraph[edge.to] || part[edge.from] == part[edge.to]) continue;
      part[edge.from] = part[edge.to] = std::min(part[edge.from], part[edge.to]);
      is_changed = true;
    }
  }
  return std::set<Node>(part.begin(), part.end()).size() == made.order.size();
}

void check(const Case& given, const Dag& dag, const Request& request, const Partition& made, const std::string& name) {
  const auto require = [&](bool condition, const char* what) {
    if (!condition) expect(false, name + ": " + what + "; " + describe(given));
  };
  const auto nodes = static_cast<std::size_t>(given.nodes);
  require(made.subgraph.size() == nodes && made.run.size() == nodes, "one subgraph and one run for each node");
  require(made.device.size() == made.order.size(), "one device for each subgraph");
  for (std::size_t node = 0; node < nodes; ++node) {
    require(made.subgraph[node] >= 0 && made.subgraph[node] < static_cast<std::int64_t>(made.order.size()),
            "every node is in a subgraph");
    require(made.device[made.subgraph[node]] == given.affinity[node], "a subgraph has the device of its nodes");
  }
  require(is_valid_order(given, made), "the quotient graph is acyclic");
  verify_runs(dag, span_of(made.subgraph), span_of(made.run));
  require(made.lower_bound <= static_cast<std::int64_t>(made.order.size()), "no fewer than the bound");
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < given.edges.size(); ++i) {
    if (made.subgraph[given.edges[i].from] != made.subgraph[given.edges[i].to]) bytes += given.bytes[i];
  }
  require(request.bytes.size() == 0 || bytes == made.crossing_bytes, "crossing bytes are those of crossing edges");
  if (request.strategy == "potential") require(made.splits == 0, "potential needs no repair");
}

Request request_for(const Case& given, const std::string& strategy, const std::string& mode, bool has_bytes) {
  Request request;
  request.strategy = strategy;
  request.mode = mode;
  request.affinity = span_of(given.affinity);
  if (has_bytes) request.bytes = span_of(given.bytes);
  return request;
}

std::size_t used_devices(const Case& given) {
  return std::set<std::int64_t>(given.affinity.begin(), given.affinity.end()).size();
}

void test_random_graphs(int rounds, Node most_nodes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (int round = 0; round < rounds; ++round) {
    const Case given = random_case(random, most_nodes, 2 + static_cast<int>(random() % 3));
    const Dag dag(given.nodes, given.edges);
    for (const std::string& strategy : strategies()) {
      for (const char* mode : kModes) {
        if (strategy != "potential" && mode != kModes[0]) continue;
        const Request request = request_for(given, strategy, mode, round % 4 != 0);
        const Partition made = partition(dag, request);
        const std::string name = strategy + " " + mode;
        check(given, dag, request, made, name);
        if (strategy != "potential") continue;
        if (mode == kModes[0] && (used_devices(given) <= 2 || most_nodes <= 30)) {
          expect(static_cast<std::int64_t>(made.order.size()) == made.lower_bound,
                 name + ": fewest; " + describe(given));
        }
        if (mode == kModes[1]) expect(are_parts_connected(given, made), name + ": connected; " + describe(given));
      }
    }
  }
}

// Small graphs are searched exhaustively if greedy turns are not proven minimal.
void test_fewest_of_all(int rounds) {
  std::mt19937_64 random(3);
  for (int round = 0; round < rounds; ++round) {
    const Case given = random_case(random, 12, 4);
    const Dag dag(given.nodes, given.edges);
    const Partition made = partition(dag, request_for(given, "potential", "min_subgraphs", true));
    const std::int64_t fewest = fewest_turns(given);
    expect(made.lower_bound == fewest, "the bound is exact; " + describe(given));
    expect(static_cast<std::int64_t>(made.order.size()) == fewest, "as few as possible; " + describe(given));
  }
}

// Wide sets: more nodes than a word has bits, and more than the search accepts.
void test_three_devices_are_proven(int rounds) {
  std::mt19937_64 random(8);
  for (int round = 0; round < rounds; ++round) {
    Case given = random_case(random, 2, 2);
    given = {static_cast<Node>(60 + 37 * (round % 6)), {}, {}, {}};
    for (Node node = 0; node < given.nodes; ++node) given.affinity.push_back(static_cast<std::int64_t>(random() % 3));
    for (int i = 0; i < given.nodes * 17 / 10; ++i) {
      const auto to = static_cast<Node>(1 + random() % (given.nodes - 1));
      given.edges.push_back({std::max(0, to - 1 - static_cast<Node>(random() % 20)), to});
    }
    const Dag dag(given.nodes, given.edges);
    const Partition made = partition(dag, request_for(given, "potential", "min_subgraphs", false));
    expect(made.lower_bound == static_cast<std::int64_t>(made.order.size()), "proven; " + describe(given));
    expect(made.lower_bound == lower_bound_of(dag, span_of(given.affinity)), "the same bound without a partition");
  }
}

// A node that can run with its predecessor or with its successor runs where fewer bytes cross, also if there are so
// many that no minimum cut is searched.
void test_fewer_bytes() {
  constexpr std::int64_t kLarge = std::int64_t{1} << 41;
  for (const std::int64_t before : {1, 10})
    for (const std::int64_t after : {1, 10}) {
      Case given;  // 0 -> 1 -> 2, of devices 0, 1 and 0; 3 is between 0 and 2, and of device 0
      given.nodes = 4;
      given.edges = {{0, 1}, {1, 2}, {0, 3}, {3, 2}};
      given.affinity = {0, 1, 0, 0};
      given.bytes = {kLarge, 1000, before, after};
      const Dag dag(given.nodes, given.edges);
      const Request request = request_for(given, "potential", "min_subgraphs", true);
      const Partition made = partition(dag, request);
      check(given, dag, request, made, "a choice");
      expect(made.order.size() == 3 && made.crossing_bytes == kLarge + 1000 + std::min(before, after),
             "fewest bytes cross");
    }
}

void test_atoms(int rounds) {
  std::mt19937_64 random(4);
  int refused = 0;
  int grown = 0;
  for (int round = 0; round < rounds; ++round) {
    const Case given = random_case(random, 14, 3);
    const Dag dag(given.nodes, given.edges);
    std::vector<std::int64_t> atoms(given.affinity.size());
    for (std::size_t node = 0; node < atoms.size(); ++node) {
      const auto group = static_cast<std::int64_t>(random() % 6);
      atoms[node] = group < 3 ? given.affinity[node] * 10 + group : -1 - group;
    }
    for (const std::string& strategy : strategies()) {
      Request request = request_for(given, strategy, kModes[round % 3], true);
      request.atoms = span_of(atoms);
      Partition made;
      try {
        made = partition(dag, request);
      } catch (const PartitionError& error) {
        expect(std::string(error.what()).find("an atom cannot stay whole") == 0, error.what());
        ++refused;
        continue;
      }
      check(given, dag, request, made, strategy + " with atoms");
      std::map<std::int64_t, std::int64_t> subgraph_of;
      for (std::size_t node = 0; node < atoms.size(); ++node) {
        if (atoms[node] < 0) continue;
        const auto known = subgraph_of.emplace(atoms[node], made.subgraph[node]).first;
        expect(known->second == made.subgraph[node], strategy + ": an atom is split; " + describe(given));
      }
      grown += request.mode == kModes[0];
    }
  }
  expect(refused > rounds / 20 && grown > rounds / 20, "atoms of both kinds were met");
}

// A repair keeps subgraphs that are not on a cycle, and splits others into subsets.
void test_repair(int rounds) {
  std::mt19937_64 random(5);
  int cyclic = 0;
  for (int round = 0; round < rounds; ++round) {
    const Case given = random_case(random, 20, 3);
    const Dag dag(given.nodes, given.edges);
    std::map<std::int64_t, std::int32_t> number_of;
    std::vector<std::int32_t> before;
    const std::int64_t groups = 1 + static_cast<std::int64_t>(random() % 4);
    for (Node node = 0; node < given.nodes; ++node) {
      const std::int64_t group = given.affinity[node] * 10 + static_cast<std::int64_t>(random() % groups);
      before.push_back(number_of.emplace(group, static_cast<std::int32_t>(number_of.size())).first->second);
    }
    const auto count = static_cast<Node>(number_of.size());
    const bool is_acyclic = is_acyclic_quotient(dag, span_of(before), count);
    cyclic += !is_acyclic;
    std::vector<std::int32_t> after = before;
    const Node repaired = repair(dag, after, count);
    expect(is_acyclic_quotient(dag, span_of(after), repaired), "a repaired partition is acyclic; " + describe(given));
    expect(is_acyclic == (repaired == count), "only what is cyclic is split; " + describe(given));
    std::map<std::int32_t, std::int32_t> whole_of;
    for (std::size_t node = 0; node < after.size(); ++node) {
      expect(whole_of.emplace(after[node], before[node]).first->second == before[node], "pieces join nothing");
    }
  }
  expect(cyclic > rounds / 10, "cyclic partitions were met");
}

// Larger graphs use other code paths: beams of drains, cuts, limits on the work.
void test_larger_graphs() {
  test_random_graphs(60, 3000, 6);
  std::mt19937_64 random(7);
  Case given = random_case(random, 2, 2);
  given = {60'000, {}, {}, {}};
  for (Node node = 0; node < given.nodes; ++node) given.affinity.push_back(static_cast<std::int64_t>(random() % 3));
  for (Node node = 1; node < given.nodes; ++node) {
    for (int i = 0; i < 2; ++i) {
      given.edges.push_back({std::max(0, node - 1 - static_cast<Node>(random() % 50)), node});
      given.bytes.push_back(static_cast<std::int64_t>(random() % 1000));
    }
  }
  const Dag dag(given.nodes, given.edges);
  for (const char* mode : kModes) {
    const Request request = request_for(given, "potential", mode, true);
    check(given, dag, request, partition(dag, request), mode);
  }
}

}  // namespace
}  // namespace engine::graph

int main() {
  using namespace engine::graph;
  test_random_graphs(random_cases(20'000), 30, 1);
  test_random_graphs(random_cases(80'000), 9, 2);
  test_fewest_of_all(random_cases(6'000));
  test_three_devices_are_proven(60);
  test_fewer_bytes();
  test_atoms(random_cases(10'000));
  test_repair(random_cases(10'000));
  test_larger_graphs();
  return engine::report();
}

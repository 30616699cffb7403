#include "graph/partition.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "graph/atoms.hpp"
#include "graph/bound.hpp"
#include "graph/devices.hpp"
#include "graph/errors.hpp"
#include "graph/potential.hpp"
#include "graph/published/restriction_map.hpp"
#include "graph/published/rollback.hpp"
#include "graph/quotient.hpp"

namespace engine::graph {
namespace {

struct NamedStrategy {
  const char* name;
  Strategy run;
};

constexpr NamedStrategy kStrategies[] = {
    {"potential", potential}, {"rollback", rollback}, {"restriction_map", restriction_map}};

struct NamedMode {
  const char* name;
  Mode mode;
};

constexpr NamedMode kModes[] = {
    {"min_subgraphs", Mode::min_subgraphs}, {"connected", Mode::connected}, {"auto", Mode::automatic}};

// Default costs: typical of small operators, and of copies within a machine.
constexpr double kNodeSeconds = 10e-6;
constexpr double kTransferSeconds = 10e-6;
constexpr double kSecondsPerByte = 0.1e-9;

template <class Row, std::size_t count>
const Row& row_named(const Row (&rows)[count], const std::string& name, const char* what) {
  std::string names;
  for (const Row& row : rows) {
    if (row.name == name) return row;
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  throw PartitionError("there is no " + std::string(what) + " \"" + name + "\"; expected one of " + names);
}

void expect_length(std::size_t length, std::size_t expected, const char* list, const char* of) {
  if (length == expected) return;
  throw PartitionError(std::string(list) + " has " + std::to_string(length) + " numbers; expected one for each of " +
                       std::to_string(expected) + " " + of);
}

void check_bytes(Span<std::int64_t> bytes) {
  std::int64_t sum = 0;
  for (std::size_t edge = 0; edge < bytes.size(); ++edge) {
    if (bytes[edge] < 0) {
      throw PartitionError("bytes of edge " + std::to_string(edge) + " is " + std::to_string(bytes[edge]) +
                           "; expected 0 or more");
    }
    if (__builtin_add_overflow(sum, bytes[edge], &sum)) {
      throw PartitionError("the bytes of all edges together do not fit into 64 bits");
    }
  }
}

void check_seconds(const std::vector<double>& seconds, std::size_t expected, const char* list, const char* of) {
  if (seconds.empty()) return;
  expect_length(seconds.size(), expected, list, of);
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    if (std::isfinite(seconds[i]) && seconds[i] >= 0) continue;
    throw PartitionError(std::string(list) + " number " + std::to_string(i) + " is " + std::to_string(seconds[i]) +
                         "; expected a finite time, 0 or more");
  }
}

void check_request(const Dag& dag, const Request& request) {
  const auto nodes = static_cast<std::size_t>(dag.nodes());
  const auto edges = static_cast<std::size_t>(dag.edge_count());
  if (request.bytes.size() > 0) {
    expect_length(request.bytes.size(), edges, "bytes", "edges");
    check_bytes(request.bytes);
  }
  if (request.atoms.size() > 0) expect_length(request.atoms.size(), nodes, "atoms", "nodes");
  check_seconds(request.costs.node_seconds, nodes, "node_seconds", "nodes");
  check_seconds(request.costs.edge_seconds, edges, "edge_seconds", "edges");
  check_seconds({request.costs.overhead_seconds}, 1, "overhead_seconds", "subgraphs");
}

// The graph that is passed to a strategy: its nodes are atoms, and its devices are numbered without gaps.
class Contracted {
 public:
  Contracted(const Dag& dag, const Request& request, Mode mode)
      : given_(dag),
        request_(request),
        devices_(number_devices(dag, request.affinity)),
        atoms_(request.atoms.size() > 0 ? group_atoms(dag, request.atoms, request.affinity) : Atoms{}),
        is_contracted_(request.atoms.size() > 0 && atoms_.count < dag.nodes()),
        dag_(is_contracted_ ? contract_edges() : Dag(0, std::vector<Edge>{})),
        problem_{is_contracted_ ? dag_ : given_} {
    problem_.mode = mode;
    problem_.devices = static_cast<std::int32_t>(devices_.used.size());
    set_nodes();
    set_edges();
    problem_.closure_bytes = request.closure_bytes;
    problem_.threads = std::max(1, request.threads);
    problem_.trace = request.trace;
  }

  const Problem& problem() const { return problem_; }
  Node atom_of(Node node) const { return is_contracted_ ? atoms_.of[node] : node; }
  std::int64_t device(std::int32_t number) const { return devices_.used[number]; }

  // Translates to the caller's numbers: an atom is represented by its first node.
  void translate(Trace& trace) const {
    std::vector<Node> first(static_cast<std::size_t>(problem_.dag.nodes()));
    for (Node node = given_.nodes(); node-- > 0;) first[atom_of(node)] = node;
    for (TraceStep& step : trace.steps()) {
      if (step.node >= 0) step.node = first[step.node];
      for (Node& node : step.nodes) node = first[node];
      step.device = static_cast<std::int32_t>(device(step.device));
    }
  }

 private:
  Dag contract_edges() {
    std::vector<Edge> edges;
    for (std::size_t i = 0; i < given_.edges().size(); ++i) {
      const Edge& edge = given_.edges()[i];
      if (atoms_.of[edge.from] == atoms_.of[edge.to]) continue;
      edges.push_back({atoms_.of[edge.from], atoms_.of[edge.to]});
      kept_.push_back(i);
    }
    return Dag(atoms_.count, std::move(edges));
  }

  void set_nodes() {
    const auto nodes = static_cast<std::size_t>(problem_.dag.nodes());
    const std::vector<double>& seconds = request_.costs.node_seconds;
    problem_.device.resize(nodes);
    problem_.size.assign(nodes, 0);
    problem_.costs.overhead_seconds = request_.costs.overhead_seconds;
    if (problem_.mode == Mode::automatic) problem_.costs.node_seconds.assign(nodes, 0.0);
    for (Node node = 0; node < given_.nodes(); ++node) {
      const Node atom = atom_of(node);
      problem_.device[atom] = devices_.of_node[node];
      ++problem_.size[atom];
      if (!problem_.costs.node_seconds.empty()) {
        problem_.costs.node_seconds[atom] += seconds.empty() ? kNodeSeconds : seconds[node];
      }
    }
  }

  void set_edges() {
    const std::size_t edges = problem_.dag.edges().size();
    const std::vector<double>& seconds = request_.costs.edge_seconds;
    problem_.bytes.resize(edges);
    problem_.has_bytes = request_.bytes.size() > 0;
    if (problem_.mode == Mode::automatic) problem_.costs.edge_seconds.resize(edges);
    for (std::size_t i = 0; i < edges; ++i) {
      const std::size_t given = is_contracted_ ? kept_[i] : i;
      const std::int64_t bytes = problem_.has_bytes ? request_.bytes[given] : 0;
      problem_.bytes[i] = problem_.has_bytes ? bytes : 1;
      if (problem_.costs.edge_seconds.empty()) continue;
      problem_.costs.edge_seconds[i] =
          seconds.empty() ? kTransferSeconds + kSecondsPerByte * static_cast<double>(bytes) : seconds[given];
    }
  }

  const Dag& given_;
  const Request& request_;
  Devices devices_;
  Atoms atoms_;
  bool is_contracted_;
  std::vector<std::size_t> kept_;  // the caller's index of each edge between atoms
  Dag dag_;
  Problem problem_;
};

void expect_one_device(const Problem& problem, const Labels& labels) {
  std::vector<std::int32_t> device(static_cast<std::size_t>(labels.count), -1);
  for (Node node = 0; node < problem.dag.nodes(); ++node) {
    std::int32_t& named = device[labels.subgraph[node]];
    if (named < 0) named = problem.device[node];
    if (named != problem.device[node]) throw std::logic_error("a strategy has put two devices into one subgraph");
  }
}

Partition assemble(const Dag& dag, const Request& request, const Contracted& contracted, const Labels& labels) {
  const QuotientOrder quotient = check_quotient(contracted.problem().dag, span_of(labels.subgraph), labels.count);
  Partition result;
  const auto nodes = static_cast<std::size_t>(dag.nodes());
  result.subgraph.resize(nodes);
  result.run.resize(nodes);
  result.device.resize(static_cast<std::size_t>(labels.count));
  result.order.assign(quotient.order.begin(), quotient.order.end());
  for (Node node = 0; node < dag.nodes(); ++node) {
    const std::int32_t number = labels.subgraph[contracted.atom_of(node)];
    result.subgraph[node] = number;
    result.run[node] = quotient.level[number];
    result.device[number] = request.affinity[node];
  }
  std::int64_t crossing = 0;
  for (std::size_t i = 0; i < dag.edges().size(); ++i) {
    const Edge& edge = dag.edges()[i];
    if (result.subgraph[edge.from] == result.subgraph[edge.to]) continue;
    ++crossing;
    if (request.bytes.size() > 0) result.crossing_bytes += request.bytes[i];
  }
  result.statistics["crossing_edges"] = static_cast<double>(crossing);
  return result;
}

}  // namespace

std::vector<std::string> strategies() {
  std::vector<std::string> names;
  for (const NamedStrategy& row : kStrategies) names.emplace_back(row.name);
  return names;
}

Partition partition(const Dag& dag, const Request& request) {
  const Strategy strategy = row_named(kStrategies, request.strategy, "strategy").run;
  const Mode mode = row_named(kModes, request.mode, "mode").mode;
  check_request(dag, request);
  const Contracted contracted(dag, request, mode);
  const Problem& problem = contracted.problem();
  Statistics statistics;
  Labels labels = strategy(problem, statistics);
  expect_one_device(problem, labels);
  if (request.trace != nullptr) contracted.translate(*request.trace);
  std::int64_t splits = 0;
  if (!is_acyclic_quotient(problem.dag, span_of(labels.subgraph), labels.count)) {
    const Node count = repair(problem.dag, labels.subgraph, labels.count);
    splits = count - labels.count;
    labels.count = count;
  }
  Partition result = assemble(dag, request, contracted, labels);
  result.splits = splits;
  result.lower_bound = lower_bound(problem.dag, span_of(problem.device), problem.devices, labels.bound);
  result.statistics.insert(statistics.begin(), statistics.end());
  return result;
}

}  // namespace engine::graph

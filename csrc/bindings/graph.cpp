#include "bindings/graph.hpp"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/gil.hpp"
#include "graph/bound.hpp"
#include "graph/closure.hpp"
#include "graph/dag.hpp"
#include "graph/errors.hpp"
#include "graph/min_cut.hpp"
#include "graph/partition.hpp"
#include "graph/path_nodes.hpp"
#include "graph/quotient.hpp"

namespace py = pybind11;

namespace engine {
namespace {

using graph::Dag;
using graph::Node;
using graph::Span;

// engine.native.graph converts lists to contiguous arrays of int64 or float64.
using Integers = py::array_t<std::int64_t, py::array::c_style>;
using Reals = py::array_t<double, py::array::c_style>;

struct ErrorTypes {
  py::object graph, partition;
};

// Never destroyed, since exceptions may occur until the process ends.
ErrorTypes& error_types() {
  static auto& types = *new ErrorTypes;
  return types;
}

void translate(std::exception_ptr pointer) {
  const auto raise = [](const py::object& type, const char* message) {
    PyErr_SetString(type ? type.ptr() : PyExc_RuntimeError, message);
  };
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const graph::GraphError& error) {
    raise(error_types().graph, error.what());
  } catch (const graph::PartitionError& error) {
    raise(error_types().partition, error.what());
  }
}

Span<std::int64_t> list(const Integers& array, const char* name) {
  if (array.ndim() != 1) {
    throw graph::PartitionError(std::string(name) + " has " + std::to_string(array.ndim()) +
                                " dimensions; expected one");
  }
  return {array.data(), array.data() + array.size()};
}

// For arrays that are checked and then used as indices: another thread may write the array meanwhile.
std::vector<std::int64_t> copied(const Integers& array, const char* name) {
  const Span<std::int64_t> values = list(array, name);
  return {values.begin(), values.end()};
}

std::vector<double> list(const Reals& array, const char* name) {
  if (array.ndim() != 1) {
    throw graph::PartitionError(std::string(name) + " has " + std::to_string(array.ndim()) +
                                " dimensions; expected one");
  }
  return {array.data(), array.data() + array.size()};
}

// An optional list. If given, it must have a number for each node or edge.
template <class List>
auto optional_list(const std::optional<List>& array, const char* name, std::int64_t expected) {
  using Result = decltype(list(*array, name));
  if (!array) return Result{};
  if (array->ndim() == 1 && array->size() != expected) {
    throw graph::PartitionError(std::string(name) + " has " + std::to_string(array->size()) + " numbers; expected " +
                                std::to_string(expected));
  }
  return list(*array, name);
}

void expect_edges(const Integers& edges) {
  if (edges.ndim() == 2 && edges.shape(1) == 2) return;
  std::string shape;
  for (py::ssize_t i = 0; i < edges.ndim(); ++i) shape += (i > 0 ? ", " : "") + std::to_string(edges.shape(i));
  throw graph::GraphError("edges has the shape (" + shape + "); expected (E, 2): from and to of each edge");
}

// The graph copies the array's contents before this returns.
std::shared_ptr<Dag> make_dag(const Integers& edges, std::int64_t nodes) {
  expect_edges(edges);
  const std::int64_t* data = edges.data();
  const std::int64_t count = edges.shape(0);
  const GilReleased no_gil;
  return std::make_shared<Dag>(nodes, data, count);
}

Integers to_array(const std::vector<std::int64_t>& values) {
  return Integers(static_cast<py::ssize_t>(values.size()), values.data());
}

Integers to_array(const std::vector<Node>& values) {
  Integers array(static_cast<py::ssize_t>(values.size()));
  std::copy(values.begin(), values.end(), array.mutable_data());
  return array;
}

const char* name_of(graph::TraceStep::Kind kind) {
  constexpr const char* kNames[] = {"roots", "root", "merge", "fail", "rollback", "end", "choose", "cut"};
  return kNames[static_cast<int>(kind)];
}

const char* name_of(graph::TraceStep::Condition condition) {
  constexpr const char* kNames[] = {"ok", "possible", "violated"};
  return kNames[static_cast<int>(condition)];
}

py::list to_list(const graph::Trace& trace) {
  py::list steps;
  for (const graph::TraceStep& step : trace.steps()) {
    steps.append(py::make_tuple(name_of(step.kind), step.device, step.node, name_of(step.condition),
                                py::tuple(py::cast(step.nodes))));
  }
  return steps;
}

py::dict partition(const Integers& edges, const Integers& affinity, const std::string& strategy,
                   const std::string& mode, const std::optional<Integers>& bytes, const std::optional<Integers>& atoms,
                   const std::optional<Reals>& node_seconds, const std::optional<Reals>& edge_seconds,
                   std::optional<double> overhead_seconds, std::size_t closure_bytes, int threads, bool is_traced) {
  graph::Request request;
  request.strategy = strategy;
  request.mode = mode;
  request.affinity = list(affinity, "affinity");
  const auto nodes = static_cast<std::int64_t>(request.affinity.size());
  const std::int64_t edge_count = edges.ndim() > 0 ? edges.shape(0) : 0;
  request.bytes = optional_list(bytes, "bytes", edge_count);
  request.atoms = optional_list(atoms, "atoms", nodes);
  request.costs.node_seconds = optional_list(node_seconds, "node_seconds", nodes);
  request.costs.edge_seconds = optional_list(edge_seconds, "edge_seconds", edge_count);
  if (overhead_seconds) request.costs.overhead_seconds = *overhead_seconds;
  request.closure_bytes = closure_bytes;
  request.threads = threads;
  graph::Trace trace;
  if (is_traced) request.trace = &trace;
  const std::shared_ptr<const Dag> dag = make_dag(edges, nodes);
  graph::Partition made;
  {
    const GilReleased no_gil;
    made = graph::partition(*dag, request);
  }
  py::dict result;
  result["subgraph"] = to_array(made.subgraph);
  result["run"] = to_array(made.run);
  result["order"] = to_array(made.order);
  result["device"] = to_array(made.device);
  result["lower_bound"] = made.lower_bound;
  result["crossing_bytes"] = made.crossing_bytes;
  result["splits"] = made.splits;
  result["statistics"] = made.statistics;
  result["trace"] = to_list(trace);
  return result;
}

Integers check_partition(const Integers& edges, const Integers& subgraph) {
  const std::vector<std::int64_t> given = copied(subgraph, "subgraph");
  const std::shared_ptr<const Dag> dag = make_dag(edges, static_cast<std::int64_t>(given.size()));
  graph::QuotientOrder quotient;
  {
    const GilReleased no_gil;
    const Node count = graph::count_subgraphs(*dag, graph::span_of(given));
    const std::vector<std::int32_t> numbers(given.begin(), given.end());
    quotient = graph::check_quotient(*dag, graph::span_of(numbers), count);
  }
  return to_array(quotient.order);
}

void verify_runs(const Integers& edges, const Integers& subgraph, const Integers& run) {
  const std::vector<std::int64_t> given = copied(subgraph, "subgraph");
  const std::vector<std::int64_t> runs = copied(run, "run");
  const std::shared_ptr<const Dag> dag = make_dag(edges, static_cast<std::int64_t>(given.size()));
  const GilReleased no_gil;
  graph::verify_runs(*dag, graph::span_of(given), graph::span_of(runs));
}

std::int64_t lower_bound(const Integers& edges, const Integers& affinity) {
  const Span<std::int64_t> given = list(affinity, "affinity");
  const std::shared_ptr<const Dag> dag = make_dag(edges, static_cast<std::int64_t>(given.size()));
  const GilReleased no_gil;
  return graph::lower_bound_of(*dag, given);
}

py::tuple min_cut(const Integers& edges, const Integers& first, const Integers& second, const Integers& forward,
                  const Integers& backward) {
  const graph::CutCosts costs{list(first, "first"), list(second, "second"), list(forward, "forward"),
                              list(backward, "backward")};
  const auto nodes = static_cast<std::int64_t>(costs.first.size());
  expect_edges(edges);
  graph::Cut cut;
  {
    const GilReleased no_gil;
    const std::vector<graph::Edge> checked = graph::checked_edges(nodes, edges.data(), edges.shape(0));
    cut = graph::min_cut(static_cast<Node>(nodes), checked, costs);
  }
  return py::make_tuple(to_array(std::vector<Node>(cut.is_second.begin(), cut.is_second.end())), cut.cost);
}

// A closure together with its graph.
class BoundClosure {
 public:
  BoundClosure(const Integers& edges, std::int64_t nodes, std::size_t max_bytes, int threads)
      : dag_(make_dag(edges, nodes)) {
    const GilReleased no_gil;
    closure_ = std::make_shared<const graph::Closure>(*dag_, max_bytes, threads);
    paths_ = std::make_unique<graph::PathNodes>(closure_, kCacheBytes);
  }

  bool reaches(std::int64_t from, std::int64_t to) const {
    const Node start = checked(from);
    const Node end = checked(to);
    const GilReleased no_gil;
    return closure_->reaches(start, end);
  }

  Integers path_nodes(std::int64_t from, std::int64_t to) {
    const Node start = checked(from);
    const Node end = checked(to);
    std::shared_ptr<const std::vector<Node>> found;
    {
      const GilReleased no_gil;
      found = paths_->between(start, end);
    }
    return to_array(*found);
  }

  std::size_t bytes() const { return closure_->bytes(); }
  bool is_dense() const { return closure_->is_dense(); }

 private:
  static constexpr std::size_t kCacheBytes = std::size_t{64} << 20;

  Node checked(std::int64_t node) const {
    if (node >= 0 && node < dag_->nodes()) return static_cast<Node>(node);
    throw graph::GraphError("there is no node " + std::to_string(node) + "; expected 0.." +
                            std::to_string(dag_->nodes() - 1));
  }

  std::shared_ptr<const Dag> dag_;
  std::shared_ptr<const graph::Closure> closure_;
  std::unique_ptr<graph::PathNodes> paths_;
};

}  // namespace

void bind_graph(py::module_& parent) {
  py::module_ module = parent.def_submodule("graph", "Graph algorithms. Use engine.native.graph.");
  py::register_local_exception_translator(translate);
  module.def(
      "set_error_types",
      [](py::object graph, py::object partition) { error_types() = {std::move(graph), std::move(partition)}; },
      py::kw_only(), py::arg("graph"), py::arg("partition"));
  module.def("strategies", graph::strategies);
  module.def("partition", partition, py::arg("edges"), py::arg("affinity"), py::kw_only(), py::arg("strategy"),
             py::arg("mode"), py::arg("bytes") = py::none(), py::arg("atoms") = py::none(),
             py::arg("node_seconds") = py::none(), py::arg("edge_seconds") = py::none(),
             py::arg("overhead_seconds") = py::none(), py::arg("closure_bytes"), py::arg("threads"), py::arg("trace"));
  module.def("check_partition", check_partition, py::arg("edges"), py::arg("subgraph"));
  module.def("verify_runs", verify_runs, py::arg("edges"), py::arg("subgraph"), py::arg("run"));
  module.def("lower_bound", lower_bound, py::arg("edges"), py::arg("affinity"));

  module.def("min_cut", min_cut, py::arg("edges"), py::arg("first"), py::arg("second"), py::arg("forward"),
             py::arg("backward"));

  py::class_<BoundClosure>(module, "Closure")
      .def(py::init<const Integers&, std::int64_t, std::size_t, int>(), py::arg("edges"), py::arg("nodes"),
           py::arg("max_bytes"), py::arg("threads"))
      .def("reaches", &BoundClosure::reaches, py::arg("source"), py::arg("target"))
      .def("path_nodes", &BoundClosure::path_nodes, py::arg("source"), py::arg("target"))
      .def_property_readonly("bytes", &BoundClosure::bytes)
      .def_property_readonly("is_dense", &BoundClosure::is_dense);
}

}  // namespace engine

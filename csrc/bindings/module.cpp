// The Python module engine._core. The package `engine/native` is its only user and adds types, documentation and error
// classes.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/attributes.hpp"
#include "bindings/extensions.hpp"
#include "bindings/families.hpp"
#include "bindings/graph.hpp"
#include "bindings/routines.hpp"
#include "bindings/running.hpp"
#include "bindings/stored_program.hpp"
#include "blob/stored_program.hpp"
#include "executor/arena.hpp"
#include "executor/context.hpp"
#include "executor/core_set.hpp"
#include "executor/cpu_features.hpp"
#include "executor/kernel_rows.hpp"
#include "executor/plan.hpp"
#include "kernels/prepare/codes.hpp"
#include "kernels/prepare/extension_call.hpp"
#include "kernels/prepare/product_rates.hpp"

namespace py = pybind11;

namespace engine {
namespace {

// The required size in bytes of each output of a step.
std::vector<std::size_t> output_bytes(const std::string& kernel, const std::vector<std::size_t>& inputs,
                                      std::size_t output_count, const py::dict& attributes, const std::string& isa) {
  const LimitedLookup lookup(KernelRegistry::built_in(), isa.empty() ? default_isa() : parse_isa(isa));
  const OperationEntry& operation = KernelRegistry::built_in().operation(kernel);
  const std::vector<std::size_t> unbounded(output_count, std::size_t{1} << 62);
  std::vector<std::size_t> expected(output_count, 0);
  operation.prepare(StepRequest{inputs, unbounded, to_attributes(attributes), lookup, &expected});
  return expected;
}

// The classes of engine.errors that C++ exceptions are translated to. Never destroyed, since exceptions may occur until
// the process ends.
struct ErrorTypes {
  py::object plan, setting, input, busy, cancelled, memory, device, extension;
};

ErrorTypes& error_types() {
  static auto& types = *new ErrorTypes;
  return types;
}

void set_error_types(py::object plan, py::object setting, py::object input, py::object busy, py::object cancelled,
                     py::object memory, py::object device, py::object extension) {
  error_types() = {std::move(plan),      std::move(setting), std::move(input),  std::move(busy),
                   std::move(cancelled), std::move(memory),  std::move(device), std::move(extension)};
}

void translate(std::exception_ptr pointer) {
  const auto raise = [](const py::object& type, const char* message) {
    // The messages of extensions' kernels may contain any bytes.
    const auto text = py::reinterpret_steal<py::object>(
        PyUnicode_DecodeUTF8(message, static_cast<Py_ssize_t>(std::strlen(message)), "replace"));
    if (text) PyErr_SetObject(type ? type.ptr() : PyExc_RuntimeError, text.ptr());
  };
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const PlanError& error) {
    raise(error_types().plan, error.what());
  } catch (const StoredProgramError& error) {
    raise(error_types().plan, error.what());
  } catch (const SettingError& error) {
    raise(error_types().setting, error.what());
  } catch (const std::invalid_argument& error) {
    raise(error_types().input, error.what());
  } catch (const ContextBusy& error) {
    raise(error_types().busy, error.what());
  } catch (const ExtensionFailure& error) {
    raise(error_types().device, error.what());
  } catch (const ExtensionLoadFailure& error) {
    raise(error_types().extension, error.what());
  } catch (const RunCancelled& error) {
    raise(error_types().cancelled, error.what());
  } catch (const std::bad_alloc&) {
    raise(error_types().memory,
          "the native core needs more memory than is available; use smaller shapes, fewer streams or a smaller graph");
  }
}

py::tuple buffer_bytes(const std::vector<Buffer>& buffers) {
  py::tuple sizes(buffers.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) sizes[i] = buffers[i].bytes;
  return sizes;
}

py::list plan_steps(const Plan& plan) {
  py::list steps;
  for (const StepInfo& step : plan.steps()) {
    steps.append(py::make_tuple(step.name, step.kernel, isa_name(step.isa), step.phases, step.work));
  }
  return steps;
}

py::tuple lay_out(const std::vector<std::tuple<std::size_t, std::size_t, int, int>>& buffers) {
  std::vector<Lifetime> lifetimes;
  for (const auto& [bytes, alignment, first, last] : buffers) lifetimes.push_back({bytes, alignment, first, last});
  const ArenaLayout layout = lay_out_arena(lifetimes);
  return py::make_tuple(layout.offsets, layout.total_bytes, layout.naive_bytes, layout.lower_bound_bytes);
}

py::dict features_dict() {
  const CpuFeatures& features = cpu_features();
  py::dict result;
  result["model"] = features.model;
  result["isa"] = isa_name(features.best);
  result["highest_isa"] = isa_name(features.highest);
  result["l1d_bytes"] = features.l1d_bytes;
  result["l2_bytes"] = features.l2_bytes;
  result["l3_bytes"] = features.l3_bytes;
  result["logical_cores"] = features.logical_cores;
  result["usable_cores"] = features.usable_cores;
  return result;
}

}  // namespace

PYBIND11_MODULE(_core_of_main_interpreter, module) {
  module.doc() = "The native core. Use engine.native.";
  py::register_local_exception_translator(translate);
  module.def("set_error_types", set_error_types, py::kw_only(), py::arg("plan"), py::arg("setting"), py::arg("input"),
             py::arg("busy"), py::arg("cancelled"), py::arg("memory"), py::arg("device"), py::arg("extension"));

  // Initialised here, by one thread, so that a fork cannot happen while another thread holds their guards.
  cpu_features();
  KernelRegistry::built_in();

  module.def("cpu_features", features_dict);
  module.def("product_rates", []() -> py::object {
    const std::optional<ProductRates> rates =
        product_rates(LimitedLookup(KernelRegistry::built_in(), cpu_features().best));
    return rates ? py::object(py::make_tuple(rates->f32, rates->bf16)) : py::none();
  });
  module.def("default_isa", [] { return isa_name(default_isa()); });
  module.def("built_isas", [] {
    std::vector<std::string> names;
    for (const Isa isa : built_isas()) names.emplace_back(isa_name(isa));
    return names;
  });
  module.def("isa_features", [] {
    py::dict features;  // ascending
    for (const Isa isa : all_isas()) features[isa_name(isa)] = feature_names(isa);
    return features;
  });
  module.def("isas_within", [](const std::string& limit) {
    std::vector<const char*> names;
    for (const Isa isa : built_isas())
      if (includes(find_isa(limit), isa)) names.push_back(isa_name(isa));
    return names;
  });
  module.def("kernels", [] { return KernelRegistry::built_in().operations(); });
  module.def("left_out_kernels", [] {
    std::map<std::string, std::vector<const char*>> families;
    for (const KernelRow& row : kernel_rows())
      if (row.table == nullptr) families[row.family].push_back(isa_name(row.isa));
    return families;
  });
  module.def("kernel_isas", [] {
    py::dict isas;
    for (const auto& [name, found] : KernelRegistry::built_in().instruction_sets()) {
      py::list names;
      for (const Isa isa : found) names.append(isa_name(isa));
      isas[py::str(name.data(), name.size())] = py::tuple(names);
    }
    return isas;
  });
  module.def("codes", [] {
    std::map<std::string, std::map<std::string, int>> all;
    for (const CodeNames& codes : code_names())
      for (std::size_t i = 0; i < codes.names.size(); ++i) all[codes.enumeration][codes.names[i]] = static_cast<int>(i);
    return all;
  });
  module.def("pointwise_functions", [] {
    std::vector<std::tuple<std::string, std::string, int, std::string, bool>> all;
    for (const PointwiseFunction& each : pointwise_functions())
      all.emplace_back(each.operation, each.opcode, each.sources, each.expression, each.is_activation);
    return all;
  });
  module.def("cores", [] { return CoreSet::shared().cores(); });
  module.def("started_threads", [] { return CoreSet::shared().started_threads(); });
  module.def("lay_out_arena", lay_out, py::arg("buffers"));
  module.def("output_bytes", output_bytes, py::arg("kernel"), py::arg("inputs"), py::arg("output_count"),
             py::arg("attributes"), py::arg("isa"));

  py::class_<Plan, std::shared_ptr<Plan>>(module, "Plan")
      .def_property_readonly("inputs", [](const Plan& plan) { return buffer_bytes(plan.inputs); })
      .def_property_readonly("outputs", [](const Plan& plan) { return buffer_bytes(plan.outputs); })
      .def_property_readonly("arena_bytes", [](const Plan& plan) { return plan.arena.total_bytes; })
      .def_property_readonly("naive_bytes", [](const Plan& plan) { return plan.arena.naive_bytes; })
      .def_property_readonly("lower_bound_bytes", [](const Plan& plan) { return plan.arena.lower_bound_bytes; })
      .def_readonly("scratch_bytes", &Plan::scratch_bytes)
      .def_readonly("max_workers", &Plan::max_workers)
      .def_readonly("barriers", &Plan::barriers)
      .def_property_readonly("isa", [](const Plan& plan) { return isa_name(plan.isa); })
      .def_property_readonly("rows",
                             [](const Plan& plan) {
                               std::vector<std::pair<std::string, std::string>> rows;
                               for (const auto& [family, isa] : plan.rows) rows.emplace_back(family, isa_name(isa));
                               return rows;
                             })
      .def_property_readonly("steps", plan_steps);

  py::class_<PlanBuilder>(module, "PlanBuilder")
      .def(py::init([](const std::string& isa, int threads) {
             return PlanBuilder(isa.empty() ? default_isa() : parse_isa(isa), KernelRegistry::built_in(),
                                batch_machine(threads));
           }),
           py::arg("isa") = "", py::arg("threads") = 0)
      .def("add_input", &PlanBuilder::add_input, py::arg("nbytes"), py::arg("alignment") = 1)
      .def("add_output", &PlanBuilder::add_output, py::arg("nbytes"), py::arg("alignment") = 1)
      .def("add_state", &PlanBuilder::add_state, py::arg("nbytes"), py::arg("alignment") = 1)
      .def("add_buffer", &PlanBuilder::add_buffer, py::arg("nbytes"), py::arg("alignment") = 64)
      .def(
          "add_constant",
          [](PlanBuilder& builder, py::array array) {
            if (!(array.flags() & py::array::c_style)) throw PlanError("a constant is not contiguous in C order");
            const Binding bound{array.data(), static_cast<std::size_t>(array.nbytes())};
            return builder.add_constant(bound.data, bound.bytes, keep(std::move(array)));
          },
          py::arg("array"))
      .def("add_view", &PlanBuilder::add_view, py::arg("of"), py::arg("offset"), py::arg("nbytes"))
      .def(
          "add_step",
          [](PlanBuilder& builder, const std::string& kernel, const std::vector<BufferId>& inputs,
             const std::vector<BufferId>& outputs, const py::dict& attributes, std::string name) {
            return builder.add_step(kernel, inputs, outputs, to_attributes(attributes), std::move(name));
          },
          py::arg("kernel"), py::arg("inputs"), py::arg("outputs"), py::arg("attributes") = py::dict(),
          py::arg("name") = "")
      .def("build", [](PlanBuilder& builder) { return std::const_pointer_cast<Plan>(builder.build()); });

  bind_running(module);
  bind_extensions(module);
  bind_families(module);
  bind_routines(module);
  bind_stored_program(module);
  if (bind_graph != nullptr) bind_graph(module);
}

}  // namespace engine

// Python calls this function to import the module. The core's threads belong to the main interpreter: in another one,
// pybind11 would wait for a lock that this thread holds (CPython 3.11), so it must not be called there at all.
extern "C" PYBIND11_EXPORT PyObject* PyInit__core() {
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) return engine::PyInit__core_of_main_interpreter();
  PyErr_SetString(PyExc_ImportError,
                  "engine._core: this is not the main interpreter of the process; expected an import there, since the "
                  "native core cannot be shared by interpreters: use threads or processes");
  return nullptr;
}

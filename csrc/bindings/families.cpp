#include "bindings/families.hpp"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/attributes.hpp"
#include "bindings/running.hpp"
#include "bindings/seats.hpp"
#include "executor/cpu_features.hpp"
#include "executor/plan_family.hpp"

namespace py = pybind11;

namespace engine {
namespace {

using Number = std::variant<std::int64_t, Varying>;
// The lengths that are multiplied, by index, and the factor.
using NumberTerm = std::pair<std::vector<std::int32_t>, std::int64_t>;

Varying::Term to_term(const NumberTerm& given) {
  const auto& [lengths, factor] = given;
  Varying::Term term{{-1, -1, -1}, factor};
  if (lengths.size() > term.lengths.size()) {
    throw PlanError("a term is a product of " + std::to_string(lengths.size()) + " lengths; expected at most " +
                    std::to_string(term.lengths.size()));
  }
  for (const std::int32_t index : lengths) {
    if (index < 0) throw PlanError("a value depends on length " + std::to_string(index));
  }
  std::copy(lengths.begin(), lengths.end(), term.lengths.begin());
  return term;
}

Varying to_varying(Number number) {
  if (auto* varying = std::get_if<Varying>(&number)) return std::move(*varying);
  return {std::get<std::int64_t>(number), {}};
}

VaryingAttribute to_attribute(const std::string& name, py::handle value) {
  if (py::isinstance<Varying>(value)) return value.cast<Varying>();
  if (PyTuple_Check(value.ptr()) || PyList_Check(value.ptr())) {
    bool varies = false;
    for (const py::handle item : value) varies = varies || py::isinstance<Varying>(item);
    if (varies) {
      std::vector<Varying> values;
      for (const py::handle item : value) values.push_back(to_varying(item.cast<Number>()));
      return values;
    }
  }
  return to_value(name, value);
}

VaryingAttributes to_varying_attributes(const py::dict& values) {
  VaryingAttributes attributes;
  for (const auto& [key, value] : values) {
    std::string name = py::cast<std::string>(key);
    VaryingAttribute converted = to_attribute(name, value);
    attributes.emplace_back(std::move(name), std::move(converted));
  }
  return attributes;
}

// The type and shape of an output.
struct VaryingForm {
  py::dtype type;
  std::vector<Varying> shape;
};

// Runs the plans of a family for the requests of a network. The GIL, held on entry, protects the members.
class FamilyRunner {
 public:
  FamilyRunner(std::shared_ptr<PlanFamily> family, std::vector<VaryingForm> outputs, int max_threads, std::size_t kept)
      : family_(std::move(family)), outputs_(std::move(outputs)), seats_(max_threads, kept) {}

  py::list outputs(const Lengths& lengths) const {
    py::list made;
    for (const VaryingForm& form : outputs_) {
      std::vector<py::ssize_t> shape;
      for (const Varying& dimension : form.shape) shape.push_back(dimension.at(lengths));
      made.append(py::array(form.type, shape));
    }
    return made;
  }

  py::object fill(const Lengths& lengths, const py::sequence& inputs, const py::sequence& outputs,
                  const py::sequence& states, const CancelFlag* cancel, bool is_profiled) {
    const std::shared_ptr<const Plan> plan = family_->at(lengths);
    Seats::Taken seat(seats_, plan);
    const py::list copies = bind_inputs(inputs, plan->inputs, seat->inputs);
    bind_arrays(outputs, "output", true, seat->outputs);
    bind_arrays(states, "state", true, seat->states);
    return seats_.run(seat, cancel, is_profiled);
  }

 private:
  std::shared_ptr<PlanFamily> family_;
  std::vector<VaryingForm> outputs_;
  Seats seats_;
};

std::unique_ptr<FamilyRunner> make_runner(std::shared_ptr<PlanFamily> family,
                                          const std::vector<std::pair<py::dtype, std::vector<Number>>>& described,
                                          int max_threads, std::size_t kept) {
  std::vector<VaryingForm> outputs;
  for (const auto& [type, shape] : described) {
    VaryingForm form{type, {}};
    for (const Number& dimension : shape) form.shape.push_back(to_varying(dimension));
    outputs.push_back(std::move(form));
  }
  return std::make_unique<FamilyRunner>(std::move(family), std::move(outputs), max_threads, kept);
}

}  // namespace

void bind_families(py::module_& module) {
  py::class_<Varying>(module, "Varying")
      .def(py::init([](std::int64_t constant, const std::vector<NumberTerm>& terms) {
             Varying made{constant, {}};
             for (const NumberTerm& term : terms) made.terms.push_back(to_term(term));
             return made;
           }),
           py::arg("constant"), py::arg("terms"))
      .def("at", &Varying::at, py::arg("lengths"));

  py::class_<PlanFamily, std::shared_ptr<PlanFamily>>(module, "PlanFamily")
      .def(py::init([](Lengths most, const std::string& isa) {
             return std::make_shared<PlanFamily>(std::move(most), isa.empty() ? default_isa() : parse_isa(isa));
           }),
           py::arg("most"), py::arg("isa") = "")
      .def(
          "add_input",
          [](PlanFamily& family, Number bytes, std::size_t alignment) {
            return family.add_input(to_varying(std::move(bytes)), alignment);
          },
          py::arg("nbytes"), py::arg("alignment") = 1)
      .def(
          "add_output",
          [](PlanFamily& family, Number bytes, std::size_t alignment) {
            return family.add_output(to_varying(std::move(bytes)), alignment);
          },
          py::arg("nbytes"), py::arg("alignment") = 1)
      .def(
          "add_state",
          [](PlanFamily& family, Number bytes, std::size_t alignment) {
            return family.add_state(to_varying(std::move(bytes)), alignment);
          },
          py::arg("nbytes"), py::arg("alignment") = 1)
      .def(
          "add_buffer",
          [](PlanFamily& family, Number bytes, std::size_t alignment) {
            return family.add_buffer(to_varying(std::move(bytes)), alignment);
          },
          py::arg("nbytes"), py::arg("alignment") = 64)
      .def(
          "add_constant",
          [](PlanFamily& family, py::array array, Number bytes) {
            if (!(array.flags() & py::array::c_style)) throw PlanError("a constant is not contiguous in C order");
            const void* data = array.data();
            const auto available = static_cast<std::size_t>(array.nbytes());
            return family.add_constant(data, available, to_varying(std::move(bytes)), keep(std::move(array)));
          },
          py::arg("array"), py::arg("nbytes"))
      .def(
          "add_view",
          [](PlanFamily& family, BufferId of, Number offset, Number bytes) {
            return family.add_view(of, to_varying(std::move(offset)), to_varying(std::move(bytes)));
          },
          py::arg("of"), py::arg("offset"), py::arg("nbytes"))
      .def(
          "add_step",
          [](PlanFamily& family, std::string kernel, std::vector<BufferId> inputs, std::vector<BufferId> outputs,
             const py::dict& attributes, std::string name) {
            family.add_step(std::move(kernel), std::move(inputs), std::move(outputs), to_varying_attributes(attributes),
                            std::move(name));
          },
          py::arg("kernel"), py::arg("inputs"), py::arg("outputs"), py::arg("attributes"), py::arg("name") = "")
      .def("at", [](PlanFamily& family, const Lengths& lengths) {
        return std::const_pointer_cast<Plan>(family.at(lengths));
      });

  py::class_<FamilyRunner>(module, "FamilyRunner")
      .def(py::init(&make_runner), py::arg("family"), py::arg("outputs"), py::arg("max_threads"), py::arg("kept"))
      .def("outputs", &FamilyRunner::outputs, py::arg("lengths"))
      .def("fill", &FamilyRunner::fill, py::arg("lengths"), py::arg("inputs"), py::arg("outputs"), py::arg("states"),
           py::arg("cancel"), py::arg("profile"));
}

}  // namespace engine

#include "bindings/running.hpp"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/seats.hpp"
#include "executor/context.hpp"
#include "executor/plan.hpp"

namespace py = pybind11;

namespace engine {

void throw_cancelled() {
  throw RunCancelled("the run was cancelled");
}

namespace {

py::object run_context(Context& context, const py::sequence& inputs, const py::sequence& outputs, int threads,
                       const CancelFlag* cancel, bool is_profiled) {
  std::vector<Binding> bound_inputs, bound_outputs;
  bind_arrays(inputs, "input", false, bound_inputs);
  bind_arrays(outputs, "output", true, bound_outputs);
  std::vector<std::int64_t> profile;
  bool finished;
  {
    const GilReleased no_gil;
    finished = context.run(bound_inputs, bound_outputs, {threads, cancel, is_profiled ? &profile : nullptr});
  }
  if (!finished) throw_cancelled();
  if (!is_profiled) return py::none();
  return py::cast(profile);
}

py::object copied(py::handle sequence) {
  auto copy = py::reinterpret_steal<py::object>(PySequence_List(sequence.ptr()));
  if (!copy) throw py::error_already_set();
  return copy;
}

// The type and shape of an input or output.
struct Form {
  py::dtype type;
  std::vector<py::ssize_t> shape;
};

// Makes the arrays of an output. It keeps the last large ones, and fills them again once nobody else refers to them or
// to their data: their memory is still in the caches, and an allocation of more than 32 MiB always gets new pages,
// which the system clears, and that may take longer than computing the output. While a run makes an array, its caller
// usually has the one before.
class OutputArrays {
 public:
  explicit OutputArrays(Form form) : form_(std::move(form)) {
    const auto count = std::accumulate(form_.shape.begin(), form_.shape.end(), py::ssize_t{1}, std::multiplies<>());
    is_large_ = count * form_.type.itemsize() >= kLarge;
  }

  py::array make() {
    if (!is_large_) return py::array(form_.type, form_.shape);
    for (py::array& array : kept_) {
      if (array && array.ref_count() == 1 && is_as_made(array)) return array;
    }
    std::swap(kept_[0], kept_[1]);
    kept_[1] = py::array(form_.type, form_.shape);
    return kept_[1];
  }

  void release() {
    for (py::array& array : kept_) array = py::reinterpret_steal<py::array>(py::handle());
  }

 private:
  static constexpr py::ssize_t kLarge = py::ssize_t{1} << 20;

  // Users can change an array's type, shape and flags in place.
  bool is_as_made(const py::array& array) const {
    return array.owndata() && array.writeable() && array.dtype().is(form_.type) &&
           (array.flags() & py::array::c_style) != 0 && array.ndim() == static_cast<py::ssize_t>(form_.shape.size()) &&
           std::equal(form_.shape.begin(), form_.shape.end(), array.shape());
  }

  Form form_;
  bool is_large_;
  py::array kept_[2] = {py::reinterpret_steal<py::array>(py::handle()), py::reinterpret_steal<py::array>(py::handle())};
};

// Runs one plan for the requests of a network. The GIL, held on entry, protects the members.
class PlanRunner {
 public:
  PlanRunner(std::shared_ptr<const Plan> plan, std::vector<Form> inputs, std::vector<Form> outputs, int max_threads,
             std::size_t kept)
      : plan_(std::move(plan)), inputs_(std::move(inputs)), seats_(max_threads, kept) {
    outputs_.reserve(outputs.size());
    for (Form& form : outputs) outputs_.emplace_back(std::move(form));
    if (inputs_.size() != plan_->inputs.size() || outputs_.size() != plan_->outputs.size()) {
      throw PlanError("the plan has " + std::to_string(plan_->inputs.size()) + " inputs and " +
                      std::to_string(plan_->outputs.size()) + " outputs; " + std::to_string(inputs_.size()) + " and " +
                      std::to_string(outputs_.size()) + " are described");
    }
  }

  // Nothing is called that could run Python code, which might change the containers.
  py::object bind(const py::dict& index, const py::list& current, py::handle given) const {
    const py::object bound = overridden(index, current, given);
    if (!bound || PyList_GET_SIZE(bound.ptr()) != static_cast<py::ssize_t>(inputs_.size())) return py::none();
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const py::handle item = PyList_GET_ITEM(bound.ptr(), static_cast<py::ssize_t>(i));
      if (!has_form(item, inputs_[i], plan_->inputs[i].alignment)) return py::none();
    }
    return bound;
  }

  py::list run(const py::sequence& inputs, const CancelFlag* cancel) {
    py::list made(outputs_.size());
    for (std::size_t i = 0; i < outputs_.size(); ++i) made[i] = outputs_[i].make();
    fill(inputs, made, cancel, false);
    return made;
  }

  // Frees the arrays that are kept for later runs.
  void release() {
    for (OutputArrays& output : outputs_) output.release();
  }

  py::object fill(const py::sequence& inputs, const py::sequence& outputs, const CancelFlag* cancel, bool is_profiled) {
    Seats::Taken seat(seats_, plan_);
    const py::list copies = bind_inputs(inputs, plan_->inputs, seat->inputs);
    bind_arrays(outputs, "output", true, seat->outputs);
    return seats_.run(seat, cancel, is_profiled);
  }

 private:
  // `current` with the values of `given`; null if `bind` does not support the form of `given`.
  static py::object overridden(const py::dict& index, const py::list& current, py::handle given) {
    if (given.is_none()) return current;
    if (PyList_CheckExact(given.ptr()) || PyTuple_CheckExact(given.ptr())) return copied(given);
    if (!PyDict_CheckExact(given.ptr())) {
      py::list one(1);
      one[0] = given;
      return one;
    }
    py::object bound = copied(current);
    PyObject *key = nullptr, *value = nullptr;
    for (py::ssize_t next = 0; PyDict_Next(given.ptr(), &next, &key, &value) != 0;) {
      PyObject* position = PyUnicode_CheckExact(key) ? PyDict_GetItemWithError(index.ptr(), key) : nullptr;
      if (position == nullptr) return {};
      Py_INCREF(value);
      if (PyList_SetItem(bound.ptr(), PyLong_AsSsize_t(position), value) != 0) throw py::error_already_set();
    }
    return bound;
  }

  // Whether the item is an array, and not of a subclass, with the type and shape of the form and contiguous, aligned
  // data.
  bool has_form(py::handle item, const Form& form, std::size_t alignment) const {
    if (!py::type::handle_of(item).is(array_type_)) return false;
    const auto array = py::reinterpret_borrow<py::array>(item);
    return array.dtype().is(form.type) && array.ndim() == static_cast<py::ssize_t>(form.shape.size()) &&
           std::equal(form.shape.begin(), form.shape.end(), array.shape()) && (array.flags() & py::array::c_style) &&
           reinterpret_cast<std::uintptr_t>(array.data()) % alignment == 0;
  }

  std::shared_ptr<const Plan> plan_;
  std::vector<Form> inputs_;
  std::vector<OutputArrays> outputs_;
  py::object array_type_ = py::module_::import("numpy").attr("ndarray");
  Seats seats_;
};

using DescribedForms = std::vector<std::pair<py::dtype, std::vector<py::ssize_t>>>;

std::vector<Form> to_forms(const DescribedForms& described) {
  std::vector<Form> forms;
  for (const auto& [type, shape] : described) forms.push_back({type, shape});
  return forms;
}

std::unique_ptr<PlanRunner> make_runner(std::shared_ptr<Plan> plan, const DescribedForms& inputs,
                                        const DescribedForms& outputs, int max_threads, std::size_t kept) {
  return std::make_unique<PlanRunner>(std::move(plan), to_forms(inputs), to_forms(outputs), max_threads, kept);
}

}  // namespace

void bind_running(py::module_& module) {
  py::class_<CancelFlag>(module, "CancelFlag")
      .def(py::init<>())
      .def("cancel", &CancelFlag::cancel)
      .def("reset", &CancelFlag::reset)
      .def_property_readonly("cancelled", &CancelFlag::cancelled);

  py::class_<Context>(module, "Context")
      .def(py::init([](std::shared_ptr<Plan> plan, int max_threads) {
             return std::make_unique<Context>(std::move(plan), max_threads);
           }),
           py::arg("plan"), py::arg("max_threads") = 0)
      .def_static(
          "in_turns",
          [](const std::vector<std::shared_ptr<Plan>>& plans, int max_threads) {
            return Context::in_turns({plans.begin(), plans.end()}, max_threads);
          },
          py::arg("plans"), py::arg("max_threads") = 0)
      .def("run", run_context, py::arg("inputs"), py::arg("outputs"), py::arg("threads") = 0,
           py::arg("cancel") = nullptr, py::arg("profile") = false)
      .def_property_readonly("max_workers", &Context::max_workers)
      .def_property_readonly("memory_bytes", &Context::memory_bytes);

  py::class_<PlanRunner>(module, "PlanRunner")
      .def(py::init(&make_runner), py::arg("plan"), py::arg("inputs"), py::arg("outputs"), py::arg("max_threads"),
           py::arg("kept"))
      .def("bind", &PlanRunner::bind, py::arg("index"), py::arg("current"), py::arg("given"))
      .def("run", &PlanRunner::run, py::arg("inputs"), py::arg("cancel"))
      .def("release", &PlanRunner::release)
      .def("fill", &PlanRunner::fill, py::arg("inputs"), py::arg("outputs"), py::arg("cancel"), py::arg("profile"));
}

}  // namespace engine

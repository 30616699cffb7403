#include "bindings/routines.hpp"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/attributes.hpp"
#include "bindings/running.hpp"
#include "bindings/seats.hpp"
#include "executor/memory.hpp"
#include "executor/repeater.hpp"
#include "executor/routine.hpp"

namespace py = pybind11;

namespace engine {
namespace {

// The blocks, the bytes of an element in each, and whether the sequence is reversed.
using DescribedAxis = std::tuple<std::size_t, std::size_t, bool>;

std::vector<SequenceAxis> to_axes(const std::vector<DescribedAxis>& described) {
  std::vector<SequenceAxis> axes;
  for (const auto& [outer, inner_bytes, is_reversed] : described) axes.push_back({outer, inner_bytes, is_reversed});
  return axes;
}

// The first `bytes` of memory that the array owns from now on.
py::array take_array(GrowingMemory& memory, std::size_t bytes) {
  std::byte* data = memory.release(bytes);
  const py::capsule owner(data, [](void* owned) { std::free(owned); });
  return py::array(py::dtype::of<std::uint8_t>(), {static_cast<py::ssize_t>(bytes)}, {py::ssize_t{1}}, data, owner);
}

void check_bound(const char* kind, std::size_t index, const Binding& bound, std::size_t bytes, std::size_t alignment) {
  const std::string where = std::string(kind) + " " + std::to_string(index) + " of a repetition";
  if (bound.bytes != bytes) {
    throw std::invalid_argument(where + " has " + std::to_string(bound.bytes) + " bytes; expected " +
                                std::to_string(bytes));
  }
  if (bytes != 0 && reinterpret_cast<std::uintptr_t>(bound.data) % alignment != 0) {
    throw std::invalid_argument(where + " is not aligned to " + std::to_string(alignment) + " bytes");
  }
}

// Runs a repetition for the requests of a network. The GIL, held on entry, protects the members.
class RepetitionRunner {
 public:
  RepetitionRunner(std::shared_ptr<Repetition> repetition, int max_threads, std::size_t kept)
      : repetition_(std::move(repetition)), max_threads_(max_threads), kept_(kept) {}

  // Returns the number of trips, the bytes of each stacked result that was given no array, and the profile.
  py::tuple run(std::int64_t limit, bool condition, const py::sequence& inputs, const py::sequence& carried,
                const py::sequence& stacked, const CancelFlag* cancel, bool is_profiled) {
    const Repetition& repetition = *repetition_;
    std::vector<Binding> bound_inputs, bound_carried;
    const py::list ordered = in_order_inputs(inputs);
    bind_arrays(ordered, "input", false, bound_inputs);
    bind_arrays(carried, "carried value", true, bound_carried);
    std::vector<void*> stacks;
    check(bound_inputs, bound_carried, std::max<std::int64_t>(0, limit));
    bind_stacks(stacked, limit, condition, stacks);
    std::vector<const void*> input_pointers;
    std::vector<void*> carried_pointers;
    for (const Binding& bound : bound_inputs) input_pointers.push_back(bound.data);
    for (const Binding& bound : bound_carried) carried_pointers.push_back(const_cast<void*>(bound.data));
    const auto growing = std::make_unique<GrowingMemory[]>(stacks.size());
    Trips trips{input_pointers.data(), carried_pointers.data(), stacks.data(), growing.get(), limit, condition, 0};
    std::vector<std::vector<std::int64_t>> profile;
    std::unique_ptr<Repeater> repeater = take();
    bool finished;
    {
      const py::gil_scoped_release no_gil;
      finished = repeater->run(trips, cancel, is_profiled ? &profile : nullptr);
    }
    if (idle_.size() < kept_) idle_.push_back(std::move(repeater));
    if (!finished) throw_cancelled();
    py::list made;
    for (std::size_t i = 0; i < stacks.size(); ++i) {
      const std::size_t bytes = repetition.stacks[i].element_bytes() * static_cast<std::size_t>(trips.done);
      made.append(stacks[i] != nullptr ? py::object(py::none()) : take_array(growing[i], bytes));
    }
    return py::make_tuple(trips.done, made, is_profiled ? py::cast(profile) : py::none());
  }

 private:
  py::list in_order_inputs(const py::sequence& inputs) const {
    const auto& values = repetition_->body->values;
    const std::size_t first = repetition_->first_input();
    py::list ordered;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      ordered.append(in_order(inputs[i], first + i < values.size() ? values[first + i].alignment : 1));
    }
    return ordered;
  }

  void check(const std::vector<Binding>& inputs, const std::vector<Binding>& carried, std::int64_t length) const {
    const Repetition& repetition = *repetition_;
    const auto& values = repetition.body->values;
    if (inputs.size() != repetition.inputs() || carried.size() != repetition.carried) {
      throw std::invalid_argument("the repetition has " + std::to_string(repetition.inputs()) + " inputs and " +
                                  std::to_string(repetition.carried) + " carried values; " +
                                  std::to_string(inputs.size()) + " and " + std::to_string(carried.size()) +
                                  " are given");
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const Routine::Value& value = values[repetition.first_input() + i];
      const bool is_sequence = i >= repetition.carried && i < repetition.carried + repetition.elements.size();
      const std::size_t times = is_sequence ? static_cast<std::size_t>(length) : 1;
      check_bound("input", i, inputs[i], checked_multiply(value.bytes, times), value.alignment);
    }
    for (std::size_t i = 0; i < carried.size(); ++i) {
      const Routine::Value& value = values[repetition.first_input() + i];
      check_bound("carried value", i, carried[i], value.bytes, value.alignment);
    }
  }

  void bind_stacks(const py::sequence& stacked, std::int64_t limit, bool condition, std::vector<void*>& stacks) const {
    const Repetition& repetition = *repetition_;
    if (stacked.size() != repetition.stacks.size()) {
      throw std::invalid_argument("the repetition stacks " + std::to_string(repetition.stacks.size()) + " results; " +
                                  std::to_string(stacked.size()) + " arrays are given");
    }
    const std::size_t trips = condition ? static_cast<std::size_t>(std::max<std::int64_t>(0, limit)) : 0;
    for (std::size_t i = 0; i < repetition.stacks.size(); ++i) {
      if (py::object(stacked[i]).is_none()) {
        if (!repetition.is_loop) throw std::invalid_argument("an array for a stacked result of a Scan is missing");
        stacks.push_back(nullptr);
        continue;
      }
      if (!repetition.is_unconditional) {
        throw std::invalid_argument("an array is given for a result that is stacked an unknown number of times");
      }
      std::vector<Binding> bound;
      bind_arrays(py::make_tuple(stacked[i]), "stacked result", true, bound);
      const Routine::Value& value = repetition.body->result(repetition.first_result() + repetition.carried + i);
      check_bound("stacked result", i, bound[0], checked_multiply(value.bytes, trips), value.alignment);
      stacks.push_back(const_cast<void*>(bound[0].data));
    }
  }

  std::unique_ptr<Repeater> take() {
    if (idle_.empty()) return std::make_unique<Repeater>(repetition_, max_threads_);
    std::unique_ptr<Repeater> taken = std::move(idle_.back());
    idle_.pop_back();
    return taken;
  }

  std::shared_ptr<const Repetition> repetition_;
  int max_threads_;
  std::size_t kept_;
  std::vector<std::unique_ptr<Repeater>> idle_;
};

}  // namespace

void bind_routines(py::module_& module) {
  py::class_<Routine, std::shared_ptr<Routine>>(module, "Routine");

  py::class_<Repetition, std::shared_ptr<Repetition>>(module, "Repetition")
      .def(py::init([](std::shared_ptr<Routine> body, bool is_loop, std::size_t carried,
                       const std::vector<DescribedAxis>& elements, const std::vector<DescribedAxis>& stacks) {
             return std::const_pointer_cast<Repetition>(
                 Repetition::of(std::move(body), is_loop, carried, to_axes(elements), to_axes(stacks)));
           }),
           py::arg("body"), py::arg("is_loop"), py::arg("carried"), py::arg("elements"), py::arg("stacks"))
      .def_readonly("is_unconditional", &Repetition::is_unconditional);

  py::class_<RoutineBuilder>(module, "RoutineBuilder")
      .def(py::init<>())
      .def("add_input", &RoutineBuilder::add_input, py::arg("nbytes"), py::arg("alignment"))
      .def(
          "add_constant",
          [](RoutineBuilder& builder, py::array array) {
            if (!(array.flags() & py::array::c_style)) throw PlanError("a constant is not contiguous in C order");
            const Binding bound{array.data(), static_cast<std::size_t>(array.nbytes())};
            return builder.add_constant(bound.data, bound.bytes, keep(std::move(array)));
          },
          py::arg("array"))
      .def(
          "add_plan",
          [](RoutineBuilder& builder, std::shared_ptr<Plan> plan, const std::vector<ValueId>& inputs) {
            return builder.add_plan(std::move(plan), inputs);
          },
          py::arg("plan"), py::arg("inputs"))
      .def(
          "add_repetition",
          [](RoutineBuilder& builder, std::shared_ptr<Repetition> repetition, const std::vector<ValueId>& inputs,
             ValueId count, ValueId condition, std::int64_t length) {
            return builder.add_repetition(std::move(repetition), inputs, count, condition, length);
          },
          py::arg("repetition"), py::arg("inputs"), py::arg("count"), py::arg("condition"), py::arg("length"))
      .def(
          "add_choice",
          [](RoutineBuilder& builder, ValueId condition, std::shared_ptr<Routine> then_branch,
             const std::vector<ValueId>& then_inputs, std::shared_ptr<Routine> else_branch,
             const std::vector<ValueId>& else_inputs) {
            return builder.add_choice(condition, std::move(then_branch), then_inputs, std::move(else_branch),
                                      else_inputs);
          },
          py::arg("condition"), py::arg("then_branch"), py::arg("then_inputs"), py::arg("else_branch"),
          py::arg("else_inputs"))
      .def(
          "build",
          [](RoutineBuilder& builder, const std::vector<ValueId>& results) {
            return std::const_pointer_cast<Routine>(builder.build(results));
          },
          py::arg("results"));

  py::class_<RepetitionRunner>(module, "RepetitionRunner")
      .def(py::init<std::shared_ptr<Repetition>, int, std::size_t>(), py::arg("repetition"), py::arg("max_threads"),
           py::arg("kept"))
      .def("run", &RepetitionRunner::run, py::arg("limit"), py::arg("condition"), py::arg("inputs"), py::arg("carried"),
           py::arg("stacked"), py::arg("cancel"), py::arg("profile"));
}

}  // namespace engine

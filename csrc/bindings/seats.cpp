#include "bindings/seats.hpp"

#include <pybind11/stl.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "bindings/gil.hpp"
#include "bindings/running.hpp"
#include "executor/core_set.hpp"

namespace py = pybind11;

namespace engine {
namespace {

// Runs that are shorter than this finish sooner one after the other than side by side: a thread that waits for the GIL
// sleeps, and waking it takes longer than the run.
constexpr std::chrono::microseconds kShortRun{20};

Binding bind_array(py::handle item, const char* kind, std::size_t slot, bool is_written) {
  const auto refuse = [&](const char* why) {
    throw std::invalid_argument(std::string(kind) + " " + std::to_string(slot) + " is " + why);
  };
  if (!py::isinstance<py::array>(item)) refuse("not a numpy array");
  const auto array = py::reinterpret_borrow<py::array>(item);
  if (!(array.flags() & py::array::c_style)) refuse("not contiguous in C order");
  if (is_written && !array.writeable()) refuse("read-only");
  return {array.data(), static_cast<std::size_t>(array.nbytes())};
}

}  // namespace

void bind_arrays(const py::sequence& arrays, const char* kind, bool is_written, std::vector<Binding>& bindings) {
  bindings.clear();
  const std::size_t count = arrays.size();
  for (std::size_t i = 0; i < count; ++i) {
    const py::object item = arrays[i];
    bindings.push_back(bind_array(item, kind, i, is_written));
  }
}

py::object in_order(py::object item, std::size_t alignment) {
  if (!py::isinstance<py::array>(item)) return item;
  const auto array = py::reinterpret_borrow<py::array>(item);
  const bool is_aligned = array.nbytes() == 0 || reinterpret_cast<std::uintptr_t>(array.data()) % alignment == 0;
  if (is_aligned && (array.flags() & py::array::c_style)) return item;
  return item.attr("copy")("C");
}

py::list bind_inputs(const py::sequence& arrays, const std::vector<Buffer>& declared, std::vector<Binding>& bindings) {
  bindings.clear();
  py::list copies;
  const std::size_t count = arrays.size();
  for (std::size_t i = 0; i < count; ++i) {
    const py::object given = arrays[i];
    const py::object item = in_order(given, i < declared.size() ? declared[i].alignment : 1);
    if (!item.is(given)) copies.append(item);
    bindings.push_back(bind_array(item, "input", i, false));
  }
  return copies;
}

Seats::Taken::Taken(Seats& seats, const std::shared_ptr<const Plan>& plan) : seats_(seats) {
  if (seats.idle_.empty()) {
    seat_.reset(new Seat{Context(plan, seats.max_threads_), {}, {}, {}});
    return;
  }
  seat_ = std::move(seats.idle_.back());
  seats.idle_.pop_back();
  seat_->context.use(plan);  // if it throws, the seat is dropped
}

Seats::Taken::~Taken() {
  if (seats_.idle_.size() < seats_.kept_) seats_.idle_.push_back(std::move(seat_));
}

py::object Seats::run(Taken& seat, const CancelFlag* cancel, bool is_profiled) {
  std::vector<std::int64_t> profile;
  const RunOptions options{0, cancel, is_profiled ? &profile : nullptr};
  // A run waits while other runs use all cores, and must not hold the GIL then.
  GilReleased no_gil(!is_short_ || seat->context.plan().has_extensions || !CoreSet::shared().has_free_core());
  const auto begin = std::chrono::steady_clock::now();
  const bool finished = seat->context.run(seat->inputs, seat->outputs, options, seat->states);
  const auto taken = std::chrono::steady_clock::now() - begin;
  no_gil.take();
  if (!finished) throw_cancelled();
  is_short_ = taken < kShortRun;
  if (!is_profiled) return py::none();
  return py::cast(profile);
}

}  // namespace engine

// The classes of engine._core that run plans: Context, PlanRunner and CancelFlag.
#pragma once

#include <pybind11/pybind11.h>

#include <stdexcept>

namespace engine {

// A cancel flag stopped a run.
class RunCancelled : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] void throw_cancelled();

void bind_running(pybind11::module_& module);

}  // namespace engine

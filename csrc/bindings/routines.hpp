// The classes of engine._core that run control flow: RoutineBuilder, Repetition and RepetitionRunner.
#pragma once

#include <pybind11/pybind11.h>

namespace engine {

void bind_routines(pybind11::module_& module);

}  // namespace engine

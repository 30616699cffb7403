// The class of engine._core that reads the programs of blobs.
#pragma once

#include <pybind11/pybind11.h>

namespace engine {

void bind_stored_program(pybind11::module_& module);

}  // namespace engine

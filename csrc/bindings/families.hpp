// Python's interface to families of plans.
#pragma once

#include <pybind11/pybind11.h>

namespace engine {

void bind_families(pybind11::module_& module);

}  // namespace engine

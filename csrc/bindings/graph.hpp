// The submodule engine._core.graph. `engine/native/graph.py` is its only user.
#pragma once

#include <pybind11/pybind11.h>

namespace engine {

// Null in a build without graph algorithms: running plans needs none (ENGINE_KERNELS).
__attribute__((weak)) void bind_graph(pybind11::module_& parent);

}  // namespace engine

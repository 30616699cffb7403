// Shared libraries with kernels for the operators of extensions.
#pragma once

#include <pybind11/pybind11.h>

#include <stdexcept>

namespace engine {

// This engine cannot use the library; the message says why.
class ExtensionLoadFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

void bind_extensions(pybind11::module_& module);

}  // namespace engine

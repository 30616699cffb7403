// Converts Python values to the core's: attributes of steps, and memory that Python objects own.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "kernels/prepare.hpp"

namespace engine {

// Keeps a Python object alive from C++; any thread may release it.
std::shared_ptr<const void> keep(pybind11::object object);

// An integer, a float, a text, or a list of numbers. Throws PlanError, naming the attribute, for anything else.
Attributes::Value to_value(const std::string& name, pybind11::handle value);

Attributes to_attributes(const pybind11::dict& values);

}  // namespace engine

#include "bindings/attributes.hpp"

#include <utility>
#include <vector>

namespace py = pybind11;

namespace engine {

std::shared_ptr<const void> keep(py::object object) {
  PyObject* held = object.release().ptr();
  return {held, [](const void* pointer) {
            const py::gil_scoped_acquire gil;
            Py_DECREF(static_cast<PyObject*>(const_cast<void*>(pointer)));
          }};
}

Attributes::Value to_value(const std::string& name, py::handle value) {
  if (py::isinstance<py::bool_>(value)) return static_cast<std::int64_t>(value.cast<bool>());
  if (PyLong_Check(value.ptr())) {
    const long long number = PyLong_AsLongLong(value.ptr());
    if (number == -1 && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      throw PlanError("attribute \"" + name + "\" does not fit into 64 bits");
    }
    return static_cast<std::int64_t>(number);
  }
  if (py::isinstance<py::float_>(value)) return value.cast<double>();
  if (PyUnicode_Check(value.ptr())) return value.cast<std::string>();
  if (PyTuple_Check(value.ptr()) || PyList_Check(value.ptr())) {
    std::vector<std::int64_t> integers;
    std::vector<double> reals;
    bool is_integral = true;
    for (const py::handle item : value) {
      const Attributes::Value element = to_value(name, item);
      if (const auto* integer = std::get_if<std::int64_t>(&element)) {
        integers.push_back(*integer);
        reals.push_back(static_cast<double>(*integer));
      } else if (const auto* real = std::get_if<double>(&element)) {
        reals.push_back(*real);
        is_integral = false;
      } else {
        throw PlanError("attribute \"" + name + "\" is a list of other than numbers");
      }
    }
    if (is_integral) return integers;
    return reals;
  }
  throw PlanError("attribute \"" + name + "\" is a " + std::string(py::str(py::type::of(value))) +
                  "; expected a name, an int, a float, or a list of numbers");
}

Attributes to_attributes(const py::dict& values) {
  Attributes attributes;
  for (const auto& [key, value] : values) {
    std::string name = py::cast<std::string>(key);
    Attributes::Value converted = to_value(name, value);
    attributes.set(std::move(name), std::move(converted));
  }
  return attributes;
}

}  // namespace engine

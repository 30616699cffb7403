#include "blob/stored_program.hpp"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/attributes.hpp"
#include "bindings/stored_program.hpp"

namespace py = pybind11;

namespace engine {
namespace {

using DescribedForm = std::pair<std::string, std::vector<std::int64_t>>;

std::string_view view_of(const py::buffer_info& info) {
  if (info.ndim != 1 || info.itemsize != 1) throw StoredProgramError("it is not in contiguous bytes");
  return {static_cast<const char*>(info.ptr), static_cast<std::size_t>(info.size)};
}

std::vector<ValueForm> to_forms(const std::vector<DescribedForm>& described) {
  std::vector<ValueForm> forms;
  for (const auto& [name, shape] : described) {
    const ElementType* type = find_element_type(name);
    if (type == nullptr) throw StoredProgramError("a plan reads or writes " + name);
    forms.push_back({type, shape});
  }
  return forms;
}

py::list described_forms(const std::vector<ValueForm>& forms) {
  py::list described;
  for (const ValueForm& form : forms)
    described.append(py::make_tuple(form.type->name, py::tuple(py::cast(form.shape))));
  return described;
}

// A read-only array over the bytes, which keeps them alive.
py::array to_array(const StoredBytes& bytes) {
  const py::capsule owner(new std::shared_ptr<const void>(bytes.owner),
                          [](void* held) { delete static_cast<std::shared_ptr<const void>*>(held); });
  py::array made(py::dtype::of<std::uint8_t>(), {static_cast<py::ssize_t>(bytes.size)}, {py::ssize_t{1}}, bytes.data,
                 owner);
  made.attr("setflags")(py::arg("write") = false);
  return made;
}

py::tuple build(const StoredProgram& program, const std::vector<DescribedForm>& inputs,
                const std::vector<DescribedForm>& outputs, const std::string& isa, const py::function& find) {
  const FindSection find_section = [&](const std::string& name) {
    py::object content = find(name);
    const std::string_view bytes = view_of(py::buffer(content).request());
    return StoredBytes{reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), keep(std::move(content))};
  };
  BuiltProgram built = program.build(to_forms(inputs), to_forms(outputs), parse_isa(isa), find_section);
  py::list constants, segments;
  for (const BuiltProgram::Constant& each : built.constants) {
    constants.append(py::make_tuple(each.slot, each.form.type->name, each.form.shape, to_array(each.bytes)));
  }
  for (BuiltSegment& each : built.segments) {
    py::list read;
    for (const auto& [data, size] : each.constants)
      read.append(
          py::make_tuple(reinterpret_cast<std::uintptr_t>(data), reinterpret_cast<std::uintptr_t>(data) + size));
    segments.append(py::make_tuple(std::const_pointer_cast<Plan>(each.plan), std::move(each.live_bytes), read,
                                   py::tuple(py::cast(each.reads)), py::tuple(py::cast(each.writes)),
                                   described_forms(each.inputs), described_forms(each.outputs),
                                   py::tuple(py::cast(each.nodes)), each.largest, each.largest_bytes));
  }
  return py::make_tuple(constants, segments, py::tuple(py::cast(built.outputs)));
}

}  // namespace

void bind_stored_program(py::module_& module) {
  program_format();  // see module.cpp
  module.def("program_format", &program_format);
  module.attr("packed_weight_formats") = kPackedWeightFormats;

  py::class_<StoredProgram>(module, "StoredProgram")
      .def(py::init([](const py::buffer& text) { return std::make_unique<StoredProgram>(view_of(text.request())); }),
           py::arg("text"))
      .def_property_readonly("counts", &StoredProgram::counts)
      .def_property_readonly("rows", &StoredProgram::rows)
      .def("missing_rows", &StoredProgram::missing_rows)
      .def("build", &build, py::arg("inputs"), py::arg("outputs"), py::arg("isa"), py::arg("find"));
}

}  // namespace engine

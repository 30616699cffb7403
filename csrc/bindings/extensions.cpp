#include "bindings/extensions.hpp"

#include <dlfcn.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/gil.hpp"
#include "executor/kernel_registry.hpp"
#include "kernels/prepare/extension_call.hpp"

namespace py = pybind11;

namespace engine {
namespace {

constexpr const char* kSymbol = "engine_kernels";

// An element type, lengths (none if the rank is unknown, -1 for an unknown length), and the data of a constant.
using DescribedType = std::tuple<std::int32_t, std::optional<std::vector<std::int64_t>>, std::optional<py::array>>;
using DescribedTypes = std::vector<std::optional<DescribedType>>;  // none: an omitted input
// Name, kind and value; the kind of an empty list cannot be told from the list.
using DescribedAttributes = std::vector<std::tuple<std::string, std::int32_t, ExtensionAttribute::Value>>;

std::vector<ExtensionType> to_types(const DescribedTypes& described) {
  std::vector<ExtensionType> types;
  for (const auto& each : described) {
    ExtensionType type;
    if (each) {
      const auto& [element_type, dims, data] = *each;
      type.element_type = element_type;
      if (dims) {
        // Functions of kernels copy lengths to arrays of ENGINE_MAX_RANK.
        if (dims->size() > ENGINE_MAX_RANK) {
          throw ExtensionFailure("tensors of kernels have at most " + std::to_string(ENGINE_MAX_RANK) +
                                 " dimensions; got " + std::to_string(dims->size()));
        }
        type.rank = static_cast<std::int32_t>(dims->size());
        type.dims = *dims;
      }
      if (data) type.data = data->data();
    }
    types.push_back(std::move(type));
  }
  return types;
}

std::vector<ExtensionAttribute> to_extension_attributes(const DescribedAttributes& described) {
  std::vector<ExtensionAttribute> attributes;
  for (const auto& [name, kind, value] : described) {
    ExtensionAttribute attribute{name, value};
    const auto* integer = std::get_if<std::int64_t>(&value);
    const auto* integers = std::get_if<std::vector<std::int64_t>>(&value);
    if (kind == ENGINE_FLOAT && integer != nullptr) attribute.value = static_cast<double>(*integer);
    if (kind == ENGINE_FLOATS && integers != nullptr) {
      attribute.value = std::vector<double>(integers->begin(), integers->end());
    }
    if (kind == ENGINE_STRINGS && integers != nullptr && integers->empty()) {
      attribute.value = std::vector<std::string>();
    }
    attributes.push_back(std::move(attribute));
  }
  return attributes;
}

py::object to_list(const char* const* names) {
  if (names == nullptr) return py::none();
  py::list list;
  for (; *names != nullptr; ++names) list.append(py::str(*names));
  return list;
}

// Throws ExtensionLoadFailure if its name is missing, its kind is unknown, or values that it announces are missing.
void check_declaration(const engine_attribute& attribute, std::size_t index) {
  const auto refuse = [&](const char* why) {
    throw ExtensionLoadFailure("attribute " + std::to_string(index) + " " + why);
  };
  if (attribute.name == nullptr) refuse("has no name");
  if (attribute.kind < ENGINE_INT || attribute.kind > ENGINE_STRINGS) refuse("is of no known kind");
  if (attribute.kind <= ENGINE_STRING && attribute.count > 1) refuse("is not a list, but has several values");
  if (attribute.count == 0) return;
  const bool is_integer = attribute.kind == ENGINE_INT || attribute.kind == ENGINE_INTS;
  const bool is_real = attribute.kind == ENGINE_FLOAT || attribute.kind == ENGINE_FLOATS;
  const void* values = is_integer ? static_cast<const void*>(attribute.ints)
                       : is_real  ? static_cast<const void*>(attribute.floats)
                                  : static_cast<const void*>(attribute.strings);
  if (values == nullptr) refuse("has a count, and NULL in place of values");
  if (is_integer || is_real) return;
  for (std::size_t i = 0; i < attribute.count; ++i) {
    if (attribute.strings[i] == nullptr) refuse("has a value that is NULL");
  }
}

py::object values_of(const engine_attribute& attribute) {
  py::list values;
  for (std::size_t i = 0; i < attribute.count; ++i) {
    switch (attribute.kind) {
      case ENGINE_INT:
      case ENGINE_INTS:
        values.append(attribute.ints[i]);
        break;
      case ENGINE_FLOAT:
      case ENGINE_FLOATS:
        values.append(attribute.floats[i]);
        break;
      default:
        values.append(py::str(attribute.strings[i]));
    }
  }
  return values;
}

// A function of a library that operates one operator. Libraries stay loaded, so it is always valid.
struct Kernel {
  engine_kernel functions;  // without the fields that the library does not know

  py::dict described() const {
    py::dict result;
    result["version"] = functions.version;
    result["inputs"] = to_list(functions.inputs);
    result["outputs"] = to_list(functions.outputs);
    result["infers"] = functions.infer != nullptr;
    result["is_random"] = functions.is_random != 0;
    if (functions.num_attributes > 0 && functions.attributes == nullptr) {
      throw ExtensionLoadFailure("num_attributes is " + std::to_string(functions.num_attributes) +
                                 ", and attributes is NULL");
    }
    py::list attributes;
    for (std::size_t i = 0; i < functions.num_attributes; ++i) {
      const engine_attribute& each = functions.attributes[i];
      check_declaration(each, i);
      attributes.append(py::make_tuple(each.name, each.kind, each.is_required != 0, values_of(each)));
    }
    result["attributes"] = attributes;
    return result;
  }

  void supports(const DescribedTypes& inputs, std::size_t num_outputs, const DescribedAttributes& attributes) const {
    if (functions.supports == nullptr) return;
    const ExtensionNode node(to_types(inputs), std::vector<ExtensionType>(num_outputs),
                             to_extension_attributes(attributes));
    const GilReleased no_gil;
    node.call("", functions.supports, false);
  }

  py::list infer(const std::string& title, const DescribedTypes& inputs, std::size_t num_outputs,
                 const DescribedAttributes& attributes) const {
    const ExtensionNode node(to_types(inputs), std::vector<ExtensionType>(num_outputs),
                             to_extension_attributes(attributes));
    std::vector<engine_type> types(num_outputs);
    for (engine_type& type : types) {
      type = {};
      type.rank = -1;
    }
    {
      const GilReleased no_gil;
      node.call(title, functions.infer, false, types.data());
    }
    py::list result;
    for (const engine_type& type : types) {
      if (type.rank > ENGINE_MAX_RANK) {
        throw ExtensionFailure(title + "it gives an output rank " + std::to_string(type.rank) + "; at most " +
                               std::to_string(ENGINE_MAX_RANK) + " is allowed");
      }
      py::object dims = py::none();
      if (type.rank >= 0) dims = py::cast(std::vector<std::int64_t>(type.dims, type.dims + type.rank));
      result.append(py::make_tuple(type.element_type, dims));
    }
    return result;
  }

  std::shared_ptr<ExtensionCall> call(std::string title, const DescribedTypes& inputs, const DescribedTypes& outputs,
                                      const DescribedAttributes& attributes) const {
    auto input_types = to_types(inputs), output_types = to_types(outputs);
    auto values = to_extension_attributes(attributes);
    const GilReleased no_gil;
    return std::const_pointer_cast<ExtensionCall>(ExtensionCall::make(
        functions, std::move(title), std::move(input_types), std::move(output_types), std::move(values)));
  }
};

struct Library {
  std::string name, version;
  std::vector<std::tuple<std::string, std::string, std::shared_ptr<Kernel>>> kernels;  // domain, operator
};

std::string described_error() {
  const char* error = dlerror();
  return error != nullptr ? error : "the system gives no reason";
}

bool is_empty(const char* text) {
  return text == nullptr || text[0] == 0;
}

Library read_library(const engine_library& found) {
  if (found.abi_version != ENGINE_KERNEL_ABI_VERSION) {
    throw ExtensionLoadFailure("it was compiled for version " + std::to_string(found.abi_version) +
                               " of engine_kernel.h, and this engine has version " +
                               std::to_string(ENGINE_KERNEL_ABI_VERSION) +
                               "; compile it again with the header in the folder that `python -m engine.include` "
                               "prints");
  }
  if (found.struct_size < offsetof(engine_library, check)) {
    throw ExtensionLoadFailure("struct_size of its engine_library is " + std::to_string(found.struct_size) +
                               "; expected sizeof(engine_library)");
  }
  if (is_empty(found.name) || is_empty(found.version)) {
    throw ExtensionLoadFailure("its engine_library has no name or no version");
  }
  Library library{found.name, found.version, {}};
  if (found.num_kernels == 0 || found.kernels == nullptr) throw ExtensionLoadFailure("it has no kernels");
  std::set<std::pair<std::string, std::string>> names;
  for (std::size_t i = 0; i < found.num_kernels; ++i) {
    const engine_kernel* kernel = found.kernels[i];
    const std::string which = "kernel " + std::to_string(i);
    if (kernel == nullptr) throw ExtensionLoadFailure(which + " is NULL");
    if (kernel->struct_size < offsetof(engine_kernel, destroy)) {
      throw ExtensionLoadFailure("struct_size of " + which + " is " + std::to_string(kernel->struct_size) +
                                 "; expected sizeof(engine_kernel)");
    }
    if (is_empty(kernel->domain) || is_empty(kernel->op_type)) {
      throw ExtensionLoadFailure(which + " has no domain or no op_type");
    }
    if (kernel->compute == nullptr) {
      throw ExtensionLoadFailure(which + " (" + kernel->op_type + ") has no compute function");
    }
    if (!names.emplace(kernel->domain, kernel->op_type).second) {
      throw ExtensionLoadFailure(which + ": there are two kernels of " + kernel->domain + "." + kernel->op_type);
    }
    auto made = std::make_shared<Kernel>();
    std::memcpy(&made->functions, kernel, std::min(kernel->struct_size, sizeof(engine_kernel)));
    library.kernels.emplace_back(kernel->domain, kernel->op_type, std::move(made));
  }
  if (const auto check = field_or(found, &engine_library::check, {})) {
    char message[kExtensionMessage] = {};
    const int status = check(message, sizeof(message));
    if (status != ENGINE_OK) {
      throw ExtensionLoadFailure(std::string("its check refuses this machine: ") + said_by_extension(message));
    }
  }
  return library;
}

// Loads a library and checks its description; runs its code.
Library load_library(const std::string& path) {
  const GilReleased no_gil;
  dlerror();
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw ExtensionLoadFailure("it cannot be loaded: " + described_error());
  try {
    void* symbol = dlsym(handle, kSymbol);
    if (symbol == nullptr) {
      throw ExtensionLoadFailure("it exports no function engine_kernels, which engine_kernel.h declares");
    }
    const engine_library* found = reinterpret_cast<const engine_library* (*)()>(symbol)();
    if (found == nullptr) throw ExtensionLoadFailure("engine_kernels() returns NULL");
    return read_library(*found);
  } catch (...) {
    dlclose(handle);
    throw;
  }
}

void compute(const ExtensionCall& call, const std::vector<py::array>& inputs, const std::vector<py::array>& outputs) {
  const auto check = [](const char* kind, const std::vector<py::array>& arrays,
                        const std::vector<std::size_t>& expected) {
    if (arrays.size() != expected.size()) {
      throw std::invalid_argument("there are " + std::to_string(arrays.size()) + " " + kind + "s; expected " +
                                  std::to_string(expected.size()));
    }
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      if (!(arrays[i].flags() & py::array::c_style) || static_cast<std::size_t>(arrays[i].nbytes()) != expected[i]) {
        throw std::invalid_argument(std::string(kind) + " " + std::to_string(i) + " has " +
                                    std::to_string(arrays[i].nbytes()) + " bytes; expected " +
                                    std::to_string(expected[i]) + ", contiguous in C order");
      }
    }
  };
  check("input", inputs, call.input_bytes());
  check("output", outputs, call.output_bytes());
  std::vector<const void*> sources;
  std::vector<void*> targets;
  for (const py::array& array : inputs) sources.push_back(array.data());
  for (const py::array& array : outputs) targets.push_back(const_cast<void*>(array.data()));
  const FoundKernel found = KernelRegistry::built_in().kernel("extension", Isa::generic);
  const GilReleased no_gil;
  call.compute(sources, targets, *found.entry);
}

}  // namespace

void bind_extensions(py::module_& module) {
  py::class_<ExtensionCall, std::shared_ptr<ExtensionCall>>(module, "ExtensionCall")
      .def_property_readonly("token", &ExtensionCall::token)
      .def("compute", compute, py::arg("inputs"), py::arg("outputs"));

  py::class_<Kernel, std::shared_ptr<Kernel>>(module, "ExtensionKernel")
      .def("described", &Kernel::described)
      .def("supports", &Kernel::supports, py::arg("inputs"), py::arg("num_outputs"), py::arg("attributes"))
      .def("infer", &Kernel::infer, py::arg("title"), py::arg("inputs"), py::arg("num_outputs"), py::arg("attributes"))
      .def("call", &Kernel::call, py::arg("title"), py::arg("inputs"), py::arg("outputs"), py::arg("attributes"));

  module.def(
      "load_extension",
      [](const std::string& path) {
        const Library library = load_library(path);
        py::list kernels;
        for (const auto& [domain, op_type, kernel] : library.kernels) {
          kernels.append(py::make_tuple(domain, op_type, kernel));
        }
        return py::make_tuple(library.name, library.version, kernels);
      },
      py::arg("path"));
}

}  // namespace engine

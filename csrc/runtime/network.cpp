#include "runtime/network.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "executor/cpu_features.hpp"
#include "executor/kernel_rows.hpp"

namespace engine {
namespace {

#if defined(__x86_64__)
constexpr std::string_view kArchitecture = "x86_64";
#elif defined(__aarch64__)
constexpr std::string_view kArchitecture = "aarch64";
#else
constexpr std::string_view kArchitecture = "unknown";
#endif

bool holds(const JsonValue& value, std::string_view wanted) {
  if (value.is(JsonKind::text)) return value.text() == wanted;
  const auto items = value.items();
  return std::all_of(items.begin(), items.end(), [&](const JsonValue& item) { return item.text() == wanted; });
}

std::string quoted(std::string_view text) {
  return "`" + std::string(text.substr(0, 80)) + "`";
}

// The input or output that a manifest describes. Throws Failure for values that are not tensors of known shapes.
Port read_port(const Blob& blob, const JsonValue& described) {
  Port port{std::string(described.at("name").text()), {}, 0};
  if (port.name.find('\0') != std::string::npos) {
    blob.refuse(ENGINE_RUNTIME_UNSUPPORTED, "an input or output has a null character in its name");
  }
  const auto refuse = [&](const std::string& why) {
    blob.refuse(ENGINE_RUNTIME_UNSUPPORTED, quoted(port.name) + why + ": run the blob with engine-sdk");
  };
  const JsonValue type = described.at("type");
  if (!type.has("tensor")) refuse(" is not a tensor");
  const JsonValue shape = type.at("shape");
  const std::string_view name = type.at("tensor").text();
  if (!shape.is(JsonKind::list)) refuse(" has any number of dimensions");
  for (const JsonValue& length : shape.items()) {
    if (!length.is(JsonKind::integer)) refuse(" has an open shape");
  }
  if (name == "string") refuse(" is a tensor of texts");
  port.form = read_form(name, shape);
  if (port.form.type->bits < 8) refuse(" is of " + std::string(name) + ", a type of fewer than 8 bits");
  port.bytes = port.form.bytes();
  return port;
}

std::vector<Port> read_ports(const Blob& blob, const JsonValue& list) {
  std::vector<Port> ports;
  for (const JsonValue& item : list.items()) ports.push_back(read_port(blob, item));
  return ports;
}

// RFC 4648, section 4, as Python writes it. Throws JsonError.
std::vector<std::byte> from_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<std::byte> bytes;
  if (text.size() % 4 != 0) throw JsonError("a value is not in base64");
  bytes.reserve(text.size() / 4 * 3);
  for (std::size_t at = 0; at < text.size(); at += 4) {
    std::uint32_t bits = 0;
    int padding = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      const char c = text[at + i];
      const bool is_padding = c == '=' && at + 4 == text.size() && i >= 2;
      const std::size_t digit = is_padding ? 0 : kDigits.find(c);
      if (digit == std::string_view::npos || (padding != 0 && !is_padding)) throw JsonError("a value is not in base64");
      padding += is_padding ? 1 : 0;
      bits = bits << 6 | static_cast<std::uint32_t>(digit);
    }
    for (int i = 0; i < 3 - padding; ++i) bytes.push_back(static_cast<std::byte>(bits >> (16 - 8 * i)));
  }
  return bytes;
}

StoredVariable read_variable(const Blob& blob, const JsonValue& described, Port& after) {
  StoredVariable variable{read_port(blob, described.at("before")), {}};
  after = read_port(blob, described.at("after"));
  const JsonValue declared = described.at("variable"), initial = declared.at("initial");
  const std::string named = "variable " + quoted(declared.at("name").text());
  if (after.form != variable.before.form) {
    blob.refuse(ENGINE_RUNTIME_FORMAT,
                named + " is " + variable.before.form.text() + " before a run and " + after.form.text() + " after it");
  }
  const ValueForm form = read_form(initial.at("type").text(), initial.at("shape"));
  if (form != variable.before.form) {
    blob.refuse(ENGINE_RUNTIME_FORMAT,
                named + " begins with " + form.text() + "; expected " + variable.before.form.text());
  }
  if (initial.has("data")) {
    variable.initial = from_base64(initial.at("data").text());
    if (variable.initial.size() != variable.before.bytes) {
      blob.refuse(ENGINE_RUNTIME_FORMAT, named + " begins with " + std::to_string(variable.initial.size()) +
                                             " bytes; expected " + std::to_string(variable.before.bytes));
    }
  }
  return variable;
}

// The instruction set of the section `compilation`, all of whose entries must be as the engine writes them.
std::string_view compiled_isa(const JsonValue& compilation) {
  constexpr std::int64_t kMaxThreads = 4096;
  for (const auto& [name, choice] : compilation.at("choices").entries()) choice.text();
  compilation.at("precision").text();
  compilation.at("threads").integer(1, kMaxThreads);
  compilation.at("is_accurate").boolean();
  if (compilation.has("rounds_weights")) compilation.at("rounds_weights").boolean();
  return compilation.at("isa").text();
}

std::vector<ValueForm> forms_of(const std::vector<Port>& ports, const std::vector<StoredVariable>& variables) {
  std::vector<ValueForm> forms;
  for (const Port& port : ports) forms.push_back(port.form);
  for (const StoredVariable& variable : variables) forms.push_back(variable.before.form);
  return forms;
}

}  // namespace

Network::Network(Blob blob, int max_threads) : where_(blob.where()), max_threads_(max_threads) {
  try {
    read(blob);
  } catch (const JsonError& error) {
    blob.refuse(ENGINE_RUNTIME_FORMAT, error.what());
  } catch (const StoredProgramError& error) {
    blob.refuse(ENGINE_RUNTIME_FORMAT, error.what());
  } catch (const PlanError& error) {
    blob.refuse(ENGINE_RUNTIME_FORMAT, error.what());
  } catch (const SettingError& error) {  // ENGINE_MAX_ISA
    blob.refuse(ENGINE_RUNTIME_INCOMPATIBLE, error.what());
  }
}

void Network::read(Blob& blob) {
  check_host(blob);
  if (!blob.has_section("program")) {
    std::string why = "it was exported without";
    if (blob.has_section("program/none")) {
      const StoredBytes text = blob.section("program/none");
      why.assign(reinterpret_cast<const char*>(text.data), std::min(text.size, std::size_t{1000}));
    }
    blob.refuse(ENGINE_RUNTIME_UNSUPPORTED,
                "it has no plans, only the graph: " + why + "; change the model, or run the blob with engine-sdk");
  }
  read_interface(blob);
  build(blob);
  blob.verify();
}

void Network::check_host(const Blob& blob) const {
  const JsonValue manifest = blob.manifest();
  const auto refuse = [&](const std::string& why) { blob.refuse(ENGINE_RUNTIME_INCOMPATIBLE, why); };
  if (const std::string_view device = manifest.at("device").text(); device != "CPU") {
    refuse("it is for the device " + std::string(device.substr(0, 80)) + "; this runtime runs blobs for CPU");
  }
  if (const std::string_view plugin = manifest.at("plugin_name").text(); plugin != "CPU") {
    refuse("it was written by the plugin " + std::string(plugin.substr(0, 80)) + ", and not by the engine's own");
  }
  // The meaning of a kernel's attributes may change between versions.
  if (const std::string_view version = manifest.at("engine_version").text(); version != engine_runtime_version()) {
    refuse("it was compiled by engine " + std::string(version.substr(0, 80)) + ", and this runtime is " +
           engine_runtime_version() + ": compile the model again");
  }
  const JsonValue metadata = manifest.at("metadata");
  if (metadata.has("transform")) {
    blob.refuse(ENGINE_RUNTIME_UNSUPPORTED, "its sections are encrypted or transformed; export it without");
  }
  if (metadata.has("bound")) {
    blob.refuse(ENGINE_RUNTIME_UNSUPPORTED, "its weights are in another file; export it with its weights");
  }
  for (const auto& [name, required] : manifest.at("requirements").entries()) {
    if (name == "architecture") {
      if (!holds(required, kArchitecture)) refuse("it is not for " + std::string(kArchitecture));
    } else if (name == "packed weights") {
      if (!holds(required, kPackedWeightFormats)) {
        refuse("its weights are not packed in version " + std::string(kPackedWeightFormats) + ": export it again");
      }
    } else if (name == "variants") {
      refuse("it is a package of variants for several machines: import one with engine-sdk, and export it");
    } else if (name != "isa") {  // that is compared with the one of `compilation`
      refuse("it requires " + quoted(name) + ", which this runtime does not have");
    }
  }
}

void Network::read_interface(const Blob& blob) {
  const JsonValue manifest = blob.manifest(), metadata = manifest.at("metadata");
  inputs_ = read_ports(blob, manifest.at("inputs"));
  outputs_ = read_ports(blob, manifest.at("outputs"));
  if (!metadata.has("variables")) return;
  for (const JsonValue& item : metadata.at("variables").items()) {
    Port after;
    variables_.push_back(read_variable(blob, item, after));
  }
}

void Network::build(Blob& blob) {
  const StoredBytes compilation = blob.section("compilation");
  const JsonDocument made({reinterpret_cast<const char*>(compilation.data), compilation.size});
  const std::string_view name = compiled_isa(made.root());
  const auto& isas = all_isas();
  const auto isa = std::find_if(isas.begin(), isas.end(), [&](Isa each) { return name == isa_name(each); });
  if (isa == isas.end() || !is_of_architecture(*isa)) {
    blob.refuse(ENGINE_RUNTIME_FORMAT, "it was compiled for the unknown instruction set " + quoted(name));
  }
  const JsonValue requirements = blob.manifest().at("requirements");
  if (!requirements.has("isa") || !holds(requirements.at("isa"), name)) {
    blob.refuse(ENGINE_RUNTIME_FORMAT, "its manifest requires another instruction set than " + quoted(name));
  }
  if (!includes(default_isa(), *isa)) {
    blob.refuse(ENGINE_RUNTIME_INCOMPATIBLE, "it needs the instruction set " + std::string(name) +
                                                 ", and this machine has " + isa_name(default_isa()));
  }
  const StoredBytes text = blob.section("program");
  const StoredProgram stored({reinterpret_cast<const char*>(text.data), text.size});
  const std::vector<std::string> missing = stored.missing_rows();
  if (!missing.empty()) {
    std::string all;
    for (const std::string& row : missing) all += (all.empty() ? "" : ", ") + row;
    blob.refuse(ENGINE_RUNTIME_INCOMPATIBLE,
                "it needs kernels that this build of the library leaves out: " + all +
                    "; use a library with all kernels, or one that was also built for this blob");
  }
  program_ = stored.build(forms_of(inputs_, variables_), forms_of(outputs_, variables_), *isa,
                          [&](const std::string& section) { return blob.section(section); });
}

}  // namespace engine

#include "executor/kernel_registry.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "executor/kernel_rows.hpp"

namespace engine {

#define ENGINE_KERNELS(family, isa)
#define ENGINE_PREPARE(family) extern const OperationEntry family##_operations[];
#include "kernels/families.def"
#undef ENGINE_KERNELS
#undef ENGINE_PREPARE

namespace {

KernelRegistry make_built_in() {
  KernelRegistry registry;
  for (const KernelRow& row : kernel_rows())
    if (row.table != nullptr) registry.add_kernels(row);
#define ENGINE_KERNELS(family, isa)
#define ENGINE_PREPARE(family) registry.add_operations(family##_operations);
#include "kernels/families.def"
#undef ENGINE_KERNELS
#undef ENGINE_PREPARE
  return registry;
}

// Whether a kernel puts values in the places that its arguments say, whatever the lanes of its instruction set: those
// that pack weights and change layouts, which compilation runs. Sizes of tiles that other kernels of the plan read are
// traits, which prepare functions put into the arguments.
bool only_arranges(const FoundKernel& kernel) {
  const std::string_view family = kernel.family, name = kernel.entry->name;
  return family == "pack" || family == "pack_weights" || family == "layout" || name == "pack_depthwise_int8" ||
         name == "winograd_weights_f32";
}

}  // namespace

const KernelRegistry& KernelRegistry::built_in() {
  // Never destroyed, since a thread may run a plan until the process ends.
  static const auto& registry = *new KernelRegistry(make_built_in());
  return registry;
}

void KernelRegistry::add_operations(const OperationEntry* table) {
  for (; table->name != nullptr; ++table) {
    if (!operations_.emplace(table->name, table).second) {
      throw std::logic_error("operation \"" + std::string(table->name) + "\" is in two tables");
    }
  }
}

void KernelRegistry::add_kernels(const KernelRow& row) {
  const Isa isa = row.isa;
  for (const KernelEntry* table = row.table; table->name != nullptr; ++table) {
    std::vector<FoundKernel>& found = kernels_[table->name];
    const auto at = std::lower_bound(found.begin(), found.end(), isa,
                                     [](const FoundKernel& kernel, Isa value) { return kernel.isa < value; });
    if (at != found.end() && at->isa == isa) {
      throw std::logic_error("kernel \"" + std::string(table->name) + "\" is in two tables of " + isa_name(isa));
    }
    found.insert(at, FoundKernel{table, isa, row.family});
    functions_.emplace(table->run, FoundKernel{table, isa, row.family});
  }
}

const OperationEntry& KernelRegistry::operation(std::string_view name) const {
  const auto at = operations_.find(name);
  if (at != operations_.end()) return *at->second;
  std::string known;
  for (const auto& [operation, entry] : operations_) known += (known.empty() ? "" : ", ") + std::string(operation);
  throw PlanError("there is no kernel \"" + std::string(name) + "\"; this build has " + known);
}

std::vector<std::string_view> KernelRegistry::operations() const {
  std::vector<std::string_view> names;
  for (const auto& [name, entry] : operations_) names.push_back(name);
  return names;
}

std::map<std::string_view, std::vector<Isa>> KernelRegistry::instruction_sets() const {
  std::map<std::string_view, std::vector<Isa>> isas;
  for (const auto& [name, found] : kernels_) {
    for (const FoundKernel& kernel : found) isas[name].push_back(kernel.isa);
  }
  return isas;
}

FoundKernel KernelRegistry::kernel(std::string_view name, Isa limit) const {
  FoundKernel best{nullptr, Isa::generic, ""};
  const auto at = kernels_.find(name);
  if (at == kernels_.end()) return best;
  for (const FoundKernel& kernel : at->second) {
    if (includes(limit, kernel.isa)) best = kernel;
  }
  return best;
}

Isa KernelRegistry::isa_of(KernelFn run) const {
  const auto at = functions_.find(run);
  if (at == functions_.end()) throw PlanError("prepare chose a function that is in no kernel table");
  return at->second.isa;
}

KernelFn KernelRegistry::portable(KernelFn run, Isa limit) const {
  const auto at = functions_.find(run);
  if (at == functions_.end() || includes(limit, at->second.isa) || !only_arranges(at->second)) return run;
  const FoundKernel found = kernel(at->second.entry->name, limit);
  return found.entry == nullptr ? run : found.entry->run;
}

const KernelEntry& LimitedLookup::find(std::string_view kernel) const {
  if (const KernelEntry* entry = find_or_null(kernel)) return *entry;
  throw PlanError("kernel \"" + std::string(kernel) + "\" does not exist for instruction set " + isa_name(limit_) +
                  " or a lower one" +
                  (has_all_families() ? "" : "; this build leaves out families of kernels (ENGINE_KERNELS)"));
}

const KernelEntry* LimitedLookup::find_or_null(std::string_view kernel) const {
  const FoundKernel found = registry_.kernel(kernel, limit_);
  // Prepare functions run these themselves, to measure this CPU, which has no rate if it has not the instructions.
  if (found.entry != nullptr && std::string_view(found.family) == "rate_bf16" && !is_supported(found.isa)) {
    return nullptr;
  }
  if (found.entry != nullptr && found_ != nullptr) found_->emplace(found.family, found.isa);
  return found.entry;
}

}  // namespace engine

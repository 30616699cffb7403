#include "executor/kernel_rows.hpp"

#include <map>
#include <set>
#include <string_view>

namespace engine {

// Weak, so that a row whose object is not linked is null.
#define ENGINE_KERNELS(family, isa)                                  \
  namespace isa {                                                    \
  extern const KernelEntry family##_kernels[] __attribute__((weak)); \
  }
#define ENGINE_PREPARE(family)
#include "kernels/families.def"
#undef ENGINE_KERNELS
#undef ENGINE_PREPARE

// Never destroyed, since a thread may run a plan until the process ends.
const std::vector<KernelRow>& kernel_rows() {
  static const auto& rows = *new std::vector<KernelRow>([] {
    std::vector<KernelRow> found;
#define ENGINE_KERNELS(family, isa) \
  if constexpr (is_of_architecture(Isa::isa)) found.push_back({#family, Isa::isa, isa::family##_kernels});
#define ENGINE_PREPARE(family)
#include "kernels/families.def"
#undef ENGINE_KERNELS
#undef ENGINE_PREPARE
    return found;
  }());
  return rows;
}

namespace {

std::set<std::string_view> linked_families() {
  std::set<std::string_view> linked;
  for (const KernelRow& row : kernel_rows())
    if (row.table != nullptr) linked.insert(row.family);
  return linked;
}

bool has_all_rows(Isa isa) {
  const std::set<std::string_view> linked = linked_families();
  std::map<std::string_view, const KernelRow*> chosen;
  for (const KernelRow& row : kernel_rows()) {
    if (linked.count(row.family) == 0) continue;
    const KernelRow*& best = chosen[row.family];
    if (includes(isa, row.isa) && (best == nullptr || row.isa > best->isa)) best = &row;
  }
  for (const auto& [family, row] : chosen)
    if (row != nullptr && row->table == nullptr) return false;
  return true;
}

// Whether all rows of a set are of families that no other set has, as those for AMX, and none of these is linked.
bool lacks_own_families(Isa isa) {
  std::map<std::string_view, bool> is_own;
  for (const KernelRow& row : kernel_rows()) {
    bool& own = is_own.try_emplace(row.family, true).first->second;
    own = own && row.isa == isa;
  }
  bool has_rows = false;
  for (const KernelRow& row : kernel_rows()) {
    if (row.isa != isa) continue;
    if (row.table != nullptr || !is_own[row.family]) return false;
    has_rows = true;
  }
  return has_rows;
}

}  // namespace

bool is_built(Isa isa) {
  static const auto& built = *new std::map<Isa, bool>([] {
    std::map<Isa, bool> found;
    for (const Isa each : all_isas())
      found[each] = is_of_architecture(each) && has_all_rows(each) && !lacks_own_families(each);
    return found;
  }());
  return built.at(isa);
}

bool has_all_families() {
  static const bool has_all = [] {
    const std::set<std::string_view> linked = linked_families();
    for (const KernelRow& row : kernel_rows())
      if (linked.count(row.family) == 0) return false;
    return true;
  }();
  return has_all;
}

}  // namespace engine

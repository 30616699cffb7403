// The rows of families.def for this architecture, and which of them are part of this build.
#pragma once

#include <vector>

#include "executor/cpu_features.hpp"
#include "kernels/kernel.hpp"

namespace engine {

struct KernelRow {
  const char* family;
  Isa isa;
  const KernelEntry* table;  // null: ENGINE_ISAS or ENGINE_KERNELS left it out of this build
};

// In the order of families.def.
const std::vector<KernelRow>& kernel_rows();

// Whether this build has all rows that plans for an instruction set choose from: for each family, the highest row
// within the set. Without them, plans would get kernels of a lower set, which may expect weights packed differently.
// Families without any row (ENGINE_KERNELS) do not count, since a plan that needs one is refused.
// A set whose rows are all of families of its own, as AMX, must have one of them.
bool is_built(Isa isa);

// Whether this build has rows of every family.
bool has_all_families();

}  // namespace engine

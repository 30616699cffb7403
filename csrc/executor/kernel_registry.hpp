// All operations and kernels of this build, by name.
#pragma once

#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "executor/cpu_features.hpp"
#include "executor/kernel_rows.hpp"
#include "kernels/prepare.hpp"

namespace engine {

// A kernel, the instruction set that it is compiled for, and its family.
struct FoundKernel {
  const KernelEntry* entry;
  Isa isa;
  const char* family = "";
};

// Rows of families.def: the family and the instruction set.
using RowNames = std::set<std::pair<std::string_view, Isa>>;

// Immutable after construction, so any thread may use it.
class KernelRegistry {
 public:
  // The registry of this build, generated from families.def.
  static const KernelRegistry& built_in();

  // Throws std::logic_error if a name occurs twice.
  void add_operations(const OperationEntry* table);
  void add_kernels(const KernelRow& row);

  // Throws PlanError, which lists all operations, if the name is unknown.
  const OperationEntry& operation(std::string_view name) const;
  std::vector<std::string_view> operations() const;

  // For each kernel name, the instruction sets with a kernel compiled for them, ascending.
  std::map<std::string_view, std::vector<Isa>> instruction_sets() const;

  // The kernel of the highest instruction set within `limit`; entry is null if there is none.
  FoundKernel kernel(std::string_view name, Isa limit) const;
  // The instruction set that a kernel function was compiled for. Throws PlanError for an unknown function.
  Isa isa_of(KernelFn run) const;
  // A function that computes the same as `run` with the instructions of `limit`, for a kernel that only arranges data,
  // as packing does: its arguments alone say how. `run` itself if it is within the limit, or of another kernel.
  KernelFn portable(KernelFn run, Isa limit) const;

 private:
  std::map<std::string_view, const OperationEntry*> operations_;
  std::map<std::string_view, std::vector<FoundKernel>> kernels_;  // ascending by instruction set
  std::map<KernelFn, FoundKernel, std::less<>> functions_;
};

// The registry as prepare functions see it. The rows of all kernels that are found are added to `found`, if it is
// given.
class LimitedLookup final : public KernelLookup {
 public:
  LimitedLookup(const KernelRegistry& registry, Isa limit, RowNames* found = nullptr)
      : registry_(registry), limit_(limit), found_(found) {}
  const KernelEntry& find(std::string_view kernel) const override;
  const KernelEntry* find_or_null(std::string_view kernel) const override;

 private:
  const KernelRegistry& registry_;
  Isa limit_;
  RowNames* found_;
};

}  // namespace engine

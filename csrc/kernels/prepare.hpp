// Plan building: a family's prepare functions check a step and convert it into arguments for its kernel.
//
// `csrc/kernels/prepare/<family>.cpp` is compiled once, for the baseline, may use the standard library, and defines
//
//     namespace engine {
//     extern const OperationEntry softmax_operations[] = {{"softmax_f32", prepare_softmax_f32}, {}};
//     }
//
// The name identifies the operation for plan builders. It need not be a kernel's name: prepare chooses the kernel by
// shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/kernel.hpp"

namespace engine {

// An invalid step, buffer or attribute. The message says what is wrong and what is expected; the builder prepends the
// step's number and name.
class PlanError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Overflow-checked arithmetic of sizes: throws PlanError if the result does not fit.
std::size_t checked_multiply(std::size_t a, std::size_t b);
std::size_t checked_add(std::size_t a, std::size_t b);
// The product of dimensions, each of which must be zero or more.
std::size_t checked_product(const std::vector<std::int64_t>& dimensions);

// The quotient, rounded up.
inline std::int64_t divide_up(std::int64_t value, std::int64_t by) {
  return (value + by - 1) / by;
}

// The attributes of a step, by name. Attributes that prepare does not read are an error.
class Attributes {
 public:
  using Value = std::variant<std::int64_t, double, std::vector<std::int64_t>, std::vector<double>, std::string>;

  void set(std::string name, Value value) { values_[std::move(name)] = {std::move(value), false}; }

  // Required attributes: throw PlanError if one is absent or has another type. Integers are accepted as numbers.
  std::int64_t integer(std::string_view name) const;
  std::int64_t integer(std::string_view name, std::int64_t minimum, std::int64_t maximum) const;
  double real(std::string_view name) const;
  const std::vector<std::int64_t>& integers(std::string_view name) const;
  const std::vector<std::int64_t>& integers(std::string_view name, std::size_t count, std::int64_t minimum,
                                            std::int64_t maximum) const;
  std::vector<double> reals(std::string_view name) const;
  const std::string& text(std::string_view name) const;

  // Optional attributes.
  bool has(std::string_view name) const;
  std::int64_t integer_or(std::string_view name, std::int64_t otherwise) const;
  std::int64_t integer_or(std::string_view name, std::int64_t minimum, std::int64_t maximum,
                          std::int64_t otherwise) const;
  double real_or(std::string_view name, double otherwise) const;
  bool flag(std::string_view name) const;  // 0 or 1; absent: 0

  // The attributes whose names begin with `prefix`, without it; they count as read here, and as unread in the result.
  Attributes part(std::string_view prefix) const;

  // Throws PlanError if an attribute was never read: its name is misspelt, or belongs to another kernel.
  void check_all_used() const;

 private:
  struct Slot {
    Value value;
    mutable bool used;
  };
  const Slot* find(std::string_view name) const;
  const Slot& require(std::string_view name) const;

  std::map<std::string, Slot, std::less<>> values_;
};

// Looks up kernels for the best instruction set that the plan may use.
class KernelLookup {
 public:
  virtual ~KernelLookup() = default;
  // The entry of the highest instruction set that has this kernel. Throws PlanError if none has.
  virtual const KernelEntry& find(std::string_view kernel) const = 0;
  // The same, or null.
  virtual const KernelEntry* find_or_null(std::string_view kernel) const = 0;
};

// The input of a prepare function. Byte counts are those of the buffers, including views.
struct StepRequest {
  const std::vector<std::size_t>& inputs;
  const std::vector<std::size_t>& outputs;
  const Attributes& attributes;
  const KernelLookup& kernels;
  // If set, receives the required bytes of each output, as passed to expect_output, by index.
  std::vector<std::size_t>* expected_outputs = nullptr;

  // Throw PlanError unless there are as many operands, each with at least the given number of bytes.
  void expect_operands(std::size_t input_count, std::size_t output_count) const;
  void expect_input(std::size_t index, std::size_t bytes) const;
  void expect_output(std::size_t index, std::size_t bytes) const;
};

// One parallel pass of a step: all workers finish a phase before the next one starts.
struct PreparedPhase {
  KernelFn run = nullptr;
  std::vector<std::byte> args;    // the kernel's argument block, a trivially copyable structure
  std::size_t scratch_bytes = 0;  // for each worker; its content is not kept after the phase
  int max_workers = 1 << 20;      // more would be idle; 1: runs on worker 0 alone, and needs no barrier
                                  // before another such phase

  // A phase of a kernel from the registry, with its arguments.
  template <class Args>
  static PreparedPhase of(const KernelEntry& kernel, const Args& arguments) {
    static_assert(std::is_trivially_copyable_v<Args> && alignof(Args) <= 64);
    PreparedPhase phase;
    phase.run = kernel.run;
    phase.args.resize(sizeof(Args));
    std::memcpy(phase.args.data(), &arguments, sizeof(Args));
    return phase;
  }
};

// The result of a prepare function.
struct PreparedStep {
  std::vector<PreparedPhase> phases;       // at least one; all have the same buffers
  std::vector<std::size_t> temporaries;    // bytes of the shared temporaries, which the plan lays out, 64-byte aligned
  double work = 0;                         // floating-point operations, for profiles; 0 if not counted
  std::shared_ptr<const void> owner = {};  // the memory that the arguments point into; set for a kernel of an
                                           // extension, whose runs are as long as its author likes
};

using PrepareFn = PreparedStep (*)(const StepRequest& request);

// A row of a family's operations. A row of null pointers ends it.
struct OperationEntry {
  const char* name;  // unique over all families
  PrepareFn prepare;
  bool in_place = false;  // an output may share the memory of an input; otherwise a plan refuses this
};

}  // namespace engine

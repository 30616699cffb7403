// What runs at plan build: a family's prepare functions check a step and turn it into arguments for its kernel.
//
// `csrc/kernels/prepare/<family>.cpp` is compiled once, for the baseline, may use the standard library, and defines
//
//     namespace engine {
//     extern const OperationEntry softmax_operations[] = {{"softmax_f32", prepare_softmax_f32}, {}};
//     }
//
// The name is what a plan builder asks for. It need not be a kernel's name: prepare chooses the kernel, by shape.
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

// A step, a buffer or an attribute that a plan cannot be built with. The message says what is wrong and what is
// expected; the builder puts the step's number and name before it.
class PlanError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Overflow-checked arithmetic of sizes: throws PlanError where the result does not fit.
std::size_t checked_multiply(std::size_t a, std::size_t b);
std::size_t checked_add(std::size_t a, std::size_t b);
// The product of dimensions, each of which has to be zero or more.
std::size_t checked_product(const std::vector<std::int64_t>& dimensions);

// The attributes of a step, by name. What is asked for is taken; what is left over after prepare is an error.
class Attributes {
 public:
  using Value = std::variant<std::int64_t, double, std::vector<std::int64_t>, std::vector<double>, std::string>;

  void set(std::string name, Value value) { values_[std::move(name)] = {std::move(value), false}; }

  // Required attributes: throw PlanError where one is absent or has another type. Integers are taken for reals.
  std::int64_t integer(std::string_view name) const;
  std::int64_t integer(std::string_view name, std::int64_t minimum, std::int64_t maximum) const;
  double real(std::string_view name) const;
  const std::vector<std::int64_t>& integers(std::string_view name) const;
  std::vector<double> reals(std::string_view name) const;
  const std::string& text(std::string_view name) const;

  // Optional attributes.
  bool has(std::string_view name) const;
  std::int64_t integer_or(std::string_view name, std::int64_t otherwise) const;
  double real_or(std::string_view name, double otherwise) const;

  // Throws PlanError where an attribute was never asked for: a misspelt name, or one of another kernel.
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

// The kernels of the best instruction set that the plan may use.
class KernelLookup {
 public:
  virtual ~KernelLookup() = default;
  // The entry of the highest instruction set that has this kernel. Throws PlanError where none has.
  virtual const KernelEntry& find(std::string_view kernel) const = 0;
  // The same, or null.
  virtual const KernelEntry* find_or_null(std::string_view kernel) const = 0;
};

// What a prepare function is given. Byte counts are those of the buffers, views included.
struct StepRequest {
  const std::vector<std::size_t>& inputs;
  const std::vector<std::size_t>& outputs;
  const Attributes& attributes;
  const KernelLookup& kernels;
  // Where set, takes the bytes that expect_output was asked for, by index: how large an output has to be.
  std::vector<std::size_t>* expected_outputs = nullptr;

  // Throw PlanError unless there are so many operands, each with the given number of bytes at least.
  void expect_operands(std::size_t input_count, std::size_t output_count) const;
  void expect_input(std::size_t index, std::size_t bytes) const;
  void expect_output(std::size_t index, std::size_t bytes) const;
};

// One parallel pass of a step: all workers have finished a phase before the next one starts.
struct PreparedPhase {
  KernelFn run = nullptr;
  std::vector<std::byte> args;    // the kernel's argument block, a trivially copyable structure
  std::size_t scratch_bytes = 0;  // for each worker; its content does not survive the phase
  int max_workers = 1 << 20;      // more would have nothing to do; 1: runs on worker 0 alone, and needs no barrier
                                  // before another such phase

  // Takes a kernel of the registry and its arguments.
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

// What a prepare function returns.
struct PreparedStep {
  std::vector<PreparedPhase> phases;     // one at least; all see the same buffers
  std::vector<std::size_t> temporaries;  // bytes of the shared temporaries, which the plan lays out, 64-byte aligned
  double work = 0;                       // floating-point operations, for profiles; 0 where it is not counted
};

using PrepareFn = PreparedStep (*)(const StepRequest& request);

// A row of a family's operations. A row of null pointers ends it.
struct OperationEntry {
  const char* name;  // unique over all families
  PrepareFn prepare;
  bool in_place = false;  // an output may lie in the very memory of an input; otherwise a plan refuses it
};

}  // namespace engine

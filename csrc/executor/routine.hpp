// A routine: plans, loops and branches over values of fixed sizes, which run without Python. The bodies of control flow
// are routines. Built by RoutineBuilder, run by Repeater.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "executor/plan.hpp"

namespace engine {

using ValueId = int;
constexpr ValueId kNoValue = -1;

// How the elements of a sequence lie along one axis of a tensor: in each of `outer` blocks, one after the other.
struct SequenceAxis {
  std::size_t outer = 1;
  std::size_t inner_bytes = 0;
  bool is_reversed = false;

  std::size_t element_bytes() const { return checked_multiply(outer, inner_bytes); }
};

struct Routine;

// A Loop or a Scan over a body. Immutable.
//
//          inputs of the body                   results of the body      inputs of the repetition
// Loop     trip, condition, carried, captured   condition, carried, stacked   carried, captured
// Scan     carried, elements, captured          carried, stacked              carried, sequences, captured
struct Repetition {
  // Throws PlanError unless the body has the values above, in sizes that fit.
  static std::shared_ptr<const Repetition> of(std::shared_ptr<const Routine> body, bool is_loop, std::size_t carried,
                                              std::vector<SequenceAxis> elements, std::vector<SequenceAxis> stacks);

  std::shared_ptr<const Routine> body;
  bool is_loop;
  std::size_t carried;
  std::vector<SequenceAxis> elements;
  std::vector<SequenceAxis> stacks;
  // Whether the condition that the body computes is always true, so that the number of trips is known beforehand.
  bool is_unconditional;

  std::size_t first_input() const { return is_loop ? 2 : 0; }
  std::size_t first_result() const { return is_loop ? 1 : 0; }
  std::size_t captured() const;
  std::size_t inputs() const { return carried + elements.size() + captured(); }
};

// Immutable; any number of threads may run it.
struct Routine {
  enum class CallKind { plan, repetition, choice };

  struct Value {
    std::size_t bytes;
    std::size_t alignment;
    const void* constant = nullptr;
    bool is_computed = false;
    bool is_result = false;
  };

  struct Call {
    CallKind kind;
    std::vector<ValueId> inputs, outputs;
    std::shared_ptr<const Plan> plan;
    std::shared_ptr<const Repetition> repetition;
    std::int64_t length = 0;                     // of a Scan's sequences
    ValueId count = kNoValue;                    // of a Loop: the largest number of trips
    ValueId condition = kNoValue;                // of a Loop, or of a choice
    std::shared_ptr<const Routine> branches[2];  // if the condition is false, and true
    std::size_t second_inputs = 0;               // the position in `inputs` of the first input of branch 1
  };

  std::vector<Value> values;  // the inputs first
  std::size_t inputs = 0;
  std::vector<Call> calls;
  std::vector<ValueId> results;
  std::vector<std::shared_ptr<const void>> owners;  // of the constants

  const Value& result(std::size_t index) const { return values[static_cast<std::size_t>(results[index])]; }
};

// Collects values and calls in the order of execution, and checks them: sizes, alignments, and that what is read has
// been written before. Used by one thread. All members throw PlanError, before they change anything.
class RoutineBuilder {
 public:
  // Inputs come before all other values.
  ValueId add_input(std::size_t bytes, std::size_t alignment);
  // `owner` keeps the memory alive while a routine uses it.
  ValueId add_constant(const void* data, std::size_t bytes, std::shared_ptr<const void> owner);
  // The outputs of the plan.
  std::vector<ValueId> add_plan(std::shared_ptr<const Plan> plan, const std::vector<ValueId>& inputs);
  // Returns the final carried values and the stacked results. `inputs` are the repetition's; `count` and `condition`
  // may be kNoValue. A Loop that stacks must be unconditional, with a constant count.
  std::vector<ValueId> add_repetition(std::shared_ptr<const Repetition> repetition, const std::vector<ValueId>& inputs,
                                      ValueId count, ValueId condition, std::int64_t length);
  // The results of the branch that the condition selects, which have the same sizes in both.
  std::vector<ValueId> add_choice(ValueId condition, std::shared_ptr<const Routine> then_branch,
                                  const std::vector<ValueId>& then_inputs, std::shared_ptr<const Routine> else_branch,
                                  const std::vector<ValueId>& else_inputs);
  // The builder is empty afterwards.
  std::shared_ptr<const Routine> build(const std::vector<ValueId>& results);

 private:
  const Routine::Value& value(ValueId id) const;
  void check_input(ValueId id, std::size_t bytes, std::size_t alignment, const char* what) const;
  void check_scalar(ValueId id, std::size_t bytes, const char* what) const;
  void check_inputs(const Routine& routine, const std::vector<ValueId>& inputs) const;
  ValueId add(std::size_t bytes, std::size_t alignment);

  Routine made_;
};

}  // namespace engine

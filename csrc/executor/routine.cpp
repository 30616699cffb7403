#include "executor/routine.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace engine {
namespace {

constexpr std::size_t kTripBytes = sizeof(std::int64_t);
constexpr std::size_t kAlignment = 16;  // of all elements, and of memory from malloc, where stacked results grow

std::string bytes_of(std::size_t found, std::size_t expected) {
  return std::to_string(found) + " bytes; expected " + std::to_string(expected);
}

// The body's condition is its own input, which is true whenever the body runs, or a constant that is true.
bool is_always_true(const Routine& body) {
  const ValueId condition = body.results[0];
  const auto* constant = static_cast<const bool*>(body.values[static_cast<std::size_t>(condition)].constant);
  return condition == 1 || (constant != nullptr && *constant);
}

}  // namespace

std::size_t Repetition::captured() const {
  return body->inputs - first_input() - carried - elements.size();
}

std::shared_ptr<const Repetition> Repetition::of(std::shared_ptr<const Routine> body, bool is_loop, std::size_t carried,
                                                 std::vector<SequenceAxis> elements, std::vector<SequenceAxis> stacks) {
  if (body == nullptr) throw PlanError("a repetition has no body");
  if (is_loop && !elements.empty()) throw PlanError("a Loop has no sequences");
  Repetition made{std::move(body), is_loop, carried, std::move(elements), std::move(stacks), !is_loop};
  const std::size_t first = made.first_input(), result = made.first_result();
  // Except for `carried`, the numbers are sizes of vectors in memory, so their sums cannot overflow.
  if (carried > made.body->inputs || first + carried + made.elements.size() > made.body->inputs ||
      result + carried + made.stacks.size() != made.body->results.size()) {
    throw PlanError("a body with " + std::to_string(made.body->inputs) + " inputs and " +
                    std::to_string(made.body->results.size()) + " results does not fit " + std::to_string(carried) +
                    " carried values, " + std::to_string(made.elements.size()) + " sequences and " +
                    std::to_string(made.stacks.size()) + " stacked results");
  }
  const auto& values = made.body->values;
  if (is_loop && (values[0].bytes != kTripBytes || values[1].bytes != 1 || made.body->result(0).bytes != 1)) {
    throw PlanError("the number of the trip or the condition of a loop's body is not a scalar");
  }
  for (std::size_t i = 0; i < carried; ++i) {
    const Routine::Value &before = values[first + i], &after = made.body->result(result + i);
    if (before.bytes != after.bytes) {
      throw PlanError("carried value " + std::to_string(i) + " has " + bytes_of(after.bytes, before.bytes));
    }
    if (after.bytes != 0 && after.alignment % before.alignment != 0) {
      throw PlanError("carried value " + std::to_string(i) + " is aligned to " + std::to_string(after.alignment) +
                      " bytes; expected " + std::to_string(before.alignment));
    }
  }
  for (std::size_t i = 0; i < made.elements.size(); ++i) {
    const std::size_t expected = values[first + carried + i].bytes, found = made.elements[i].element_bytes();
    if (found != expected) throw PlanError("element " + std::to_string(i) + " has " + bytes_of(found, expected));
  }
  for (std::size_t i = 0; i < made.stacks.size(); ++i) {
    const std::size_t expected = made.body->result(result + carried + i).bytes, found = made.stacks[i].element_bytes();
    if (found != expected) throw PlanError("stacked result " + std::to_string(i) + " has " + bytes_of(found, expected));
  }
  for (const SequenceAxis& axis : made.stacks) {
    if (is_loop && axis.outer != 1) throw PlanError("a loop stacks results along another axis than the first");
  }
  if (is_loop) made.is_unconditional = is_always_true(*made.body);
  return std::make_shared<const Repetition>(std::move(made));
}

ValueId RoutineBuilder::add_input(std::size_t bytes, std::size_t alignment) {
  if (made_.inputs != made_.values.size()) throw PlanError("an input is added behind other values");
  if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > kAlignment) {
    throw PlanError("alignment " + std::to_string(alignment) + " of an input is not a power of two of 1 to 16");
  }
  const ValueId id = add(bytes, alignment);
  ++made_.inputs;
  return id;
}

ValueId RoutineBuilder::add_constant(const void* data, std::size_t bytes, std::shared_ptr<const void> owner) {
  std::size_t alignment = kAlignment;
  while (reinterpret_cast<std::uintptr_t>(data) % alignment != 0) alignment /= 2;
  const ValueId id = add(bytes, alignment);
  made_.values.back().constant = data;
  made_.owners.push_back(std::move(owner));
  return id;
}

std::vector<ValueId> RoutineBuilder::add_plan(std::shared_ptr<const Plan> plan, const std::vector<ValueId>& inputs) {
  if (!plan->states.empty()) throw PlanError("a plan with states cannot be part of a routine");
  if (inputs.size() != plan->inputs.size()) {
    throw PlanError("the plan has " + std::to_string(plan->inputs.size()) + " inputs; " +
                    std::to_string(inputs.size()) + " are given");
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_input(inputs[i], plan->inputs[i].bytes, plan->inputs[i].alignment, "an input of a plan");
  }
  for (const Buffer& output : plan->outputs) {
    if (output.alignment > kAlignment) throw PlanError("an output of a plan is aligned to more than 16 bytes");
  }
  Routine::Call call{Routine::CallKind::plan, inputs, {}, plan, nullptr, 0, kNoValue, kNoValue, {}, 0};
  // Stacked results are written into arrays, where they have the alignment of their elements.
  for (const Buffer& output : plan->outputs) call.outputs.push_back(add(output.bytes, output.alignment));
  for (const ValueId id : call.outputs) made_.values[static_cast<std::size_t>(id)].is_computed = true;
  made_.calls.push_back(call);
  return call.outputs;
}

std::vector<ValueId> RoutineBuilder::add_repetition(std::shared_ptr<const Repetition> repetition,
                                                    const std::vector<ValueId>& inputs, ValueId count,
                                                    ValueId condition, std::int64_t length) {
  const Repetition& repeated = *repetition;
  const Routine& body = *repeated.body;
  if (inputs.size() != repeated.inputs()) {
    throw PlanError("the repetition has " + std::to_string(repeated.inputs()) + " inputs; " +
                    std::to_string(inputs.size()) + " are given");
  }
  std::int64_t trips = length;
  if (repeated.is_loop) {
    if (count != kNoValue) check_scalar(count, kTripBytes, "the number of trips");
    if (condition != kNoValue) check_scalar(condition, 1, "the condition of a loop");
    if (!repeated.stacks.empty()) {
      const void* known = count == kNoValue ? nullptr : value(count).constant;
      if (known == nullptr || condition != kNoValue || !repeated.is_unconditional) {
        throw PlanError("a loop in a routine stacks results of an unknown number of trips");
      }
      trips = std::max<std::int64_t>(0, *static_cast<const std::int64_t*>(known));
    }
  } else if (length < 0 || count != kNoValue || condition != kNoValue) {
    throw PlanError("a Scan has a length of 0 or more, and neither a number of trips nor a condition");
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Routine::Value& read = body.values[repeated.first_input() + i];
    const bool is_sequence = i >= repeated.carried && i < repeated.carried + repeated.elements.size();
    std::size_t bytes = read.bytes;
    if (is_sequence) bytes = checked_multiply(bytes, static_cast<std::size_t>(length));
    check_input(inputs[i], bytes, read.alignment, "an input of a repetition");
  }
  Routine::Call call{Routine::CallKind::repetition, inputs, {}, nullptr, repetition, length, count, condition, {}, 0};
  std::vector<std::pair<std::size_t, std::size_t>> made;
  for (std::size_t i = 0; i < repeated.carried + repeated.stacks.size(); ++i) {
    const Routine::Value& result = body.result(repeated.first_result() + i);
    const std::size_t times = i < repeated.carried ? 1 : static_cast<std::size_t>(trips);
    made.emplace_back(checked_multiply(result.bytes, times), result.alignment);
  }
  for (const auto& [bytes, alignment] : made) call.outputs.push_back(add(bytes, alignment));
  for (const ValueId id : call.outputs) made_.values[static_cast<std::size_t>(id)].is_computed = true;
  made_.calls.push_back(call);
  return call.outputs;
}

std::vector<ValueId> RoutineBuilder::add_choice(ValueId condition, std::shared_ptr<const Routine> then_branch,
                                                const std::vector<ValueId>& then_inputs,
                                                std::shared_ptr<const Routine> else_branch,
                                                const std::vector<ValueId>& else_inputs) {
  check_scalar(condition, 1, "the condition of a choice");
  if (then_branch == nullptr || else_branch == nullptr) throw PlanError("a choice has no branch");
  check_inputs(*then_branch, then_inputs);
  check_inputs(*else_branch, else_inputs);
  if (then_branch->results.size() != else_branch->results.size()) {
    throw PlanError("the branches of a choice have " + std::to_string(then_branch->results.size()) + " and " +
                    std::to_string(else_branch->results.size()) + " results");
  }
  for (std::size_t i = 0; i < then_branch->results.size(); ++i) {
    const std::size_t found = else_branch->result(i).bytes, expected = then_branch->result(i).bytes;
    if (found != expected)
      throw PlanError("result " + std::to_string(i) + " of a branch has " + bytes_of(found, expected));
  }
  Routine::Call call{Routine::CallKind::choice, else_inputs, {}, nullptr, nullptr, 0, kNoValue, condition, {}, 0};
  call.second_inputs = else_inputs.size();
  call.inputs.insert(call.inputs.end(), then_inputs.begin(), then_inputs.end());
  call.branches[0] = else_branch;
  call.branches[1] = then_branch;
  for (std::size_t i = 0; i < then_branch->results.size(); ++i) {
    call.outputs.push_back(add(then_branch->result(i).bytes,
                               std::max(then_branch->result(i).alignment, else_branch->result(i).alignment)));
  }
  for (const ValueId id : call.outputs) made_.values[static_cast<std::size_t>(id)].is_computed = true;
  made_.calls.push_back(call);
  return call.outputs;
}

std::shared_ptr<const Routine> RoutineBuilder::build(const std::vector<ValueId>& results) {
  for (const ValueId id : results) value(id);
  for (const ValueId id : results) made_.values[static_cast<std::size_t>(id)].is_result = true;
  made_.results = results;
  auto routine = std::make_shared<const Routine>(std::move(made_));
  made_ = Routine();
  return routine;
}

const Routine::Value& RoutineBuilder::value(ValueId id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= made_.values.size()) {
    throw PlanError("the routine has no value " + std::to_string(id) + "; it has " +
                    std::to_string(made_.values.size()));
  }
  return made_.values[static_cast<std::size_t>(id)];
}

void RoutineBuilder::check_input(ValueId id, std::size_t bytes, std::size_t alignment, const char* what) const {
  const Routine::Value& read = value(id);
  if (read.bytes != bytes) throw PlanError(std::string(what) + " has " + bytes_of(read.bytes, bytes));
  if (read.bytes != 0 && read.alignment % alignment != 0) {
    throw PlanError(std::string(what) + " is aligned to " + std::to_string(read.alignment) + " bytes; expected " +
                    std::to_string(alignment));
  }
}

void RoutineBuilder::check_scalar(ValueId id, std::size_t bytes, const char* what) const {
  check_input(id, bytes, bytes, what);
}

void RoutineBuilder::check_inputs(const Routine& routine, const std::vector<ValueId>& inputs) const {
  if (inputs.size() != routine.inputs) {
    throw PlanError("the branch has " + std::to_string(routine.inputs) + " inputs; " + std::to_string(inputs.size()) +
                    " are given");
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_input(inputs[i], routine.values[i].bytes, routine.values[i].alignment, "an input of a branch");
  }
}

ValueId RoutineBuilder::add(std::size_t bytes, std::size_t alignment) {
  if (bytes > static_cast<std::size_t>(PTRDIFF_MAX)) {
    throw PlanError("a value of " + std::to_string(bytes) + " bytes is larger than an address space");
  }
  made_.values.push_back({bytes, alignment});
  return static_cast<ValueId>(made_.values.size() - 1);
}

}  // namespace engine

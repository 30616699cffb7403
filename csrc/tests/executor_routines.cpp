// Tests of routines: loops, scans and choices over plans. Run under every sanitizer.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "executor/plan.hpp"
#include "executor/repeater.hpp"
#include "executor/routine.hpp"
#include "tests/expectations.hpp"

namespace engine {
namespace {

using Numbers = std::vector<std::int32_t>;

constexpr std::size_t kCount = 5;
constexpr std::size_t kBytes = kCount * 4;

struct Args {
  std::int64_t count;
  std::int64_t amount;
};

// y = x + amount, over int32.
void add(const void* args, void* const* buffers, const KernelContext& context) {
  const auto& [count, amount] = *static_cast<const Args*>(args);
  const WorkRange range = split_work(count, context.worker, context.workers);
  const auto* x = static_cast<const std::int32_t*>(buffers[0]);
  auto* y = static_cast<std::int32_t*>(buffers[1]);
  for (std::int64_t i = range.begin; i < range.end; ++i) y[i] = x[i] + static_cast<std::int32_t>(amount);
}

// z = x + y, over int32.
void sum(const void* args, void* const* buffers, const KernelContext& context) {
  const WorkRange range = split_work(static_cast<const Args*>(args)->count, context.worker, context.workers);
  const auto* x = static_cast<const std::int32_t*>(buffers[0]);
  const auto* y = static_cast<const std::int32_t*>(buffers[1]);
  auto* z = static_cast<std::int32_t*>(buffers[2]);
  for (std::int64_t i = range.begin; i < range.end; ++i) z[i] = x[i] + y[i];
}

// y = x[0] < amount, a bool.
void below(const void* args, void* const* buffers, const KernelContext& context) {
  if (context.worker != 0) return;
  const std::int64_t amount = static_cast<const Args*>(args)->amount;
  *static_cast<bool*>(buffers[1]) = *static_cast<const std::int32_t*>(buffers[0]) < amount;
}

PreparedStep prepare(const StepRequest& request, const char* kernel, std::size_t inputs) {
  request.expect_operands(inputs, 1);
  const Args args{static_cast<std::int64_t>(request.inputs[0] / 4), request.attributes.integer_or("amount", 1)};
  PreparedPhase phase = PreparedPhase::of(request.kernels.find(kernel), args);
  phase.max_workers = 2;
  return {{phase}, {}, 0};
}

PreparedStep prepare_add(const StepRequest& request) {
  return prepare(request, "add", 1);
}

PreparedStep prepare_sum(const StepRequest& request) {
  return prepare(request, "sum", 2);
}

PreparedStep prepare_below(const StepRequest& request) {
  return prepare(request, "below", 1);
}

const KernelEntry kernels[] = {
    {"add", add, nullptr}, {"sum", sum, nullptr}, {"below", below, nullptr}, {nullptr, nullptr, nullptr}};
const OperationEntry operations[] = {{"add", prepare_add}, {"sum", prepare_sum}, {"below", prepare_below}, {}};

const KernelRegistry& registry() {
  static const KernelRegistry made = [] {
    KernelRegistry result;
    result.add_operations(operations);
    result.add_kernels({"test", Isa::generic, kernels});
    return result;
  }();
  return made;
}

// A plan of one step.
std::shared_ptr<const Plan> plan_of(const char* operation, std::size_t inputs, std::size_t output_bytes,
                                    std::int64_t amount = 1) {
  PlanBuilder builder(Isa::generic, registry());
  std::vector<BufferId> read;
  for (std::size_t i = 0; i < inputs; ++i) read.push_back(builder.add_input(kBytes, 4));
  const BufferId written = builder.add_output(output_bytes, output_bytes % 4 == 0 ? 4 : 1);
  Attributes attributes;
  attributes.set("amount", amount);
  builder.add_step(operation, read, {written}, attributes);
  return builder.build();
}

// A loop's body: carried + amount; the condition is passed on, or whether the carried value is below `limit`.
std::shared_ptr<const Routine> counting(std::int64_t amount, std::int64_t limit = 0, bool stacks = false) {
  RoutineBuilder builder;
  builder.add_input(8, 8);
  const ValueId condition = builder.add_input(1, 1), carried = builder.add_input(kBytes, 4);
  const ValueId next = builder.add_plan(plan_of("add", 1, kBytes, amount), {carried})[0];
  const ValueId goes_on = limit == 0 ? condition : builder.add_plan(plan_of("below", 1, 1, limit), {next})[0];
  if (stacks) return builder.build({goes_on, next, carried});
  return builder.build({goes_on, next});
}

std::shared_ptr<const Repetition> loop(std::shared_ptr<const Routine> body, std::size_t carried = 1) {
  return Repetition::of(std::move(body), true, carried, {}, {});
}

struct Ran {
  bool is_finished;
  std::int64_t done;
  std::vector<Numbers> carried;
};

// Runs a repetition that stacks nothing, from values that begin with `inputs`.
Ran run(Repeater& repeater, const std::vector<Numbers>& inputs, std::int64_t limit, bool condition = true,
        const CancelFlag* cancel = nullptr) {
  std::vector<const void*> read;
  for (const Numbers& each : inputs) read.push_back(each.data());
  Ran ran{false, 0, std::vector<Numbers>(repeater.repetition().carried, Numbers(kCount, -1))};
  std::vector<void*> written;
  for (Numbers& each : ran.carried) written.push_back(each.data());
  Trips trips{read.data(), written.data(), nullptr, nullptr, limit, condition};
  ran.is_finished = repeater.run(trips, cancel);
  ran.done = trips.done;
  return ran;
}

void loops_count() {
  Repeater repeater(loop(counting(3)), 2);
  expect(repeater.repetition().is_unconditional, "a condition that is passed on is always true");
  for (const std::int64_t trips : {0, 1, 2, 3, 1000}) {
    const Ran ran = run(repeater, {Numbers(kCount, 7)}, trips);
    expect(ran.is_finished && ran.done == trips, "a loop of " + std::to_string(trips) + " trips ends");
    expect(ran.carried[0] == Numbers(kCount, static_cast<std::int32_t>(7 + 3 * trips)),
           "the carried value after " + std::to_string(trips) + " trips");
  }
  const Ran none = run(repeater, {Numbers(kCount, 7)}, 5, false);
  expect(none.done == 0 && none.carried[0] == Numbers(kCount, 7), "a condition that is false at first");
}

void conditions_end_loops() {
  Repeater repeater(loop(counting(2, 10)), 2);
  expect(!repeater.repetition().is_unconditional, "a condition that is computed");
  const Ran ran = run(repeater, {Numbers(kCount, 0)}, INT64_MAX);
  expect(ran.is_finished && ran.done == 5 && ran.carried[0] == Numbers(kCount, 10), "0, 2, 4, 6, 8 are below 10");
  expect(run(repeater, {Numbers(kCount, 0)}, 3).done == 3, "the limit ends it before");
}

// A body that passes carried values on in another order neither copies nor loses any.
void carried_values_change_places() {
  RoutineBuilder builder;
  builder.add_input(8, 8);
  const ValueId condition = builder.add_input(1, 1);
  const ValueId a = builder.add_input(kBytes, 4), b = builder.add_input(kBytes, 4);
  builder.add_input(kBytes, 4);  // replaced in each trip, and not read
  const ValueId next = builder.add_plan(plan_of("sum", 2, kBytes), {a, b})[0];
  Repeater repeater(loop(builder.build({condition, b, next, a}), 3), 2);
  std::int32_t x = 1, y = 1, z = 5;
  for (std::int64_t trips = 0; trips < 12; ++trips) {
    const Ran ran = run(repeater, {Numbers(kCount, 1), Numbers(kCount, 1), Numbers(kCount, 5)}, trips);
    expect(ran.carried == std::vector<Numbers>{Numbers(kCount, x), Numbers(kCount, y), Numbers(kCount, z)},
           "Fibonacci's numbers after " + std::to_string(trips) + " trips");
    const std::int32_t total = x + y;
    z = x, x = y, y = total;
  }
}

// sums[t] = sums[t - 1] + x[t]; x and the stacked sums may lie along the second axis, in either direction.
void scans_read_and_stack() {
  RoutineBuilder builder;
  const ValueId carried = builder.add_input(kBytes, 4), element = builder.add_input(kBytes, 4);
  const ValueId next = builder.add_plan(plan_of("sum", 2, kBytes), {carried, element})[0];
  const std::shared_ptr<const Routine> body = builder.build({next, next});
  constexpr std::int64_t kLength = 7;
  for (const bool is_inner : {false, true}) {
    for (const bool is_reversed : {false, true}) {
      const SequenceAxis axis = is_inner ? SequenceAxis{kCount, 4, is_reversed} : SequenceAxis{1, kBytes, is_reversed};
      Repeater repeater(Repetition::of(body, false, 1, {axis}, {axis}), 2);
      const auto at = [&](std::int64_t t, std::size_t i) {
        const auto place = static_cast<std::size_t>(is_reversed ? kLength - 1 - t : t);
        return is_inner ? i * kLength + place : place * kCount + i;
      };
      Numbers x(kLength * kCount), sums(kLength * kCount, -1), expected(kLength * kCount), last(kCount, 100);
      for (std::int64_t t = 0; t < kLength; ++t) {
        for (std::size_t i = 0; i < kCount; ++i) {
          x[at(t, i)] = static_cast<std::int32_t>(10 * t + static_cast<std::int64_t>(i));
          expected[at(t, i)] = last[i] += x[at(t, i)];
        }
      }
      const Numbers first(kCount, 100);
      Numbers after(kCount, -1);
      const void* inputs[] = {first.data(), x.data()};
      void* carried_out[] = {after.data()};
      void* stacked[] = {sums.data()};
      Trips trips{inputs, carried_out, stacked, nullptr, kLength};
      const std::string which = std::string(is_inner ? "inner" : "outer") + (is_reversed ? ", reversed" : "");
      expect(repeater.run(trips) && trips.done == kLength, "a scan ends: " + which);
      expect(sums == expected && after == last, "sums of a scan: " + which);
    }
  }
}

void stacks_of_unknown_length_grow() {
  Repeater repeater(Repetition::of(counting(1, 300, true), true, 1, {}, {SequenceAxis{1, kBytes}}), 2);
  for (const std::int32_t first : {0, 299, 250}) {
    GrowingMemory growing[1];
    const Numbers start(kCount, first);
    Numbers after(kCount, -1);
    const void* inputs[] = {start.data()};
    void* carried[] = {after.data()};
    void* stacked[] = {nullptr};
    Trips trips{inputs, carried, stacked, growing};
    expect(repeater.run(trips) && trips.done == 300 - first, "a loop that stacks ends");
    const auto* found = reinterpret_cast<const std::int32_t*>(growing[0].data());
    bool is_right = true;
    for (std::int64_t t = 0; t < trips.done; ++t)
      is_right &= found[t * 5] == first + t && found[t * 5 + 4] == first + t;
    expect(is_right, "each trip stacked the value before it");
  }
}

// A loop whose body chooses between a loop inside and an addition.
void choices_and_loops_nest() {
  RoutineBuilder branch;
  branch.add_input(kBytes, 4);
  const std::int64_t four = 4;
  const ValueId count = branch.add_constant(&four, 8, nullptr);
  const std::shared_ptr<const Routine> inner =
      branch.build(branch.add_repetition(loop(counting(10)), {0}, count, kNoValue, 0));
  RoutineBuilder other;
  const ValueId x = other.add_input(kBytes, 4);
  const std::shared_ptr<const Routine> addition = other.build(other.add_plan(plan_of("add", 1, kBytes), {x}));

  RoutineBuilder builder;
  builder.add_input(8, 8);
  const ValueId condition = builder.add_input(1, 1), carried = builder.add_input(kBytes, 4);
  const ValueId is_small = builder.add_plan(plan_of("below", 1, 1, 50), {carried})[0];
  const ValueId next = builder.add_choice(is_small, inner, {carried}, addition, {carried})[0];
  Repeater repeater(loop(builder.build({condition, next})), 2);
  for (const auto& [trips, expected] : std::vector<std::pair<std::int64_t, std::int32_t>>{{1, 40}, {2, 80}, {5, 83}}) {
    expect(run(repeater, {Numbers(kCount, 0)}, trips).carried[0] == Numbers(kCount, expected),
           "a nested loop after " + std::to_string(trips) + " trips");
  }
}

void cancelled_loops_end() {
  Repeater repeater(loop(counting(0)), 2);
  CancelFlag flag;
  Ran ran{};
  std::thread runner([&] { ran = run(repeater, {Numbers(kCount, 1)}, INT64_MAX, true, &flag); });
  flag.cancel();
  runner.join();
  expect(!ran.is_finished, "an endless loop ends when it is cancelled");
  flag.reset();
  expect(run(repeater, {Numbers(kCount, 1)}, 3, true, &flag).is_finished, "it runs again afterwards");
}

void repeaters_of_one_loop_run_at_once() {
  const std::shared_ptr<const Repetition> shared = loop(counting(1, 500));
  std::vector<std::thread> threads;
  std::vector<int> right(4, 0);
  for (std::size_t each = 0; each < right.size(); ++each) {
    threads.emplace_back([&, each] {
      Repeater repeater(shared, 2);
      const auto first = static_cast<std::int32_t>(each);
      for (int round = 0; round < 5; ++round) {
        const Ran ran = run(repeater, {Numbers(kCount, first)}, INT64_MAX);
        right[each] += ran.done == 500 - first && ran.carried[0] == Numbers(kCount, 500);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect(right == std::vector<int>(4, 5), "each thread has its own values");
}

void profiles_have_each_step() {
  Repeater repeater(loop(counting(2, 1000)), 1);
  const Numbers start(kCount, 0);
  Numbers after(kCount);
  const void* inputs[] = {start.data()};
  void* carried[] = {after.data()};
  Trips trips{inputs, carried, nullptr, nullptr};
  std::vector<std::vector<std::int64_t>> profile;
  expect(repeater.run(trips, nullptr, &profile), "a profiled loop ends");
  expect(profile.size() == 2 && profile[0].size() == 1 && profile[1].size() == 1, "one time for each step");
}

void wrong_repetitions_are_refused() {
  expect_error<PlanError>("has no body", [] { loop(nullptr); });
  expect_error<PlanError>("does not fit 2 carried values", [] { loop(counting(1), 2); });
  expect_error<PlanError>("a Loop has no sequences",
                          [] { Repetition::of(counting(1), true, 0, {SequenceAxis{1, kBytes}}, {}); });
  expect_error<PlanError>("another axis than the first",
                          [] { Repetition::of(counting(1, 2, true), true, 1, {}, {SequenceAxis{kCount, 4}}); });
  expect_error<PlanError>("stacked result 0 has 8 bytes; expected 20",
                          [] { Repetition::of(counting(1, 2, true), true, 1, {}, {SequenceAxis{2, 4}}); });
  RoutineBuilder scalars;
  scalars.add_input(4, 4);
  const ValueId flag = scalars.add_input(1, 1);
  const std::shared_ptr<const Routine> short_trip = scalars.build({flag});
  expect_error<PlanError>("is not a scalar", [&] { loop(short_trip, 0); });
  RoutineBuilder shrinking;
  shrinking.add_input(8, 8);
  const ValueId goes_on = shrinking.add_input(1, 1);
  shrinking.add_input(kBytes, 4);
  const std::shared_ptr<const Routine> shrinks = shrinking.build({goes_on, goes_on});
  expect_error<PlanError>("carried value 0 has 1 bytes; expected 20", [&] { loop(shrinks); });

  RoutineBuilder builder;
  const ValueId x = builder.add_input(kBytes, 4), trips = builder.add_input(8, 8);
  const std::shared_ptr<const Repetition> good = loop(counting(1));
  const std::shared_ptr<const Repetition> stacking =
      Repetition::of(counting(1, 0, true), true, 1, {}, {SequenceAxis{1, kBytes}});
  expect_error<PlanError>("has 1 inputs; 2 are given",
                          [&] { builder.add_repetition(good, {x, x}, trips, kNoValue, 0); });
  expect_error<PlanError>("the number of trips has 20 bytes; expected 8",
                          [&] { builder.add_repetition(good, {x}, x, kNoValue, 0); });
  expect_error<PlanError>("has no value 99", [&] { builder.add_repetition(good, {99}, trips, kNoValue, 0); });
  expect_error<PlanError>("an unknown number of trips",
                          [&] { builder.add_repetition(stacking, {x}, trips, kNoValue, 0); });
  expect_error<PlanError>("the condition of a choice has 20 bytes",
                          [&] { builder.add_choice(x, counting(1), {}, counting(1), {}); });
  expect_error<PlanError>("not a power of two", [&] { builder.add_input(4, 3); });
  expect(builder.add_repetition(good, {x}, trips, kNoValue, 0).size() == 1, "what was refused changed nothing");
  expect_error<PlanError>("behind other values", [&] { builder.add_input(4, 4); });
}

}  // namespace
}  // namespace engine

int main() {
  using namespace engine;
  return run_cases({
      {"loops count", loops_count},
      {"conditions end loops", conditions_end_loops},
      {"carried values change places", carried_values_change_places},
      {"scans read and stack", scans_read_and_stack},
      {"stacks of unknown length grow", stacks_of_unknown_length_grow},
      {"choices and loops nest", choices_and_loops_nest},
      {"cancelled loops end", cancelled_loops_end},
      {"repeaters of one loop run at once", repeaters_of_one_loop_run_at_once},
      {"profiles have each step", profiles_have_each_step},
      {"wrong repetitions are refused", wrong_repetitions_are_refused},
  });
}

// Tests of steps that run slice by slice: which are chosen, and how they run. Run under every sanitizer.
#include <atomic>
#include <cstdint>
#include <vector>

#include "executor/batch_runs.hpp"
#include "executor/context.hpp"
#include "tests/expectations.hpp"

namespace engine {
namespace {

constexpr std::int64_t kBatch = 8, kPixels = 64;
constexpr std::size_t kImage = 16 * kPixels * 4;  // bytes of a blocked map of 16 channels
constexpr std::size_t kMap = kImage * kBatch;
// An image's maps fit the L2 cache, and a batch's maps no cache.
constexpr BatchMachine kMachine{2, 3 * kImage, 3 * kImage};
constexpr BatchMachine kLargeCaches{2, 1 << 30, 1 << 30};

// The step of a convolution: x to y, with weights.
RunStep conv(int x, int y, int weights, std::size_t weight_bytes, double work = 1e9) {
  return {true,
          {{x, 0, {kImage, kImage}, false}, {weights, 0, {weight_bytes}, false}, {y, 0, {kImage, kImage}, true}},
          work};
}

// Buffers 0 and 4 are an input and an output, those between are in the arena, 5 has weights.
std::vector<RunRoot> roots(std::size_t weight_bytes) {
  return {{kMap, false}, {kMap, true}, {kMap, true}, {kMap, true}, {kMap, false}, {weight_bytes, false}};
}

std::vector<RunStep> chain(std::size_t weight_bytes, double work = 1e9) {
  return {conv(0, 1, 5, weight_bytes, work), conv(1, 2, 5, weight_bytes, work), conv(2, 3, 5, weight_bytes, work),
          conv(3, 4, 5, weight_bytes, work)};
}

void steps_run_by_slices_if_maps_leave_the_caches() {
  const auto runs = choose_batch_runs(chain(64), roots(64), kBatch, kMachine);
  expect(runs.size() == 1 && runs[0].begin == 0 && runs[0].end == 4 && runs[0].images == 1, "one run of all steps");
  expect(choose_batch_runs(chain(64), roots(64), kBatch, kLargeCaches).empty(), "maps of a batch stay in a cache");
}

void workers_have_as_many_slices() {
  expect(choose_batch_runs(chain(64), roots(64), kBatch, {3, kMachine.l2_bytes, kMachine.l3_bytes}).empty(),
         "8 images on 3 workers");
  expect(choose_batch_runs(chain(64), roots(64), kBatch, {16, kMachine.l2_bytes, kMachine.l3_bytes}).empty(),
         "8 images on 16 workers");
}

void steps_with_large_weights_read_them_once() {
  // Each weight is used twice for an image: reading it again costs more than the maps.
  const std::size_t weights = 64 * kImage;
  const double work = static_cast<double>(weights) * kBatch;
  expect(choose_batch_runs(chain(weights, work), roots(weights), kBatch, kMachine).empty(), "weights of 64 maps");
}

void a_step_that_cannot_be_divided_ends_a_run() {
  std::vector<RunStep> steps = chain(64);
  steps.push_back(conv(4, 4, 5, 64));
  steps[2].is_divisible = false;
  for (const BatchRun& run : choose_batch_runs(steps, roots(64), kBatch, kMachine))
    expect(run.end <= 2 || run.begin > 2, "the step is in no run");
}

void what_images_share_is_not_written_in_a_run() {
  // Step 2 reads all of buffer 1, which step 0 writes image by image.
  std::vector<RunStep> steps = chain(64);
  steps[2].operands[1] = {1, 0, {kMap}, false};
  for (const BatchRun& run : choose_batch_runs(steps, roots(64), kBatch, kMachine))
    expect(run.begin > 0 || run.end <= 2, "steps 0 and 2 are not in one run");
  // Step 1 reads images at other places than step 0 writes them.
  steps = chain(64);
  steps[1].operands[0].image.step = kImage / 2;
  for (const BatchRun& run : choose_batch_runs(steps, roots(64), kBatch, kMachine))
    expect(run.begin > 0 || run.end <= 1, "steps 0 and 1 are not in one run");
}

// -- runs ------------------------------------------------------------------------------------------------------

struct Log {
  std::atomic<int> calls{0};
  CancelFlag* cancel = nullptr;  // set by call `cancel_at`
  int cancel_at = -1;
};
Log log;

struct Args {
  std::int64_t floats;
};

// y = x + 1
void increase(const void* args, void* const* buffers, const KernelContext& context) {
  if (log.calls.fetch_add(1) == log.cancel_at) log.cancel->cancel();
  const WorkRange range = split_work(static_cast<const Args*>(args)->floats, context.worker, context.workers);
  const auto* x = static_cast<const float*>(buffers[0]);
  auto* y = static_cast<float*>(buffers[1]);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    y[i] = x[i] + 1;
    if (x[i] < 0) report_index(context, static_cast<std::int64_t>(x[i]), 1);
  }
}

PreparedStep prepare_increase(const StepRequest& request) {
  for (const char* name : {"in_channels", "out_channels"}) request.attributes.integer(name);
  for (const char* name : {"in", "out"}) request.attributes.integers(name);
  const std::int64_t floats = request.attributes.integer("batch") * 16 * kPixels;
  request.expect_operands(1, 1);
  request.expect_input(0, static_cast<std::size_t>(floats) * 4);
  request.expect_output(0, static_cast<std::size_t>(floats) * 4);
  return {{PreparedPhase::of(request.kernels.find("increase"), Args{floats})}, {}, 1};
}

const KernelEntry kernels[] = {{"increase", increase, nullptr}, {nullptr, nullptr, nullptr}};
// The name of an operation whose images are known to be independent.
const OperationEntry operations[] = {{"max_pool_f32", prepare_increase}, {}};

const KernelRegistry& registry() {
  static const KernelRegistry made = [] {
    KernelRegistry result;
    result.add_operations(operations);
    result.add_kernels({"test", Isa::generic, kernels});
    return result;
  }();
  return made;
}

constexpr int kSteps = 5;

// y = x + 5
std::shared_ptr<const Plan> plan_of(const BatchMachine& machine) {
  PlanBuilder builder(Isa::generic, registry(), machine);
  Attributes attributes;
  attributes.set("batch", kBatch);
  for (const char* name : {"in_channels", "out_channels"}) attributes.set(name, std::int64_t{16});
  for (const char* name : {"in", "out"}) attributes.set(name, std::vector<std::int64_t>{8, 8});
  BufferId last = builder.add_input(kMap, 4);
  const BufferId out = builder.add_output(kMap, 4);
  for (int i = 0; i < kSteps; ++i) {
    const BufferId next = i + 1 == kSteps ? out : builder.add_buffer(kMap);
    builder.add_step("max_pool_f32", {last}, {next}, attributes, "step " + std::to_string(i));
    last = next;
  }
  return builder.build();
}

struct Arrays {
  std::vector<float> x = std::vector<float>(kMap / 4), y = std::vector<float>(kMap / 4, -1);
  Arrays() {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  }
  bool run(Context& context, const RunOptions& options) {
    return context.run({{x.data(), kMap}}, {{y.data(), kMap}}, options);
  }
};

void slices_compute_the_same_in_less_memory() {
  const auto together = plan_of(kLargeCaches), divided = plan_of(kMachine);
  expect(together->arena.total_bytes == 2 * kMap && divided->arena.total_bytes == 0, "maps are a worker's");
  expect(divided->scratch_bytes < 3 * kImage, "a worker has two maps of an image");
  expect(divided->groups->size() == 1 && divided->steps().size() == kSteps, "one group without barriers");
  for (const auto& plan : {together, divided}) {
    for (const int threads : {1, 2}) {
      Context context(plan);
      for (int repeat = 0; repeat < 20; ++repeat) {
        Arrays arrays;
        std::vector<std::int64_t> profile;
        RunOptions options;
        options.threads = threads;
        options.profile = &profile;
        expect(arrays.run(context, options), "the run finishes");
        bool is_right = true;
        for (std::size_t i = 0; i < arrays.x.size(); ++i) is_right &= arrays.y[i] == arrays.x[i] + kSteps;
        expect(is_right, "y is x + 5");
        expect(profile.size() == kSteps, "each step has a time");
      }
    }
  }
}

void a_cancelled_run_stops_between_slices() {
  const auto plan = plan_of(kMachine);
  for (const int threads : {1, 2}) {
    Context context(plan);
    CancelFlag flag;
    log.calls = 0;
    log.cancel = &flag;
    log.cancel_at = 0;
    RunOptions options;
    options.threads = threads;
    options.cancel = &flag;
    Arrays arrays;
    expect(!arrays.run(context, options), "the run is cancelled");
    expect(log.calls.load() <= threads * kSteps, "each worker finishes its slice");
    log.cancel_at = -1;
    expect(arrays.run(context, {}), "the context runs again");
    expect(arrays.y[0] == kSteps, "and computes all");
    // A flag that is set in the last slices has no effect.
    CancelFlag late;
    log.calls = 0;
    log.cancel = &late;
    log.cancel_at = static_cast<int>(kBatch) * kSteps - 1;
    options.cancel = &late;
    expect(arrays.run(context, options), "all slices were computed");
    log.cancel_at = -1;
  }
}

void invalid_data_of_a_slice_fails_the_run() {
  Context context(plan_of(kMachine));
  Arrays arrays;
  arrays.x[kMap / 4 - 1] = -3;
  expect_error<DataFault>("step 0: index -3", [&] { arrays.run(context, {}); });
}

}  // namespace
}  // namespace engine

int main() {
  using namespace engine;
  return run_cases({
      {"steps run by slices if maps leave the caches", steps_run_by_slices_if_maps_leave_the_caches},
      {"workers have as many slices", workers_have_as_many_slices},
      {"steps with large weights read them once", steps_with_large_weights_read_them_once},
      {"a step that cannot be divided ends a run", a_step_that_cannot_be_divided_ends_a_run},
      {"what images share is not written in a run", what_images_share_is_not_written_in_a_run},
      {"slices compute the same in less memory", slices_compute_the_same_in_less_memory},
      {"a cancelled run stops between slices", a_cancelled_run_stops_between_slices},
      {"invalid data of a slice fails the run", invalid_data_of_a_slice_fails_the_run},
  });
}

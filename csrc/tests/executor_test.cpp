// Multithreaded tests of the executor: layouts, leases, barriers, plans, cancellation, forks. Run under every
// sanitizer.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "executor/arena.hpp"
#include "executor/context.hpp"
#include "executor/core_set.hpp"
#include "executor/cpu_quota.hpp"
#include "executor/plan.hpp"
#include "executor/plan_family.hpp"
#include "tests/expectations.hpp"

namespace {

thread_local int allocations_left = -1;  // allocations of this thread until one fails; negative: none fails

}  // namespace

void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  if (allocations_left == 0) return nullptr;
  if (allocations_left > 0) --allocations_left;
  return std::malloc(bytes);
}

void* operator new(std::size_t bytes) {
  if (void* memory = operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}

void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace engine {
namespace {

// Kernels for the tests: y = x + 1 over int32, and one that waits until it is released.
struct AddArgs {
  std::int64_t count;
};

void add_one(const void* args, void* const* buffers, const KernelContext& context) {
  const WorkRange range = split_work(static_cast<const AddArgs*>(args)->count, context.worker, context.workers);
  const auto* x = static_cast<const std::int32_t*>(buffers[0]);
  auto* y = static_cast<std::int32_t*>(buffers[1]);
  for (std::int64_t i = range.begin; i < range.end; ++i) y[i] = x[i] + 1;
}

// Reads data that other workers have written: a missing barrier causes a race and a wrong sum.
void reverse_add_one(const void* args, void* const* buffers, const KernelContext& context) {
  const std::int64_t count = static_cast<const AddArgs*>(args)->count;
  const WorkRange range = split_work(count, context.worker, context.workers);
  const auto* x = static_cast<const std::int32_t*>(buffers[0]);
  auto* y = static_cast<std::int32_t*>(buffers[1]);
  for (std::int64_t i = range.begin; i < range.end; ++i) y[i] = x[count - 1 - i] + 1;
}

std::atomic<bool> gate_open{true};
std::atomic<int> gates_entered{0};

void pass_gate(const void*, void* const*, const KernelContext& context) {
  *static_cast<int*>(context.scratch) = context.worker;
  ++gates_entered;
  while (!gate_open) std::this_thread::yield();
}

template <KernelFn function>
PreparedStep prepare_add(const StepRequest& request) {
  request.expect_operands(1, 1);
  request.expect_output(0, request.inputs[0]);
  const std::string kernel = function == add_one ? "add_one" : "reverse_add_one";
  PreparedPhase phase =
      PreparedPhase::of(request.kernels.find(kernel), AddArgs{static_cast<std::int64_t>(request.inputs[0] / 4)});
  phase.max_workers = static_cast<int>(request.attributes.integer_or("max_workers", 64));
  return {{phase}, {}, 0};
}

PreparedStep prepare_gate(const StepRequest& request) {
  PreparedPhase phase = PreparedPhase::of(request.kernels.find("pass_gate"), AddArgs{0});
  phase.scratch_bytes = sizeof(int);
  return {{phase}, {}, 0};
}

// Two phases with a temporary between them.
PreparedStep prepare_twice(const StepRequest& request);

void through_temporary(const void* args, void* const* buffers, const KernelContext& context) {
  void* const operands[] = {buffers[0], buffers[2]};
  reverse_add_one(args, operands, context);
}

void from_temporary(const void* args, void* const* buffers, const KernelContext& context) {
  void* const operands[] = {buffers[2], buffers[1]};
  reverse_add_one(args, operands, context);
}

const KernelEntry kernels[] = {{"add_one", add_one, nullptr},
                               {"reverse_add_one", reverse_add_one, nullptr},
                               {"pass_gate", pass_gate, nullptr},
                               {"through_temporary", through_temporary, nullptr},
                               {"from_temporary", from_temporary, nullptr},
                               {nullptr, nullptr, nullptr}};

PreparedStep prepare_twice(const StepRequest& request) {
  const AddArgs args{static_cast<std::int64_t>(request.inputs[0] / 4)};
  return {{PreparedPhase::of(request.kernels.find("through_temporary"), args),
           PreparedPhase::of(request.kernels.find("from_temporary"), args)},
          {request.inputs[0]},
          0};
}

const OperationEntry operations[] = {{"add", prepare_add<add_one>, true},
                                     {"reverse_add", prepare_add<reverse_add_one>},
                                     {"twice", prepare_twice},
                                     {"gate", prepare_gate},
                                     {}};

const KernelRegistry& registry() {
  static const KernelRegistry made = [] {
    KernelRegistry result;
    result.add_operations(operations);
    result.add_kernels({"test", Isa::generic, kernels});
    return result;
  }();
  return made;
}

PlanBuilder new_builder() {
  return PlanBuilder(Isa::generic, registry());
}

// x -> +1 ... -> y, `length` steps, each needing the whole previous result.
std::shared_ptr<const Plan> chain(int length, std::size_t count) {
  PlanBuilder builder = new_builder();
  BufferId last = builder.add_input(count * 4, 4);
  for (int i = 0; i < length; ++i) {
    const BufferId next = i + 1 < length ? builder.add_buffer(count * 4) : builder.add_output(count * 4, 4);
    builder.add_step(i % 3 == 2 ? "twice" : "reverse_add", {last}, {next}, {});
    last = next;
  }
  return builder.build();
}

std::int32_t chain_adds(int length) {
  return length + length / 3;
}

bool run_chain(Context& context, int length, std::size_t count, const RunOptions& options = {}) {
  const std::vector<std::int32_t> x(count, 5);
  std::vector<std::int32_t> y(count, 0);
  const bool finished = context.run({{x.data(), count * 4}}, {{y.data(), count * 4}}, options);
  if (finished) {
    for (const std::int32_t value : y) {
      if (value != 5 + chain_adds(length)) {
        expect(false, "a chain gave " + std::to_string(value));
        break;
      }
    }
  }
  return finished;
}

void layouts_do_not_overlap() {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<Lifetime> buffers(random() % 40);
    for (Lifetime& buffer : buffers) {
      const int first = static_cast<int>(random() % 20);
      buffer = {random() % 3 == 0 ? 0 : random() % 1000, std::size_t{1} << (random() % 9), first,
                first + static_cast<int>(random() % 5)};
    }
    const ArenaLayout layout = lay_out_arena(buffers);
    expect(layout.lower_bound_bytes <= layout.total_bytes, "a layout below its lower bound");
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      expect(layout.offsets[i] % buffers[i].alignment == 0, "an offset is not aligned");
      expect(layout.offsets[i] + buffers[i].bytes <= layout.total_bytes || buffers[i].bytes == 0, "out of the arena");
      for (std::size_t j = 0; j < i; ++j) {
        const bool together = buffers[i].first <= buffers[j].last && buffers[j].first <= buffers[i].last;
        const bool apart = layout.offsets[i] + buffers[i].bytes <= layout.offsets[j] ||
                           layout.offsets[j] + buffers[j].bytes <= layout.offsets[i];
        expect(!together || apart || buffers[i].bytes == 0 || buffers[j].bytes == 0, "two live buffers overlap");
      }
    }
  }
  expect_error<PlanError>("overflows", [] { lay_out_arena({{~std::size_t{0}, 64, 0, 1}, {1 << 20, 64, 0, 1}}); });
}

// A part for each worker; those who come do what nobody has begun.
struct Parts : Task {
  Parts(int parts_, std::function<void()> work_) : parts(parts_), work(std::move(work_)) {}

  void run(int worker, int) override {
    while (begun.fetch_add(1) < parts) {
      work();
      ++done;
    }
    while (worker == 0 && done < parts) std::this_thread::yield();
  }

  const int parts;
  const std::function<void()> work;
  std::atomic<int> begun{0}, done{0};
};

// Whether the lease's second worker comes while the first one waits for it, for up to a second.
bool comes(CoreSet::Lease& lease) {
  struct Second : Task {
    std::atomic<bool> came{false};

    void run(int worker, int) override {
      if (worker == 1) came = true;
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
      while (!came && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    }
  };
  const auto task = std::make_shared<Second>();
  lease.run(task, 2);
  return task->came;
}

void sleeping_threads_wake() {
  CoreSet cores(4);
  expect(cores.has_free_core(), "nothing is leased");
  for (int i = 0; i < 20; ++i) {
    CoreSet::Lease lease = cores.lease(4);
    expect(lease.workers() == 4 && cores.started_threads() == 3, "four workers");
    expect(!cores.has_free_core(), "all cores are leased");
    bool came = comes(lease);
    for (int tries = 0; !came && tries < 60; ++tries) came = comes(lease);
    expect(came, "a thread that slept comes");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // longer than an idle thread spins
  }
}

// Its second worker stays until it is let go, as a thread does whose core another process has taken.
struct Delayed : Task {
  std::atomic<bool> came{false}, may_leave{false};

  void run(int worker, int) override {
    if (worker == 0) {
      while (!came) std::this_thread::yield();
    } else {
      came = true;
      while (!may_leave) std::this_thread::yield();
    }
  }
};

void nothing_waits_for_late_workers() {
  constexpr int kLength = 12;
  constexpr std::size_t kCount = 1003;
  CoreSet cores(2);
  const auto delayed = std::make_shared<Delayed>();
  cores.lease(2).run(delayed, 2);
  Context context(chain(kLength, kCount), 2, &cores);
  for (int i = 0; i < 50; ++i) expect(run_chain(context, kLength, kCount), "a run without its second thread");
  delayed->may_leave = true;
  CoreSet::Lease lease = cores.lease(2);
  bool came = comes(lease);
  for (int tries = 0; !came && tries < 60; ++tries) came = comes(lease);
  expect(came, "the thread takes part again once it has left");
}

// Measures runs of which those together take `together` and those alone `alone` nanoseconds.
int runs_alone(Pace& pace, int runs, std::int64_t together, std::int64_t alone) {
  int found = 0;
  for (int i = 0; i < runs; ++i) {
    const bool is_together = pace.begin();
    if (!is_together) ++found;
    pace.end(is_together, is_together ? together : alone);
  }
  return found;
}

void short_runs_choose_the_faster_way() {
  Pace pace;
  expect(runs_alone(pace, 1000, 50'000, 100'000) < 50, "together, where that is faster");
  expect(runs_alone(pace, 1000, 400'000, 100'000) > 800, "alone, once other processes hold the cores");
  expect(runs_alone(pace, 1000, 50'000, 100'000) < 200, "together, once they have gone");
  Pace of_long_runs;
  expect(runs_alone(of_long_runs, 100, 20'000'000, 100) == 0, "long runs are not tried alone");
}

void streams_never_take_more_than_the_cores() {
  CoreSet cores(3);
  std::atomic<int> running{0}, most{0}, runs{0};
  const auto work = [&] {
    const int others = ++running;
    for (int seen = most; seen < others && !most.compare_exchange_weak(seen, others);) {
    }
    std::this_thread::yield();
    --running;
    ++runs;
  };
  std::vector<std::thread> streams;
  for (int stream = 0; stream < 5; ++stream) {
    streams.emplace_back([&, stream] {
      for (int i = 0; i < 50; ++i) {
        CoreSet::Lease lease = cores.lease(1 + stream % 3);
        lease.run(std::make_shared<Parts>(lease.workers(), work), lease.workers());
      }
    });
  }
  for (std::thread& stream : streams) stream.join();
  expect(most <= 3, "more workers ran than there are cores: " + std::to_string(most.load()));
  expect(runs >= 5 * 50, "some runs are missing");
}

// The number of workers of the leases of two streams that came while all of four cores were leased.
std::vector<int> workers_after_waiting(CoreSet& cores, int wanted) {
  std::vector<int> found(2);
  std::vector<std::thread> streams;
  {
    const CoreSet::Lease all = cores.lease(4);
    for (int stream = 0; stream < 2; ++stream) {
      streams.emplace_back([&, stream] { found[static_cast<std::size_t>(stream)] = cores.lease(wanted).workers(); });
      while (cores.waiting() <= stream) std::this_thread::yield();
    }
  }
  for (std::thread& stream : streams) stream.join();
  return found;
}

void streams_that_wait_share_the_cores() {
  CoreSet cores(4);
  const std::vector<int> small = workers_after_waiting(cores, 1);
  for (int round = 0; round < 2; ++round) {
    const std::vector<int> shared = workers_after_waiting(cores, 4);
    expect(shared[0] == 2 && shared[1] == 1, "a half for the second stream, a third for the third");
  }
  expect(small[0] == 1 && small[1] == 1, "no more than they want");
  expect(cores.lease(4).workers() == 4, "all cores for a stream that is alone");
}

void streams_that_were_cancelled_take_no_share() {
  CoreSet cores(4);
  std::vector<CancelFlag> flags(3);
  std::vector<int> found(4, -1);
  std::vector<std::thread> streams;
  {
    const CoreSet::Lease all = cores.lease(4);
    for (std::size_t stream = 0; stream < 4; ++stream) {
      streams.emplace_back(
          [&, stream] { found[stream] = cores.lease(4, stream < 3 ? &flags[stream] : nullptr).workers(); });
      while (cores.waiting() <= static_cast<int>(stream)) std::this_thread::yield();
    }
    for (CancelFlag& flag : flags) flag.cancel();
    while (cores.waiting() > 1) std::this_thread::yield();
  }
  for (std::thread& stream : streams) stream.join();
  expect(found[0] == 0 && found[1] == 0 && found[2] == 0, "a cancelled stream has no workers");
  expect(found[3] == 2, "a half for the stream that is left, as if the others had not come");
}

void leases_without_memory() {
  int failed = 0;
  for (int allowed = 0;; ++allowed) {
    CoreSet cores(4);
    allocations_left = allowed;
    try {
      CoreSet::Lease lease = cores.lease(4);
      allocations_left = -1;
      const auto task = std::make_shared<Parts>(lease.workers(), [] {});
      lease.run(task, lease.workers());
      expect(task->done == lease.workers(), "the team is smaller, and runs");
      if (lease.workers() == 4) break;
    } catch (const std::bad_alloc&) {
      allocations_left = -1;
      expect(allowed == 0, "an allocation of a thread that fails makes the team smaller");
    }
    ++failed;
    expect(cores.has_free_core(), "nothing is leased");
    const CoreSet::Lease all = cores.lease(4);
    expect(all.workers() == 4, "the next lease starts the threads");
    expect(!cores.has_free_core(), "no more cores than there are");
  }
  expect(failed >= 4, "the list of threads, and three threads");
}

void contexts_run_at_once() {
  constexpr int kLength = 12;
  constexpr std::size_t kCount = 1003;
  CoreSet cores(4);
  const std::shared_ptr<const Plan> plan = chain(kLength, kCount);
  expect(plan->arena.total_bytes < plan->arena.naive_bytes, "the arena shares memory");
  std::vector<std::thread> streams;
  for (int stream = 0; stream < 4; ++stream) {
    streams.emplace_back([&, stream] {
      Context context(plan, 0, &cores);
      std::vector<std::int64_t> profile;
      for (int i = 0; i < 40; ++i) {
        RunOptions options;
        options.threads = 1 + (stream + i) % 4;
        options.profile = i % 2 == 0 ? &profile : nullptr;
        expect(run_chain(context, kLength, kCount, options), "a run finishes");
      }
      expect(profile.size() == kLength, "a time for each step");
    });
  }
  for (std::thread& stream : streams) stream.join();
}

// Writes files below a new folder, and returns the quota that they tell.
double quota_of_files(const std::vector<std::pair<std::string, std::string>>& files) {
  char name[] = "/tmp/engine-quota-XXXXXX";
  const std::filesystem::path root = mkdtemp(name);
  for (const auto& [path, content] : files) {
    const std::filesystem::path file = root.string() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << content;
  }
  const double quota = cpu_quota(root.string());
  std::filesystem::remove_all(root);
  return quota;
}

void quotas_of_outer_groups_count() {
  const std::string unified = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
  expect(quota_of_files({{"/proc/self/mountinfo", unified},
                         {"/proc/self/cgroup", "0::/user.slice/app\n"},
                         {"/sys/fs/cgroup/user.slice/cpu.max", "150000 100000\n"},
                         {"/sys/fs/cgroup/user.slice/app/cpu.max", "max 100000\n"}}) == 1.5,
         "the quota of the group around this one");
  expect(quota_of_files({{"/proc/self/mountinfo", unified},
                         {"/proc/self/cgroup", "0::/\n"},
                         {"/sys/fs/cgroup/cpu.max", "200000 100000\n"}}) == 2,
         "the quota of the container, whose group is the root");
  const std::string first = "32 31 0:29 /docker/7 /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n";
  expect(quota_of_files({{"/proc/self/mountinfo", first},
                         {"/proc/self/cgroup", "3:cpuset:/x\n2:cpu,cpuacct:/docker/7/inner\n"},
                         {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"},
                         {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"},
                         {"/sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_quota_us", "50000\n"},
                         {"/sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_period_us", "100000\n"}}) == 0.5,
         "version 1, of which only the groups below the container's are mounted");
  expect(quota_of_files({{"/proc/self/mountinfo", unified}, {"/proc/self/cgroup", "0::/../../other\n"}}) == 0,
         "a group outside of what is mounted");
  expect(quota_of_files({}) == 0, "no control groups");
}

void only_what_depends_waits() {
  PlanBuilder builder = new_builder();
  const BufferId x = builder.add_input(256), whole = builder.add_buffer(512), y = builder.add_output(512);
  // A Concat without copies: two steps write the halves of one buffer.
  const BufferId left = builder.add_view(whole, 0, 256), right = builder.add_view(whole, 256, 256);
  builder.add_step("add", {x}, {left}, {});
  builder.add_step("add", {x}, {right}, {});
  builder.add_step("add", {whole}, {y}, {});
  const std::shared_ptr<const Plan> plan = builder.build();
  expect(plan->barriers == 1, "the halves need no barrier between them, got " + std::to_string(plan->barriers));

  Attributes serial;
  serial.set("max_workers", std::int64_t{1});
  const BufferId a = builder.add_input(256), b = builder.add_buffer(256), c = builder.add_output(256);
  builder.add_step("reverse_add", {a}, {b}, serial);
  builder.add_step("reverse_add", {b}, {c}, serial);
  expect(builder.build()->barriers == 0, "steps of worker 0 follow each other without barriers");

  // Without a barrier between two steps, a buffer that the first step reads is still in use during the second.
  const BufferId in = builder.add_input(256), t = builder.add_buffer(256), u = builder.add_buffer(256);
  const BufferId o1 = builder.add_output(256), o2 = builder.add_output(256);
  builder.add_step("add", {in}, {t}, {});
  builder.add_step("add", {t}, {o1}, {});
  builder.add_step("add", {in}, {u}, {});
  builder.add_step("add", {u}, {o2}, {});
  const std::shared_ptr<const Plan> grouped = builder.build();
  expect(grouped->arena.total_bytes == 512, "buffers of one group do not share memory");
}

void cancelled_runs_stop() {
  CoreSet cores(3);
  PlanBuilder builder = new_builder();
  const BufferId x = builder.add_input(4, 4), t = builder.add_buffer(4), y = builder.add_output(4, 4);
  builder.add_step("gate", {x}, {t}, {});
  builder.add_step("gate", {t}, {y}, {});
  Context context(builder.build(), 0, &cores);
  const std::int32_t in = 1;
  std::int32_t out = 0;
  CancelFlag flag;
  RunOptions options;
  options.cancel = &flag;
  gate_open = false;
  gates_entered = 0;
  bool finished = true;
  std::thread stream([&] { finished = context.run({{&in, 4}}, {{&out, 4}}, options); });
  while (gates_entered < 3) std::this_thread::yield();
  expect_error<ContextBusy>("another thread", [&] { context.run({{&in, 4}}, {{&out, 4}}); });
  // All cores are leased: a run that waits for one can be cancelled, too.
  Context waiting(chain(2, 16), 0, &cores);
  CancelFlag other_flag;
  bool other_finished = true;
  RunOptions other_options;
  other_options.cancel = &other_flag;
  std::thread other([&] { other_finished = run_chain(waiting, 2, 16, other_options); });
  other_flag.cancel();
  other.join();
  expect(!other_finished, "a waiting run is cancelled");
  flag.cancel();
  gate_open = true;
  stream.join();
  expect(!finished && gates_entered == 3, "the second step is not started");
  flag.reset();
  expect(context.run({{&in, 4}}, {{&out, 4}}, options), "a context runs again after it was cancelled");
}

void wrong_plans_are_refused() {
  PlanBuilder builder = new_builder();
  const BufferId x = builder.add_input(64, 4), y = builder.add_output(64), t = builder.add_buffer(64);
  expect_error<PlanError>("no kernel \"missing\"", [&] { builder.add_step("missing", {x}, {y}, {}); });
  expect_error<PlanError>("no step before has written", [&] { builder.add_step("add", {t}, {y}, {}, "late"); });
  expect_error<PlanError>("step 0 \"late\" (add)", [&] { builder.add_step("add", {t}, {y}, {}, "late"); });
  expect_error<PlanError>("lies in an input", [&] { builder.add_step("add", {x}, {x}, {}); });
  expect_error<PlanError>("there is no buffer 99", [&] { builder.add_step("add", {99}, {y}, {}); });
  expect_error<PlanError>("does not lie in", [&] { builder.add_view(t, 60, 8); });
  expect_error<PlanError>("overflows", [&] { builder.add_view(t, 60, ~std::size_t{0}); });
  expect_error<PlanError>("address space", [&] { builder.add_buffer(~std::size_t{0}); });
  expect_error<PlanError>("power of two", [&] { builder.add_buffer(64, 48); });
  expect_error<PlanError>("no step writes all of", [&] { builder.build(); });
  Attributes misspelt;
  misspelt.set("max_wokers", std::int64_t{1});
  expect_error<PlanError>("\"max_wokers\"", [&] { builder.add_step("add", {x}, {t}, misspelt); });
  builder.add_step("add", {x}, {t}, {});
  expect_error<PlanError>("cannot work in place", [&] { builder.add_step("reverse_add", {t}, {t}, {}); });
  builder.add_step("add", {t}, {t}, {});
  builder.add_step("add", {t}, {y}, {});
  Context context(builder.build());
  std::vector<std::int32_t> memory(33, 0);
  const Binding in{memory.data(), 64}, out{memory.data() + 16, 64};
  expect(context.run({in}, {out}), "the remaining plan runs");
  expect(memory[16] == 3, "in place");
  expect_error<std::invalid_argument>("expected 64", [&] { context.run({{memory.data(), 60}}, {out}); });
  expect_error<std::invalid_argument>("lies in the memory of input 0",
                                      [&] { context.run({in}, {{memory.data() + 8, 64}}); });
  expect_error<std::invalid_argument>(
      "is not aligned", [&] { context.run({{reinterpret_cast<const char*>(memory.data()) + 1, 64}}, {out}); });
  expect_error<std::invalid_argument>("the plan has 1", [&] { context.run({in, in}, {out}); });
  const BufferId huge_in = builder.add_input(4), huge = builder.add_buffer(std::size_t{1} << 50),
                 o = builder.add_output(4);
  builder.add_step("add", {huge_in}, {huge}, {});
  builder.add_step("add", {builder.add_view(huge, 0, 4)}, {o}, {});
  const std::shared_ptr<const Plan> too_large = builder.build();
  bool refused = false;
  try {
    Context too_much(too_large);
  } catch (const std::bad_alloc&) {
    refused = true;
  }
  expect(refused, "an arena larger than the machine's memory is refused");
}

// y = x[0:n] + 1 into a part of a state, and the whole state + 1; n is the family's length.
std::unique_ptr<PlanFamily> appending(std::int64_t most) {
  auto family = std::make_unique<PlanFamily>(Lengths{most}, Isa::generic, registry());
  const Varying bytes{0, {{{0, -1, -1}, 4}}}, both{0, {{{0, -1, -1}, 8}}};
  const BufferId x = family->add_input(bytes, 4), y = family->add_output(both, 4), state = family->add_state(both, 4);
  family->add_step("reverse_add", {x}, {family->add_view(state, bytes, bytes)}, {}, "append");
  const BufferId middle = family->add_buffer(both);
  family->add_step("twice", {state}, {middle}, {}, "twice");
  family->add_step("reverse_add", {middle}, {y}, {}, "last");
  return family;
}

bool run_appending(Context& context, std::int64_t length) {
  const auto count = static_cast<std::size_t>(length);
  std::vector<std::int32_t> x(count), state(2 * count + 3, 7), y(2 * count);
  for (std::size_t i = 0; i < count; ++i) x[i] = static_cast<std::int32_t>(3 * i);
  context.run({{x.data(), x.size() * 4}}, {{y.data(), y.size() * 4}}, {}, {{state.data(), state.size() * 4}});
  bool is_right = state[2 * count] == 7;
  for (std::size_t i = 0; i < 2 * count; ++i) {
    const std::int32_t held = i < count ? 7 : x[2 * count - 1 - i] + 1;
    is_right = is_right && state[i] == held && y[2 * count - 1 - i] == held + 3;
  }
  return is_right;
}

void families_have_plans_for_all_lengths() {
  const auto family = appending(5000);
  Context context(family->at({5}));
  const void* arena = nullptr;
  for (const std::int64_t length : {5, 1, 64, 63, 0, 65, 1000, 5000, 64, 2}) {
    const auto plan = family->at({length});
    expect(plan == family->at({length}), "the last plan is kept");
    context.use(plan);
    expect(run_appending(context, length), "the plan for length " + std::to_string(length));
    Context alone(plan);
    expect(run_appending(alone, length), "in memory of its own");
    arena = plan->args_memory.get();
  }
  expect(arena == family->at({3})->args_memory.get(), "what does not vary is shared");
  expect_error<PlanError>("expected 0 to 5000", [&] { family->at({5001}); });
  expect_error<PlanError>("there are 2 lengths", [&] { family->at({1, 1}); });
  expect_error<std::invalid_argument>("expected 8 or more", [&] {
    Context short_state(family->at({1}));
    std::int32_t x = 0, y[2], state = 0;
    short_state.run({{&x, 4}}, {{y, 8}}, {}, {{&state, 4}});
  });
  PlanFamily wrong({9}, Isa::generic, registry());
  const BufferId base = wrong.add_input({4, {}}, 4), y = wrong.add_output({4, {}}, 4);
  wrong.add_step("add", {wrong.add_view(base, {0, {Varying::Term{{0, -1, -1}, 4}}}, {4, {}})}, {y}, {});
  expect_error<PlanError>("does not lie in", [&] { wrong.at({1}); });
  expect_error<PlanError>("no buffer 9", [&] { wrong.add_view(9, {}, {}); });
}

[[maybe_unused]] void forked_children_have_cores() {
  Context context(chain(5, 100));
  expect(run_chain(context, 5, 100), "the parent runs");
  const pid_t child = fork();
  if (child == 0) _exit(run_chain(context, 5, 100) && failures == 0 ? 0 : 1);
  int status = -1;
  expect(waitpid(child, &status, 0) == child && status == 0, "the child runs");
  expect(run_chain(context, 5, 100), "the parent runs on");
}

}  // namespace
}  // namespace engine

int main() {
  using namespace engine;
  const std::vector<std::pair<const char*, void (*)()>> cases = {
      {"layouts do not overlap", layouts_do_not_overlap},
      {"sleeping threads wake", sleeping_threads_wake},
      {"nothing waits for late workers", nothing_waits_for_late_workers},
      {"short runs choose the faster way", short_runs_choose_the_faster_way},
      {"streams never take more than the cores", streams_never_take_more_than_the_cores},
      {"streams that wait share the cores", streams_that_wait_share_the_cores},
      {"streams that were cancelled take no share", streams_that_were_cancelled_take_no_share},
      {"leases without memory", leases_without_memory},
      {"quotas of outer groups count", quotas_of_outer_groups_count},
      {"contexts run at once", contexts_run_at_once},
      {"only what depends waits", only_what_depends_waits},
      {"cancelled runs stop", cancelled_runs_stop},
      {"wrong plans are refused", wrong_plans_are_refused},
      {"families have plans for all lengths", families_have_plans_for_all_lengths},
#if !defined(__SANITIZE_THREAD__)  // TSan does not support threads in a forked child of a multithreaded process
      {"forked children have cores", forked_children_have_cores},
#endif
  };
  return run_cases(cases);
}

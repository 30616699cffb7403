#include "executor/context.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

#include "kernels/expert_matmul.hpp"
#include "kernels/prepare/extension_call.hpp"
#include "kernels/recurrent.hpp"

namespace engine {
namespace {

std::int64_t nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool overlap(const Binding& a, const Binding& b) {
  const auto a_begin = reinterpret_cast<std::uintptr_t>(a.data), b_begin = reinterpret_cast<std::uintptr_t>(b.data);
  return a_begin < b_begin + b.bytes && b_begin < a_begin + a.bytes;
}

void check_binding(const char* kind, std::size_t slot, const Binding& binding, const Buffer& declared) {
  const std::string where = std::string(kind) + " " + std::to_string(slot);
  const bool is_state = declared.kind == BufferKind::state;
  if (is_state ? binding.bytes < declared.bytes : binding.bytes != declared.bytes) {
    throw std::invalid_argument(where + " has " + std::to_string(binding.bytes) + " bytes; expected " +
                                std::to_string(declared.bytes) + (is_state ? " or more" : ""));
  }
  if (reinterpret_cast<std::uintptr_t>(binding.data) % declared.alignment != 0) {
    throw std::invalid_argument(where + " is not aligned to " + std::to_string(declared.alignment) + " bytes");
  }
}

// Puts the scratch memory of workers on different cache lines, and at different offsets within pages.
std::size_t scratch_stride(std::size_t bytes) {
  return bytes == 0 ? 0 : checked_add((bytes + 63) & ~std::size_t{63}, 64);
}

}  // namespace

// What a run reads and writes.
struct Context::Work {
  const Plan& plan;
  void* const* pointers;
  std::byte* scratch;
  std::size_t scratch_stride;
  const CancelFlag* cancel;
  std::int64_t* profile;
  // Set by the first step that claims it.
  std::atomic<bool> fault_claimed{false};
  int fault_step = -1;
  Fault fault{};
  std::atomic<bool> cancelled{false};

  // The part of one of `workers` workers in phase `i`.
  void run_phase(int i, int part, int workers) {
    const Phase& phase = plan.phases[static_cast<std::size_t>(i)];
    const int participants = std::min(workers, phase.max_workers);
    if (part >= participants) return;
    Fault found;
    std::byte* own = scratch + scratch_stride * static_cast<std::size_t>(part);
    phase.run(phase.args, pointers + phase.first_pointer, KernelContext{part, participants, own, &found});
    if (found.found) record(found, phase.step);
  }

  void record(const Fault& found, int step) {
    if (fault_claimed.exchange(true, std::memory_order_relaxed)) return;
    fault = found;
    fault_step = step;
  }

  // All phases of a group for one slice of the batch after another, of those that nobody has begun. Returns whether
  // it left some because the run was cancelled.
  bool run_slices(const PhaseGroup& group, int part, std::atomic<int>& next, Stopwatch* watch);

  bool should_stop() {
    if (cancel != nullptr && cancel->cancelled()) cancelled.store(true, std::memory_order_relaxed);
    return cancelled.load(std::memory_order_relaxed);
  }
};

// Attributes the calling thread's time to steps, if the run is profiled.
class Context::Stopwatch {
 public:
  explicit Stopwatch(std::int64_t* profile) : profile_(profile), before_(profile != nullptr ? nanoseconds() : 0) {}

  void begin(int step) {
    stop();
    step_ = step;
  }
  void stop() {
    if (profile_ == nullptr || step_ < 0) return;
    const std::int64_t now = nanoseconds();
    profile_[step_] += now - before_;
    before_ = now;
    step_ = -1;
  }

 private:
  std::int64_t* profile_;
  std::int64_t before_;
  int step_ = -1;
};

bool Context::Work::run_slices(const PhaseGroup& group, int part, std::atomic<int>& next, Stopwatch* watch) {
  std::byte* own = scratch + scratch_stride * static_cast<std::size_t>(part);
  for (int slice = next.fetch_add(1, std::memory_order_relaxed); slice < group.slices;
       slice = next.fetch_add(1, std::memory_order_relaxed)) {
    if (slice > 0 && should_stop()) return true;
    for (int i = group.begin; i < group.end; ++i) {
      const Phase& phase = plan.phases[static_cast<std::size_t>(i)];
      if (watch != nullptr) watch->begin(phase.step);
      void* operands[kMaxSliceOperands];
      for (std::size_t o = 0; o < phase.pointers; ++o) {
        const SlicedOperand& sliced = plan.sliced[phase.first_pointer + o];
        operands[o] = sliced.is_private ? own + sliced.offset
                                        : static_cast<std::byte*>(pointers[phase.first_pointer + o]) +
                                              sliced.step * static_cast<std::size_t>(slice);
      }
      Fault found;
      phase.run(phase.args, operands, KernelContext{0, 1, own, &found});
      if (found.found) record(found, phase.step);
    }
  }
  return false;
}

void Context::run_alone(Work& work) {
  Stopwatch watch(work.profile);
  const int count = static_cast<int>(work.plan.phases.size());
  for (const PhaseGroup& group : *work.plan.groups) {
    if (group.slices > 0) {
      std::atomic<int> next{0};
      if (work.run_slices(group, 0, next, &watch) || (group.end < count && work.should_stop())) break;
      continue;
    }
    bool stops = false;
    for (int i = group.begin; i < group.end && !stops; ++i) {
      watch.begin(work.plan.phases[static_cast<std::size_t>(i)].step);
      work.run_phase(i, 0, 1);
      // A flag that is seen after the last phase has no effect: all phases have run.
      stops = i + 1 < count && work.should_stop();
    }
    if (stops) break;
  }
  watch.stop();
}

// Each group of phases has a part for each worker. Workers begin their own parts, then parts that nobody has begun:
// other processes may keep a thread from its core for milliseconds, and a whole run may take less.
class Context::TeamRun final : public Task {
 public:
  TeamRun(Work& work, int workers)
      : work_(work), groups_(work.plan.groups), is_profiled_(work.profile != nullptr), begun_(at(workers)) {}

  // A late worker finds no part to claim, so it does not use what `work_` refers to, which may be gone.
  void run(int worker, int workers) override {
    Stopwatch watch(worker == 0 ? work_.profile : nullptr);
    bool others_are_late = false;
    const auto count = static_cast<std::uint32_t>(groups_->size());
    for (std::uint32_t group = done_.value(); group < count;) {
      const int limit = std::min(workers, (*groups_)[group].workers);
      if (worker < limit) run_part(group, worker, limit, worker == 0 ? &watch : nullptr);
      // In a large team, looking at the parts of the others takes longer than they are usually late.
      if (workers <= kSmallTeam || others_are_late || !done_.spin_while(group, kLateMicroseconds)) {
        for (int i = 1; i < limit && done_.value() == group; ++i) {
          const int other = (worker + i) % limit;
          if (is_profiled_ && other == 0) continue;  // the calling thread measures its phases
          others_are_late |= run_part(group, other, limit, nullptr);
        }
      }
      const std::uint32_t now = done_.value();
      group = now != group ? now : done_.wait_while(group);
      watch.stop();
    }
  }

 private:
  static constexpr int kSmallTeam = 4;
  static constexpr int kLateMicroseconds = 5;

  struct alignas(64) Begun {
    std::atomic<std::uint32_t> groups{0};
  };

  static std::size_t at(int worker) { return static_cast<std::size_t>(worker); }

  // Runs a part of a group, unless somebody has begun it; returns whether it did.
  bool run_part(std::uint32_t group, int part, int limit, Stopwatch* watch) {
    std::atomic<std::uint32_t>& begun = begun_[at(part)].groups;
    std::uint32_t seen = begun.load(std::memory_order_relaxed);
    if (seen > group || !begun.compare_exchange_strong(seen, group + 1, std::memory_order_acquire)) return false;
    const PhaseGroup& phases = (*groups_)[group];
    bool stops = false;
    if (phases.slices > 0) {
      stops = work_.run_slices(phases, part, next_slice_, watch);
    } else {
      for (int i = phases.begin; i < phases.end; ++i) {
        if (watch != nullptr) watch->begin(work_.plan.phases[at(i)].step);
        work_.run_phase(i, part, static_cast<int>(begun_.size()));
      }
    }
    const auto count = static_cast<std::uint32_t>(groups_->size());
    const bool is_last = group + 1 == count;
    stops = stops || (part == 0 && !is_last && work_.should_stop());
    if (stops) stopped_.store(true, std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == static_cast<std::uint32_t>(limit) - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      next_slice_.store(0, std::memory_order_relaxed);
      done_.set(stopped_.load(std::memory_order_relaxed) ? count : group + 1);
    }
    return true;
  }

  Work& work_;
  const std::shared_ptr<const std::vector<PhaseGroup>> groups_;
  const bool is_profiled_;
  std::vector<Begun> begun_;  // for each part: the groups whose parts have been begun, or have no such part
  alignas(64) std::atomic<std::uint32_t> arrived_{0};
  std::atomic<int> next_slice_{0};  // of the group that runs
  std::atomic<bool> stopped_{false};
  Signal done_;  // the number of groups that are done; all of them if the run was cancelled
};

namespace {

// Longer runs wait for others less than they gain, and must not be delayed by a trial.
constexpr double kLongRun = 2e6;
constexpr int kFirstInterval = 8, kLastInterval = 128;
// Of a new measurement in the usual time. One that was interrupted counts as so many times the usual one at most.
constexpr double kShare = 0.125, kMaxTimes = 8;

}  // namespace

bool Pace::begin() {
  if (together_ == 0 || together_ > kLongRun) return true;
  if (alone_ == 0) return false;
  const bool is_faster_together = together_ <= alone_;
  if (until_trial_-- > 0) return is_faster_together;
  interval_ = std::clamp(2 * interval_, kFirstInterval, kLastInterval);
  until_trial_ = interval_;
  return !is_faster_together;
}

void Pace::end(bool is_together, std::int64_t nanoseconds) {
  const bool was_faster_together = together_ <= alone_;
  double& usual = is_together ? together_ : alone_;
  const auto now = static_cast<double>(nanoseconds);
  usual = usual == 0 ? now : usual + kShare * (std::min(now, kMaxTimes * usual) - usual);
  if (was_faster_together != (together_ <= alone_)) {
    interval_ = until_trial_ = 0;
  } else if (is_together != was_faster_together && now < (is_together ? alone_ : together_)) {
    until_trial_ = 0;  // a trial that was faster than the usual way: try again
  }
}

int Context::workers_of(const Plan& plan, int limit, CoreSet* cores) {
  const int all = (cores != nullptr ? *cores : CoreSet::shared()).cores();
  return std::min(limit > 0 ? std::min(all, limit) : all, plan.max_workers);
}

Context::Context(std::shared_ptr<const Plan> plan, int max_workers, CoreSet* cores, std::shared_ptr<Memory> memory)
    : plan_(std::move(plan)),
      cores_(cores),
      limit_(max_workers),
      max_workers_(workers_of(*plan_, max_workers, cores)),
      scratch_stride_(scratch_stride(plan_->scratch_bytes)),
      memory_(std::move(memory)) {
  if (!plan_->runs_here)
    throw SettingError(std::string("the plan is for instruction set \"") + isa_name(plan_->isa) +
                       "\", which this CPU lacks: run it on one that has it");
}

Context::Context(std::shared_ptr<const Plan> plan, int max_workers, CoreSet* cores)
    : Context(std::move(plan), max_workers, cores, std::make_shared<Memory>()) {
  memory_->arena_bytes = plan_->arena.total_bytes;
  memory_->scratch_bytes = scratch_bytes();
  memory_->arena = AlignedMemory(memory_->arena_bytes, plan_->arena.alignment);
  memory_->scratch = AlignedMemory(memory_->scratch_bytes, 64);
  point_into_memory();
}

void Context::use(std::shared_ptr<const Plan> plan) {
  if (plan == plan_) return;
  Context next(std::move(plan), limit_, cores_, memory_);
  const std::size_t arena = next.plan_->arena.total_bytes, scratch = next.scratch_bytes();
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(memory_->arena.data()) % next.plan_->arena.alignment == 0;
  if (arena > memory_->arena_bytes || scratch > memory_->scratch_bytes || !is_aligned) {
    next.memory_ = std::make_shared<Memory>();
    next.memory_->arena_bytes = std::max(arena, memory_->arena_bytes);
    next.memory_->scratch_bytes = std::max(scratch, memory_->scratch_bytes);
    next.memory_->arena = AlignedMemory(next.memory_->arena_bytes, next.plan_->arena.alignment);
    next.memory_->scratch = AlignedMemory(next.memory_->scratch_bytes, 64);
  }
  next.point_into_memory();
  *this = std::move(next);
}

std::vector<std::unique_ptr<Context>> Context::in_turns(const std::vector<std::shared_ptr<const Plan>>& plans,
                                                        int max_workers) {
  const auto memory = std::make_shared<Memory>();
  std::vector<std::unique_ptr<Context>> contexts;
  std::size_t arena = 0, alignment = 64, scratch = 0;
  for (const auto& plan : plans) {
    contexts.emplace_back(new Context(plan, max_workers, nullptr, memory));
    arena = std::max(arena, plan->arena.total_bytes);
    alignment = std::max(alignment, plan->arena.alignment);
    scratch = std::max(scratch, contexts.back()->scratch_bytes());
  }
  memory->arena_bytes = arena;
  memory->scratch_bytes = scratch;
  memory->arena = AlignedMemory(arena, alignment);
  memory->scratch = AlignedMemory(scratch, 64);
  for (const auto& context : contexts) context->point_into_memory();
  return contexts;
}

void Context::point_into_memory() {
  pointers_.resize(plan_->operands.size(), nullptr);
  for (std::size_t i = 0; i < plan_->operands.size(); ++i) {
    const Plan::Operand& operand = plan_->operands[i];
    switch (operand.kind) {
      case BufferKind::arena:
        pointers_[i] = memory_->arena.data() + operand.offset;
        break;
      case BufferKind::constant:
        pointers_[i] = const_cast<void*>(operand.data);
        break;
      default:
        patches_.push_back({i, operand.kind, operand.slot, operand.offset});
    }
  }
}

std::size_t Context::memory_bytes() const {
  return plan_->arena.total_bytes + scratch_bytes();
}

bool Context::run(const std::vector<Binding>& inputs, const std::vector<Binding>& outputs, const RunOptions& options,
                  const std::vector<Binding>& states) {
  check_bindings(inputs, outputs, states);
  CoreSet& cores = cores_ != nullptr ? *cores_ : CoreSet::shared();
  CoreSet* user = nullptr;
  if (!memory_->user.compare_exchange_strong(user, &cores, std::memory_order_acquire)) {
    // A user with another set was a thread of the parent process, which does not exist in a forked child.
    if (user == &cores || !memory_->user.compare_exchange_strong(user, &cores, std::memory_order_acquire)) {
      throw ContextBusy(
          "the context, or one that shares its memory, is running in another thread; create a context for each stream");
    }
  }
  struct Release {
    std::atomic<CoreSet*>& user;
    ~Release() { user.store(nullptr, std::memory_order_release); }
  } const release{memory_->user};

  if (options.profile != nullptr) options.profile->assign(plan_->steps().size(), 0);
  const int wanted = options.threads > 0 ? std::min(options.threads, max_workers_) : max_workers_;
  CoreSet::Lease lease = cores.lease(wanted, options.cancel);
  if (lease.workers() == 0 || (options.cancel != nullptr && options.cancel->cancelled())) return false;
  for (const Patch& patch : patches_) {
    const Binding& bound = (patch.kind == BufferKind::input    ? inputs
                            : patch.kind == BufferKind::output ? outputs
                                                               : states)[patch.slot];
    pointers_[patch.pointer] = static_cast<std::byte*>(const_cast<void*>(bound.data)) + patch.offset;
  }
  return run_on(lease, options.cancel, options.profile != nullptr ? options.profile->data() : nullptr);
}

bool Context::run_leased(CoreSet::Lease& lease, const void* const* inputs, void* const* outputs,
                         const CancelFlag* cancel, std::int64_t* profile) {
  for (const Patch& patch : patches_) {
    void* bound = patch.kind == BufferKind::input ? const_cast<void*>(inputs[patch.slot]) : outputs[patch.slot];
    pointers_[patch.pointer] = static_cast<std::byte*>(bound) + patch.offset;
  }
  return run_on(lease, cancel, profile);
}

bool Context::run_on(CoreSet::Lease& lease, const CancelFlag* cancel, std::int64_t* profile) {
  Work work{*plan_, pointers_.data(), memory_->scratch.data(), scratch_stride_, cancel, profile};
  const int workers = std::min(lease.workers(), plan_->max_workers);
  if (workers == 1) {
    run_alone(work);  // without waking the others
  } else {
    const auto run = std::make_shared<TeamRun>(work, workers);
    const std::int64_t before = nanoseconds();
    const bool is_together = pace_.begin();
    if (is_together) {
      lease.run(run, workers);
    } else {
      run->run(0, workers);
    }
    pace_.end(is_together, nanoseconds() - before);
  }
  return finished(work);
}

namespace {

// Kernels count from the end of a dimension for a negative index, except those for which ONNX has no such index.
bool counts_from_end(const std::string& kernel) {
  for (const char* prefix : {"roi_align", "tensor_scatter", "compress"}) {
    if (kernel.compare(0, std::strlen(prefix), prefix) == 0) return false;
  }
  return true;
}

std::string described_length(std::int64_t length, std::int64_t steps) {
  return "a sequence length " + std::to_string(length) + " is out of range for sequences of " + std::to_string(steps) +
         " steps; expected 0.." + std::to_string(steps);
}

// The name of a step that reads the row of a length from a table, with a row for each length from 0, ends so. Below 0,
// the number of rows was subtracted, since such a row would count from the end.
constexpr char kLengths[] = " (lengths)";

bool reads_lengths(const std::string& name) {
  const std::size_t size = std::strlen(kLengths);
  return name.size() >= size && name.compare(name.size() - size, size, kLengths) == 0;
}

std::string described(const Fault& fault, const std::string& kernel, const std::string& name) {
  if (fault.size < 0) return described_length(fault.index, faulty_steps(fault.size));
  if (reads_lengths(name)) {
    return described_length(fault.index < 0 ? fault.index + fault.size : fault.index, fault.size - 1);
  }
  if (kernel == "expert_matmul" && is_no_expert(fault.index)) {
    return "row " + std::to_string(fault.index - kNoExpert) +
           " has no experts, as the router's values for it are NaN or infinite; expected finite numbers";
  }
  const std::string found = std::to_string(fault.index);
  const std::string least = counts_from_end(kernel) ? std::to_string(-fault.size) : "0";
  return "index " + found + " is out of range for a dimension of " + std::to_string(fault.size) + "; expected " +
         least + ".." + std::to_string(fault.size - 1);
}

}  // namespace

bool Context::finished(const Work& run) const {
  if (run.fault_step >= 0) {
    if (run.fault.size == kExtensionFault) throw ExtensionFailure(kept_extension_failure(run.fault.index));
    const auto& step = plan_->steps()[static_cast<std::size_t>(run.fault_step)];
    std::string name = step.name.empty() ? "step " + std::to_string(run.fault_step) : step.name;
    if (reads_lengths(name)) name.resize(name.size() - std::strlen(kLengths));
    throw DataFault(name + ": " + described(run.fault, step.kernel, step.name));
  }
  return !run.cancelled.load(std::memory_order_relaxed);
}

void Context::check_bindings(const std::vector<Binding>& inputs, const std::vector<Binding>& outputs,
                             const std::vector<Binding>& states) const {
  struct Kind {
    const char* one;
    const char* several;
    const std::vector<Binding>& bound;
    const std::vector<Buffer>& declared;
  };
  const Kind kinds[] = {{"input", "inputs", inputs, plan_->inputs},
                        {"output", "outputs", outputs, plan_->outputs},
                        {"state", "states", states, plan_->states}};
  for (const Kind& kind : kinds) {
    if (kind.bound.size() != kind.declared.size()) {
      throw std::invalid_argument("the run has " + std::to_string(kind.bound.size()) + " " + kind.several +
                                  "; the plan has " + std::to_string(kind.declared.size()));
    }
    for (std::size_t i = 0; i < kind.bound.size(); ++i) check_binding(kind.one, i, kind.bound[i], kind.declared[i]);
  }
  // Memory that is written must not overlap other memory of the run.
  for (std::size_t written = 1; written < 3; ++written) {
    for (std::size_t i = 0; i < kinds[written].bound.size(); ++i) {
      for (std::size_t other = 0; other <= written; ++other) {
        const std::size_t count = other == written ? i : kinds[other].bound.size();
        for (std::size_t j = 0; j < count; ++j) {
          if (!overlap(kinds[written].bound[i], kinds[other].bound[j])) continue;
          throw std::invalid_argument(std::string(kinds[written].one) + " " + std::to_string(i) +
                                      " lies in the memory of " + kinds[other].one + " " + std::to_string(j) +
                                      "; bind separate memory to each");
        }
      }
    }
  }
}

}  // namespace engine

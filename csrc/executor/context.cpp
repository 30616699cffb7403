#include "executor/context.hpp"

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstring>
#include <string>

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

// The state of one run, shared by its workers.
struct Context::Run {
  const Plan& plan;
  void* const* pointers;
  std::byte* scratch;
  std::size_t scratch_stride;
  const CancelFlag* cancel;
  std::int64_t* profile;
  Barrier barrier;
  // The phase after which all workers stop. A worker that leaves a barrier late may already see the value set at the
  // next barrier, so it compares phases instead of reading a flag.
  std::atomic<int> last_phase{INT_MAX};
  // Set by the first step that claims it; read after all workers have left.
  std::atomic<bool> fault_claimed{false};
  int fault_step = -1;
  Fault fault{};

  template <bool is_profiled>
  void work(int worker, int workers) {
    const int count = static_cast<int>(plan.phases.size());
    [[maybe_unused]] std::int64_t before = is_profiled && worker == 0 ? nanoseconds() : 0;
    for (int i = 0; i < count; ++i) {
      const Phase& phase = plan.phases[static_cast<std::size_t>(i)];
      const int participants = std::min(workers, phase.max_workers);
      if (worker < participants) {
        Fault found;
        phase.run(
            phase.args, pointers + phase.first_pointer,
            KernelContext{worker, participants, scratch + scratch_stride * static_cast<std::size_t>(worker), &found});
        if (found.found && !fault_claimed.exchange(true, std::memory_order_relaxed)) {
          fault = found;
          fault_step = phase.step;
        }
      }
      if (worker == 0 && cancel != nullptr && i + 1 < count && cancel->cancelled() &&
          last_phase.load(std::memory_order_relaxed) == INT_MAX) {
        last_phase.store(i, std::memory_order_relaxed);
      }
      if (phase.barrier_after) barrier.wait(static_cast<std::uint32_t>(workers));
      if constexpr (is_profiled) {
        if (worker == 0) {
          const std::int64_t now = nanoseconds();
          profile[phase.step] += now - before;
          before = now;
        }
      }
      if ((phase.barrier_after || workers == 1) && last_phase.load(std::memory_order_relaxed) <= i) return;
    }
    // A flag seen in the last group has no effect: all phases have run.
    if (worker == 0) last_phase.store(INT_MAX, std::memory_order_relaxed);
  }

  static void enter(void* run, int worker, int workers) {
    Run& self = *static_cast<Run*>(run);
    if (self.profile != nullptr) {
      self.work<true>(worker, workers);
    } else {
      self.work<false>(worker, workers);
    }
  }
};

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
      memory_(std::move(memory)) {}

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
  Run run{*plan_,
          pointers_.data(),
          memory_->scratch.data(),
          scratch_stride_,
          options.cancel,
          options.profile != nullptr ? options.profile->data() : nullptr,
          {}};
  lease.run(Run::enter, &run);
  return finished(run);
}

bool Context::run_leased(CoreSet::Lease& lease, const void* const* inputs, void* const* outputs,
                         const CancelFlag* cancel, std::int64_t* profile) {
  for (const Patch& patch : patches_) {
    void* bound = patch.kind == BufferKind::input ? const_cast<void*>(inputs[patch.slot]) : outputs[patch.slot];
    pointers_[patch.pointer] = static_cast<std::byte*>(bound) + patch.offset;
  }
  Run run{*plan_, pointers_.data(), memory_->scratch.data(), scratch_stride_, cancel, profile, {}};
  if (plan_->max_workers == 1) {
    Run::enter(&run, 0, 1);  // without waking the others
  } else {
    lease.run(Run::enter, &run);
  }
  return finished(run);
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
  const std::string found = std::to_string(fault.index);
  const std::string least = counts_from_end(kernel) ? std::to_string(-fault.size) : "0";
  return "index " + found + " is out of range for a dimension of " + std::to_string(fault.size) + "; expected " +
         least + ".." + std::to_string(fault.size - 1);
}

}  // namespace

bool Context::finished(const Run& run) const {
  if (run.fault_step >= 0) {
    if (run.fault.size == kExtensionFault) throw ExtensionFailure(kept_extension_failure(run.fault.index));
    const auto& step = plan_->steps()[static_cast<std::size_t>(run.fault_step)];
    std::string name = step.name.empty() ? "step " + std::to_string(run.fault_step) : step.name;
    if (reads_lengths(name)) name.resize(name.size() - std::strlen(kLengths));
    throw DataFault(name + ": " + described(run.fault, step.kernel, step.name));
  }
  return run.last_phase.load(std::memory_order_relaxed) == INT_MAX;
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
  // What is written must not lie in other memory of the run.
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

#include "executor/context.hpp"

#include <algorithm>
#include <chrono>
#include <climits>
#include <string>

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
  if (binding.bytes != declared.bytes) {
    throw std::invalid_argument(where + " has " + std::to_string(binding.bytes) + " bytes; expected " +
                                std::to_string(declared.bytes));
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

Context::Context(std::shared_ptr<const Plan> plan, int max_workers, CoreSet* cores, std::shared_ptr<Memory> memory)
    : plan_(std::move(plan)),
      cores_(cores),
      max_workers_((cores != nullptr ? *cores : CoreSet::shared()).cores()),
      scratch_stride_(scratch_stride(plan_->scratch_bytes)),
      memory_(std::move(memory)) {
  if (max_workers > 0) max_workers_ = std::min(max_workers_, max_workers);
  max_workers_ = std::min(max_workers_, plan_->max_workers);
}

Context::Context(std::shared_ptr<const Plan> plan, int max_workers, CoreSet* cores)
    : Context(std::move(plan), max_workers, cores, std::make_shared<Memory>()) {
  memory_->arena = AlignedMemory(plan_->arena.total_bytes, plan_->arena.alignment);
  memory_->scratch = AlignedMemory(scratch_bytes(), 64);
  point_into_memory();
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

bool Context::run(const std::vector<Binding>& inputs, const std::vector<Binding>& outputs, const RunOptions& options) {
  check_bindings(inputs, outputs);
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

  if (options.profile != nullptr) options.profile->assign(plan_->steps.size(), 0);
  const int wanted = options.threads > 0 ? std::min(options.threads, max_workers_) : max_workers_;
  CoreSet::Lease lease = cores.lease(wanted, options.cancel);
  if (lease.workers() == 0 || (options.cancel != nullptr && options.cancel->cancelled())) return false;
  for (const Patch& patch : patches_) {
    const Binding& bound = (patch.kind == BufferKind::input ? inputs : outputs)[patch.slot];
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
  if (run.fault_step >= 0) {
    const std::string& name = plan_->steps[static_cast<std::size_t>(run.fault_step)].name;
    throw DataFault((name.empty() ? "step " + std::to_string(run.fault_step) : name) + ": index " +
                    std::to_string(run.fault.index) + " is out of range for a dimension of " +
                    std::to_string(run.fault.size));
  }
  return run.last_phase.load(std::memory_order_relaxed) == INT_MAX;
}

void Context::check_bindings(const std::vector<Binding>& inputs, const std::vector<Binding>& outputs) const {
  const auto check_count = [](const char* kind, std::size_t got, std::size_t expected) {
    if (got == expected) return;
    throw std::invalid_argument("the run has " + std::to_string(got) + " " + kind + "; the plan has " +
                                std::to_string(expected));
  };
  check_count("inputs", inputs.size(), plan_->inputs.size());
  check_count("outputs", outputs.size(), plan_->outputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) check_binding("input", i, inputs[i], plan_->inputs[i]);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    check_binding("output", i, outputs[i], plan_->outputs[i]);
    for (std::size_t j = 0; j < inputs.size() + i; ++j) {
      const bool is_input = j < inputs.size();
      if (overlap(outputs[i], is_input ? inputs[j] : outputs[j - inputs.size()])) {
        throw std::invalid_argument(
            "output " + std::to_string(i) + " lies in the memory of " +
            (is_input ? "input " + std::to_string(j) : "output " + std::to_string(j - inputs.size())) +
            "; bind separate memory to each");
      }
    }
  }
}

}  // namespace engine

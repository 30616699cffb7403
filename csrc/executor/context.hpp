// The memory that one stream needs to run a plan: an arena, and scratch memory for its workers.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "executor/core_set.hpp"
#include "executor/memory.hpp"
#include "executor/plan.hpp"

namespace engine {

// Another thread is running this context.
class ContextBusy : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A step received invalid data, such as an index out of range. (ExtensionFailure: a kernel of an extension failed.)
class DataFault : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// Memory that is bound to an input or output for one run.
struct Binding {
  const void* data;
  std::size_t bytes;
};

struct RunOptions {
  int threads = 0;                               // the most cores to lease; 0: as many as the context was made for
  const CancelFlag* cancel = nullptr;            // read between phases
  std::vector<std::int64_t>* profile = nullptr;  // receives the nanoseconds of every step, as measured by worker 0
};

// Whether short runs are faster with the other workers or without: steps of a few microseconds, and cores that other
// processes hold, may make it longer to wake workers than to do their parts. Both ways are timed, the slower one
// rarely.
class Pace {
 public:
  // Whether the next run is to be with the other workers.
  bool begin();
  void end(bool is_together, std::int64_t nanoseconds);

 private:
  double together_ = 0, alone_ = 0;  // the usual nanoseconds of a run; 0: not measured yet
  int until_trial_ = 0;              // runs in the faster way before one in the other
  int interval_ = 0;
};

// One run at a time; the plan and its constants are shared with other contexts.
class Context {
 public:
  // `max_workers` bounds the scratch memory; 0: all cores. Throws std::bad_alloc.
  explicit Context(std::shared_ptr<const Plan> plan, int max_workers = 0, CoreSet* cores = nullptr);

  // Contexts of several plans that share the memory of the largest; only one runs at a time. Throws std::bad_alloc.
  static std::vector<std::unique_ptr<Context>> in_turns(const std::vector<std::shared_ptr<const Plan>>& plans,
                                                        int max_workers = 0);

  // Runs all steps. Inputs, outputs and states are used in place; they must not overlap, and are checked for size and
  // alignment (std::invalid_argument). Returns false if the run was cancelled; outputs, and what steps write to states,
  // are then undefined. Throws ContextBusy, and DataFault or ExtensionFailure after all steps are done; nothing else
  // once the first step has started.
  bool run(const std::vector<Binding>& inputs, const std::vector<Binding>& outputs, const RunOptions& options = {},
           const std::vector<Binding>& states = {});

  // Runs all steps on the workers of a lease that spans many runs, without checking the bindings: every pointer is to
  // memory of the declared size and alignment, and none overlaps what is written. At most as many workers as the
  // context was made for take part. `profile`, if not null, has an element for each step, to which its nanoseconds are
  // added. Returns and throws as `run`; the caller ensures that no other run uses the context's memory.
  bool run_leased(CoreSet::Lease& lease, const void* const* inputs, void* const* outputs, const CancelFlag* cancel,
                  std::int64_t* profile = nullptr);

  // Runs another plan from now on, in the same memory, or in new memory if it needs more. Not while a run is in
  // progress, nor for contexts that share their memory. Throws std::bad_alloc, and then keeps the old plan.
  void use(std::shared_ptr<const Plan> plan);

  const Plan& plan() const { return *plan_; }
  int max_workers() const { return max_workers_; }
  std::size_t memory_bytes() const;

 private:
  struct Patch {
    std::size_t pointer;
    BufferKind kind;
    std::size_t slot;
    std::size_t offset;
  };
  struct Work;
  class Stopwatch;
  class TeamRun;
  struct Memory {
    AlignedMemory arena;
    AlignedMemory scratch;
    std::size_t arena_bytes = 0, scratch_bytes = 0;
    std::atomic<CoreSet*> user{nullptr};  // the cores on which it is running
  };

  Context(std::shared_ptr<const Plan> plan, int max_workers, CoreSet* cores, std::shared_ptr<Memory> memory);

  std::size_t scratch_bytes() const {
    return checked_multiply(scratch_stride_, static_cast<std::size_t>(max_workers_));
  }
  static int workers_of(const Plan& plan, int limit, CoreSet* cores);
  bool run_on(CoreSet::Lease& lease, const CancelFlag* cancel, std::int64_t* profile);
  static void run_alone(Work& work);
  bool finished(const Work& run) const;
  void point_into_memory();
  void check_bindings(const std::vector<Binding>& inputs, const std::vector<Binding>& outputs,
                      const std::vector<Binding>& states) const;

  std::shared_ptr<const Plan> plan_;
  Pace pace_;
  CoreSet* cores_;  // null: the process's set, which a forked child replaces
  int limit_;       // of the workers of any plan; 0: all cores
  int max_workers_;
  std::size_t scratch_stride_;
  std::shared_ptr<Memory> memory_;
  std::vector<void*> pointers_;
  std::vector<Patch> patches_;
};

}  // namespace engine

// A plan: steps over buffers, laid out and ready to run. Built by PlanBuilder, run by Context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "executor/arena.hpp"
#include "executor/kernel_registry.hpp"
#include "executor/memory.hpp"
#include "kernels/prepare.hpp"
#include "kernels/prepare/image_steps.hpp"

namespace engine {

using BufferId = int;

enum class BufferKind { input, output, state, arena, constant, view };

// A piece of memory that steps read and write.
struct Buffer {
  BufferKind kind;
  std::size_t bytes;
  std::size_t alignment = 1;
  BufferId root = -1;          // the buffer, itself not a view, that contains a view; for other buffers, their own id
  std::size_t offset = 0;      // of a view in its root
  std::size_t slot = 0;        // of inputs, outputs and states: the position in the arguments of a run
  const void* data = nullptr;  // of constants
  bool varies = false;         // other plans of the same family have another size or offset
};

// One parallel pass of a kernel.
struct Phase {
  KernelFn run;
  const void* args;           // within the plan's block of arguments
  std::size_t first_pointer;  // of its operands, in a context's table of pointers
  int max_workers;
  int step;
  bool barrier_after;
  int slices = 0;            // of the batch, if the phase computes one of them, chosen at each call
  std::size_t pointers = 0;  // the number of its operands, if it computes slices
};

// Phases that run without a barrier between them; `workers` is the largest number that any of them can use. If there
// are slices, a worker runs all phases for one slice of the batch, then for another that nobody has begun.
struct PhaseGroup {
  int begin, end;
  int workers;
  int slices = 0;
};

constexpr std::size_t kMaxSliceOperands = 32;  // of a step that runs slice by slice

// The place of an operand of a phase that computes slices of a batch: in the memory of the worker, or `step` bytes for
// each slice after the operand's address.
struct SlicedOperand {
  bool is_private;
  std::size_t offset;  // in the scratch memory of the worker, if the operand is private
  std::size_t step;
};

struct StepInfo {
  std::string name;
  std::string kernel;
  Isa isa;  // the highest of its phases
  int phases;
  double work;
};

constexpr std::size_t kArgsAlignment = 64;

// The bytes between the arguments of two phases.
inline std::size_t padded_args(std::size_t bytes) {
  return (bytes + kArgsAlignment - 1) & ~(kArgsAlignment - 1);
}

// Immutable; any number of contexts may run it concurrently, in any threads.
struct Plan {
  // The source of an operand's address.
  struct Operand {
    BufferKind kind;     // input, output, state, arena or constant
    std::size_t slot;    // of inputs, outputs and states
    std::size_t offset;  // in the arena, the input, the output or the state
    const void* data;    // of constants
  };

  std::vector<Buffer> inputs;
  std::vector<Buffer> outputs;
  std::vector<Buffer> states;
  std::vector<Operand> operands;
  std::vector<SlicedOperand> sliced;  // for each operand; empty if no phase computes slices
  std::vector<Phase> phases;
  std::shared_ptr<const std::vector<PhaseGroup>> groups;  // of `phases`, in order
  std::shared_ptr<const std::vector<StepInfo>> step_infos;
  ArenaLayout arena;
  std::size_t scratch_bytes = 0;  // for each worker
  int max_workers = 1;            // the largest number of workers that any phase can use
  Isa isa = Isa::generic;
  bool runs_here = true;  // whether this CPU has the instruction sets of all its kernels
  std::size_t barriers = 0;
  bool has_extensions = false;  // whether a kernel of an extension runs, which may take any time
  RowNames rows;                // those that its steps looked kernels up in; empty for the plans of a family

  // Plans of a family share what does not vary between them.
  std::shared_ptr<const AlignedMemory> args_memory, varying_args_memory;
  std::shared_ptr<const std::vector<std::shared_ptr<const void>>> owners;  // of the constants

  const std::vector<StepInfo>& steps() const { return *step_infos; }
  // Sets what follows from the phases: their groups, and the largest number of workers.
  void group();
};

// What decides which steps run slice by slice.
struct BatchMachine {
  int workers;           // that runs are expected to have
  std::size_t l2_bytes;  // of a core
  std::size_t l3_bytes;  // that one core may use
};

// This machine; 0 workers: its cores.
BatchMachine batch_machine(int workers = 0);

// Collects buffers and steps, checks them, and builds a plan. Used by one thread at a time. All members throw PlanError
// for invalid arguments, before they change anything.
//
// `isa` may be one that this CPU lacks: the plan can then be looked at, but not run, unless its kernels only arrange
// data (KernelRegistry::portable), so that weights are packed for the CPUs of others.
class PlanBuilder {
 public:
  explicit PlanBuilder(Isa isa, const KernelRegistry& registry = KernelRegistry::built_in(),
                       const BatchMachine& machine = batch_machine());

  // Bound at each run; slots are numbered in the order of the calls. Steps must not write inputs.
  BufferId add_input(std::size_t bytes, std::size_t alignment = 1);
  BufferId add_output(std::size_t bytes, std::size_t alignment = 1);
  // Bound at each run, to memory of at least this many bytes, whose content steps may read and change.
  BufferId add_state(std::size_t bytes, std::size_t alignment = 1);
  // Allocated in the arena from the first step that writes it to the last step that reads it.
  BufferId add_buffer(std::size_t bytes, std::size_t alignment = 64);
  // Read in place; `owner` keeps the memory alive while a plan uses it.
  BufferId add_constant(const void* data, std::size_t bytes, std::shared_ptr<const void> owner);
  // A part of another buffer, without a copy: for Concat, Split, Slice, Reshape, and in-place results.
  BufferId add_view(BufferId of, std::size_t offset, std::size_t bytes);

  // Appends a step of an operation in the registry and returns its number. Results are the same as if steps ran in this
  // order; the plan has barriers only where one step needs the results of another.
  int add_step(const std::string& operation, const std::vector<BufferId>& inputs, const std::vector<BufferId>& outputs,
               const Attributes& attributes, std::string name = "");

  // Lays the arena out. The builder is empty afterwards.
  std::shared_ptr<const Plan> build();

 private:
  friend class PlanFamily;

  struct PendingPhase {
    PreparedPhase prepared;
    int step;
    int group = 0;
  };
  struct PendingStep {
    StepInfo info;
    std::vector<BufferId> inputs;
    std::vector<BufferId> outputs;
    std::vector<BufferId> temporaries;
    bool varies = false;
    Attributes attributes;
    int run = -1;                      // of those in runs_
    std::vector<OperandImage> slices;  // of a step in a run: its inputs and outputs
  };
  // Steps that run slice by slice; see batch_runs.hpp.
  struct Run {
    int slices;
    std::size_t private_at = 0;  // in the scratch memory of a worker, after that of the kernels
    std::size_t private_bytes = 0;
  };

  using Ranges = std::vector<std::pair<std::size_t, std::size_t>>;

  BufferId add(const Buffer& buffer);
  const Buffer& buffer(BufferId id) const;
  void check_reads(const std::vector<BufferId>& inputs) const;
  void check_writes(const OperationEntry& operation, const std::vector<BufferId>& inputs,
                    const std::vector<BufferId>& outputs) const;
  bool is_written(const Buffer& wanted) const;
  void mark_written(const Buffer& target);
  std::vector<std::size_t> sizes(const std::vector<BufferId>& ids) const;
  void check_outputs_written() const;
  void divide_batches();
  PreparedStep prepare_slice(PendingStep& step, std::int64_t batch, std::int64_t images) const;
  bool has_same_phases(PendingStep& step, std::int64_t batch, std::int64_t images, bool has_one) const;
  void find_private();
  void divide_steps(int begin, int end, std::int64_t batch, std::int64_t images);
  std::shared_ptr<Plan> laid_out();
  int group_phases();
  bool is_private(std::size_t root) const { return root < is_private_.size() && is_private_[root]; }
  void lay_out_runs();
  void place_runs(Plan& plan) const;
  std::vector<std::size_t> lay_out(Plan& plan) const;
  void place_operands(Plan& plan, const std::vector<std::size_t>& offsets);
  void place_phases(Plan& plan);

  Isa isa_;
  const KernelRegistry* registry_;
  std::vector<Buffer> buffers_;
  std::vector<Ranges> written_;  // of each root: disjoint, ascending
  std::vector<std::shared_ptr<const void>> owners_;
  bool has_extensions_ = false;
  bool runs_here_ = true;
  RowNames rows_;
  std::vector<PendingStep> steps_;
  std::vector<PendingPhase> phases_;
  std::vector<Run> runs_;
  std::vector<bool> is_private_;  // of the buffers: whether only the steps of one run use them
  BatchMachine machine_;
  std::vector<std::size_t> offsets_;  // of the buffers in the arena, once they are laid out
  std::size_t input_count_ = 0;
  std::size_t output_count_ = 0;
  std::size_t state_count_ = 0;
};

}  // namespace engine

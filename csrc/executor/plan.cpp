#include "executor/plan.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace engine {
namespace {

constexpr std::size_t kMaxAlignment = std::size_t{1} << 21;

const char* kind_name(BufferKind kind) {
  switch (kind) {
    case BufferKind::input:
      return "an input";
    case BufferKind::output:
      return "an output";
    case BufferKind::state:
      return "a state";
    case BufferKind::arena:
      return "an arena buffer";
    case BufferKind::constant:
      return "a constant";
    case BufferKind::view:
      return "a view";
  }
  return "a buffer";
}

std::string named(BufferId id, const Buffer& buffer) {
  return "buffer " + std::to_string(id) + " (" + kind_name(buffer.kind) + " of " + std::to_string(buffer.bytes) +
         " bytes)";
}

void check_alignment(std::size_t alignment) {
  if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > kMaxAlignment) {
    throw PlanError("alignment " + std::to_string(alignment) + " is not a power of two of 1 to " +
                    std::to_string(kMaxAlignment));
  }
}

// An access of one phase to a part of a root buffer.
struct Access {
  std::size_t begin;
  std::size_t end;
  bool writes;
  bool serial;

  bool conflicts_with(const Access& other) const {
    return (writes || other.writes) && begin < other.end && other.begin < end && !(serial && other.serial);
  }
};

bool overlap(const Buffer& a, const Buffer& b) {
  return a.root == b.root && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

}  // namespace

PlanBuilder::PlanBuilder(Isa isa, const KernelRegistry& registry, const BatchMachine& machine)
    : isa_(isa), registry_(&registry), machine_(machine) {}

BufferId PlanBuilder::add_input(std::size_t bytes, std::size_t alignment) {
  check_alignment(alignment);
  Buffer input{BufferKind::input, bytes, alignment};
  input.slot = input_count_;
  const BufferId id = add(input);
  mark_written(buffer(id));
  ++input_count_;
  return id;
}

BufferId PlanBuilder::add_output(std::size_t bytes, std::size_t alignment) {
  check_alignment(alignment);
  Buffer output{BufferKind::output, bytes, alignment};
  output.slot = output_count_;
  const BufferId id = add(output);
  ++output_count_;
  return id;
}

BufferId PlanBuilder::add_state(std::size_t bytes, std::size_t alignment) {
  check_alignment(alignment);
  Buffer state{BufferKind::state, bytes, alignment};
  state.slot = state_count_;
  const BufferId id = add(state);
  mark_written(buffer(id));
  ++state_count_;
  return id;
}

BufferId PlanBuilder::add_buffer(std::size_t bytes, std::size_t alignment) {
  check_alignment(alignment);
  return add(Buffer{BufferKind::arena, bytes, alignment});
}

BufferId PlanBuilder::add_constant(const void* data, std::size_t bytes, std::shared_ptr<const void> owner) {
  Buffer constant{BufferKind::constant, bytes};
  constant.data = data;
  const BufferId id = add(constant);
  mark_written(buffer(id));
  owners_.push_back(std::move(owner));
  return id;
}

BufferId PlanBuilder::add_view(BufferId of, std::size_t offset, std::size_t bytes) {
  const Buffer& base = buffer(of);
  if (checked_add(offset, bytes) > base.bytes) {
    throw PlanError("a view of " + std::to_string(bytes) + " bytes at offset " + std::to_string(offset) +
                    " does not lie in " + named(of, base));
  }
  Buffer view{BufferKind::view, bytes};
  view.root = base.root;
  view.offset = base.offset + offset;
  return add(view);
}

BufferId PlanBuilder::add(const Buffer& added) {
  // Offsets inside a buffer are computed as pointer differences, which are signed.
  if (added.bytes > static_cast<std::size_t>(PTRDIFF_MAX)) {
    throw PlanError("a buffer of " + std::to_string(added.bytes) + " bytes is larger than an address space");
  }
  const BufferId id = static_cast<BufferId>(buffers_.size());
  buffers_.push_back(added);
  if (added.kind != BufferKind::view) buffers_.back().root = id;
  written_.emplace_back();
  return id;
}

const Buffer& PlanBuilder::buffer(BufferId id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= buffers_.size()) {
    throw PlanError("there is no buffer " + std::to_string(id) + "; the plan has " + std::to_string(buffers_.size()));
  }
  return buffers_[static_cast<std::size_t>(id)];
}

int PlanBuilder::add_step(const std::string& operation, const std::vector<BufferId>& inputs,
                          const std::vector<BufferId>& outputs, const Attributes& attributes, std::string name) {
  const int index = static_cast<int>(steps_.size());
  try {
    const OperationEntry& entry = registry_->operation(operation);
    check_reads(inputs);
    check_writes(entry, inputs, outputs);
    RowNames rows;
    const LimitedLookup lookup(*registry_, isa_, &rows);
    const std::vector<std::size_t> input_bytes = sizes(inputs), output_bytes = sizes(outputs);
    PreparedStep prepared = entry.prepare(StepRequest{input_bytes, output_bytes, attributes, lookup});
    attributes.check_all_used();
    if (prepared.phases.empty()) throw PlanError("prepare made no phase");
    PendingStep step;
    step.info = {name, operation, Isa::generic, static_cast<int>(prepared.phases.size()), prepared.work};
    bool runs_here = true;
    for (PreparedPhase& phase : prepared.phases) {
      if (phase.max_workers < 1) throw PlanError("prepare made a phase for no worker");
      phase.run = registry_->portable(phase.run, default_isa());
      runs_here = runs_here && is_supported(registry_->isa_of(phase.run));
      step.info.isa = std::max(step.info.isa, registry_->isa_of(phase.run));
    }
    step.inputs = inputs;
    step.outputs = outputs;
    step.attributes = attributes;
    if (prepared.owner != nullptr) {
      owners_.push_back(std::move(prepared.owner));
      has_extensions_ = true;
    }
    for (const std::size_t bytes : prepared.temporaries) step.temporaries.push_back(add_buffer(bytes));
    for (PreparedPhase& phase : prepared.phases) phases_.push_back({std::move(phase), index});
    for (const BufferId id : outputs) mark_written(buffer(id));
    steps_.push_back(std::move(step));
    rows_.merge(rows);
    runs_here_ = runs_here_ && runs_here;
  } catch (const PlanError& error) {
    throw PlanError("step " + std::to_string(index) + (name.empty() ? "" : " \"" + name + "\"") + " (" + operation +
                    "): " + error.what());
  }
  return index;
}

void PlanBuilder::check_reads(const std::vector<BufferId>& inputs) const {
  for (const BufferId id : inputs) {
    if (!is_written(buffer(id))) {
      throw PlanError(named(id, buffer(id)) + " is read, and no step before has written all of it");
    }
  }
}

void PlanBuilder::check_writes(const OperationEntry& operation, const std::vector<BufferId>& inputs,
                               const std::vector<BufferId>& outputs) const {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Buffer& output = buffer(outputs[i]);
    const BufferKind kind = buffer(output.root).kind;
    if (kind == BufferKind::input || kind == BufferKind::constant) {
      throw PlanError(named(outputs[i], output) + " is an output of the step, but lies in " + kind_name(kind));
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (overlap(output, buffer(outputs[j]))) {
        throw PlanError("outputs " + std::to_string(j) + " and " + std::to_string(i) + " lie in the same memory");
      }
    }
    for (const BufferId id : inputs) {
      const Buffer& input = buffer(id);
      if (!overlap(output, input)) continue;
      const bool same = output.offset == input.offset && output.bytes == input.bytes;
      if (!operation.in_place || !same) {
        throw PlanError(
            named(outputs[i], output) + " lies in the memory of the input " + named(id, input) +
            (operation.in_place ? "; in place, both must be the same bytes" : "; this kernel cannot work in place"));
      }
    }
  }
}

bool PlanBuilder::is_written(const Buffer& wanted) const {
  if (wanted.bytes == 0) return true;
  const Ranges& ranges = written_[static_cast<std::size_t>(wanted.root)];
  return std::any_of(ranges.begin(), ranges.end(), [&](const auto& range) {
    return range.first <= wanted.offset && wanted.offset + wanted.bytes <= range.second;
  });
}

void PlanBuilder::mark_written(const Buffer& target) {
  if (target.bytes == 0) return;
  Ranges& ranges = written_[static_cast<std::size_t>(target.root)];
  std::pair<std::size_t, std::size_t> merged{target.offset, target.offset + target.bytes};
  const auto apart = [&](const auto& range) { return range.second < merged.first || merged.second < range.first; };
  for (const auto& range : ranges) {
    if (!apart(range)) merged = {std::min(merged.first, range.first), std::max(merged.second, range.second)};
  }
  ranges.erase(std::remove_if(ranges.begin(), ranges.end(), [&](const auto& range) { return !apart(range); }),
               ranges.end());
  ranges.insert(std::lower_bound(ranges.begin(), ranges.end(), merged), merged);
}

std::vector<std::size_t> PlanBuilder::sizes(const std::vector<BufferId>& ids) const {
  std::vector<std::size_t> bytes;
  bytes.reserve(ids.size());
  for (const BufferId id : ids) bytes.push_back(buffer(id).bytes);
  return bytes;
}

std::shared_ptr<const Plan> PlanBuilder::build() {
  check_outputs_written();
  divide_batches();
  std::shared_ptr<const Plan> plan = laid_out();
  *this = PlanBuilder(isa_, *registry_, machine_);
  return plan;
}

void PlanBuilder::check_outputs_written() const {
  for (std::size_t id = 0; id < buffers_.size(); ++id) {
    if (buffers_[id].kind == BufferKind::output && !is_written(buffers_[id])) {
      throw PlanError("no step writes all of " + named(static_cast<BufferId>(id), buffers_[id]));
    }
  }
}

// Lays the builder's buffers and steps out as a plan; the builder keeps them.
std::shared_ptr<Plan> PlanBuilder::laid_out() {
  auto plan = std::make_shared<Plan>();
  plan->isa = isa_;
  plan->has_extensions = has_extensions_;
  plan->runs_here = runs_here_;
  plan->rows = rows_;
  for (const Buffer& buffer : buffers_) {
    if (buffer.kind == BufferKind::input) plan->inputs.push_back(buffer);
    if (buffer.kind == BufferKind::output) plan->outputs.push_back(buffer);
    if (buffer.kind == BufferKind::state) plan->states.push_back(buffer);
  }
  plan->barriers = static_cast<std::size_t>(group_phases());
  offsets_ = lay_out(*plan);
  lay_out_runs();
  place_operands(*plan, offsets_);
  place_phases(*plan);
  auto infos = std::make_shared<std::vector<StepInfo>>();
  for (const PendingStep& step : steps_) infos->push_back(step.info);
  plan->step_infos = std::move(infos);
  plan->owners = std::make_shared<const std::vector<std::shared_ptr<const void>>>(owners_);
  return plan;
}

// Assigns each phase to a group: phases in one group are independent, or run one after the other on worker 0, so
// barriers are needed only between groups. Returns the number of barriers. The groups are right for all plans of a
// family: a buffer that varies counts as all of its root, and a step that varies may use all workers.
int PlanBuilder::group_phases() {
  std::vector<std::pair<std::size_t, Access>> in_group;  // with the root
  std::vector<std::vector<Access>> by_root(buffers_.size());
  int group = 0, run = -1;
  const auto accesses_of = [&](const PendingPhase& phase) {
    std::vector<std::pair<std::size_t, Access>> accesses;
    const PendingStep& step = steps_[static_cast<std::size_t>(phase.step)];
    const bool serial = phase.prepared.max_workers == 1 && !step.varies;
    const auto add_all = [&](const std::vector<BufferId>& ids, bool writes) {
      for (const BufferId id : ids) {
        const Buffer& used = buffer(id);
        const Access access = used.varies ? Access{0, SIZE_MAX, writes, serial}
                                          : Access{used.offset, used.offset + used.bytes, writes, serial};
        accesses.emplace_back(static_cast<std::size_t>(used.root), access);
      }
    };
    add_all(step.inputs, false);
    add_all(step.outputs, true);
    add_all(step.temporaries, true);
    return accesses;
  };
  for (PendingPhase& phase : phases_) {
    const auto accesses = accesses_of(phase);
    // A run of slices is a group of its own: within it, a worker needs only its own results.
    const int run_before = run;
    run = steps_[static_cast<std::size_t>(phase.step)].run;
    const bool ends_group = run != run_before && !in_group.empty();
    const bool conflict =
        ends_group || (run < 0 && std::any_of(
                                      accesses.begin(), accesses.end(),
                                      [&](const auto& access) {
                                        const std::vector<Access>& before = by_root[access.first];
                                        return std::any_of(before.begin(), before.end(), [&](const Access& other) {
                                          return access.second.conflicts_with(other);
                                        });
                                      }));
    if (conflict) {
      for (const auto& access : in_group) by_root[access.first].clear();
      in_group.clear();
      ++group;
    }
    for (const auto& access : accesses) {
      by_root[access.first].push_back(access.second);
      in_group.push_back(access);
    }
    phase.group = group;
  }
  return group;
}

// Returns the arena offset of every root buffer in the arena. Lifetimes are measured in groups, since workers may be at
// different steps of a group at the same time.
std::vector<std::size_t> PlanBuilder::lay_out(Plan& plan) const {
  std::vector<Lifetime> lifetimes(buffers_.size());
  std::vector<bool> used(buffers_.size(), false);
  for (const PendingPhase& phase : phases_) {
    const PendingStep& step = steps_[static_cast<std::size_t>(phase.step)];
    for (const auto* ids : {&step.inputs, &step.outputs, &step.temporaries}) {
      for (const BufferId id : *ids) {
        const auto root = static_cast<std::size_t>(buffer(id).root);
        if (buffers_[root].kind != BufferKind::arena || is_private(root)) continue;
        Lifetime& lifetime = lifetimes[root];
        if (!used[root]) {
          lifetime = {buffers_[root].bytes, buffers_[root].alignment, phase.group, phase.group};
          used[root] = true;
        }
        lifetime.last = phase.group;
      }
    }
  }
  // The layout compares all pairs of buffers, so constants, views and unused buffers are excluded.
  std::vector<Lifetime> placed;
  for (std::size_t id = 0; id < lifetimes.size(); ++id) {
    if (used[id]) placed.push_back(lifetimes[id]);
  }
  plan.arena = lay_out_arena(placed);
  std::vector<std::size_t> offsets(buffers_.size(), 0);
  std::size_t next = 0;
  for (std::size_t id = 0; id < lifetimes.size(); ++id) {
    if (used[id]) offsets[id] = plan.arena.offsets[next++];
  }
  return offsets;
}

void PlanBuilder::place_operands(Plan& plan, const std::vector<std::size_t>& offsets) {
  for (const PendingStep& step : steps_) {
    for (const auto* ids : {&step.inputs, &step.outputs, &step.temporaries}) {
      for (const BufferId id : *ids) {
        const Buffer& used = buffer(id);
        const Buffer& root = buffer(used.root);
        Plan::Operand operand{root.kind, root.slot, used.offset, nullptr};
        if (is_private(static_cast<std::size_t>(used.root))) {
          operand = {BufferKind::constant, 0, 0, nullptr};  // each worker has its own
        } else if (root.kind == BufferKind::arena) {
          operand.offset += offsets[static_cast<std::size_t>(used.root)];
        }
        if (root.kind == BufferKind::constant) {
          operand.data = static_cast<const std::byte*>(root.data) + used.offset;
        }
        plan.operands.push_back(operand);
      }
    }
  }
}

void PlanBuilder::place_phases(Plan& plan) {
  std::size_t args_bytes = 0;
  for (const PendingPhase& phase : phases_) args_bytes += padded_args(phase.prepared.args.size());
  const auto memory = std::make_shared<const AlignedMemory>(args_bytes, kArgsAlignment);
  plan.args_memory = memory;
  std::vector<std::size_t> first_pointer;
  std::size_t pointers = 0;
  for (const PendingStep& step : steps_) {
    first_pointer.push_back(pointers);
    pointers += step.inputs.size() + step.outputs.size() + step.temporaries.size();
  }
  std::byte* args = memory->data();
  for (std::size_t i = 0; i < phases_.size(); ++i) {
    const PreparedPhase& prepared = phases_[i].prepared;
    if (!prepared.args.empty()) std::memcpy(args, prepared.args.data(), prepared.args.size());
    const bool barrier_after = i + 1 < phases_.size() && phases_[i + 1].group != phases_[i].group;
    plan.phases.push_back({prepared.run, args, first_pointer[static_cast<std::size_t>(phases_[i].step)],
                           prepared.max_workers, phases_[i].step, barrier_after});
    args += padded_args(prepared.args.size());
    plan.scratch_bytes = std::max(plan.scratch_bytes, prepared.scratch_bytes);
  }
  place_runs(plan);
  plan.group();
}

void Plan::group() {
  std::vector<PhaseGroup> made;
  for (int i = 0, begin = 0; i < static_cast<int>(phases.size()); ++i) {
    const Phase& phase = phases[static_cast<std::size_t>(i)];
    if (i == begin) made.push_back({begin, begin, 1});
    made.back().end = i + 1;
    made.back().workers = std::max(made.back().workers, phase.max_workers);
    made.back().slices = phase.slices;
    if (phase.barrier_after) begin = i + 1;
  }
  max_workers = 1;
  for (const PhaseGroup& each : made) max_workers = std::max(max_workers, each.workers);
  groups = std::make_shared<const std::vector<PhaseGroup>>(std::move(made));
}

}  // namespace engine

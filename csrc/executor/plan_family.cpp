#include "executor/plan_family.hpp"

#include <algorithm>
#include <cstring>

namespace engine {
namespace {

// Of a length; smaller rooms would be laid out again after few tokens.
constexpr std::int64_t kMinRoom = 64;
// Bytes of the arenas of rooms for more than the lengths of a run: for all lengths so far, and for doubled lengths.
// With larger arenas, a run takes much longer than laying out.
constexpr std::size_t kMaxForAll = std::size_t{64} << 20;
constexpr std::size_t kMaxDoubled = std::size_t{1} << 30;

std::size_t bytes_at(const Varying& value, const Lengths& lengths) {
  const std::int64_t bytes = value.at(lengths);
  if (bytes < 0) throw PlanError("a size or offset is " + std::to_string(bytes) + " bytes for these lengths");
  return static_cast<std::size_t>(bytes);
}

bool is_fixed(const VaryingAttribute& attribute) {
  if (const auto* one = std::get_if<Varying>(&attribute)) return one->is_fixed();
  if (const auto* several = std::get_if<std::vector<Varying>>(&attribute)) {
    return std::all_of(several->begin(), several->end(), [](const Varying& value) { return value.is_fixed(); });
  }
  return true;
}

Attributes attributes_at(const VaryingAttributes& attributes, const Lengths& lengths) {
  Attributes made;
  for (const auto& [name, attribute] : attributes) {
    if (const auto* value = std::get_if<Attributes::Value>(&attribute)) {
      made.set(name, *value);
    } else if (const auto* one = std::get_if<Varying>(&attribute)) {
      made.set(name, one->at(lengths));
    } else {
      std::vector<std::int64_t> values;
      for (const Varying& each : std::get<std::vector<Varying>>(attribute)) values.push_back(each.at(lengths));
      made.set(name, std::move(values));
    }
  }
  return made;
}

// What is multiplied or added must stay far from the limits of 64 bits.
std::int64_t checked(std::int64_t a, std::int64_t b, bool (*overflows)(std::int64_t, std::int64_t, std::int64_t*)) {
  std::int64_t result;
  if (overflows(a, b, &result)) throw PlanError("a size overflows for these lengths");
  return result;
}

bool multiply_overflows(std::int64_t a, std::int64_t b, std::int64_t* result) {
  return __builtin_mul_overflow(a, b, result);
}

bool add_overflows(std::int64_t a, std::int64_t b, std::int64_t* result) {
  return __builtin_add_overflow(a, b, result);
}

}  // namespace

std::int64_t Varying::at(const Lengths& lengths) const {
  std::int64_t sum = constant;
  const auto length = [&](std::int32_t index) {
    if (static_cast<std::size_t>(index) >= lengths.size()) {
      throw PlanError("a value depends on length " + std::to_string(index) + "; there are " +
                      std::to_string(lengths.size()));
    }
    return lengths[static_cast<std::size_t>(index)];
  };
  for (const Term& term : terms) {
    std::int64_t product = term.factor;
    for (const std::int32_t index : term.lengths) {
      if (index >= 0) product = checked(product, length(index), multiply_overflows);
    }
    sum = checked(sum, product, add_overflows);
  }
  return sum;
}

// The buffers and steps for a room of lengths, laid out, and where the parts that vary are in the plan. The builder's
// buffers have the sizes for the lengths of the last plan.
struct PlanFamily::Layout {
  Layout(Isa isa, const KernelRegistry& registry) : builder(isa, registry) {}

  PlanBuilder builder;
  std::vector<BufferId> ids;       // in the builder, of the family's buffers
  std::vector<std::size_t> bytes;  // of the family's buffers, in the room
  Lengths room;
  std::shared_ptr<const Plan> plan;
  std::vector<std::pair<std::size_t, BufferId>> operands;  // that vary: the index in the plan, the builder's buffer
  std::vector<std::size_t> first_phase;                    // of each step
  std::size_t fixed_scratch_bytes = 0;                     // of the steps that do not vary
};

PlanFamily::PlanFamily(Lengths most, Isa isa, const KernelRegistry& registry)
    : most_(std::move(most)), isa_(isa), registry_(&registry) {
  if (!is_available(isa))
    throw SettingError(std::string("instruction set \"") + isa_name(isa) +
                       "\" is not available: plans for varying lengths are made where they run, and this CPU lacks it");
  for (const std::int64_t length : most_) {
    if (length < 0) throw PlanError("the greatest value of a length is " + std::to_string(length));
  }
}

BufferId PlanFamily::add_input(Varying bytes, std::size_t alignment) {
  return add(bound(BufferKind::input, std::move(bytes), alignment));
}

BufferId PlanFamily::add_output(Varying bytes, std::size_t alignment) {
  return add(bound(BufferKind::output, std::move(bytes), alignment));
}

BufferId PlanFamily::add_state(Varying bytes, std::size_t alignment) {
  return add(bound(BufferKind::state, std::move(bytes), alignment));
}

BufferId PlanFamily::add_buffer(Varying bytes, std::size_t alignment) {
  return add(bound(BufferKind::arena, std::move(bytes), alignment));
}

BufferId PlanFamily::add_constant(const void* data, std::size_t available, Varying bytes,
                                  std::shared_ptr<const void> owner) {
  return add({BufferKind::constant, -1, {}, std::move(bytes), 1, data, available, std::move(owner)});
}

BufferId PlanFamily::add_view(BufferId of, Varying offset, Varying bytes) {
  check_buffer(of);
  BufferCall call = bound(BufferKind::view, std::move(bytes), 1);
  call.of = of;
  call.offset = std::move(offset);
  return add(std::move(call));
}

PlanFamily::BufferCall PlanFamily::bound(BufferKind kind, Varying bytes, std::size_t alignment) {
  BufferCall call;
  call.kind = kind;
  call.bytes = std::move(bytes);
  call.alignment = alignment;
  return call;
}

BufferId PlanFamily::add(BufferCall call) {
  const bool varies =
      !call.bytes.is_fixed() || !call.offset.is_fixed() || (call.of >= 0 && varies_[static_cast<std::size_t>(call.of)]);
  buffers_.push_back(std::move(call));
  varies_.push_back(varies);
  return static_cast<BufferId>(buffers_.size()) - 1;
}

void PlanFamily::add_step(std::string operation, std::vector<BufferId> inputs, std::vector<BufferId> outputs,
                          VaryingAttributes attributes, std::string name) {
  bool varies = std::any_of(attributes.begin(), attributes.end(),
                            [](const auto& attribute) { return !is_fixed(attribute.second); });
  for (const auto* ids : {&inputs, &outputs}) {
    for (const BufferId id : *ids) {
      check_buffer(id);
      varies = varies || !buffers_[static_cast<std::size_t>(id)].bytes.is_fixed();
    }
  }
  steps_.push_back({std::move(operation), std::move(inputs), std::move(outputs), std::move(attributes), std::move(name),
                    buffers_.size(), varies});
}

void PlanFamily::check_buffer(BufferId id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= buffers_.size()) {
    throw PlanError("there is no buffer " + std::to_string(id) + "; the family has " + std::to_string(buffers_.size()));
  }
}

void PlanFamily::check_lengths(const Lengths& lengths) const {
  if (lengths.size() != most_.size()) {
    throw PlanError("there are " + std::to_string(lengths.size()) + " lengths; the family has " +
                    std::to_string(most_.size()));
  }
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0 || lengths[i] > most_[i]) {
      throw PlanError("length " + std::to_string(i) + " is " + std::to_string(lengths[i]) + "; expected 0 to " +
                      std::to_string(most_[i]));
    }
  }
}

std::shared_ptr<const Plan> PlanFamily::at(const Lengths& lengths) {
  check_lengths(lengths);
  if (last_ != nullptr && lengths == last_lengths_) return last_;
  bool fits = layout_ != nullptr;
  for (std::size_t i = 0; fits && i < lengths.size(); ++i) fits = lengths[i] <= layout_->room[i];
  if (!fits) lay_out(lengths);
  std::shared_ptr<const Plan> plan = rebound(lengths);
  // Lengths that do not fit into the room's plan get a plan of their own.
  if (plan == nullptr) plan = replayed(lengths)->plan;
  last_ = std::move(plan);
  last_lengths_ = lengths;
  return last_;
}

void PlanFamily::lay_out(const Lengths& lengths) {
  const auto doubled = [&](const Lengths& least) {
    Lengths room;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      std::int64_t length = std::max<std::int64_t>(least[i], 1);
      while (length < lengths[i]) length *= 2;
      room.push_back(std::min(length, most_[i]));
    }
    return room;
  };
  Lengths known(lengths.size(), kMinRoom);
  if (layout_ != nullptr) {
    for (std::size_t i = 0; i < known.size(); ++i) known[i] = std::max(known[i], layout_->room[i]);
  }
  layout_ = replayed(doubled(known));
  if (layout_->plan->arena.total_bytes > kMaxForAll) layout_ = replayed(doubled(Lengths(lengths.size(), 1)));
  if (layout_->plan->arena.total_bytes > kMaxDoubled) layout_ = replayed(lengths);
}

std::unique_ptr<PlanFamily::Layout> PlanFamily::replayed(const Lengths& lengths) const {
  auto layout = std::make_unique<Layout>(isa_, *registry_);
  PlanBuilder& builder = layout->builder;
  layout->room = lengths;
  std::size_t next = 0;
  const auto add_buffers = [&](std::size_t end) {
    for (; next < end; ++next) {
      const BufferCall& call = buffers_[next];
      const std::size_t bytes = bytes_at(call.bytes, lengths);
      BufferId id = -1;
      switch (call.kind) {
        case BufferKind::input:
          id = builder.add_input(bytes, call.alignment);
          break;
        case BufferKind::output:
          id = builder.add_output(bytes, call.alignment);
          break;
        case BufferKind::state:
          id = builder.add_state(bytes, call.alignment);
          break;
        case BufferKind::arena:
          id = builder.add_buffer(bytes, call.alignment);
          break;
        case BufferKind::constant:
          if (bytes > call.available) {
            throw PlanError("a constant of " + std::to_string(call.available) + " bytes has no " +
                            std::to_string(bytes) + " bytes");
          }
          id = builder.add_constant(call.data, bytes, call.owner);
          break;
        case BufferKind::view:
          id = builder.add_view(layout->ids[static_cast<std::size_t>(call.of)], bytes_at(call.offset, lengths), bytes);
          break;
      }
      builder.buffers_[static_cast<std::size_t>(id)].varies = varies_[next];
      layout->ids.push_back(id);
      layout->bytes.push_back(bytes);
    }
  };
  const auto ids_of = [&](const std::vector<BufferId>& family) {
    std::vector<BufferId> ids;
    for (const BufferId id : family) ids.push_back(layout->ids[static_cast<std::size_t>(id)]);
    return ids;
  };
  for (const StepCall& call : steps_) {
    add_buffers(call.buffers);
    builder.add_step(call.operation, ids_of(call.inputs), ids_of(call.outputs), attributes_at(call.attributes, lengths),
                     call.name);
    builder.steps_.back().varies = call.varies;
  }
  add_buffers(buffers_.size());
  builder.check_outputs_written();
  layout->plan = builder.laid_out();
  std::size_t operand = 0;
  for (const auto& step : builder.steps_) {
    for (const auto* ids : {&step.inputs, &step.outputs, &step.temporaries}) {
      for (const BufferId id : *ids) {
        if (builder.buffer(id).varies) layout->operands.emplace_back(operand, id);
        ++operand;
      }
    }
  }
  for (std::size_t i = 0; i < builder.phases_.size(); ++i) {
    const auto& phase = builder.phases_[i];
    const auto step = static_cast<std::size_t>(phase.step);
    if (layout->first_phase.size() <= step) layout->first_phase.push_back(i);
    if (!builder.steps_[step].varies) {
      layout->fixed_scratch_bytes = std::max(layout->fixed_scratch_bytes, phase.prepared.scratch_bytes);
    }
  }
  return layout;
}

// The room's plan with the parts that differ for these lengths; null if they do not fit into it.
std::shared_ptr<const Plan> PlanFamily::rebound(const Lengths& lengths) {
  Layout& layout = *layout_;
  if (!resize_buffers(lengths)) return nullptr;
  auto plan = std::make_shared<Plan>(*layout.plan);
  const auto resize = [&](std::vector<Buffer>& bound, BufferKind kind) {
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      if (buffers_[i].kind != kind || !varies_[i]) continue;
      const Buffer& buffer = layout.builder.buffers_[static_cast<std::size_t>(layout.ids[i])];
      bound[buffer.slot].bytes = buffer.bytes;
    }
  };
  resize(plan->inputs, BufferKind::input);
  resize(plan->outputs, BufferKind::output);
  resize(plan->states, BufferKind::state);
  for (const auto& [operand, id] : layout.operands) {
    const Buffer& used = layout.builder.buffer(id);
    const Buffer& root = layout.builder.buffer(used.root);
    Plan::Operand& placed = plan->operands[operand];
    placed.offset = used.offset;
    if (root.kind == BufferKind::arena) placed.offset += layout.builder.offsets_[static_cast<std::size_t>(used.root)];
    if (root.kind == BufferKind::constant) placed.data = static_cast<const std::byte*>(root.data) + used.offset;
  }
  return prepare_steps(lengths, *plan) ? plan : nullptr;
}

// Gives the builder's buffers their sizes for these lengths; false if one does not fit into the room.
bool PlanFamily::resize_buffers(const Lengths& lengths) {
  Layout& layout = *layout_;
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    if (!varies_[i]) continue;
    const BufferCall& call = buffers_[i];
    Buffer& buffer = layout.builder.buffers_[static_cast<std::size_t>(layout.ids[i])];
    buffer.bytes = bytes_at(call.bytes, lengths);
    if (call.kind == BufferKind::arena && buffer.bytes > layout.bytes[i]) return false;
    if (call.kind == BufferKind::constant && buffer.bytes > call.available) return false;
    if (call.kind != BufferKind::view) continue;
    const Buffer& base = layout.builder.buffer(layout.ids[static_cast<std::size_t>(call.of)]);
    const std::size_t offset = bytes_at(call.offset, lengths);
    if (checked_add(offset, buffer.bytes) > base.bytes) {
      throw PlanError("a view of " + std::to_string(buffer.bytes) + " bytes at offset " + std::to_string(offset) +
                      " does not lie in a buffer of " + std::to_string(base.bytes) + " bytes");
    }
    buffer.offset = base.offset + offset;
  }
  return true;
}

// Prepares the steps that vary; false if one has other phases or needs more memory than in the room.
bool PlanFamily::prepare_steps(const Lengths& lengths, Plan& plan) {
  Layout& layout = *layout_;
  const PlanBuilder& builder = layout.builder;
  const LimitedLookup lookup(*registry_, isa_);
  std::vector<std::pair<std::size_t, PreparedPhase>> made;  // with the index of the phase in the plan
  std::size_t args_bytes = 0;
  plan.scratch_bytes = layout.fixed_scratch_bytes;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const StepCall& call = steps_[i];
    if (!call.varies) continue;
    const PlanBuilder::PendingStep& step = builder.steps_[i];
    const OperationEntry& entry = registry_->operation(call.operation);
    builder.check_writes(entry, step.inputs, step.outputs);
    const std::vector<std::size_t> inputs = builder.sizes(step.inputs), outputs = builder.sizes(step.outputs);
    const Attributes attributes = attributes_at(call.attributes, lengths);
    PreparedStep prepared = entry.prepare(StepRequest{inputs, outputs, attributes, lookup});
    if (static_cast<int>(prepared.phases.size()) != step.info.phases) return false;
    if (prepared.temporaries.size() != step.temporaries.size()) return false;
    for (std::size_t t = 0; t < prepared.temporaries.size(); ++t) {
      if (prepared.temporaries[t] > builder.buffer(step.temporaries[t]).bytes) return false;
    }
    for (std::size_t p = 0; p < prepared.phases.size(); ++p) {
      if (prepared.phases[p].max_workers < 1) throw PlanError("prepare made a phase for no worker");
      plan.scratch_bytes = std::max(plan.scratch_bytes, prepared.phases[p].scratch_bytes);
      args_bytes += padded_args(prepared.phases[p].args.size());
      made.emplace_back(layout.first_phase[i] + p, std::move(prepared.phases[p]));
    }
  }
  const auto memory = std::make_shared<const AlignedMemory>(args_bytes, kArgsAlignment);
  std::byte* args = memory->data();
  for (const auto& [index, phase] : made) {
    if (!phase.args.empty()) std::memcpy(args, phase.args.data(), phase.args.size());
    plan.phases[index].run = phase.run;
    plan.phases[index].args = args;
    plan.phases[index].max_workers = phase.max_workers;
    args += padded_args(phase.args.size());
  }
  plan.varying_args_memory = memory;
  plan.group();
  return true;
}

}  // namespace engine

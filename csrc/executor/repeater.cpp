#include "executor/repeater.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace engine {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t at(ValueId id) {
  return static_cast<std::size_t>(id);
}

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (to != from && bytes != 0) std::memcpy(to, from, bytes);
}

// One element of a sequence of `length`, and the same element on its own.
void move_element(const SequenceAxis& axis, std::byte* sequence, std::size_t length, std::size_t position,
                  std::byte* element, bool is_read) {
  for (std::size_t block = 0; block < axis.outer; ++block) {
    std::byte* there = sequence + (block * length + position) * axis.inner_bytes;
    std::byte* alone = element + block * axis.inner_bytes;
    copy_bytes(is_read ? alone : there, is_read ? there : alone, axis.inner_bytes);
  }
}

// The plans of a routine, in the order of calls; a choice's branch for true first.
void list_plans(const Routine& routine, std::vector<std::shared_ptr<const Plan>>& plans) {
  for (const Routine::Call& call : routine.calls) {
    if (call.kind == Routine::CallKind::plan) plans.push_back(call.plan);
    if (call.kind == Routine::CallKind::repetition) list_plans(*call.repetition->body, plans);
    if (call.kind == Routine::CallKind::choice) {
      list_plans(*call.branches[1], plans);
      list_plans(*call.branches[0], plans);
    }
  }
}

// Shared by everything in one run.
struct RunState {
  CoreSet::Lease& lease;
  const CancelFlag* cancel;
  bool is_profiled;

  bool is_cancelled() const { return cancel != nullptr && cancel->cancelled(); }
};

// The contexts of all plans of a repetition, taken in the order of `list_plans`.
struct Contexts {
  std::vector<std::unique_ptr<Context>> made;
  std::size_t next = 0;

  std::unique_ptr<Context> take() { return std::move(made[next++]); }
};

// Memory that trips write in turn: a block is free if no carried value of the current trip lies in it.
class Blocks {
 public:
  struct Block {
    AlignedMemory memory;
    std::int64_t used_in = -1;  // the last trip that reads it
  };

  explicit Blocks(std::size_t bytes = 0) : bytes_(bytes) {}

  Block* free_block(std::int64_t trip) {
    for (const auto& block : blocks_) {
      if (block->used_in != trip) return block.get();
    }
    blocks_.push_back(std::make_unique<Block>());
    blocks_.back()->memory = AlignedMemory(bytes_, kAlignment);
    return blocks_.back().get();
  }

  void restart() {
    for (const auto& block : blocks_) block->used_in = -1;
  }

 private:
  std::size_t bytes_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

}  // namespace

// The memory of one routine, and where its values are. Its user sets the places of inputs and computed results.
class Frame {
 public:
  Frame(const Routine& routine, Contexts& contexts);
  ~Frame();
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  bool run(RunState& state);
  void clear_profile();
  void collect_profile(std::vector<std::vector<std::int64_t>>& profile);

  std::vector<void*> places;

 private:
  struct Call;

  bool run_plan(Call& call, RunState& state);
  bool run_repetition(Call& call, RunState& state);
  bool run_choice(Call& call, RunState& state);

  std::vector<AlignedMemory> memory_;
  std::vector<Call> calls_;
};

class RepetitionLoop {
 public:
  RepetitionLoop(const Repetition& repetition, Contexts& contexts);

  bool run(Trips& trips, RunState& state);

  Frame frame;

 private:
  using Block = Blocks::Block;
  enum class Target { none, block, stack, growing };

  // Where trips write a computed result, or put what has to be copied.
  struct Output {
    ValueId value;
    Target target;
    std::size_t stack;  // of targets in a stack
    Blocks blocks;
  };

  void begin(const Trips& trips);
  void place_elements(const Trips& trips, std::size_t trip);
  void place_outputs(const Trips& trips, std::int64_t trip);
  void stack_results(const Trips& trips, std::int64_t trip);
  void take_carried();
  Target target_of(ValueId value, std::size_t& stack) const;
  std::size_t position(const SequenceAxis& axis, const Trips& trips, std::int64_t trip) const;
  void use(ValueId value, Block* block) {
    block_of_[at(value)] = block;
    frame.places[at(value)] = block->memory.data();
  }

  const Repetition& repetition_;
  const Routine& body_;
  Blocks trip_numbers_;
  bool true_ = true;
  std::vector<Blocks> element_blocks_;
  std::vector<bool> is_copied_;  // of the elements: they are not contiguous, or not aligned
  std::vector<Output> outputs_;
  std::vector<Block*> block_of_;  // of each value of the body; null: in other memory
  std::vector<void*> carried_;
  std::vector<Block*> carried_blocks_;
};

struct Frame::Call {
  const Routine::Call* made;
  std::unique_ptr<Context> context;
  std::vector<std::int64_t> profile;
  std::unique_ptr<RepetitionLoop> loop;
  std::unique_ptr<Frame> branches[2];
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
};

Frame::Frame(const Routine& routine, Contexts& contexts) {
  for (const Routine::Value& value : routine.values) {
    places.push_back(const_cast<void*>(value.constant));
    if (!value.is_computed || value.is_result) continue;
    memory_.emplace_back(value.bytes, kAlignment);
    places.back() = memory_.back().data();
  }
  for (const Routine::Call& made : routine.calls) {
    Call call{&made, nullptr, {}, nullptr, {}, {}, {}};
    if (made.kind == Routine::CallKind::plan) {
      call.context = contexts.take();
      call.profile.resize(made.plan->steps().size());
    } else if (made.kind == Routine::CallKind::repetition) {
      call.loop = std::make_unique<RepetitionLoop>(*made.repetition, contexts);
    } else {
      for (const int branch : {1, 0}) call.branches[branch] = std::make_unique<Frame>(*made.branches[branch], contexts);
    }
    call.inputs.resize(made.inputs.size());
    call.outputs.resize(made.outputs.size());
    calls_.push_back(std::move(call));
  }
}

Frame::~Frame() = default;

bool Frame::run(RunState& state) {
  for (Call& call : calls_) {
    const Routine::Call& made = *call.made;
    for (std::size_t i = 0; i < made.inputs.size(); ++i) call.inputs[i] = places[at(made.inputs[i])];
    for (std::size_t i = 0; i < made.outputs.size(); ++i) call.outputs[i] = places[at(made.outputs[i])];
    const bool finished = made.kind == Routine::CallKind::plan         ? run_plan(call, state)
                          : made.kind == Routine::CallKind::repetition ? run_repetition(call, state)
                                                                       : run_choice(call, state);
    if (!finished) return false;
  }
  return true;
}

bool Frame::run_plan(Call& call, RunState& state) {
  return call.context->run_leased(state.lease, call.inputs.data(), call.outputs.data(), state.cancel,
                                  state.is_profiled ? call.profile.data() : nullptr);
}

bool Frame::run_repetition(Call& call, RunState& state) {
  const Routine::Call& made = *call.made;
  Trips trips{call.inputs.data(), call.outputs.data(), call.outputs.data() + made.repetition->carried, nullptr};
  if (!made.repetition->is_loop) trips.limit = made.length;
  if (made.count != kNoValue) std::memcpy(&trips.limit, places[at(made.count)], sizeof trips.limit);
  if (made.condition != kNoValue) trips.condition = *static_cast<const char*>(places[at(made.condition)]) != 0;
  return call.loop->run(trips, state);
}

bool Frame::run_choice(Call& call, RunState& state) {
  const Routine::Call& made = *call.made;
  const bool condition = *static_cast<const char*>(places[at(made.condition)]) != 0;
  const Routine& branch = *made.branches[condition ? 1 : 0];
  Frame& frame = *call.branches[condition ? 1 : 0];
  for (std::size_t i = 0; i < branch.inputs; ++i) {
    frame.places[i] = const_cast<void*>(call.inputs[i + (condition ? made.second_inputs : 0)]);
  }
  // A result that occurs twice is written to its last place.
  for (std::size_t i = 0; i < branch.results.size(); ++i) {
    if (branch.result(i).is_computed) frame.places[at(branch.results[i])] = call.outputs[i];
  }
  if (!frame.run(state)) return false;
  for (std::size_t i = 0; i < branch.results.size(); ++i) {
    copy_bytes(call.outputs[i], frame.places[at(branch.results[i])], branch.result(i).bytes);
  }
  return true;
}

void Frame::clear_profile() {
  for (Call& call : calls_) {
    std::fill(call.profile.begin(), call.profile.end(), 0);
    if (call.loop != nullptr) call.loop->frame.clear_profile();
    for (const auto& branch : call.branches) {
      if (branch != nullptr) branch->clear_profile();
    }
  }
}

void Frame::collect_profile(std::vector<std::vector<std::int64_t>>& profile) {
  for (Call& call : calls_) {
    if (call.context != nullptr) profile.push_back(call.profile);
    if (call.loop != nullptr) call.loop->frame.collect_profile(profile);
    for (const int branch : {1, 0}) {
      if (call.branches[branch] != nullptr) call.branches[branch]->collect_profile(profile);
    }
  }
}

RepetitionLoop::RepetitionLoop(const Repetition& repetition, Contexts& contexts)
    : frame(*repetition.body, contexts),
      repetition_(repetition),
      body_(*repetition.body),
      trip_numbers_(sizeof(std::int64_t)),
      block_of_(body_.values.size(), nullptr),
      carried_(repetition.carried, nullptr),
      carried_blocks_(repetition.carried, nullptr) {
  for (std::size_t i = 0; i < repetition.elements.size(); ++i) {
    const SequenceAxis& axis = repetition.elements[i];
    const Routine::Value& element = body_.values[repetition.first_input() + repetition.carried + i];
    element_blocks_.emplace_back(element.bytes);
    is_copied_.push_back(axis.outer != 1 || axis.inner_bytes % element.alignment != 0);
  }
  for (std::size_t id = 0; id < body_.values.size(); ++id) {
    const Routine::Value& value = body_.values[id];
    if (!value.is_computed || !value.is_result) continue;
    Output output{static_cast<ValueId>(id), Target::block, 0, Blocks(value.bytes)};
    output.target = target_of(output.value, output.stack);
    outputs_.push_back(std::move(output));
  }
}

// A result that is stacked is written into the stack at once, unless it is carried, too, and the stack may move.
RepetitionLoop::Target RepetitionLoop::target_of(ValueId value, std::size_t& stack) const {
  const std::size_t first = repetition_.first_result() + repetition_.carried;
  const auto end = body_.results.begin() + static_cast<std::ptrdiff_t>(first);
  const bool is_read_again = std::find(body_.results.begin(), end, value) != end;
  for (std::size_t i = 0; i < repetition_.stacks.size(); ++i) {
    const Routine::Value& result = body_.result(first + i);
    if (body_.results[first + i] != value || repetition_.stacks[i].outer != 1) continue;
    if (result.bytes % result.alignment != 0) continue;
    stack = i;
    return is_read_again ? Target::stack : Target::growing;
  }
  return Target::block;
}

bool RepetitionLoop::run(Trips& trips, RunState& state) {
  begin(trips);
  bool condition = trips.condition;
  trips.done = 0;
  while (condition && trips.done < trips.limit) {
    if (state.is_cancelled()) return false;
    const std::int64_t trip = trips.done;
    for (std::size_t i = 0; i < carried_.size(); ++i) {
      const std::size_t input = repetition_.first_input() + i;
      frame.places[input] = carried_[i];
      block_of_[input] = carried_blocks_[i];
      if (carried_blocks_[i] != nullptr) carried_blocks_[i]->used_in = trip;
    }
    if (repetition_.is_loop) {
      use(0, trip_numbers_.free_block(trip));
      std::memcpy(frame.places[0], &trip, sizeof trip);
    }
    place_elements(trips, static_cast<std::size_t>(trip));
    place_outputs(trips, trip);
    if (!frame.run(state)) return false;
    stack_results(trips, trip);
    if (repetition_.is_loop) condition = *static_cast<const char*>(frame.places[at(body_.results[0])]) != 0;
    take_carried();
    ++trips.done;
  }
  for (std::size_t i = 0; i < carried_.size(); ++i) {
    copy_bytes(trips.carried[i], carried_[i], body_.values[repetition_.first_input() + i].bytes);
  }
  return true;
}

void RepetitionLoop::begin(const Trips& trips) {
  trip_numbers_.restart();
  for (Blocks& blocks : element_blocks_) blocks.restart();
  for (Output& output : outputs_) output.blocks.restart();
  std::fill(block_of_.begin(), block_of_.end(), nullptr);
  std::fill(carried_blocks_.begin(), carried_blocks_.end(), nullptr);
  for (std::size_t i = 0; i < carried_.size(); ++i) carried_[i] = const_cast<void*>(trips.inputs[i]);
  if (repetition_.is_loop) frame.places[1] = &true_;
  const std::size_t before = repetition_.carried + repetition_.elements.size();
  for (std::size_t i = before; i < repetition_.inputs(); ++i) {
    frame.places[repetition_.first_input() + i] = const_cast<void*>(trips.inputs[i]);
  }
}

std::size_t RepetitionLoop::position(const SequenceAxis& axis, const Trips& trips, std::int64_t trip) const {
  return static_cast<std::size_t>(axis.is_reversed ? trips.limit - 1 - trip : trip);
}

void RepetitionLoop::place_elements(const Trips& trips, std::size_t trip) {
  for (std::size_t i = 0; i < repetition_.elements.size(); ++i) {
    const SequenceAxis& axis = repetition_.elements[i];
    const std::size_t index = repetition_.carried + i, input = repetition_.first_input() + index;
    auto* sequence = static_cast<std::byte*>(const_cast<void*>(trips.inputs[index]));
    const std::size_t where = position(axis, trips, static_cast<std::int64_t>(trip));
    if (!is_copied_[i]) {
      frame.places[input] = sequence + where * axis.inner_bytes;
      continue;
    }
    use(static_cast<ValueId>(input), element_blocks_[i].free_block(static_cast<std::int64_t>(trip)));
    move_element(axis, sequence, static_cast<std::size_t>(trips.limit), where,
                 static_cast<std::byte*>(frame.places[input]), true);
  }
}

void RepetitionLoop::place_outputs(const Trips& trips, std::int64_t trip) {
  for (Output& output : outputs_) {
    const std::size_t bytes = body_.values[at(output.value)].bytes;
    void* fixed = output.target == Target::block ? nullptr : trips.stacked[output.stack];
    if (fixed != nullptr) {
      const std::size_t where = position(repetition_.stacks[output.stack], trips, trip);
      frame.places[at(output.value)] = static_cast<std::byte*>(fixed) + where * bytes;
      block_of_[at(output.value)] = nullptr;
    } else if (output.target == Target::growing) {
      GrowingMemory& memory = trips.growing[output.stack];
      memory.reserve(checked_multiply(static_cast<std::size_t>(trip) + 1, bytes));
      frame.places[at(output.value)] = memory.data() + static_cast<std::size_t>(trip) * bytes;
      block_of_[at(output.value)] = nullptr;
    } else {
      use(output.value, output.blocks.free_block(trip));
    }
  }
}

void RepetitionLoop::stack_results(const Trips& trips, std::int64_t trip) {
  for (std::size_t i = 0; i < repetition_.stacks.size(); ++i) {
    const ValueId value = body_.results[repetition_.first_result() + repetition_.carried + i];
    const SequenceAxis& axis = repetition_.stacks[i];
    auto* element = static_cast<std::byte*>(frame.places[at(value)]);
    if (trips.stacked[i] != nullptr) {
      move_element(axis, static_cast<std::byte*>(trips.stacked[i]), static_cast<std::size_t>(trips.limit),
                   position(axis, trips, trip), element, false);
      continue;
    }
    const std::size_t bytes = body_.values[at(value)].bytes, offset = static_cast<std::size_t>(trip) * bytes;
    trips.growing[i].reserve(checked_multiply(static_cast<std::size_t>(trip) + 1, bytes));
    copy_bytes(trips.growing[i].data() + offset, element, bytes);
  }
}

void RepetitionLoop::take_carried() {
  for (std::size_t i = 0; i < carried_.size(); ++i) {
    const std::size_t value = at(body_.results[repetition_.first_result() + i]);
    carried_[i] = frame.places[value];
    carried_blocks_[i] = block_of_[value];
  }
}

Repeater::Repeater(std::shared_ptr<const Repetition> repetition, int max_workers, CoreSet* cores)
    : repetition_(std::move(repetition)), cores_(cores) {
  std::vector<std::shared_ptr<const Plan>> plans;
  list_plans(*repetition_->body, plans);
  Contexts contexts{Context::in_turns(plans, max_workers)};
  for (const auto& context : contexts.made) workers_ = std::max(workers_, context->max_workers());
  loop_ = std::make_unique<RepetitionLoop>(*repetition_, contexts);
}

Repeater::~Repeater() = default;

bool Repeater::run(Trips& trips, const CancelFlag* cancel, std::vector<std::vector<std::int64_t>>* profile) {
  CoreSet& cores = cores_ != nullptr ? *cores_ : CoreSet::shared();
  CoreSet::Lease lease = cores.lease(workers_, cancel);
  if (lease.workers() == 0) return false;
  lease.stay_awake();
  RunState state{lease, cancel, profile != nullptr};
  if (state.is_profiled) loop_->frame.clear_profile();
  const bool finished = loop_->run(trips, state);
  if (state.is_profiled) {
    profile->clear();
    loop_->frame.collect_profile(*profile);
  }
  return finished;
}

}  // namespace engine

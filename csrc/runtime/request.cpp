#include "runtime/request.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "executor/available_memory.hpp"

namespace engine {
namespace {

constexpr std::size_t kAlignment = 64;

[[noreturn]] void refuse(const std::string& message) {
  throw Failure(ENGINE_RUNTIME_ARGUMENT, message);
}

void check_size(const Port& port, const void* data, std::size_t bytes, const char* kind) {
  if (bytes != port.bytes) {
    refuse(std::string(kind) + " `" + port.name + "` is " + port.form.text() + " and has " +
           std::to_string(port.bytes) + " bytes; got " + std::to_string(bytes));
  }
  if (data == nullptr && bytes != 0) refuse(std::string(kind) + " `" + port.name + "`: the data is a null pointer");
}

const Port& checked(const std::vector<Port>& ports, std::size_t index, const char* kind) {
  if (index < ports.size()) return ports[index];
  refuse("there is no " + std::string(kind) + " " + std::to_string(index) + "; the network has " +
         std::to_string(ports.size()));
}

}  // namespace

// The use of a request by one thread.
class Request::Use {
 public:
  explicit Use(Request& request) : request_(request) {
    if (request_.is_used_.exchange(true, std::memory_order_acquire)) {
      throw Failure(ENGINE_RUNTIME_BUSY, "another thread uses the request; give each thread a request of its own");
    }
  }
  ~Use() { request_.is_used_.store(false, std::memory_order_release); }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  Request& request_;
};

Request::Request(std::shared_ptr<const Network> network) : network_(std::move(network)) {
  allocate();
  place();
  set_initial();
}

std::byte* Request::memory(std::size_t bytes, std::size_t alignment) {
  memory_.emplace_back(bytes, std::max(alignment, kAlignment));
  // A forged plan may leave a part of an output unwritten, which must not show what the process had there before.
  std::memset(memory_.back().data(), 0, bytes);
  return memory_.back().data();
}

void Request::allocate() {
  const BuiltProgram& program = network_->program();
  std::size_t needed = 0;
  std::vector<std::shared_ptr<const Plan>> plans;
  for (const BuiltSegment& segment : program.segments) {
    plans.push_back(segment.plan);
    needed = std::max(needed, segment.plan->arena.total_bytes);
  }
  for (const Port& port : network_->inputs()) needed = checked_add(needed, port.bytes);
  for (const Port& port : network_->outputs()) needed = checked_add(needed, port.bytes);
  for (const StoredVariable& each : network_->variables()) needed = checked_add(needed, 2 * each.before.bytes);
  check_available(needed);
  contexts_ = Context::in_turns(plans, network_->max_threads());
}

// Gives each value its memory: inputs and outputs their own, and what plans exchange.
void Request::place() {
  const BuiltProgram& program = network_->program();
  std::vector<std::size_t> alignment(program.slots, kAlignment), bytes(program.slots, 0);
  for (const BuiltSegment& segment : program.segments) {
    for (std::size_t i = 0; i < segment.reads.size(); ++i) {
      std::size_t& wanted = alignment[segment.reads[i]];
      wanted = std::max(wanted, segment.plan->inputs[i].alignment);
    }
    for (std::size_t i = 0; i < segment.writes.size(); ++i) {
      std::size_t& wanted = alignment[segment.writes[i]];
      wanted = std::max(wanted, segment.plan->outputs[i].alignment);
      bytes[segment.writes[i]] = segment.plan->outputs[i].bytes;
    }
  }
  slots_.assign(program.slots, nullptr);
  constants_.assign(program.slots, nullptr);
  for (const BuiltProgram::Constant& each : program.constants) constants_[each.slot] = each.bytes.data;
  const std::size_t own = network_->outputs().size();
  const auto& variables = network_->variables();
  for (std::size_t i = 0; i < program.inputs; ++i) {
    const bool is_variable = i >= network_->inputs().size();
    const std::size_t size =
        is_variable ? variables[i - network_->inputs().size()].before.bytes : network_->inputs()[i].bytes;
    // A variable's value is where the last run has written it, so both memories have the alignment of either.
    std::size_t wanted = alignment[i];
    if (is_variable) wanted = std::max(wanted, alignment[program.outputs[own + i - network_->inputs().size()]]);
    inputs_.push_back(memory(size, wanted));
  }
  for (std::size_t i = 0; i < program.outputs.size(); ++i) {
    const std::size_t slot = program.outputs[i];
    const std::size_t size = i < own ? network_->outputs()[i].bytes : variables[i - own].before.bytes;
    const std::size_t wanted =
        i < own ? alignment[slot] : std::max(alignment[slot], alignment[network_->inputs().size() + i - own]);
    outputs_.push_back(memory(size, wanted));
  }
  for (std::size_t slot = program.inputs; slot < program.slots; ++slot) {
    const bool is_output = std::count(program.outputs.begin(), program.outputs.end(), slot) != 0;
    if (constants_[slot] == nullptr && !is_output) slots_[slot] = memory(bytes[slot], alignment[slot]);
  }
  is_set_.assign(network_->inputs().size(), false);
}

void Request::set_initial() {
  const auto& variables = network_->variables();
  for (std::size_t i = 0; i < variables.size(); ++i) {
    std::byte* value = inputs_[network_->inputs().size() + i];
    const auto& [before, initial] = variables[i];
    if (before.bytes == 0) continue;
    if (initial.empty()) {
      std::memset(value, 0, before.bytes);
    } else {
      std::memcpy(value, initial.data(), before.bytes);
    }
  }
}

void Request::set_input(std::size_t index, const void* data, std::size_t bytes) {
  const Use use(*this);
  const Port& port = checked(network_->inputs(), index, "input");
  check_size(port, data, bytes, "input");
  if (bytes != 0) std::memcpy(inputs_[index], data, bytes);
  is_set_[index] = true;
}

void* Request::input(std::size_t index) {
  const Use use(*this);
  checked(network_->inputs(), index, "input");
  is_set_[index] = true;
  return inputs_[index];
}

void Request::check_inputs() const {
  for (std::size_t i = 0; i < is_set_.size(); ++i) {
    const Port& port = network_->inputs()[i];
    if (!is_set_[i]) refuse("input `" + port.name + "` (" + port.form.text() + ") has no value; set it before the run");
    if (std::string_view(port.form.type->name) != "bool") continue;
    // Kernels read booleans as 0 or 1.
    if (std::any_of(inputs_[i], inputs_[i] + port.bytes, [](std::byte value) { return value > std::byte{1}; })) {
      throw Failure(ENGINE_RUNTIME_DATA, "input `" + port.name + "` has a boolean that is neither 0 nor 1");
    }
  }
}

void Request::run() {
  const Use use(*this);
  check_inputs();
  has_outputs_ = false;
  {
    const std::lock_guard<std::mutex> lock(running_);
    cancel_.reset();
    is_running_ = true;
  }
  struct Running {
    Request& request;
    ~Running() {
      const std::lock_guard<std::mutex> lock(request.running_);
      request.is_running_ = false;
    }
  };
  const Running running{*this};
  if (!run_segments()) throw Failure(ENGINE_RUNTIME_CANCELLED, "the run was cancelled");
  finish();
}

bool Request::run_segments() {
  const BuiltProgram& program = network_->program();
  // Where each value is in this run: an output where the caller or the next run expects it, if a plan writes it.
  std::vector<std::byte*> places = slots_;
  std::copy(inputs_.begin(), inputs_.end(), places.begin());
  for (std::size_t i = program.outputs.size(); i-- > 0;) {
    const std::size_t slot = program.outputs[i];
    if (slot >= program.inputs && constants_[slot] == nullptr) places[slot] = outputs_[i];
  }
  std::vector<Binding> inputs, outputs;
  for (std::size_t number = 0; number < program.segments.size(); ++number) {
    const BuiltSegment& segment = program.segments[number];
    inputs.clear();
    outputs.clear();
    for (std::size_t i = 0; i < segment.reads.size(); ++i) {
      const std::size_t slot = segment.reads[i];
      const std::byte* data = constants_[slot] != nullptr ? constants_[slot] : places[slot];
      inputs.push_back({data, segment.plan->inputs[i].bytes});
    }
    for (std::size_t i = 0; i < segment.writes.size(); ++i) {
      outputs.push_back({places[segment.writes[i]], segment.plan->outputs[i].bytes});
    }
    if (!contexts_[number]->run(inputs, outputs, {0, &cancel_, nullptr})) return false;
  }
  // Outputs that are inputs, constants, or other outputs.
  for (std::size_t i = 0; i < program.outputs.size(); ++i) {
    const std::size_t slot = program.outputs[i], own = network_->outputs().size();
    const std::size_t size = i < own ? network_->outputs()[i].bytes : network_->variables()[i - own].before.bytes;
    const std::byte* data = constants_[slot] != nullptr ? constants_[slot] : places[slot];
    if (data != outputs_[i] && size != 0) std::memcpy(outputs_[i], data, size);
  }
  return true;
}

// The next values of variables become their values.
void Request::finish() {
  const std::size_t inputs = network_->inputs().size(), outputs = network_->outputs().size();
  for (std::size_t i = 0; i < network_->variables().size(); ++i) std::swap(inputs_[inputs + i], outputs_[outputs + i]);
  has_outputs_ = true;
}

void Request::get_output(std::size_t index, void* data, std::size_t bytes) {
  const Use use(*this);
  const Port& port = checked_output(index);
  check_size(port, data, bytes, "output");
  if (bytes != 0) std::memcpy(data, outputs_[index], bytes);
}

const void* Request::output(std::size_t index) {
  const Use use(*this);
  checked_output(index);
  return outputs_[index];
}

const Port& Request::checked_output(std::size_t index) const {
  const Port& port = checked(network_->outputs(), index, "output");
  if (!has_outputs_) refuse("output `" + port.name + "` has no value: no run has finished, or the last one has failed");
  return port;
}

void Request::reset() {
  const Use use(*this);
  set_initial();
}

void Request::cancel() {
  const std::lock_guard<std::mutex> lock(running_);
  if (is_running_) cancel_.cancel();
}

}  // namespace engine

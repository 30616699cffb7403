#include "kernels/prepare/extension_call.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace engine {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kLargestWorkspace = std::size_t{1}
                                          << 40;  // bytes of a worker; a larger size can only be a mistake

std::size_t padded(std::size_t bytes) {
  return (checked_add(bytes, kAlignment - 1)) & ~(kAlignment - 1);
}

std::size_t element_size(std::int32_t element_type) {
  switch (element_type) {
    case ENGINE_U8:
    case ENGINE_I8:
    case ENGINE_BOOL:
      return 1;
    case ENGINE_U16:
    case ENGINE_I16:
    case ENGINE_F16:
    case ENGINE_BF16:
      return 2;
    case ENGINE_F32:
    case ENGINE_I32:
    case ENGINE_U32:
      return 4;
    case ENGINE_F64:
    case ENGINE_I64:
    case ENGINE_U64:
      return 8;
    default:
      throw PlanError("kernels of extensions have no element type " + std::to_string(element_type));
  }
}

std::vector<std::size_t> bytes_of(const std::vector<ExtensionType>& types) {
  std::vector<std::size_t> bytes;
  for (const ExtensionType& type : types) {
    if (type.element_type == ENGINE_OMITTED) continue;
    if (type.rank < 0) throw PlanError("the rank of a tensor is unknown");
    bytes.push_back(checked_multiply(checked_product(type.dims), element_size(type.element_type)));
  }
  return bytes;
}

struct Tokens {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<const ExtensionCall>, std::less<>> calls;
  std::uint64_t made = 0;
};

// Never destroyed, since a plan may be freed until the process ends.
Tokens& tokens() {
  static auto& made = *new Tokens;
  return made;
}

// The last failures. A run reads the failure that it reports before this many others have occurred.
struct Failures {
  static constexpr std::size_t kKept = 256;
  std::mutex mutex;
  std::int64_t made = 0;
  std::array<std::array<char, 2 * kExtensionMessage>, kKept> messages{};
};

Failures& failures() {
  static auto& made = *new Failures;
  return made;
}

}  // namespace

const char* said_by_extension(char* message) noexcept {
  message[kExtensionMessage - 1] = 0;
  std::size_t end = 0;
  for (std::size_t i = 0; message[i] != 0; ++i) {
    if (static_cast<unsigned char>(message[i]) < ' ') message[i] = ' ';
    if (message[i] != ' ') end = i + 1;
  }
  message[end] = 0;
  return end > 0 ? message : "it gives no message";
}

std::int64_t keep_extension_failure(const char* title, int status, const char* message) noexcept {
  Failures& kept = failures();
  const std::lock_guard<std::mutex> lock(kept.mutex);
  auto& slot = kept.messages[static_cast<std::size_t>(kept.made) % Failures::kKept];
  std::snprintf(slot.data(), slot.size(), "%.500s failed with status %d: %s", title, status, message);
  return kept.made++;
}

std::string kept_extension_failure(std::int64_t number) {
  Failures& kept = failures();
  const std::lock_guard<std::mutex> lock(kept.mutex);
  if (number < 0 || number >= kept.made || kept.made - number > static_cast<std::int64_t>(Failures::kKept)) {
    return "a kernel of an extension failed, and so many others that its message is lost";
  }
  return kept.messages[static_cast<std::size_t>(number) % Failures::kKept].data();
}

// -- ExtensionNode ----------------------------------------------------------------------------------------------------

ExtensionNode::ExtensionNode(std::vector<ExtensionType> inputs, std::vector<ExtensionType> outputs,
                             std::vector<ExtensionAttribute> attributes)
    : inputs_(std::move(inputs)), outputs_(std::move(outputs)), attributes_(std::move(attributes)) {
  for (const auto* types : {&inputs_, &outputs_}) {
    for (const ExtensionType& type : *types) {
      tensors_.push_back({type.element_type, type.rank, type.dims.data(), const_cast<void*>(type.data)});
    }
  }
  texts_.reserve(attributes_.size());
  for (const ExtensionAttribute& attribute : attributes_) {
    engine_attribute made{attribute.name.c_str(), 0, 0, 1, nullptr, nullptr, nullptr};
    const auto point_to_texts = [&](const std::string* texts, std::size_t count) {
      texts_.emplace_back();
      for (std::size_t i = 0; i < count; ++i) texts_.back().push_back(texts[i].c_str());
      made.strings = texts_.back().data();
      made.count = count;
    };
    if (const auto* integer = std::get_if<std::int64_t>(&attribute.value)) {
      made.kind = ENGINE_INT;
      made.ints = integer;
    } else if (const auto* real = std::get_if<double>(&attribute.value)) {
      made.kind = ENGINE_FLOAT;
      made.floats = real;
    } else if (const auto* text = std::get_if<std::string>(&attribute.value)) {
      made.kind = ENGINE_STRING;
      point_to_texts(text, 1);
    } else if (const auto* integers = std::get_if<std::vector<std::int64_t>>(&attribute.value)) {
      made.kind = ENGINE_INTS;
      made.ints = integers->data();
      made.count = integers->size();
    } else if (const auto* reals = std::get_if<std::vector<double>>(&attribute.value)) {
      made.kind = ENGINE_FLOATS;
      made.floats = reals->data();
      made.count = reals->size();
    } else {
      const auto& texts = std::get<std::vector<std::string>>(attribute.value);
      made.kind = ENGINE_STRINGS;
      point_to_texts(texts.data(), texts.size());
    }
    described_.push_back(made);
  }
}

engine_call ExtensionNode::described(bool has_outputs, char* message) const {
  engine_call call = {};
  call.struct_size = sizeof(call);
  call.inputs = tensors_.data();
  call.num_inputs = inputs_.size();
  call.outputs = has_outputs ? tensors_.data() + inputs_.size() : nullptr;
  call.num_outputs = outputs_.size();
  call.attributes = described_.data();
  call.num_attributes = described_.size();
  call.message = message;
  call.message_size = kExtensionMessage;
  call.workers = 1;
  return call;
}

void ExtensionNode::check(const std::string& what, int status, char* message) {
  if (status == ENGINE_OK) return;
  throw ExtensionFailure(what + (what.empty() ? "" : " failed with status " + std::to_string(status) + ": ") +
                         said_by_extension(message));
}

// -- ExtensionCall ----------------------------------------------------------------------------------------------------

std::shared_ptr<const ExtensionCall> ExtensionCall::make(const engine_kernel& kernel, std::string title,
                                                         std::vector<ExtensionType> inputs,
                                                         std::vector<ExtensionType> outputs,
                                                         std::vector<ExtensionAttribute> attributes) {
  std::shared_ptr<ExtensionCall> call(
      new ExtensionCall(kernel, std::move(title), std::move(inputs), std::move(outputs), std::move(attributes)));
  Tokens& known = tokens();
  const std::lock_guard<std::mutex> lock(known.mutex);
  call->token_ = "call " + std::to_string(known.made++);
  known.calls.emplace(call->token_, call);
  return call;
}

std::shared_ptr<const ExtensionCall> ExtensionCall::find(std::string_view token) {
  Tokens& known = tokens();
  const std::lock_guard<std::mutex> lock(known.mutex);
  const auto at = known.calls.find(token);
  return at == known.calls.end() ? nullptr : at->second.lock();
}

ExtensionCall::ExtensionCall(const engine_kernel& kernel, std::string title, std::vector<ExtensionType> inputs,
                             std::vector<ExtensionType> outputs, std::vector<ExtensionAttribute> attributes)
    : title_(std::move(title)),
      kernel_(kernel),
      input_bytes_(bytes_of(inputs)),
      output_bytes_(bytes_of(outputs)),
      node_(std::move(inputs), std::move(outputs), std::move(attributes)) {
  if (kernel.create == nullptr) return;
  engine_plan plan{sizeof(engine_plan), 0, 1};
  node_.call(title_ + " cannot be prepared; its create function", kernel.create, true, &plan, &state_);
  const bool is_too_large = plan.workspace_bytes > kLargestWorkspace;
  if (plan.max_workers < 1 || is_too_large) {
    if (kernel.destroy != nullptr) kernel.destroy(state_);
    throw ExtensionFailure(
        title_ + (is_too_large ? " asks for a workspace of " + std::to_string(plan.workspace_bytes) + " bytes"
                               : " asks for " + std::to_string(plan.max_workers) + " workers; expected 1 or more"));
  }
  workspace_bytes_ = plan.workspace_bytes;
  max_workers_ = plan.max_workers;
}

ExtensionCall::~ExtensionCall() {
  {
    Tokens& known = tokens();
    const std::lock_guard<std::mutex> lock(known.mutex);
    known.calls.erase(token_);
  }
  if (kernel_.destroy != nullptr) kernel_.destroy(state_);
}

PreparedPhase ExtensionCall::phase(const KernelEntry& kernel) const {
  ExtensionArgs args = {};
  args.compute = kernel_.compute;
  args.state = state_;
  args.title = title_.c_str();
  args.tensors = node_.tensors();
  args.attributes = node_.attributes();
  args.inputs = static_cast<std::int64_t>(node_.num_inputs());
  args.outputs = static_cast<std::int64_t>(node_.num_outputs());
  args.attribute_count = static_cast<std::int64_t>(node_.num_attributes());
  const std::size_t described =
      padded(checked_multiply(node_.num_inputs() + node_.num_outputs(), sizeof(engine_tensor)));
  args.workspace_bytes = static_cast<std::int64_t>(workspace_bytes_);
  args.workspace_offset = static_cast<std::int64_t>(described);
  PreparedPhase phase = PreparedPhase::of(kernel, args);
  phase.scratch_bytes = checked_add(described, padded(workspace_bytes_));
  phase.max_workers = max_workers_;
  return phase;
}

void ExtensionCall::compute(const std::vector<const void*>& inputs, const std::vector<void*>& outputs,
                            const KernelEntry& kernel) const {
  const PreparedPhase prepared = phase(kernel);
  std::vector<std::byte> memory(checked_add(prepared.scratch_bytes, kAlignment));
  void* scratch = memory.data();
  std::size_t room = memory.size();
  std::align(kAlignment, prepared.scratch_bytes, scratch, room);
  std::vector<void*> buffers;
  for (const void* data : inputs) buffers.push_back(const_cast<void*>(data));
  buffers.insert(buffers.end(), outputs.begin(), outputs.end());
  Fault fault;
  prepared.run(prepared.args.data(), buffers.data(), KernelContext{0, 1, scratch, &fault});
  if (fault.found) throw ExtensionFailure(kept_extension_failure(fault.index));
}

}  // namespace engine

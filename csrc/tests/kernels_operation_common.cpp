#include "kernels_operation_common.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

namespace engine::test {
namespace {

class TargetLookup final : public KernelLookup {
 public:
  explicit TargetLookup(const Target& target) : target_(target) {}
  const KernelEntry& find(std::string_view kernel) const override { return target_.find(std::string(kernel)); }
  const KernelEntry* find_or_null(std::string_view kernel) const override {
    for (const Target* target = &target_; target; target = target->below)
      if (target->has_own(std::string(kernel))) return &target->find(std::string(kernel));
    return nullptr;
  }

 private:
  const Target& target_;
};

std::vector<std::size_t> sizes(const std::vector<Bytes>& buffers) {
  std::vector<std::size_t> bytes;
  for (const Bytes& buffer : buffers) bytes.push_back(buffer.size);
  return bytes;
}

std::vector<Bytes> bytes_of(const std::vector<Guarded*>& buffers) {
  std::vector<Bytes> bytes;
  for (Guarded* buffer : buffers) bytes.push_back({buffer->data(), buffer->values().size() * sizeof(float)});
  return bytes;
}

}  // namespace

PreparedStep prepare(const Target& target, const OperationEntry* operations, const std::string& name,
                     const AttributeMap& attributes, const std::vector<std::size_t>& input_bytes,
                     const std::vector<std::size_t>& output_bytes) {
  Attributes given;
  for (const auto& [key, value] : attributes) given.set(key, value);
  const TargetLookup lookup(target);
  for (const OperationEntry* entry = operations; entry->name; ++entry) {
    if (name != entry->name) continue;
    PreparedStep step = entry->prepare({input_bytes, output_bytes, given, lookup});
    given.check_all_used();
    return step;
  }
  throw PlanError("no operation " + name);
}

void run_operation(const Target& target, const OperationEntry* operations, const std::string& name,
                   const AttributeMap& attributes, const std::vector<Guarded*>& inputs,
                   const std::vector<Guarded*>& outputs, int workers) {
  run_operation(target, operations, name, attributes, bytes_of(inputs), bytes_of(outputs), workers);
}

void run_operation(const Target& target, const OperationEntry* operations, const std::string& name,
                   const AttributeMap& attributes, const std::vector<Bytes>& inputs, const std::vector<Bytes>& outputs,
                   int workers) {
  const PreparedStep step = prepare(target, operations, name, attributes, sizes(inputs), sizes(outputs));
  std::vector<void*> buffers;
  for (const Bytes& buffer : inputs) buffers.push_back(buffer.data);
  for (const Bytes& buffer : outputs) buffers.push_back(buffer.data);
  std::vector<std::unique_ptr<Guarded>> temporaries;
  for (const std::size_t bytes : step.temporaries) {
    temporaries.push_back(std::make_unique<Guarded>((bytes + 3) / 4, std::numeric_limits<float>::quiet_NaN(), false));
    buffers.push_back(temporaries.back()->data());
  }
  for (const PreparedPhase& phase : step.phases) {
    const KernelEntry entry{"", phase.run, nullptr};
    // Arguments are 64-byte aligned in a plan.
    std::vector<std::byte> storage(phase.args.size() + 64);
    void* args = storage.data();
    std::size_t space = storage.size();
    std::align(64, phase.args.size(), args, space);
    if (!phase.args.empty()) std::memcpy(args, phase.args.data(), phase.args.size());
    run(entry, args, buffers, std::min(workers, phase.max_workers), phase.scratch_bytes);
  }
  for (const auto& temporary : temporaries) expect(temporary->intact(), name + ": overrun of a temporary");
}

void expect_refused(const Target& target, const OperationEntry* operations, const std::string& name,
                    const AttributeMap& attributes, const std::vector<std::size_t>& input_bytes,
                    const std::vector<std::size_t>& output_bytes, const std::string& message) {
  try {
    prepare(target, operations, name, attributes, input_bytes, output_bytes);
  } catch (const PlanError& error) {
    expect(std::string(error.what()).find(message) != std::string::npos,
           name + ": refused with \"" + error.what() + "\"; expected \"" + message + "\" in it");
    return;
  }
  expect(false, name + ": taken; expected to be refused with \"" + message + "\"");
}

}  // namespace engine::test

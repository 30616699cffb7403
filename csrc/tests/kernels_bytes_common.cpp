#include "kernels_bytes_common.hpp"

#include <memory>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes)
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes)
#endif

namespace engine::test {
namespace {

constexpr std::size_t kGuard = 128;
constexpr char kGuardByte = '\x5a';

// Memory at an address without vector alignment; guards around it detect writes, and sanitizers detect reads.
class Block {
 public:
  Block(const ByteVector& content, std::size_t alignment)
      : storage_(content.size() + 2 * kGuard, kGuardByte), begin_(kGuard / 2 + alignment), size_(content.size()) {
    if (size_ > 0) std::memcpy(data(), content.data(), size_);
    ASAN_POISON_MEMORY_REGION(storage_.data(), begin_);
    ASAN_POISON_MEMORY_REGION(data() + size_, storage_.size() - begin_ - size_);
  }
  ~Block() { ASAN_UNPOISON_MEMORY_REGION(storage_.data(), storage_.size()); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  char* data() { return storage_.data() + begin_; }
  ByteVector content() { return {data(), data() + size_}; }
  bool intact() const {
    ASAN_UNPOISON_MEMORY_REGION(storage_.data(), storage_.size());
    for (std::size_t i = 0; i < storage_.size(); ++i)
      if ((i < begin_ || i >= begin_ + size_) && storage_[i] != kGuardByte) return false;
    return true;
  }

 private:
  ByteVector storage_;
  std::size_t begin_, size_;
};

void run_phase(const PreparedPhase& phase, const std::vector<void*>& buffers, int workers, Fault& fault) {
  std::vector<std::byte> storage(phase.args.size() + 64);
  void* args = storage.data();
  std::size_t space = storage.size();
  std::align(64, phase.args.size(), args, space);
  if (!phase.args.empty()) std::memcpy(args, phase.args.data(), phase.args.size());
  for (int worker = workers - 1; worker >= 0; --worker) {
    Guarded scratch((phase.scratch_bytes + 3) / 4 + 16);
    const auto address = (reinterpret_cast<std::uintptr_t>(scratch.data()) + 63) / 64 * 64;
    phase.run(args, buffers.data(), {worker, workers, reinterpret_cast<void*>(address), &fault});
    expect(scratch.intact(), "scratch overrun");
  }
}

}  // namespace

Fault run_bytes(const Target& target, const OperationEntry* operations, const std::string& name,
                const AttributeMap& attributes, const std::vector<ByteVector>& inputs, std::vector<ByteVector>& outputs,
                std::size_t alignment, int workers) {
  std::vector<std::size_t> input_bytes, output_bytes;
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<void*> buffers;
  const auto add = [&](const ByteVector& content, std::vector<std::size_t>& sizes) {
    sizes.push_back(content.size());
    blocks.push_back(std::make_unique<Block>(content, alignment));
    buffers.push_back(blocks.back()->data());
  };
  for (const ByteVector& input : inputs) add(input, input_bytes);
  for (const ByteVector& output : outputs) add(output, output_bytes);
  const PreparedStep step = prepare(target, operations, name, attributes, input_bytes, output_bytes);
  std::vector<std::unique_ptr<Block>> temporaries;
  for (const std::size_t bytes : step.temporaries) {
    temporaries.push_back(std::make_unique<Block>(ByteVector(bytes, '\x77'), 64 - kGuard / 2 % 64));
    buffers.push_back(temporaries.back()->data());
  }
  Fault fault;
  for (const PreparedPhase& phase : step.phases) run_phase(phase, buffers, workers, fault);
  for (const auto& temporary : temporaries) expect(temporary->intact(), name + ": overrun of a temporary");
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    expect(blocks[i]->intact(), name + ": overrun of operand " + std::to_string(i));
    if (i < inputs.size())
      expect(blocks[i]->content() == inputs[i], name + ": input " + std::to_string(i) + " is written");
    else
      outputs[i - inputs.size()] = blocks[i]->content();
  }
  return fault;
}

ByteVector random_bytes(std::size_t count, std::uint32_t seed) {
  ByteVector bytes(count);
  Dice dice(seed);
  for (char& byte : bytes) byte = static_cast<char>(dice.roll(256));
  return bytes;
}

}  // namespace engine::test

// Shared by the tests of elementwise programs: operands of any type between guards, and steps as plans build them.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/elementwise.hpp"
#include "kernels/prepare.hpp"
#include "kernels_common.hpp"

namespace engine::test {

using Integers = std::vector<std::int64_t>;

// Bytes between guards, at an address aligned to `alignment` and no more.
class GuardedBytes {
 public:
  GuardedBytes(std::size_t count, std::size_t alignment)
      : count_(count), storage_(count + 2 * kGuard + 128, kFill), offset_(kGuard) {
    while ((reinterpret_cast<std::uintptr_t>(storage_.data()) + offset_) % 64 != alignment) ++offset_;
  }
  template <class T>
  explicit GuardedBytes(const std::vector<T>& values) : GuardedBytes(values.size() * sizeof(T), sizeof(T)) {
    if (count_ > 0) std::memcpy(data(), values.data(), count_);
  }
  std::uint8_t* data() { return storage_.data() + offset_; }
  bool intact() const {
    for (std::size_t i = 0; i < storage_.size(); ++i)
      if ((i < offset_ || i >= offset_ + count_) && storage_[i] != kFill) return false;
    return true;
  }
  template <class T>
  std::vector<T> values() {
    std::vector<T> out(count_ / sizeof(T));
    if (count_ > 0) std::memcpy(out.data(), data(), count_);
    return out;
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::uint8_t kFill = 0xa5;
  std::size_t count_;
  std::vector<std::uint8_t> storage_;
  std::size_t offset_;
};

// The attributes of a step.
struct Step {
  Integers dims, input_types, input_strides, constants, program, outputs;
};

inline std::int64_t code(Opcode opcode) {
  return static_cast<std::int64_t>(opcode);
}
inline std::int64_t code(ElementCode element) {
  return static_cast<std::int64_t>(element);
}
constexpr auto kF32 = static_cast<std::int64_t>(ElementCode::kF32);

// An opcode and, for a cast, the type of the result, and the format of small floating-point numbers.
struct Operation {
  Operation(std::int64_t number) : opcode(number) {}
  Operation(std::int64_t number, std::int64_t type, std::int64_t small) : opcode(number), target(type), format(small) {}
  std::int64_t opcode, target = -1, format = -1;
};
inline Operation cast_to(ElementCode element, std::int64_t format = -1) {
  return {code(Opcode::kCast), code(element), format};
}

Integers dense(const Integers& dims);

// Throws the errors of prepare.
PreparedStep prepare(const Target& target, const Step& step, const std::vector<std::size_t>& input_bytes,
                     const std::vector<std::size_t>& output_bytes);

// Runs a step and expects the guards of its operands to be intact.
void run_step(const Target& target, const Step& step, const std::vector<GuardedBytes*>& inputs,
              const std::vector<std::size_t>& input_bytes, const std::vector<GuardedBytes*>& outputs,
              const std::vector<std::size_t>& output_bytes, int workers, const std::string& what);

// One instruction over flat operands; single-valued sources are constants or inputs with stride zero.
template <class R, class T>
std::vector<R> apply(const Target& target, Operation operation, std::int64_t type,
                     const std::vector<std::vector<T>>& sources, const std::string& what, bool as_constants = false) {
  const std::size_t count = sources[0].size();
  Step step;
  step.dims = {static_cast<std::int64_t>(count)};
  std::vector<GuardedBytes> storage;
  std::vector<std::size_t> bytes;
  Integers values;
  for (const auto& source : sources) {
    if (source.size() == 1 && as_constants) continue;
    values.push_back(static_cast<std::int64_t>(storage.size()));
    storage.emplace_back(source);
    bytes.push_back(source.size() * sizeof(T));
    step.input_types.push_back(type);
    step.input_strides.push_back(source.size() == 1 ? 0 : 1);
  }
  Integers ids;
  std::int64_t next_input = 0, next_constant = static_cast<std::int64_t>(storage.size());
  for (const auto& source : sources) {
    const bool is_constant = source.size() == 1 && as_constants;
    ids.push_back(is_constant ? next_constant++ : next_input++);
    if (!is_constant) continue;
    std::int64_t bits = 0;
    std::memcpy(&bits, source.data(), sizeof(T));
    step.constants.insert(step.constants.end(), {type, bits});
  }
  ids.resize(3, -1);
  if (operation.target >= 0) {
    ids[1] = operation.target;
    ids[2] = operation.format;
  }
  step.program = {operation.opcode, type, ids[0], ids[1], ids[2]};
  step.outputs = {next_constant};
  GuardedBytes y(count * sizeof(R), sizeof(R));
  std::vector<GuardedBytes*> inputs;
  for (GuardedBytes& one : storage) inputs.push_back(&one);
  run_step(target, step, inputs, bytes, {&y}, {count * sizeof(R)}, 3, what);
  return y.values<R>();
}

}  // namespace engine::test

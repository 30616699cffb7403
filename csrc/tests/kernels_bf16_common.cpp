#include "kernels_bf16_common.hpp"

#include <algorithm>

namespace engine::test {
namespace {

constexpr std::size_t kGuard = 63;  // odd, so that the values are not aligned to a pair
constexpr std::uint16_t kGuardBits = 0x7fad;

}  // namespace

std::vector<float> rounded(std::vector<float> values) {
  for (float& value : values) value = engine::to_f32(engine::to_bf16(value));
  return values;
}

std::vector<Bf16> to_bf16(const std::vector<float>& values) {
  std::vector<Bf16> result(values.size());
  std::transform(values.begin(), values.end(), result.begin(), [](float value) { return engine::to_bf16(value); });
  return result;
}

std::vector<float> to_f32(const std::vector<Bf16>& values) {
  std::vector<float> result(values.size());
  std::transform(values.begin(), values.end(), result.begin(), [](Bf16 value) { return engine::to_f32(value); });
  return result;
}

GuardedBf16::GuardedBf16(const std::vector<float>& values)
    : count_(values.size()), storage_(values.size() + 2 * kGuard, Bf16{kGuardBits}) {
  const std::vector<Bf16> content = to_bf16(values);
  std::copy(content.begin(), content.end(), storage_.begin() + kGuard);
}

Bf16* GuardedBf16::data() {
  return storage_.data() + kGuard;
}

std::vector<float> GuardedBf16::values() const {
  return to_f32({storage_.begin() + kGuard, storage_.begin() + kGuard + count_});
}

bool GuardedBf16::intact() const {
  for (std::size_t i = 0; i < storage_.size(); ++i)
    if ((i < kGuard || i >= kGuard + count_) && storage_[i].bits != kGuardBits) return false;
  return true;
}

double bf16_tolerance(std::int64_t length, bool is_f32) {
  return sum_tolerance(length) + (is_f32 ? 0.0 : 1.0 / 256);
}

}  // namespace engine::test

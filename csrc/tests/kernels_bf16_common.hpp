// Shared by the tests of bf16 kernels.
#pragma once

#include <vector>

#include "kernels_common.hpp"
#include "simd/bf16.hpp"

namespace engine::test {

// The values rounded to bf16, as f32, which the scalar references use.
std::vector<float> rounded(std::vector<float> values);
std::vector<Bf16> to_bf16(const std::vector<float>& values);
std::vector<float> to_f32(const std::vector<Bf16>& values);

// bf16 values between guard words, at an address aligned to only two bytes.
class GuardedBf16 {
 public:
  explicit GuardedBf16(const std::vector<float>& values);
  Bf16* data();
  std::vector<float> values() const;
  bool intact() const;

 private:
  std::size_t count_;
  std::vector<Bf16> storage_;
};

// A buffer of either type, filled with `values` rounded to it.
class GuardedEither {
 public:
  GuardedEither(const std::vector<float>& values, bool is_f32) : is_f32_(is_f32), f32_(values), bf16_(values) {}
  void* data() { return is_f32_ ? static_cast<void*>(f32_.data()) : bf16_.data(); }
  std::vector<float> values() const { return is_f32_ ? f32_.values() : bf16_.values(); }
  bool intact() const { return f32_.intact() && bf16_.intact(); }
  std::size_t size() const { return values().size() * (is_f32_ ? 4 : 2); }  // bytes

 private:
  bool is_f32_;
  Guarded f32_;
  GuardedBf16 bf16_;
};

// The tolerance of expect_close for a sum of `length` products of bf16 values, rounded to bf16 unless is_f32: half a
// unit in the last of eight bits, plus the error of the sum.
double bf16_tolerance(std::int64_t length, bool is_f32);

}  // namespace engine::test

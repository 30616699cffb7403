// Quantization and dequantization in elementwise programs, against the definition, bit for bit: quotients by any scale,
// ties, denormals, infinities and NaN, and every pair of numbers whose quotient is so close to a midpoint between
// floats beside a tie that an approximate quotient might round to the other code.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels_elementwise_common.hpp"

using namespace engine;
using namespace engine::test;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr auto kU8 = static_cast<std::int64_t>(ElementCode::kU8);
constexpr auto kI8 = static_cast<std::int64_t>(ElementCode::kI8);

// Not inlined into loops whose divisions a compiler could replace.
int code_of(float x, float scale, int zero_point, bool is_signed) {
  volatile float quotient = x / scale;
  if (std::isnan(quotient)) return zero_point;
  const double sum = std::nearbyint(static_cast<double>(quotient)) + zero_point;
  const double low = is_signed ? -128 : 0, high = is_signed ? 127 : 255;
  return static_cast<int>(std::min(std::max(sum, low), high));
}

// Scales and zero points: one for all elements, or one for each.
void check_codes(const Target& target, const std::vector<float>& x, const std::vector<float>& scales,
                 const std::vector<int>& zero_points, bool is_signed, const std::string& what) {
  std::vector<std::uint8_t> zeros, expected;
  for (const int zero : zero_points) zeros.push_back(static_cast<std::uint8_t>(zero));
  for (std::size_t i = 0; i < x.size(); ++i)
    expected.push_back(static_cast<std::uint8_t>(
        code_of(x[i], scales[i % scales.size()], zero_points[i % zero_points.size()], is_signed)));
  Step step;
  step.dims = {static_cast<std::int64_t>(x.size())};
  step.input_types = {kF32, kF32, is_signed ? kI8 : kU8};
  step.input_strides = {1, scales.size() > 1, zeros.size() > 1};
  step.program = {code(is_signed ? Opcode::kQuantizeI8 : Opcode::kQuantizeU8), kF32, 0, 1, 2};
  step.outputs = {3};
  GuardedBytes source(x), factor(scales), zero(zeros), y(x.size(), 1);
  run_step(target, step, {&source, &factor, &zero}, {x.size() * 4, scales.size() * 4, zeros.size()}, {&y}, {x.size()},
           2, what);
  expect(y.values<std::uint8_t>() == expected, what);
}

// The same for a zero point of f32, as DynamicQuantizeLinear defines it.
int dynamic_code_of(float x, float scale, float zero_point) {
  volatile float quotient = x / scale;
  const float sum = std::nearbyint(quotient) + zero_point;
  return std::isnan(sum) ? 0 : static_cast<int>(std::min(std::max(sum, 0.0f), 255.0f));
}

void check_dynamic_codes(const Target& target, const std::vector<float>& x, const std::vector<float>& scales,
                         const std::vector<float>& zero_points, const std::string& what) {
  std::vector<std::uint8_t> expected;
  for (std::size_t i = 0; i < x.size(); ++i)
    expected.push_back(static_cast<std::uint8_t>(
        dynamic_code_of(x[i], scales[i % scales.size()], zero_points[i % zero_points.size()])));
  Step step;
  step.dims = {static_cast<std::int64_t>(x.size())};
  step.input_types = {kF32, kF32, kF32};
  step.input_strides = {1, scales.size() > 1, zero_points.size() > 1};
  step.program = {code(Opcode::kQuantizeDynamic), kF32, 0, 1, 2};
  step.outputs = {3};
  GuardedBytes source(x), factor(scales), zero(zero_points), y(x.size(), 1);
  run_step(target, step, {&source, &factor, &zero}, {x.size() * 4, scales.size() * 4, zero_points.size() * 4}, {&y},
           {x.size()}, 2, what);
  expect(y.values<std::uint8_t>() == expected, what);
}

constexpr float kScales[] = {1.0f,      0.5f,     0.1f,    0.0078431377f,  3.14159274f,   1e30f,    1e-30f,
                             0x1p-100f, 0x1p100f, 1.3e36f, 2e-38f,         1e-42f,        3.4e38f,  0.0f,
                             -0.25f,    kInf,     kNan,    0x1.fffffep-7f, 0x1.000002p3f, 0x1p-126f};

// Values around every code and every tie, of any magnitude, in lengths around a vector's.
void values(const Target& target) {
  std::vector<float> special = {0.0f, -0.0f, kInf, -kInf, kNan, 1e-45f, -1e-45f, 1e-38f, 3.4e38f, -3.4e38f, 1e20f};
  for (const float scale : kScales) {
    std::vector<float> x = special;
    for (int n = -520; n <= 520; ++n) {
      const float near = scale * static_cast<float>(n) * 0.5f;
      for (const float v : {near, std::nextafter(near, kInf), std::nextafter(near, -kInf)}) x.push_back(v);
    }
    for (const float v : random_floats(500, 3)) x.push_back(v * scale * 150.0f);
    const std::string what = "quantization by " + std::to_string(scale);
    for (const int zero_point : {0, 1, 127, 128, 255}) check_codes(target, x, {scale}, {zero_point}, false, what);
    for (const int zero_point : {-128, -1, 0, 77, 127}) check_codes(target, x, {scale}, {zero_point}, true, what);
    for (const float zero_point : {0.0f, 1.0f, 128.0f, 255.0f, 0.5f, -3.0f, 300.0f, kNan, kInf})
      check_dynamic_codes(target, x, {scale}, {zero_point}, "dynamic " + what);
  }
  for (std::size_t count = 1; count < 140; ++count) {
    auto x = random_floats(count, 5);
    for (float& v : x) v *= 100.0f;
    check_codes(target, x, {0.7f}, {100}, false, "quantization of " + std::to_string(count));
    const auto scales = random_floats(count, 6);
    std::vector<int> zero_points;
    for (std::size_t i = 0; i < count; ++i) zero_points.push_back(static_cast<int>(i % 256) - 128);
    if (count > 1) check_codes(target, x, scales, zero_points, true, "scales of " + std::to_string(count));
    check_dynamic_codes(target, x, {0.7f}, {100.0f}, "dynamic quantization of " + std::to_string(count));
    const std::vector<float> starts(zero_points.begin(), zero_points.end());
    check_dynamic_codes(target, x, scales, starts, "dynamic scales of " + std::to_string(count));
  }
}

// The inverse of an odd number modulo 2^32.
std::uint32_t inverse(std::uint32_t odd) {
  std::uint32_t x = odd;
  for (int i = 0; i < 5; ++i) x *= 2 - odd * x;
  return x;
}

// All pairs of 24-bit x and scale whose quotient is within 16 / 2^24 of the last place of the midpoint between a tie
// and its neighbour, above or below. A quotient q = x / s is corrected to q + (x - q s) / s with an error of at most 12
// / 2^24: q is within 1.5 places, and the remainder and 1 / s are rounded. So for all other pairs, it is on the right
// side of the midpoint.
void midpoints(const Target& target) {
  int pairs = 0;
  for (int tie = 1; tie < 512; tie += 2)
    for (const int side : {-1, 1}) {
      // The midpoint is m 2^e, with m of 25 bits. Below 1/2, floats are denser.
      int exponent = 0;
      const double fraction = std::frexp(tie * 0.5, &exponent);
      const int bits = tie == 1 && side < 0 ? 26 : 25;
      const std::uint64_t m = static_cast<std::uint64_t>(std::ldexp(fraction, bits)) + static_cast<std::uint64_t>(side);
      const int e = exponent - bits;
      // x 2^shift = m s + rest
      for (const int shift : {24, 25})
        for (int rest = -16; rest <= 16; ++rest) {
          const std::uint32_t mask = (1u << shift) - 1;
          const std::uint64_t s = (static_cast<std::uint32_t>(-rest) * inverse(static_cast<std::uint32_t>(m))) & mask;
          const std::uint64_t x = (m * s + static_cast<std::uint64_t>(rest)) >> shift;
          if (s < 1u << 23 || s >= 1u << 24 || x < 1u << 23 || x >= 1u << 24) continue;
          ++pairs;
          const float scale = std::ldexp(static_cast<float>(s), -30),
                      value = std::ldexp(static_cast<float>(x), e + shift - 30);
          check_codes(target, {value, -value}, {scale}, {tie < 256 ? 0 : -128}, true,
                      "midpoint at " + std::to_string(tie));
          check_codes(target, {value, -value}, {scale}, {tie < 256 ? 127 : 0}, false,
                      "midpoint at " + std::to_string(tie));
        }
    }
  expect(pairs > 5000, "too few pairs: " + std::to_string(pairs));
}

void dequantizes(const Target& target) {
  for (const bool is_signed : {false, true})
    for (const bool has_many : {false, true})
      for (const std::size_t count : {1, 15, 16, 17, 63, 64, 65, 256, 5000}) {
        std::vector<std::uint8_t> x(count), zeros(has_many && count > 1 ? count : 1);
        std::vector<float> scales(zeros.size()), expected;
        for (std::size_t i = 0; i < count; ++i) x[i] = static_cast<std::uint8_t>(i * 7);
        for (std::size_t i = 0; i < zeros.size(); ++i) {
          zeros[i] = static_cast<std::uint8_t>(i * 13 + 90);
          scales[i] = 0.1f * static_cast<float>(i % 100 + 1);
        }
        const auto number = [&](std::uint8_t v) {
          return static_cast<float>(is_signed ? static_cast<std::int8_t>(v) : static_cast<int>(v));
        };
        for (std::size_t i = 0; i < count; ++i)
          expected.push_back((number(x[i]) - number(zeros[i % zeros.size()])) * scales[i % scales.size()]);
        Step step;
        const std::int64_t type = is_signed ? kI8 : kU8, each = zeros.size() > 1;
        step.dims = {static_cast<std::int64_t>(count)};
        step.input_types = {type, kF32, type};
        step.input_strides = {1, each, each};
        step.program = {code(is_signed ? Opcode::kDequantizeI8 : Opcode::kDequantizeU8), kF32, 0, 1, 2};
        step.outputs = {3};
        GuardedBytes source(x), factor(scales), zero(zeros), y(count * 4, 4);
        const std::string what = "dequantization of " + std::to_string(count);
        run_step(target, step, {&source, &factor, &zero}, {count, scales.size() * 4, zeros.size()}, {&y}, {count * 4},
                 2, what);
        expect(y.values<float>() == expected, what);
      }
}

// Codes of one operand, through f32, to codes of another scale: what a strip holds in between is not stored.
void chains(const Target& target) {
  const std::size_t count = 3000;
  std::vector<std::uint8_t> x(count), expected;
  for (std::size_t i = 0; i < count; ++i) x[i] = static_cast<std::uint8_t>(i);
  for (const std::uint8_t v : x)
    expected.push_back(static_cast<std::uint8_t>(code_of(static_cast<float>(v - 128) * 0.5f, 0.75f, 7, true)));
  Step step;
  step.dims = {static_cast<std::int64_t>(count)};
  step.input_types = {kU8};
  step.input_strides = {1};
  const auto bits = [](float number) {
    std::uint32_t result;
    std::memcpy(&result, &number, sizeof result);
    return static_cast<std::int64_t>(result);
  };
  step.constants = {kF32, bits(0.5f), kU8, 128, kF32, bits(0.75f), kI8, 7};
  step.program = {code(Opcode::kDequantizeU8), kF32, 0, 1, 2, code(Opcode::kQuantizeI8), kF32, 5, 3, 4};
  step.outputs = {6};
  GuardedBytes source(x), y(count, 1);
  run_step(target, step, {&source}, {count}, {&y}, {count}, 3, "chain");
  expect(y.values<std::uint8_t>() == expected, "chain");
}

}  // namespace

int main() {
  return run_cases({{"values", values}, {"midpoints", midpoints}, {"dequantizes", dequantizes}, {"chains", chains}});
}

// Softmax and LogSoftmax against the formula in double: rows, columns, rows shared by workers, rows as 8-bit integers,
// and NaN.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/softmax.hpp"
#include "kernels_elementwise_common.hpp"

using namespace engine;
using namespace engine::test;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> reference_softmax(const std::vector<float>& x, const SoftmaxArgs& args) {
  std::vector<float> y(x.size());
  for (std::int64_t o = 0; o < args.outer; ++o)
    for (std::int64_t i = 0; i < args.inner; ++i) {
      const auto at = [&](std::int64_t k) { return (o * args.axis + k) * args.inner + i; };
      double top = -kInf, sum = 0;
      for (std::int64_t k = 0; k < args.axis; ++k) top = std::max<double>(top, x[at(k)]);
      for (std::int64_t k = 0; k < args.axis; ++k) sum += std::exp(x[at(k)] - top);
      for (std::int64_t k = 0; k < args.axis; ++k)
        y[at(k)] = static_cast<float>(args.is_log ? x[at(k)] - top - std::log(sum) : std::exp(x[at(k)] - top) / sum);
    }
  return y;
}

void check(const Target& target, SoftmaxArgs args, const std::vector<float>& x, bool is_shared = false) {
  args.chunks = (args.axis + kSoftmaxChunk - 1) / kSoftmaxChunk;
  for (const bool is_log : {false, true})
    for (const int workers : {1, 3}) {
      args.is_log = is_log;
      const auto expected = reference_softmax(x, args);
      const std::string what = std::string(is_log ? "log " : "") + std::to_string(args.outer) + "x" +
                               std::to_string(args.axis) + "x" + std::to_string(args.inner);
      for (const bool in_place : {false, true}) {
        Guarded source(x), result(x.size(), kNan), sums(args.outer * 2 * args.chunks, kNan);
        float* y = in_place ? source.data() : result.data();
        const std::vector<void*> buffers = {source.data(), y, sums.data()};
        if (is_shared) {
          run(target.find("softmax_sum_f32"), &args, buffers, workers, 0);
          run(target.find("softmax_apply_f32"), &args, buffers, workers, 0);
        } else {
          run(target.find("softmax_f32"), &args, buffers, workers, 0);
        }
        expect(source.intact() && result.intact() && sums.intact(), what + ": overrun");
        // Positive terms cannot cancel: a few roundings for each term, plus the roundings of partial sums.
        expect_close(expected, (in_place ? source : result).values(), sum_tolerance(args.axis / 16), what);
      }
    }
}

std::vector<float> scaled(std::size_t count, std::uint32_t seed, float factor) {
  auto values = random_floats(count, seed);
  for (float& value : values) value *= factor;
  return values;
}

void rows(const Target& target) {
  for (std::int64_t axis = 0; axis <= 70; ++axis) check(target, {3, axis, 1, 0, false}, scaled(3 * axis, 1, 30.0f));
  check(target, {2, 1000, 1, 0, false}, scaled(2000, 2, 100.0f));
  check(target, {0, 5, 1, 0, false}, {});
}

void columns(const Target& target) {
  for (const std::int64_t axis : {0, 1, 2, 7, 21})
    for (const std::int64_t inner : {0, 2, 3, 4, 5, 8, 15, 16, 17, 31, 33, 63, 64, 65, 129})
      check(target, {2, axis, inner, 0, false}, scaled(2 * axis * inner, 3, 20.0f));
}

void shared_rows(const Target& target) {
  for (const std::int64_t axis : {kSoftmaxChunk - 1, kSoftmaxChunk, kSoftmaxChunk + 1, 3 * kSoftmaxChunk + 17}) {
    auto x = scaled(2 * axis, 4, 10.0f);
    check(target, {2, axis, 1, 0, false}, x, true);
    std::fill_n(x.begin(), std::min(axis - 1, kSoftmaxChunk), -kInf);  // a chunk of only -inf
    check(target, {2, axis, 1, 0, false}, x, true);
    for (const float value : {kNan, kInf}) {
      x[axis / 2] = value;
      check(target, {2, axis, 1, 0, false}, x, true);
    }
    check(target, {2, axis, 1, 0, false}, std::vector<float>(2 * axis, -kInf), true);
  }
}

void not_finite(const Target& target) {
  for (const std::int64_t inner : {1, 5})
    for (const float value : {kNan, kInf, -kInf, 3e38f, -3e38f})
      for (const std::int64_t at : {0, 13, 18}) {
        auto x = random_floats(3 * 19 * inner, 5);
        x[19 * inner + at * inner] = value;
        check(target, {3, 19, inner, 0, false}, x);
        check(target, {3, 19, inner, 0, false}, std::vector<float>(x.size(), value));
      }
}

// A number whose exponential overflows is found wherever it is.
void one_large(const Target& target) {
  for (const std::int64_t axis : {19, 83, 150})
    for (std::int64_t at = 0; at < axis; ++at) {
      auto x = random_floats(axis, 6);
      x[at] = 1e4f;
      check(target, {1, axis, 1, 0, false}, x);
    }
}

// Rows as codes: each within half a unit of the exact share, but for rounding errors.
template <class X>
void check_codes(const Target& target, const SoftmaxBytesArgs& args, const std::vector<X>& x) {
  const std::size_t count = x.size();
  std::vector<float> real(count);
  const float factor = args.x == ElementCode::kF32 ? 1.0f : args.x_scale;
  for (std::int64_t row = 0; row < args.outer; ++row) {
    const auto begin = x.begin() + row * args.axis;
    const X top = args.axis == 0 ? X(0) : *std::max_element(begin, begin + args.axis);
    for (std::int64_t k = 0; k < args.axis; ++k)
      real[row * args.axis + k] = (static_cast<float>(begin[k]) - static_cast<float>(top)) * factor;
  }
  const auto shares = reference_softmax(real, {args.outer, args.axis, 1, 0, false});
  const bool is_signed = args.y == ElementCode::kI8;
  const double low = is_signed ? -128 : 0, high = is_signed ? 127 : 255;
  for (const int workers : {1, 3}) {
    GuardedBytes source(x), y(count, 1);
    run(target.find("softmax_bytes"), &args, {source.data(), y.data()}, workers,
        static_cast<std::size_t>(args.axis) * sizeof(float));
    const std::string what = "codes of " + std::to_string(args.outer) + "x" + std::to_string(args.axis);
    expect(source.intact() && y.intact(), what + ": overrun");
    const auto codes = y.values<std::uint8_t>();
    for (std::size_t i = 0; i < count; ++i) {
      const int code = is_signed ? static_cast<std::int8_t>(codes[i]) : codes[i];
      const double exact = shares[i] / static_cast<double>(args.y_scale) + args.y_zero_point;
      if (!expect(std::abs(code - std::min(std::max(exact, low), high)) < 0.5 + 1e-3,
                  what + ": " + std::to_string(code) + " for " + std::to_string(exact)))
        return;
    }
  }
}

void codes(const Target& target) {
  for (std::int64_t axis = 0; axis <= 140; ++axis) {
    const auto values = scaled(static_cast<std::size_t>(3 * axis), 7, 4.0f);
    std::vector<std::uint8_t> bytes;
    std::vector<std::int8_t> signed_bytes;
    for (const float value : values) {
      bytes.push_back(static_cast<std::uint8_t>(128 + value * 30));
      signed_bytes.push_back(static_cast<std::int8_t>(value * 30));
    }
    for (const float scale : {0.03f, 1.0f, 1.3e36f}) {
      check_codes(target, {3, axis, ElementCode::kU8, ElementCode::kU8, scale, 1 / 255.0f, 0}, bytes);
      check_codes(target, {3, axis, ElementCode::kI8, ElementCode::kI8, scale, 1 / 255.0f, -128}, signed_bytes);
    }
    check_codes(target, {3, axis, ElementCode::kF32, ElementCode::kU8, 1.0f, 0.01f, 3}, values);
    check_codes(target, {3, axis, ElementCode::kF32, ElementCode::kI8, 1.0f, 1e-33f, 5}, values);
  }
}

// The code of NaN is the zero point.
void codes_of_nan(const Target& target) {
  for (const float value : {kNan, kInf, -kInf}) {
    std::vector<float> x(2 * 37, value == -kInf ? -kInf : 1.0f);
    x[40] = value;
    const SoftmaxBytesArgs args = {2, 37, ElementCode::kF32, ElementCode::kU8, 1.0f, 1 / 255.0f, 9};
    GuardedBytes source(x), y(x.size(), 1);
    run(target.find("softmax_bytes"), &args, {source.data(), y.data()}, 1, 37 * sizeof(float));
    const auto result = y.values<std::uint8_t>();
    expect(std::all_of(result.begin() + 37, result.end(), [](std::uint8_t code) { return code == 9; }), "NaN");
  }
}

}  // namespace

int main() {
  return run_cases({{"rows", rows},
                    {"columns", columns},
                    {"shared rows", shared_rows},
                    {"not finite", not_finite},
                    {"one large", one_large},
                    {"codes", codes},
                    {"codes of NaN", codes_of_nan}});
}

// Softmax and LogSoftmax against the formula in double: rows, columns, rows shared by workers, and NaN.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/softmax.hpp"
#include "kernels_common.hpp"

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
        // Positive terms cannot cancel: a few roundings for each term, plus those of partial sums.
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

}  // namespace

int main() {
  return run_cases({{"rows", rows}, {"columns", columns}, {"shared rows", shared_rows}, {"not finite", not_finite}});
}

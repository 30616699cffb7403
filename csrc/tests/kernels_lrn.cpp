// Local response normalization against the formula in double, in both layouts: windows, powers, NaN.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/lrn.hpp"
#include "kernels_common.hpp"
#include "kernels_reference_common.hpp"

using namespace engine;
using namespace engine::test;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Lrn {
  std::int64_t batch, channels, pixels, size;
  float alpha, beta, bias;
};

std::vector<float> reference_lrn(const Lrn& l, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  for (std::int64_t n = 0; n < l.batch; ++n)
    for (std::int64_t c = 0; c < l.channels; ++c)
      for (std::int64_t p = 0; p < l.pixels; ++p) {
        const auto at = [&](std::int64_t k) { return (n * l.channels + k) * l.pixels + p; };
        double squares = 0;
        for (std::int64_t k = std::max<std::int64_t>(0, c - (l.size - 1) / 2);
             k <= std::min(l.channels - 1, c + l.size / 2); ++k)
          squares += double{x[at(k)]} * x[at(k)];
        y[at(c)] = static_cast<float>(x[at(c)] / std::pow(l.bias + l.alpha / l.size * squares, double{l.beta}));
      }
  return y;
}

void check(const Target& target, const Lrn& l, const std::vector<float>& x) {
  LrnArgs args = {};
  args.batch = l.batch;
  args.channels = l.channels;
  args.pixels = l.pixels;
  args.before = std::min((l.size - 1) / 2, l.channels);
  args.after = std::min(l.size / 2, l.channels);
  args.lead = (args.before + 15) / 16 * 16;
  args.row = args.lead + (l.channels + 15) / 16 * 16 + (args.after + 15) / 16 * 16;
  args.alpha = l.alpha / static_cast<float>(l.size);
  args.beta = l.beta;
  args.bias = l.bias;
  args.power = l.beta == 0.5f    ? LrnPower::kHalf
               : l.beta == 0.75f ? LrnPower::kThreeQuarters
               : l.beta == 1.0f  ? LrnPower::kOne
                                 : LrnPower::kGeneral;
  const auto expected = reference_lrn(l, x);
  for (const bool is_blocked : {false, true}) {
    const auto laid_out = is_blocked ? reference::to_blocked(x, l.batch, l.channels, l.pixels, kNan) : x;
    Guarded source(laid_out), result(laid_out.size(), kNan);
    run(target.find(is_blocked ? "lrn_blocked_f32" : "lrn_plain_f32"), &args, {source.data(), result.data()}, 3,
        x.empty() ? 0 : kLrnTile * args.row * sizeof(float));
    const std::string what = std::string(is_blocked ? "blocked " : "plain ") + std::to_string(l.batch) + "x" +
                             std::to_string(l.channels) + "x" + std::to_string(l.pixels) + " size " +
                             std::to_string(l.size) + " beta " + std::to_string(l.beta);
    expect(source.intact() && result.intact(), what + ": overrun");
    const auto actual =
        is_blocked ? reference::from_blocked(result.values(), l.batch, l.channels, l.pixels) : result.values();
    // Squares cannot cancel; a power magnifies the relative error of its base by |beta|.
    expect_close(expected, actual, (1 + std::fabs(l.beta)) * sum_tolerance(l.size), what);
  }
}

void windows(const Target& target) {
  for (const std::int64_t channels : {1, 2, 15, 16, 17, 33, 64})
    for (const std::int64_t size : {1, 2, 3, 4, 5, 6, 31, 200})
      for (const std::int64_t pixels : {1, 7, 8, 9, 16, 17, 65, 131})
        check(target, {2, channels, pixels, size, 3.0f, 0.75f, 2.0f}, random_floats(2 * channels * pixels, 1));
  check(target, {0, 16, 4, 5, 1.0f, 0.75f, 1.0f}, {});
  check(target, {1, 16, 0, 5, 1.0f, 0.75f, 1.0f}, {});
}

void powers(const Target& target) {
  for (const float beta : {0.0f, 0.3f, 0.5f, 0.75f, 1.0f, 2.5f, -1.0f})
    check(target, {1, 21, 19, 5, 1e-1f, beta, 1.0f}, random_floats(21 * 19, 2));
}

void not_finite(const Target& target) {
  for (const float value : {kNan, kInf, -kInf})
    for (const float beta : {0.75f, 0.6f}) {
      auto x = random_floats(20 * 11, 5);
      x[7 * 11 + 3] = value;
      check(target, {1, 20, 11, 5, 1.0f, beta, 1.0f}, x);
    }
}

}  // namespace

int main() {
  return run_cases({{"windows", windows}, {"powers", powers}, {"not finite", not_finite}});
}

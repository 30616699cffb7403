// Normalization over channels against the formula in double, in both layouts.
#include <cmath>
#include <limits>

#include "kernels/channel_norm.hpp"
#include "kernels_common.hpp"
#include "kernels_reference_common.hpp"

using namespace engine;
using namespace engine::test;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> reference_norm(const ChannelNormArgs& args, const std::vector<float>& x,
                                  const std::vector<float>& scale, const std::vector<float>& bias) {
  std::vector<float> y(x.size());
  for (std::int64_t n = 0; n < args.batch; ++n)
    for (std::int64_t p = 0; p < args.pixels; ++p) {
      const auto at = [&](std::int64_t c) { return (n * args.channels + c) * args.pixels + p; };
      double mean = 0, squares = 0;
      for (std::int64_t c = 0; c < args.channels; ++c) mean += x[at(c)];
      mean /= args.channels;
      for (std::int64_t c = 0; c < args.channels; ++c) squares += (x[at(c)] - mean) * (x[at(c)] - mean);
      const double deviation = std::sqrt(squares / args.channels + args.epsilon) + args.deviation_epsilon;
      for (std::int64_t c = 0; c < args.channels; ++c)
        y[at(c)] = static_cast<float>((x[at(c)] - mean) / deviation * (args.has_scale ? scale[c] : 1) +
                                      (args.has_bias ? bias[c] : 0));
    }
  return y;
}

void check(const Target& target, const ChannelNormArgs& args, const std::vector<float>& x) {
  const auto scale = random_floats(args.channels, 2), bias = random_floats(args.channels, 3);
  const auto expected = reference_norm(args, x, scale, bias);
  for (const bool is_blocked : {false, true})
    for (const bool in_place : {false, true}) {
      const auto laid_out = is_blocked ? reference::to_blocked(x, args.batch, args.channels, args.pixels, kNan) : x;
      Guarded source(laid_out), result(laid_out.size(), kNan), gs(scale), gb(bias);
      Guarded& y = in_place ? source : result;
      std::vector<void*> buffers = {source.data()};
      if (args.has_scale) buffers.push_back(gs.data());
      if (args.has_bias) buffers.push_back(gb.data());
      buffers.push_back(y.data());
      run(target.find(is_blocked ? "channel_norm_blocked_f32" : "channel_norm_plain_f32"), &args, buffers, 3, 0);
      const std::string what = std::string(is_blocked ? "blocked " : "plain ") + std::to_string(args.batch) + "x" +
                               std::to_string(args.channels) + "x" + std::to_string(args.pixels);
      for (const Guarded* g : {&source, &result, &gs, &gb}) expect(g->intact(), what + ": overrun");
      const auto actual =
          is_blocked ? reference::from_blocked(y.values(), args.batch, args.channels, args.pixels) : y.values();
      expect_close(expected, actual, sum_tolerance(args.channels), what);
    }
}

void shapes(const Target& target) {
  for (const std::int64_t channels : {2, 3, 8, 15, 16, 17, 31, 33, 48, 96})
    for (const std::int64_t pixels : {0, 1, 2, 3, 5, 8, 16, 17, 49, 63, 64, 65, 131})
      for (const std::int64_t batch : {1, 2})
        check(target, {batch, channels, pixels, 1e-3f, 0.0f, true, true}, random_floats(batch * channels * pixels, 1));
  check(target, {0, 16, 9, 1e-3f, 0.0f, true, true}, {});
}

void operands(const Target& target) {
  for (const bool has_scale : {false, true})
    for (const bool has_bias : {false, true})
      check(target, {1, 21, 19, 0.0f, 0.5f, has_scale, has_bias}, random_floats(21 * 19, 4));
}

void not_finite(const Target& target) {
  for (const std::int64_t channels : {5, 16, 20})
    for (const float value : {kNan, kInf, -kInf}) {
      auto x = random_floats(channels * 11, 5);
      x[2 * 11 + 3] = value;
      check(target, {1, channels, 11, 1e-5f, 0.0f, true, true}, x);
    }
}

}  // namespace

int main() {
  return run_cases({{"shapes", shapes}, {"operands", operands}, {"not finite", not_finite}});
}

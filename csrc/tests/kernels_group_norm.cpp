// GroupNormalization against the formula in double: both layouts, groups that share blocks, one phase and three.
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/group_norm.hpp"
#include "kernels_common.hpp"
#include "kernels_reference_common.hpp"

using namespace engine;
using namespace engine::test;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Norm {
  std::int64_t batch, channels, groups, pixels;
  bool spans_batch = false;
  bool has_scale = true, has_bias = true;
  std::int64_t chunk = 0;  // if not 0, overrides the default
  float deviation_epsilon = 0.0f;
};

GroupNormArgs make_args(const Norm& c, bool is_blocked) {
  GroupNormArgs args = {};
  args.batch = c.batch;
  args.channels = c.channels;
  args.groups = c.groups;
  args.pixels = c.pixels;
  args.chunk = c.chunk ? c.chunk : is_blocked ? kGroupNormBlockedChunk : kGroupNormPlainChunk;
  args.chunks = (c.pixels + args.chunk - 1) / args.chunk;
  args.unit = is_blocked ? std::lcm<std::int64_t>(c.channels / c.groups, 16) : c.channels / c.groups;
  args.epsilon = 1e-3f;
  args.deviation_epsilon = c.deviation_epsilon;
  args.has_scale = c.has_scale;
  args.has_bias = c.has_bias;
  args.is_blocked = is_blocked;
  args.spans_batch = c.spans_batch;
  return args;
}

std::vector<float> reference_norm(const Norm& c, const std::vector<float>& x, const std::vector<float>& scale,
                                  const std::vector<float>& bias) {
  std::vector<float> y(x.size());
  const std::int64_t size = c.channels / c.groups, images = c.spans_batch ? c.batch : 1;
  for (std::int64_t n = 0; n < c.batch; n += images)
    for (std::int64_t g = 0; g < c.groups; ++g) {
      std::vector<std::int64_t> members;
      for (std::int64_t i = 0; i < images; ++i)
        for (std::int64_t k = 0; k < size * c.pixels; ++k)
          members.push_back(((n + i) * c.channels + g * size) * c.pixels + k);
      double mean = 0, squares = 0;
      for (const std::int64_t at : members) mean += x[at];
      mean /= static_cast<double>(members.size());
      for (const std::int64_t at : members) squares += (x[at] - mean) * (x[at] - mean);
      const double deviation = std::sqrt(squares / static_cast<double>(members.size()) + 1e-3) + c.deviation_epsilon;
      for (const std::int64_t at : members) {
        const std::int64_t channel = at / c.pixels % c.channels;
        y[at] = static_cast<float>((x[at] - mean) / deviation * (c.has_scale ? scale[channel] : 1) +
                                   (c.has_bias ? bias[channel] : 0));
      }
    }
  return y;
}

void check(const Target& target, const Norm& c, const std::vector<float>& x, double tolerance = 0) {
  const auto scale = random_floats(c.channels, 2), bias = random_floats(c.channels, 3);
  const auto expected = reference_norm(c, x, scale, bias);
  for (const bool is_blocked : {false, true})
    for (const bool in_phases : {false, true})
      for (const bool in_place : {false, true}) {
        if (c.spans_batch && !in_phases) continue;
        const GroupNormArgs args = make_args(c, is_blocked);
        const auto laid_out = is_blocked ? reference::to_blocked(x, c.batch, c.channels, c.pixels, kNan) : x;
        Guarded source(laid_out), result(laid_out.size(), kNan), gs(scale), gb(bias);
        Guarded moments(c.batch * group_norm_moments(args, c.channels), kNan);
        Guarded coefficients(c.batch * group_norm_coefficients(c.channels), kNan);
        Guarded& y = in_place ? source : result;
        std::vector<void*> buffers = {source.data()};
        if (c.has_scale) buffers.push_back(gs.data());
        if (c.has_bias) buffers.push_back(gb.data());
        buffers.push_back(y.data());
        buffers.push_back(moments.data());
        buffers.push_back(coefficients.data());
        if (in_phases) {
          for (const char* phase : {"group_norm_moments_f32", "group_norm_combine_f32", "group_norm_apply_f32"})
            run(target.find(phase), &args, buffers, 3, 0);
        } else {
          const std::int64_t scratch = group_norm_moments(args, args.unit) + group_norm_coefficients(args.unit);
          run(target.find("group_norm_f32"), &args, buffers, 3, scratch * sizeof(float));
        }
        const std::string what = std::string(is_blocked ? "blocked " : "plain ") + (in_phases ? "phases " : "") +
                                 std::to_string(c.batch) + "x" + std::to_string(c.channels) + "x" +
                                 std::to_string(c.pixels) + " in " + std::to_string(c.groups);
        for (const Guarded* g : {&source, &result, &gs, &gb, &moments, &coefficients})
          expect(g->intact(), what + ": overrun");
        const auto actual =
            is_blocked ? reference::from_blocked(y.values(), c.batch, c.channels, c.pixels) : y.values();
        expect_close(expected, actual, tolerance ? tolerance : sum_tolerance(c.pixels), what);
      }
}

void check(const Target& target, const Norm& c) {
  check(target, c, random_floats(c.batch * c.channels * c.pixels, 1));
}

void groups(const Target& target) {
  for (const std::int64_t channels : {1, 6, 16, 20, 32, 36, 60, 80})
    for (const std::int64_t groups : {1, 2, 3, 4, 5, 6, 16, 20, 32, 36, 60})
      if (channels % groups == 0)
        for (const std::int64_t pixels : {2, 5, 37}) check(target, {2, channels, groups, pixels});
}

void pixels(const Target& target) {
  for (const std::int64_t pixels : {1, 3, 4, 7, 15, 16, 17, 63, 64, 65, 255, 257, 600})
    check(target, {1, 12, 4, pixels});
  for (const std::int64_t pixels : {1, 7, 8, 9, 33}) {
    Norm c = {2, 18, 9, pixels};
    c.chunk = 8;
    check(target, c);
    c.spans_batch = true;
    check(target, c);
  }
  check(target, {1, 3, 3, 9001});
}

void operands(const Target& target) {
  for (const bool has_scale : {false, true})
    for (const bool has_bias : {false, true}) check(target, {2, 20, 5, 9, false, has_scale, has_bias, 0, 0.5f});
}

void large_mean(const Target& target) {
  auto x = random_floats(2 * 20 * 700, 10);
  for (float& value : x) value = std::round((value + 4096.0f) * 2048.0f) / 2048.0f;
  check(target, {2, 20, 5, 700}, x, 4096 * sum_tolerance(16));
}

void not_finite(const Target& target) {
  for (const float value : {kNan, kInf, -kInf}) {
    auto x = random_floats(20 * 13, 5);
    x[7 * 13 + 3] = value;
    check(target, {1, 20, 5, 13}, x);
  }
}

}  // namespace

int main() {
  return run_cases({{"groups", groups},
                    {"pixels", pixels},
                    {"operands", operands},
                    {"large mean", large_mean},
                    {"not finite", not_finite}});
}

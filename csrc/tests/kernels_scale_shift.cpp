// A scale and a shift for each channel against scalar loops, in both layouts, with every activation.
#include <limits>

#include "kernels/scale_shift.hpp"
#include "kernels_bf16_common.hpp"
#include "kernels_reference_common.hpp"

using namespace engine;
using namespace engine::test;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

void check_bf16(const Target& target, const ScaleShiftArgs& args, const std::vector<float>& x,
                const std::vector<float>& scale, const std::vector<float>& shift) {
  std::vector<float> expected = rounded(x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t channel = i / args.pixels % args.channels;
    expected[i] =
        static_cast<float>(reference::activate(args.epilogue, double{expected[i]} * scale[channel] + shift[channel]));
  }
  GuardedBf16 map(reference::to_blocked(x, args.batch, args.channels, args.pixels, kNan));
  Guarded gs(scale), gb(shift);
  run(target.find("scale_shift_blocked_bf16"), &args, {map.data(), gs.data(), gb.data(), map.data()}, 3, 0);
  expect(map.intact() && gs.intact() && gb.intact(), "bf16: overrun");
  expect_close(expected, reference::from_blocked(map.values(), args.batch, args.channels, args.pixels),
               bf16_tolerance(1, false), "bf16");
}

void check(const Target& target, const ScaleShiftArgs& args, const std::vector<float>& x) {
  const auto scale = random_floats(args.channels, 2), shift = random_floats(args.channels, 3);
  std::vector<float> expected(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t channel = i / args.pixels % args.channels;
    expected[i] =
        static_cast<float>(reference::activate(args.epilogue, double{x[i]} * scale[channel] + shift[channel]));
  }
  check_bf16(target, args, x, scale, shift);
  for (const bool is_blocked : {false, true})
    for (const bool in_place : {false, true}) {
      const auto laid_out = is_blocked ? reference::to_blocked(x, args.batch, args.channels, args.pixels, kNan) : x;
      Guarded source(laid_out), result(laid_out.size(), kNan), gs(scale), gb(shift);
      Guarded& y = in_place ? source : result;
      run(target.find(is_blocked ? "scale_shift_blocked_f32" : "scale_shift_plain_f32"), &args,
          {source.data(), gs.data(), gb.data(), y.data()}, 3, 0);
      const std::string what = std::string(is_blocked ? "blocked " : "plain ") + std::to_string(args.batch) + "x" +
                               std::to_string(args.channels) + "x" + std::to_string(args.pixels) + " activation " +
                               std::to_string(static_cast<int>(args.epilogue.activation));
      for (const Guarded* g : {&source, &result, &gs, &gb}) expect(g->intact(), what + ": overrun");
      const auto actual =
          is_blocked ? reference::from_blocked(y.values(), args.batch, args.channels, args.pixels) : y.values();
      expect_close(expected, actual, sum_tolerance(1), what);
    }
}

ScaleShiftArgs sized(std::int64_t batch, std::int64_t channels, std::int64_t pixels) {
  ScaleShiftArgs args = {};
  args.batch = batch;
  args.channels = channels;
  args.pixels = pixels;
  return args;
}

void shapes(const Target& target) {
  for (const std::int64_t channels : {1, 3, 15, 16, 17, 33, 64})
    for (const std::int64_t pixels : {0, 1, 2, 7, 8, 15, 16, 17, 49, 255, 257})
      for (const std::int64_t batch : {0, 1, 3})
        check(target, sized(batch, channels, pixels), random_floats(batch * channels * pixels, 1));
  check(target, sized(1, 2, kScaleShiftRun + 3), random_floats(2 * (kScaleShiftRun + 3), 4));
}

void activations(const Target& target) {
  for (int i = 0; i < static_cast<int>(Activation::kCount); ++i) {
    ScaleShiftArgs args = sized(2, 19, 21);
    args.epilogue.activation = static_cast<Activation>(i);
    args.epilogue.alpha = i == 0 ? 0.0f : 0.3f;
    args.epilogue.beta = 0.6f;
    check(target, args, random_floats(2 * 19 * 21, 5));
  }
}

void not_finite(const Target& target) {
  for (const float value : {kNan, kInf, -kInf}) {
    ScaleShiftArgs args = sized(1, 20, 9);
    auto x = random_floats(180, 6);
    x[100] = value;
    check(target, args, x);
    args.epilogue.alpha = 0.0f;
    check(target, args, x);
  }
}

}  // namespace

int main() {
  return run_cases({{"shapes", shapes}, {"activations", activations}, {"not finite", not_finite}});
}

// Winograd convolution, fused and in phases, with f32 and bf16 maps, against a scalar direct convolution.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference.hpp"
#include "kernels/winograd.hpp"
#include "kernels_bf16_common.hpp"

using namespace engine;
using namespace engine::test;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// What differs from random values: `value` in a place of the input, or in all of the first `rows` rows of its maps.
struct Outlier {
  float value = 0.0f;
  std::int64_t place = -1, rows = 0;
};

ConvShape shape(std::int64_t batch, std::int64_t in_c, std::int64_t out_c, std::int64_t h, std::int64_t w,
                std::int64_t pad) {
  ConvShape s;
  s.batch = batch;
  s.in_channels = in_c;
  s.out_channels = out_c;
  s.in_h = h;
  s.in_w = w;
  s.kernel_h = s.kernel_w = 3;
  s.pad_top = s.pad_left = pad;
  s.out_h = h + 2 * pad - 2;
  s.out_w = w + 2 * pad - 2;
  return s;
}

// For each output, the largest finite product in its window, at least 1: what its error is relative to.
std::vector<float> reaches(const ConvShape& s, const std::vector<float>& x, float weights) {
  const std::int64_t ins = s.in_channels / s.groups, outs = s.out_channels / s.groups;
  std::vector<float> found;
  for (std::int64_t n = 0; n < s.batch; ++n)
    for (std::int64_t out = 0; out < s.out_channels; ++out)
      for (std::int64_t h = 0; h < s.out_h; ++h)
        for (std::int64_t w = 0; w < s.out_w; ++w) {
          float most = 1.0f;
          for (std::int64_t i = 0; i < ins * 9; ++i) {
            const std::int64_t c = n * s.in_channels + out / outs * ins + i / 9;
            const std::int64_t row = h + i % 9 / 3 - s.pad_top, col = w + i % 3 - s.pad_left;
            if (row < 0 || col < 0 || row >= s.in_h || col >= s.in_w) continue;
            const float product = std::fabs(x[(c * s.in_h + row) * s.in_w + col]) * weights;
            if (product <= std::numeric_limits<float>::max()) most = std::max(most, product);
          }
          found.push_back(most);
        }
  return found;
}

std::vector<float> divided(std::vector<float> values, const std::vector<float>& by) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] /= by[i];
  return values;
}

template <bool kIsBf16>
void check(const Target& target, const ConvShape& s, const ConvOperands& operands, const EpilogueArgs& epilogue,
           int output_tile, int vectors = 0, int block = 0, int workers = 3, std::int64_t merge = 1,
           const std::vector<Outlier>& outliers = {}, float weights = 1.0f) {
  const std::string what = "F" + std::to_string(output_tile) + " n" + std::to_string(s.batch) + " c" +
                           std::to_string(s.in_channels) + "->" + std::to_string(s.out_channels) + " in" +
                           std::to_string(s.in_h) + "x" + std::to_string(s.in_w) + " v" + std::to_string(vectors) +
                           " g" + std::to_string(s.groups) + "/" + std::to_string(merge);
  const std::int64_t in_hw = s.in_h * s.in_w, out_hw = s.out_h * s.out_w;
  auto x = random_floats(s.batch * s.in_channels * in_hw, 1);
  for (const Outlier& each : outliers) {
    if (each.place >= 0) x[each.place] = each.value;
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(x.size()); ++i)
      if (i % in_hw < each.rows * s.in_w) x[i] = each.value;
  }
  auto w = random_floats(s.out_channels * (s.in_channels / s.groups) * 9, 2);
  for (float& each : w) each *= weights;
  auto bias = random_floats(s.out_channels, 3), scale = random_floats(s.out_channels, 4);
  auto residual = random_floats(s.batch * s.out_channels * out_hw, 5);
  if (kIsBf16) {
    x = rounded(x);
    residual = rounded(residual);
  }
  std::vector<float> expected(s.batch * s.out_channels * out_hw);
  reference::conv(s, epilogue, x.data(), w.data(), operands.has_scale ? scale.data() : nullptr,
                  operands.has_bias ? bias.data() : nullptr, operands.has_residual ? residual.data() : nullptr,
                  expected.data());

  const std::string type = kIsBf16 ? "bf16" : "f32";
  const KernelEntry& fused = target.find("winograd_fused_" + type);
  WinogradArgs args = make_winograd_args(s, operands, epilogue, output_tile, vectors, block, merge,
                                         *static_cast<const TileTraits*>(fused.traits));
  Guarded source(w), u(winograd_weight_floats(args), kNan);
  run(target.find("winograd_weights_f32"), &args, {source.data(), u.data()}, 2, 0);
  GuardedEither input(reference::to_blocked(x, s.batch, s.in_channels, in_hw, kNan), !kIsBf16);
  GuardedEither added(reference::to_blocked(residual, s.batch, s.out_channels, out_hw, kNan), !kIsBf16);
  const std::size_t padded = (s.out_channels + 15) / 16 * 16;
  bias.resize(padded, kNan);
  scale.resize(padded, kNan);
  Guarded bias_buffer(bias), scale_buffer(scale), v(winograd_input_floats(args), kNan);
  Guarded m(winograd_product_floats(args), kNan);
  std::vector<float> reach(expected.size(), 1.0f);
  if (!outliers.empty()) reach = reaches(s, x, weights);
  std::vector<std::vector<float>> found;
  for (const char* way : {" fused by tiles", " fused by channels", " phases", " directly"}) {
    if (args.groups > 1 && way == std::string(" fused by channels")) continue;
    if (way == std::string(" directly")) args.range = 0.0f;
    const bool in_phases = way == std::string(" phases");
    args.by_channels = way == std::string(" fused by channels");
    GuardedEither output(std::vector<float>(s.batch * padded * out_hw, kNan), !kIsBf16);
    std::vector<void*> buffers{input.data(), u.data()};
    if (operands.has_bias) buffers.push_back(bias_buffer.data());
    if (operands.has_scale) buffers.push_back(scale_buffer.data());
    if (operands.has_residual) buffers.push_back(added.data());
    for (void* last : {output.data(), static_cast<void*>(v.data()), static_cast<void*>(m.data())})
      buffers.push_back(last);
    if (in_phases) {
      run(target.find("winograd_input_" + type), &args, buffers, workers, 0);
      run(target.find("winograd_gemm_f32"), &args, buffers, workers, 0);
    }
    run(in_phases ? target.find("winograd_output_" + type) : fused, &args, buffers, workers,
        in_phases ? 0 : winograd_scratch_bytes(args));
    expect(output.intact() && u.intact() && v.intact() && m.intact(), what + ": overrun");
    found.push_back(reference::from_blocked(output.values(), s.batch, s.out_channels, out_hw));
    // The transforms amplify rounding: for F(4, 3) by about ten.
    const int amplification = args.range == 0.0f ? 1 : output_tile == 4 ? 10 : 2;
    expect_close(divided(expected, reach), divided(found.back(), reach),
                 amplification * sum_tolerance(s.in_channels * 9) + (kIsBf16 ? 1.0 / 256 : 0.0), what + way);
  }
  // Another order of the sums, so other roundings: usual values are not computed directly.
  if (!kIsBf16 && outliers.empty() && weights == 1.0f && s.in_channels >= 16 && s.batch > 0)
    expect(found.front() != found.back(), what + ": computed directly");
}

template <bool kIsBf16>
void sizes(const Target& target) {
  for (const int tile : {2, 4})
    for (const int pad : {0, 1, 2})
      for (std::int64_t h : {3, 4, 7, 9})
        for (std::int64_t w : {3, 5, 6, 14, 19}) check<kIsBf16>(target, shape(1, 16, 16, h, w, pad), {}, {}, tile);
}

template <bool kIsBf16>
void channels(const Target& target) {
  for (const int tile : {2, 4})
    for (const std::int64_t in_c : {1, 5, 16, 33})
      for (const std::int64_t out_c : {1, 7, 16, 20, 40, 49, 80})
        for (int vectors = 1; vectors <= target.traits<TileTraits>("winograd_fused_f32").max_vectors; ++vectors)
          check<kIsBf16>(target, shape(1, in_c, out_c, 9, 9, 1), {true, false, false}, {}, tile, vectors);
}

// Groups that are whole blocks, and several groups as one, also a last one that is incomplete.
template <bool kIsBf16>
void groups(const Target& target) {
  struct Grouping {
    std::int64_t groups, ins, outs, merge;
  };
  for (const Grouping& g : {Grouping{3, 16, 32, 1},
                            {5, 24, 24, 2},
                            {4, 24, 24, 4},
                            {7, 8, 16, 2},
                            {10, 4, 4, 4},
                            {3, 24, 8, 2},
                            {2, 5, 7, 2},
                            {4, 48, 16, 1}})
    for (const int tile : {2, 4})
      for (const int workers : {1, 3, 20})
        for (const int block : {0, 5}) {
          ConvShape s = shape(2, g.groups * g.ins, g.groups * g.outs, 10, 13, 1);
          s.groups = g.groups;
          check<kIsBf16>(target, s, {true, workers == 3, block == 5}, {}, tile, block == 5 ? 1 : 0, block, workers,
                         g.merge);
        }
}

template <bool kIsBf16>
void batches_workers_blocks(const Target& target) {
  for (const int tile : {2, 4})
    for (const int workers : {1, 2, 5, 40})
      for (const int block : {1, 7, 200})
        check<kIsBf16>(target, shape(3, 18, 36, 10, 13, 1), {true, true, true}, {}, tile, 0, block, workers);
}

template <bool kIsBf16>
void epilogues(const Target& target) {
  for (int i = 0; i < static_cast<int>(Activation::kCount); ++i)
    for (const bool after : {false, true})
      check<kIsBf16>(target, shape(1, 16, 20, 7, 7, 1), {true, true, true},
                     {static_cast<Activation>(i), 0.3f, 0.6f, after}, 4);
}

// A value that is large, or not finite, changes what sees it, and nothing else; nor does the border of zeros.
template <bool kIsBf16>
void outliers(const Target& target) {
  struct Grouping {
    std::int64_t groups, ins, outs, merge;
  };
  for (const Grouping& g : {Grouping{1, 33, 20, 1}, {2, 16, 16, 1}, {10, 4, 4, 4}, {3, 24, 8, 2}, {2, 5, 7, 2}})
    for (const int tile : {2, 4}) {
      ConvShape s = shape(2, g.groups * g.ins, g.groups * g.outs, 10, 13, 1);
      s.groups = g.groups;
      const std::int64_t image = s.in_channels * s.in_h * s.in_w, pixel = 6 * s.in_w + 6;
      const auto run_with = [&](const std::vector<Outlier>& outliers) {
        check<kIsBf16>(target, s, {true, false, true}, {}, tile, 0, 5, 3, g.merge, outliers);
      };
      for (const float value : {1e4f, 1e6f, -1e30f, 1e38f, kInf, kNan}) {
        run_with({{value, pixel}});
        run_with({{value, image + (g.ins - 1) * s.in_h * s.in_w + pixel + 1}, {value, 2 * image - 1}});
      }
      run_with({{0.0f, -1, 5}});
      run_with({{0.0f, -1, 5}, {1e5f, pixel}});
      run_with({{1e6f, -1, 4}});
    }
}

// Weights and inputs of which transforms overflow, or lose bits of denormal numbers.
template <bool kIsBf16>
void magnitudes(const Target& target) {
  for (const int tile : {2, 4})
    for (const float weights : {1e-41f, 1e-37f, 1e-30f, 1e30f, 2e38f}) {
      const float input = weights > 1 ? 1e-30f : weights < 1e-36f ? 1e36f : 1e30f;
      check<kIsBf16>(target, shape(1, 16, 16, 7, 7, 1), {true, false, false}, {}, tile, 0, 0, 3, 1, {{input, -1, 7}},
                     weights);
    }
}

template <bool kIsBf16>
void empty(const Target& target) {
  for (const int tile : {2, 4}) check<kIsBf16>(target, shape(0, 16, 16, 7, 7, 1), {true, false, false}, {}, tile);
}

template <bool kIsBf16>
std::vector<Case> cases() {
  return {{"sizes", sizes<kIsBf16>},           {"channels", channels<kIsBf16>},
          {"groups", groups<kIsBf16>},         {"batches, workers, blocks", batches_workers_blocks<kIsBf16>},
          {"epilogues", epilogues<kIsBf16>},   {"outliers", outliers<kIsBf16>},
          {"magnitudes", magnitudes<kIsBf16>}, {"empty", empty<kIsBf16>}};
}

}  // namespace

int main() {
  return run_cases(cases<false>()) + run_cases(cases<true>());
}

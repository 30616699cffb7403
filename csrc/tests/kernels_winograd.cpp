// Winograd convolution, fused and in phases, with f32 and bf16 maps, against a scalar direct convolution.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/winograd.hpp"
#include "kernels_bf16_common.hpp"
#include "kernels_reference_common.hpp"

using namespace engine;
using namespace engine::test;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// The difference from random values: `value` in one place of the input, or in all of the first `rows` rows of its maps.
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

ConvShape dilated(ConvShape s, std::int64_t h, std::int64_t w) {
  s.dilation_h = h;
  s.dilation_w = w;
  s.pad_top *= h;
  s.pad_left *= w;
  s.out_h = s.in_h + 2 * s.pad_top - 2 * h;
  s.out_w = s.in_w + 2 * s.pad_left - 2 * w;
  return s;
}

// For each output, the largest finite product in its window, at least 1; the error is relative to it.
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
            const std::int64_t row = h + i % 9 / 3 * s.dilation_h - s.pad_top;
            const std::int64_t col = w + i % 3 * s.dilation_w - s.pad_left;
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

std::string describe(const ConvShape& s, int output_tile, int vectors, std::int64_t merge) {
  return "F" + std::to_string(output_tile) + " n" + std::to_string(s.batch) + " c" + std::to_string(s.in_channels) +
         "->" + std::to_string(s.out_channels) + " in" + std::to_string(s.in_h) + "x" + std::to_string(s.in_w) + " d" +
         std::to_string(s.dilation_h) + "x" + std::to_string(s.dilation_w) + " v" + std::to_string(vectors) + " g" +
         std::to_string(s.groups) + "/" + std::to_string(merge);
}

struct Inputs {
  std::vector<float> x, w, bias, scale, residual;
};

// The results of all ways to compute a convolution; the last one sums directly where values are not zero.
struct Result {
  std::string way;
  std::vector<float> values;
};

template <bool kIsBf16>
std::vector<Result> all_ways(const Target& target, const ConvShape& s, const ConvOperands& operands,
                             const EpilogueArgs& epilogue, Inputs in, int output_tile, int vectors, int block,
                             int workers, std::int64_t merge) {
  const std::string what = describe(s, output_tile, vectors, merge);
  const std::int64_t in_hw = s.in_h * s.in_w, out_hw = s.out_h * s.out_w;
  const std::string type = kIsBf16 ? "bf16" : "f32";
  const KernelEntry& fused = target.find("winograd_fused_" + type);
  WinogradArgs args = make_winograd_args(s, operands, epilogue, output_tile, vectors, block, merge,
                                         *static_cast<const TileTraits*>(fused.traits));
  Guarded source(in.w), u(winograd_weight_floats(args), kNan);
  run(target.find("winograd_weights_f32"), &args, {source.data(), u.data()}, 2, 0);
  GuardedEither input(reference::to_blocked(in.x, s.batch, s.in_channels, in_hw, kNan), !kIsBf16);
  GuardedEither added(reference::to_blocked(in.residual, s.batch, s.out_channels, out_hw, kNan), !kIsBf16);
  const std::size_t padded = (s.out_channels + 15) / 16 * 16;
  in.bias.resize(padded, kNan);
  in.scale.resize(padded, kNan);
  Guarded bias_buffer(in.bias), scale_buffer(in.scale), v(winograd_input_floats(args), kNan);
  Guarded m(winograd_product_floats(args), kNan);
  std::vector<Result> found;
  for (const char* way : {" fused by tiles", " fused by channels", " phases", " phases directly", " directly"}) {
    if (args.groups > 1 && way == std::string(" fused by channels")) continue;
    if (std::string(way).find("directly") != std::string::npos) args.range = 0.0f;
    args.in_phases = std::string(way).find("phases") != std::string::npos;
    args.by_channels = way == std::string(" fused by channels");
    GuardedEither output(std::vector<float>(s.batch * padded * out_hw, kNan), !kIsBf16);
    std::vector<void*> buffers{input.data(), u.data()};
    if (operands.has_bias) buffers.push_back(bias_buffer.data());
    if (operands.has_scale) buffers.push_back(scale_buffer.data());
    if (operands.has_residual) buffers.push_back(added.data());
    for (void* last : {output.data(), static_cast<void*>(v.data()), static_cast<void*>(m.data())})
      buffers.push_back(last);
    if (args.in_phases)
      for (const std::string& kernel :
           {"winograd_judge_" + type, "winograd_input_" + type, std::string("winograd_gemm_f32")})
        run(target.find(kernel), &args, buffers, workers, winograd_scratch_bytes(args));
    run(args.in_phases ? target.find("winograd_output_" + type) : fused, &args, buffers, workers,
        winograd_scratch_bytes(args));
    expect(output.intact() && u.intact() && v.intact() && m.intact(), what + way + ": overrun");
    found.push_back({way, reference::from_blocked(output.values(), s.batch, s.out_channels, out_hw)});
  }
  return found;
}

// The transforms amplify rounding: for F(4, 3) by about ten.
double tolerance_of(const ConvShape& s, int output_tile, const Result& result) {
  const bool is_direct = result.way.find("directly") != std::string::npos;
  return (is_direct ? 1 : output_tile == 4 ? 10 : 2) * sum_tolerance(s.in_channels * 9);
}

template <bool kIsBf16>
void check(const Target& target, const ConvShape& s, const ConvOperands& operands, const EpilogueArgs& epilogue,
           int output_tile, int vectors = 0, int block = 0, int workers = 3, std::int64_t merge = 1,
           const std::vector<Outlier>& outliers = {}, float weights = 1.0f) {
  const std::string what = describe(s, output_tile, vectors, merge);
  const std::int64_t in_hw = s.in_h * s.in_w, out_hw = s.out_h * s.out_w;
  Inputs in;
  in.x = random_floats(s.batch * s.in_channels * in_hw, 1);
  for (const Outlier& each : outliers) {
    if (each.place >= 0) in.x[each.place] = each.value;
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(in.x.size()); ++i)
      if (i % in_hw < each.rows * s.in_w) in.x[i] = each.value;
  }
  in.w = random_floats(s.out_channels * (s.in_channels / s.groups) * 9, 2);
  for (float& each : in.w) each *= weights;
  in.bias = random_floats(s.out_channels, 3);
  in.scale = random_floats(s.out_channels, 4);
  in.residual = random_floats(s.batch * s.out_channels * out_hw, 5);
  if (kIsBf16) {
    in.x = rounded(in.x);
    in.residual = rounded(in.residual);
  }
  std::vector<float> expected(s.batch * s.out_channels * out_hw);
  reference::conv(s, epilogue, in.x.data(), in.w.data(), operands.has_scale ? in.scale.data() : nullptr,
                  operands.has_bias ? in.bias.data() : nullptr, operands.has_residual ? in.residual.data() : nullptr,
                  expected.data());
  std::vector<float> reach(expected.size(), 1.0f);
  if (!outliers.empty()) reach = reaches(s, in.x, weights);
  const auto found = all_ways<kIsBf16>(target, s, operands, epilogue, in, output_tile, vectors, block, workers, merge);
  for (const Result& result : found)
    expect_close(divided(expected, reach), divided(result.values, reach),
                 tolerance_of(s, output_tile, result) + (kIsBf16 ? 1.0 / 256 : 0.0), what + result.way);
  // Another order of the sums, so other roundings: usual values are not computed directly.
  if (!kIsBf16 && outliers.empty() && weights == 1.0f && s.in_channels >= 16 && s.batch > 0)
    expect(found.front().values != found.back().values, what + ": computed directly");
}

// The largest magnitudes in all input channels of a group: [image][group][h][w].
std::vector<float> largest_of_groups(const ConvShape& s, const std::vector<float>& x) {
  const std::int64_t pixels = s.in_h * s.in_w, ins = s.in_channels / s.groups;
  std::vector<float> found(s.batch * s.groups * pixels, 0.0f);
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(x.size()); ++i) {
    float& most = found[i / pixels / ins * pixels + i % pixels];
    most = std::max(most, std::fabs(x[i]));
  }
  return found;
}

// The largest of `size` x `size` pixels, as far apart as the dilation, from h, w on, in coordinates of outputs.
float largest_within(const ConvShape& s, const float* map, std::int64_t h, std::int64_t w, std::int64_t size) {
  float most = 0.0f;
  for (std::int64_t i = 0; i < size * size; ++i) {
    const std::int64_t row = h - s.pad_top + i / size * s.dilation_h;
    const std::int64_t col = w - s.pad_left + i % size * s.dilation_w;
    if (row >= 0 && col >= 0 && row < s.in_h && col < s.in_w) most = std::max(most, map[row * s.in_w + col]);
  }
  return most;
}

// The first output of the tile to which output `at` of an axis belongs.
std::int64_t tile_start(std::int64_t at, std::int64_t output_tile, std::int64_t dilation) {
  return at / (output_tile * dilation) * output_tile * dilation + at % dilation;
}

// Each output is within the rounding errors of its tile, and of `range` times its window; so one that sees zeros only
// is zero. `is_transformed`: the transforms compute most of the others.
template <bool kIsBf16>
void check_windows(const Target& target, const ConvShape& s, const std::vector<float>& x, int output_tile,
                   std::int64_t merge, bool is_transformed, const std::string& pattern) {
  const std::string what = describe(s, output_tile, 0, merge) + " " + pattern;
  Inputs in;
  in.x = kIsBf16 ? rounded(x) : x;
  in.w = random_floats(s.out_channels * (s.in_channels / s.groups) * 9, 2);
  std::vector<float> expected(s.batch * s.out_channels * s.out_h * s.out_w);
  in.residual = expected;
  reference::conv(s, {}, in.x.data(), in.w.data(), nullptr, nullptr, nullptr, expected.data());
  const auto found = all_ways<kIsBf16>(target, s, {}, {}, in, output_tile, 0, 5, 3, merge);
  const float range = output_tile == 4 ? 32.0f : 1024.0f;
  const std::vector<float> largest = largest_of_groups(s, in.x);
  std::int64_t differing = 0, others = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::int64_t at = static_cast<std::int64_t>(i), w = at % s.out_w, h = at / s.out_w % s.out_h;
    const float* map = largest.data() + at / (s.out_w * s.out_h) / (s.out_channels / s.groups) * s.in_h * s.in_w;
    const float window = largest_within(s, map, h, w, 3);
    const float tile = largest_within(s, map, tile_start(h, output_tile, s.dilation_h),
                                      tile_start(w, output_tile, s.dilation_w), output_tile + 2);
    for (const Result& result : found) {
      const bool is_direct = result.way.find("directly") != std::string::npos;
      const double scale = is_direct ? window : std::min(tile, range * window);
      const double tolerance =
          tolerance_of(s, output_tile, result) * scale + (kIsBf16 ? std::fabs(expected[i]) / 256 : 0.0);
      if (expect(std::fabs(expected[i] - result.values[i]) <= tolerance,
                 what + result.way + " at " + std::to_string(i)))
        continue;
      return;
    }
    if (window == 0.0f) continue;
    ++others;
    differing += found.front().values[i] != found.back().values[i];
  }
  if (!kIsBf16 && is_transformed) expect(2 * differing > others, what + ": most outputs are summed directly");
}

template <bool kIsBf16>
void sizes(const Target& target) {
  for (const int tile : {2, 4})
    for (const int pad : {0, 1, 2})
      for (std::int64_t h : {3, 4, 7, 9})
        for (std::int64_t w : {3, 5, 6, 14, 19}) check<kIsBf16>(target, shape(1, 16, 16, h, w, pad), {}, {}, tile);
}

// Maps of pixels that are as far apart as the dilation: of equal sizes and not, and of several tiles each.
template <bool kIsBf16>
void dilations(const Target& target) {
  for (const int tile : {2, 4})
    for (const std::int64_t h : {2, 3})
      for (const std::int64_t w : {1, 2, 5})
        for (const std::int64_t side : {2 * std::max(h, w), 2 * std::max(h, w) + 1, std::int64_t{17}})
          for (const std::int64_t pad : {0, 1}) {
            const ConvShape s = dilated(shape(2, 33, 20, side + 1, side, pad), h, w);
            if (s.out_h < 1 || s.out_w < 1) continue;
            check<kIsBf16>(target, s, {true, false, side == 17}, {Activation::kSigmoid}, tile, 0, 5);
          }
  // Paddings that are no multiples of the dilation.
  for (const int tile : {2, 4}) {
    ConvShape s = dilated(shape(1, 16, 16, 13, 14, 1), 4, 5);
    s.pad_top = 1;
    s.pad_left = 3;
    s.out_h -= 4;
    s.out_w -= 3;
    check<kIsBf16>(target, s, {true, false, false}, {}, tile);
  }
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

// A value that is large, or not finite, changes only the outputs that see it; the border of zeros changes none.
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
        check<kIsBf16>(target, dilated(s, 2, 3), {true, false, true}, {}, tile, 0, 5, 3, g.merge, {{value, pixel}});
        run_with({{value, pixel}});
        run_with({{value, image + (g.ins - 1) * s.in_h * s.in_w + pixel + 1}, {value, 2 * image - 1}});
      }
      run_with({{0.0f, -1, 5}});
      run_with({{0.0f, -1, 5}, {1e5f, pixel}});
      run_with({{1e6f, -1, 4}});
    }
}

// Maps with zeros in places, or of any range: zeros alone are no reason to sum directly.
template <bool kIsBf16>
void sparse(const Target& target) {
  struct Grouping {
    std::int64_t groups, ins, outs, merge;
  };
  for (const Grouping& g : {Grouping{1, 33, 20, 1}, {1, 16, 70, 1}, {2, 16, 16, 1}, {10, 4, 4, 4}, {3, 24, 8, 2}})
    for (const int tile : {2, 4})
      for (const std::int64_t width : {12, 15, 17}) {
        ConvShape s = shape(2, g.groups * g.ins, g.groups * g.outs, 10, width, 1);
        if (width == 17) s = dilated(s, 2, 3);
        s.groups = g.groups;
        const auto values = random_floats(s.batch * s.in_channels * s.in_h * s.in_w, 1);
        const auto places = random_floats(s.batch * s.in_h * s.in_w, 7);
        const auto run_with = [&](const char* pattern, bool is_transformed, const auto& factor) {
          std::vector<float> x = values;
          for (std::size_t i = 0; i < x.size(); ++i) {
            const std::int64_t pixel = static_cast<std::int64_t>(i) % (s.in_h * s.in_w);
            const std::int64_t map = static_cast<std::int64_t>(i) / (s.in_h * s.in_w);
            x[i] *= factor(map % s.in_channels, map / s.in_channels, pixel / s.in_w, pixel % s.in_w,
                           places[map / s.in_channels * s.in_h * s.in_w + pixel]);
          }
          check_windows<kIsBf16>(target, s, x, tile, g.merge, is_transformed, pattern);
        };
        using Int = std::int64_t;
        run_with("half of the pixels", true, [](Int, Int, Int, Int, float r) { return r < 0 ? 1.0f : 0.0f; });
        run_with("few pixels", false, [](Int, Int, Int, Int, float r) { return r < -0.96f ? 1.0f : 0.0f; });
        run_with("an image", true, [](Int, Int n, Int, Int, float) { return n == 1 ? 1.0f : 0.0f; });
        run_with("zeros", false, [](Int, Int, Int, Int, float) { return 0.0f; });
        run_with("columns", true, [](Int, Int, Int, Int w, float) { return w >= 5 ? 1.0f : 0.0f; });
        run_with("channels of a group", g.groups > 1,
                 [&](Int c, Int, Int, Int, float) { return c / g.ins > 0 ? 1.0f : 0.0f; });
        run_with("spikes", false, [](Int, Int, Int h, Int w, float) { return h % 4 == 1 && w % 4 == 1 ? 1e6f : 1.0f; });
        run_with("scales", false, [](Int, Int, Int, Int, float r) { return std::exp2(40 * r); });
      }
}

// Weights and inputs whose transforms overflow, or lose bits of denormal numbers.
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
  return {{"sizes", sizes<kIsBf16>},
          {"dilations", dilations<kIsBf16>},
          {"channels", channels<kIsBf16>},
          {"groups", groups<kIsBf16>},
          {"batches, workers, blocks", batches_workers_blocks<kIsBf16>},
          {"epilogues", epilogues<kIsBf16>},
          {"outliers", outliers<kIsBf16>},
          {"sparse", sparse<kIsBf16>},
          {"magnitudes", magnitudes<kIsBf16>},
          {"empty", empty<kIsBf16>}};
}

}  // namespace

int main() {
  return run_cases(cases<false>()) + run_cases(cases<true>());
}

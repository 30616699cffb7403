// Grouped and transposed convolution, and convolution by taps, as plan steps, against a scalar reference: groups of any
// size, any stride, any dilation.
#include <algorithm>
#include <cmath>
#include <limits>

#include "executor/context.hpp"
#include "executor/plan.hpp"
#include "kernels/prepare/codes.hpp"
#include "kernels_common.hpp"
#include "kernels_reference_common.hpp"

using namespace engine;
using namespace engine::test;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// Extra floats between images that are part of a larger map.
constexpr std::int64_t kGap = 48;

using Attributes = engine::Attributes;

std::vector<float> run_step(const Target& target, const std::string& operation,
                            const std::vector<std::vector<float>>& inputs, std::size_t output_floats,
                            const Attributes& attributes, int threads) {
  PlanBuilder builder(parse_isa(target.isa));
  std::vector<BufferId> ids;
  std::vector<Guarded> storage;
  for (const std::vector<float>& input : inputs) {
    storage.emplace_back(input);
    ids.push_back(builder.add_input(input.size() * sizeof(float), 4));
  }
  Guarded output(output_floats, kNan);
  builder.add_step(operation, ids, {builder.add_output(output_floats * sizeof(float), 4)}, attributes);
  Context context(builder.build());
  std::vector<Binding> bound;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    bound.push_back({storage[i].data(), inputs[i].size() * sizeof(float)});
  RunOptions options;
  options.threads = threads;
  context.run(bound, {{output.data(), output_floats * sizeof(float)}}, options);
  expect(output.intact(), operation + ": overrun");
  return output.values();
}

Attributes attributes_of(const ConvShape& s) {
  Attributes a;
  a.set("batch", s.batch);
  a.set("groups", s.groups);
  a.set("in_channels", s.in_channels);
  a.set("out_channels", s.out_channels);
  const auto set = [&](const char* name, std::vector<std::int64_t> values) { a.set(name, std::move(values)); };
  set("in", {s.in_h, s.in_w});
  set("out", {s.out_h, s.out_w});
  set("kernel", {s.kernel_h, s.kernel_w});
  set("strides", {s.stride_h, s.stride_w});
  set("dilations", {s.dilation_h, s.dilation_w});
  set("pads", {s.pad_top, s.pad_left, 0, 0});
  return a;
}

// Inserts `gap` floats of NaN between the images of a blocked map.
std::vector<float> spread(const std::vector<float>& dense, std::int64_t batch, std::int64_t gap) {
  const std::size_t image = dense.size() / batch;
  std::vector<float> wide((image + gap) * batch - gap, kNan);
  for (std::int64_t n = 0; n < batch; ++n)
    std::copy_n(dense.begin() + n * image, image, wide.begin() + n * (image + gap));
  return wide;
}

struct Options {
  bool transposed = false;
  int expanded = -1;  // -1: chosen by size
  bool has_residual = false;
  EpilogueArgs epilogue{};
  std::int64_t gap = 0;
  int threads = 2;
  bool by_taps = false;
  std::string operation = "conv_grouped_f32";
  std::int64_t nan_channel = -1;  // of x
};

void check(const Target& target, const ConvShape& s, const Options& o) {
  const std::string operation = o.by_taps ? "conv_taps_f32" : o.transposed ? "conv_transpose_f32" : o.operation;
  const std::string what =
      operation + " n" + std::to_string(s.batch) + " g" + std::to_string(s.groups) + " c" +
      std::to_string(s.in_channels) + "->" + std::to_string(s.out_channels) + " k" + std::to_string(s.kernel_h) + "x" +
      std::to_string(s.kernel_w) + " w" + std::to_string(s.out_w) + " s" + std::to_string(s.stride_h) + " p" +
      std::to_string(s.pad_top) + " d" + std::to_string(s.dilation_h) + " expanded" + std::to_string(o.expanded);
  const std::int64_t in_hw = s.in_h * s.in_w, out_hw = s.out_h * s.out_w;
  const std::int64_t blocks = (s.out_channels + 15) / 16, taps = s.kernel_h * s.kernel_w;
  auto x = random_floats(s.batch * s.in_channels * in_hw, 1);
  if (o.nan_channel >= 0) std::fill_n(x.begin() + o.nan_channel * in_hw, in_hw, kNan);
  const auto w = random_floats(s.in_channels * s.out_channels / s.groups * taps, 2);
  auto bias = random_floats(s.out_channels, 3);
  const auto residual = random_floats(s.batch * s.out_channels * out_hw, 4);
  const float* added = o.has_residual ? residual.data() : nullptr;
  std::vector<float> expected(s.batch * s.out_channels * out_hw);
  if (o.transposed)
    reference::conv_transpose(s, o.epilogue, x.data(), w.data(), nullptr, bias.data(), added, expected.data());
  else
    reference::conv(s, o.epilogue, x.data(), w.data(), nullptr, bias.data(), added, expected.data());

  Attributes attributes = attributes_of(s);
  if (o.expanded >= 0) attributes.set("expanded", std::int64_t{o.expanded});
  // An upper bound: each tap and group padded to separate blocks.
  const std::size_t most =
      s.groups * ((s.in_channels / s.groups + 15) / 16 * 16) * ((s.out_channels / s.groups + 63) / 64 * 64) * taps;
  const auto packed = run_step(target, "pack_" + operation, {w}, most, attributes, 1);
  attributes.set("bias", std::int64_t{1});
  attributes.set("residual", std::int64_t{o.has_residual});
  attributes.set("activation", name_of(o.epilogue.activation));
  attributes.set("alpha", double{o.epilogue.alpha});
  attributes.set("beta", double{o.epilogue.beta});
  attributes.set("residual_after", std::int64_t{o.epilogue.residual_after});
  const std::int64_t x_image = (s.in_channels + 15) / 16 * 16 * in_hw, y_image = blocks * 16 * out_hw;
  if (o.gap > 0) {
    attributes.set("x_batch", x_image + o.gap);
    attributes.set("y_batch", y_image + o.gap);
    if (o.has_residual) attributes.set("residual_batch", y_image + 2 * o.gap);
  }
  bias.resize(blocks * 16, kNan);
  std::vector<std::vector<float>> inputs = {
      spread(reference::to_blocked(x, s.batch, s.in_channels, in_hw, kNan), s.batch, o.gap), packed, bias};
  if (o.has_residual)
    inputs.push_back(
        spread(reference::to_blocked(residual, s.batch, s.out_channels, out_hw, kNan), s.batch, 2 * o.gap));
  const auto wide = run_step(target, operation, inputs, (y_image + o.gap) * s.batch - o.gap, attributes, o.threads);
  std::vector<float> dense;
  for (std::int64_t n = 0; n < s.batch; ++n) {
    const auto image = wide.begin() + n * (y_image + o.gap);
    dense.insert(dense.end(), image, image + y_image);
    if (n + 1 == s.batch) break;
    for (std::int64_t i = 0; i < o.gap; ++i)
      expect(std::isnan(*(image + y_image + i)), what + ": wrote between images");
  }
  expect_close(expected, reference::from_blocked(dense, s.batch, s.out_channels, out_hw),
               sum_tolerance(s.in_channels / s.groups * taps), what);
}

ConvShape grouped(std::int64_t groups, std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                  std::int64_t pad, std::int64_t dilation, std::int64_t batch = 1) {
  ConvShape s;
  s.batch = batch;
  s.groups = groups;
  s.in_channels = groups * in;
  s.out_channels = groups * out;
  s.in_h = 7;
  s.in_w = 13;
  s.kernel_h = s.kernel_w = kernel;
  s.stride_h = s.stride_w = stride;
  s.pad_top = s.pad_left = pad;
  s.dilation_h = s.dilation_w = dilation;
  s.out_h = (s.in_h + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1;
  s.out_w = (s.in_w + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1;
  return s;
}

ConvShape transposed(std::int64_t groups, std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                     std::int64_t pad, std::int64_t dilation, std::int64_t more, std::int64_t batch = 1) {
  ConvShape s = grouped(groups, in, out, kernel, stride, pad, dilation, batch);
  s.in_h = 4;
  s.out_h = (s.in_h - 1) * stride - 2 * pad + dilation * (kernel - 1) + 1 + more;
  s.out_w = (s.in_w - 1) * stride - 2 * pad + dilation * (kernel - 1) + 1 + more;
  return s;
}

void groups_of_any_size(const Target& target) {
  const std::int64_t sizes[][3] = {{3, 20, 40}, {2, 40, 20}, {8, 4, 4},   {4, 8, 8},  {2, 16, 8}, {5, 1, 3},
                                   {20, 1, 2},  {4, 3, 5},   {2, 48, 16}, {17, 1, 1}, {2, 50, 6}, {1, 5, 7}};
  for (const auto& [groups, in, out] : sizes)
    for (const int expanded : {-1, 0, 1}) {
      check(target, grouped(groups, in, out, 1, 1, 0, 1), {false, expanded});
      check(target, grouped(groups, in, out, 3, 1, 1, 1), {false, expanded, true});
      check(target, grouped(groups, in, out, 3, 2, 3, 2), {false, expanded});
      check(target, grouped(groups, in, out, 2, 3, 1, 1), {false, expanded, true, {}, 0, 3});
    }
}

// The sizes that conv_lanes_f32 takes: lanes of one group, of two, or of several in one block.
void lanes_of_any_size(const Target& target) {
  const std::int64_t sizes[][3] = {{4, 24, 24}, {5, 8, 8},   {33, 1, 1}, {9, 4, 4},   {5, 12, 12}, {3, 20, 40},
                                   {2, 15, 15}, {2, 40, 20}, {2, 24, 8}, {20, 1, 2},  {5, 2, 8},   {4, 3, 14},
                                   {1, 5, 17},  {3, 16, 16}, {17, 2, 4}, {3, 31, 33}, {7, 1, 16}};
  Options options;
  options.operation = "conv_lanes_f32";
  for (const auto& [groups, in, out] : sizes)
    for (const std::int64_t kernel : {1, 3, 5})
      for (const std::int64_t stride : {1, 2, 3})
        for (const std::int64_t dilation : {1, 2}) {
          options.has_residual = dilation == 2;
          check(target, grouped(groups, in, out, kernel, stride, dilation * (kernel / 2), dilation), options);
        }
}

// Tiles of every width, windows wider than the map, and rows and columns of taps that lie in the padding.
void lanes_of_any_width(const Target& target) {
  Options options;
  options.operation = "conv_lanes_f32";
  for (const std::int64_t stride : {1, 2, 3})
    for (const std::int64_t kernel : {1, 2, 3, 7})
      for (std::int64_t width = 1; width <= 31; ++width)
        for (const std::int64_t pad : {0, 4}) {
          ConvShape s = grouped(3, 4, 8, kernel, stride, pad, 1);
          s.in_h = 2;
          s.out_w = width;
          s.in_w = std::max<std::int64_t>(1, (width - 1) * stride + kernel - 2 * pad);
          s.out_h = (s.in_h + 2 * pad - kernel) / stride + 1;
          if (s.in_h + 2 * pad < kernel) continue;
          options.threads = static_cast<int>(1 + width % 3);
          check(target, s, options);
        }
}

void lanes_epilogues(const Target& target) {
  Options options;
  options.operation = "conv_lanes_f32";
  options.has_residual = true;
  for (int i = 0; i < static_cast<int>(Activation::kCount); ++i)
    for (const bool after : {false, true}) {
      options.epilogue = {static_cast<Activation>(i), 0.3f, 0.6f, after};
      check(target, grouped(3, 12, 12, 3, 1, 1, 1), options);
    }
  options.epilogue = {};
  options.gap = kGap;
  check(target, grouped(3, 24, 24, 3, 2, 1, 1, 3), options);
  options = {};
  options.operation = "conv_lanes_f32";
  ConvShape s = grouped(2, 8, 8, 3, 1, 1, 1);
  s.out_w = 0;
  check(target, s, options);
  // A NaN reaches only its own group.
  for (const std::int64_t channel : {0, 7, 23, 47}) {
    options.nan_channel = channel;
    for (const std::int64_t size : {4, 8, 12, 24}) check(target, grouped(48 / size, size, size, 3, 1, 1, 1), options);
  }
}

// Groups that start at any channel; strips of 14 pixels of which the last shares some with the one before.
void pointwise_groups(const Target& target) {
  const std::int64_t sizes[][3] = {{3, 20, 40}, {4, 60, 15}, {8, 12, 12}, {20, 1, 2}, {2, 16, 33},
                                   {3, 30, 31}, {1, 5, 7},   {2, 80, 80}, {5, 3, 1},  {2, 15, 70}};
  Options options;
  options.operation = "conv_pointwise_groups_f32";
  for (const auto& [groups, in, out] : sizes)
    for (const std::int64_t width : {7, 8, 13, 14, 15, 21}) {
      ConvShape s = grouped(groups, in, out, 1, 1, 0, 1, 1 + width % 3);
      s.in_h = s.out_h = 2;
      s.in_w = s.out_w = width;
      options.threads = static_cast<int>(1 + width % 4);
      options.has_residual = width % 2 == 1;
      check(target, s, options);
    }
  const ConvShape s = grouped(4, 12, 12, 1, 1, 0, 1, 2);
  options.has_residual = true;
  options.gap = kGap;
  for (int i = 0; i < static_cast<int>(Activation::kCount); ++i)
    for (const bool after : {false, true}) {
      options.epilogue = {static_cast<Activation>(i), 0.3f, 0.6f, after};
      check(target, s, options);
    }
  options.epilogue = {};
  for (options.nan_channel = 0; options.nan_channel < 48; options.nan_channel += 11) check(target, s, options);
}

void every_residue(const Target& target) {
  for (std::int64_t kernel = 1; kernel <= 5; ++kernel)
    for (std::int64_t stride = 1; stride <= 4; ++stride)
      for (const std::int64_t dilation : {1, 2, 3})
        for (const std::int64_t pad : {-3, -1, 0, 1, 4})
          for (const std::int64_t more : {0, 2}) {
            const ConvShape s = transposed(1, 17, 20, kernel, stride, pad, dilation, more);
            if (s.out_h > 0 && s.out_w > 0) check(target, s, {true, -1, more == 2});
          }
}

void transposed_groups(const Target& target) {
  const std::int64_t sizes[][3] = {{1, 16, 70}, {2, 16, 32}, {3, 5, 7}, {6, 1, 1}, {2, 16, 5}, {2, 3, 16}};
  for (const auto& [groups, in, out] : sizes)
    for (const std::int64_t stride : {1, 2, 3})
      for (const std::int64_t kernel : {2, 3})
        check(target, transposed(groups, in, out, kernel, stride, 0, 1, 0), {true});
}

// Whether some tap along one axis is inside of the map for all outputs.
bool has_common_tap(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride, std::int64_t dilation,
                    std::int64_t pad) {
  for (std::int64_t tap = 0; tap < kernel; ++tap) {
    const std::int64_t first = tap * dilation - pad;
    if (first >= 0 && first + (out - 1) * stride < in) return true;
  }
  return false;
}

// Also dilations larger than the map, whose other taps are all in the padding.
void by_taps(const Target& target) {
  const std::int64_t sizes[][2] = {{17, 20}, {1, 1}, {40, 70}, {300, 48}};
  int count = 0;
  for (const auto& [in, out] : sizes)
    for (const std::int64_t kernel : {1, 2, 3, 4, 5})
      for (const std::int64_t stride : {1, 2})
        for (const std::int64_t dilation : {1, 2, 6, 20})
          for (const std::int64_t pad : {kernel / 2 * dilation, std::int64_t{0}, dilation}) {
            const ConvShape s = grouped(1, in, out, kernel, stride, pad, dilation, 2);
            if (s.out_h < 1 || s.out_w < 1 || !has_common_tap(s.in_h, s.out_h, kernel, stride, dilation, pad) ||
                !has_common_tap(s.in_w, s.out_w, kernel, stride, dilation, pad))
              continue;
            check(target, s, {false, -1, stride == 2, {Activation::kSigmoid}, kernel == 3 ? kGap : 0, 3, true});
            ++count;
          }
  expect(count > 100, "by taps: shapes");
  for (int i = 0; i < static_cast<int>(Activation::kCount); ++i)
    check(target, grouped(1, 6, 18, 3, 1, 4, 4),
          {false, -1, true, {static_cast<Activation>(i), 0.3f, 0.6f}, 0, 1, true});
  ConvShape s = grouped(1, 16, 16, 3, 1, 2, 2);
  s.out_w = 0;
  Options options;
  options.by_taps = true;
  check(target, s, options);
}

void asymmetric(const Target& target) {
  ConvShape s = transposed(1, 20, 16, 2, 2, 0, 1, 0);
  s.kernel_w = s.stride_w = 3;
  s.out_w = s.in_w * 3;
  check(target, s, {true});
  s.kernel_h = 5;
  s.dilation_w = 2;
  s.pad_left = 3;
  s.out_h = 11;
  s.out_w = 38;
  check(target, s, {true});
}

void parts_of_larger_maps(const Target& target) {
  for (const bool is_transposed : {false, true})
    for (const int expanded : {0, 1}) {
      if (is_transposed && expanded) continue;
      for (const std::int64_t in : {5, 16}) {
        const ConvShape s = is_transposed ? transposed(2, in, 16, 2, 2, 0, 1, 0, 3) : grouped(2, in, 12, 3, 1, 1, 1, 3);
        check(target, s, {is_transposed, is_transposed ? -1 : expanded, true, {}, kGap});
      }
    }
}

void epilogues(const Target& target) {
  for (int i = 0; i < static_cast<int>(Activation::kCount); ++i)
    for (const bool after : {false, true}) {
      const EpilogueArgs epilogue{static_cast<Activation>(i), 0.3f, 0.6f, after};
      for (const int expanded : {0, 1}) check(target, grouped(3, 6, 9, 3, 1, 1, 1), {false, expanded, true, epilogue});
      check(target, transposed(1, 6, 18, 2, 2, 0, 1, 0), {true, -1, true, epilogue});
      check(target, transposed(2, 6, 9, 3, 2, 1, 1, 1), {true, -1, true, epilogue});
    }
}

void empty(const Target& target) {
  for (const bool is_transposed : {false, true}) {
    ConvShape s = is_transposed ? transposed(1, 16, 16, 2, 2, 0, 1, 0) : grouped(2, 5, 5, 3, 1, 1, 1);
    s.out_w = 0;
    check(target, s, {is_transposed});
  }
}

}  // namespace

int main() {
  return run_cases({{"groups of any size", groups_of_any_size},
                    {"lanes of any size", lanes_of_any_size},
                    {"lanes of any width", lanes_of_any_width},
                    {"lanes' epilogues", lanes_epilogues},
                    {"pointwise groups", pointwise_groups},
                    {"every residue", every_residue},
                    {"transposed groups", transposed_groups},
                    {"by taps", by_taps},
                    {"asymmetric", asymmetric},
                    {"parts of larger maps", parts_of_larger_maps},
                    {"epilogues", epilogues},
                    {"empty", empty}});
}

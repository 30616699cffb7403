// Depthwise convolution and convolution of plain inputs against a scalar reference, with f32 and bf16 maps.
#include <algorithm>
#include <limits>

#include "kernels/conv_planar.hpp"
#include "kernels/depthwise.hpp"
#include "kernels_bf16_common.hpp"
#include "kernels_reference_common.hpp"

using namespace engine;
using namespace engine::test;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

ConvShape shape(std::int64_t in_c, std::int64_t out_c, std::int64_t groups, std::int64_t h, std::int64_t w,
                std::int64_t kernel, std::int64_t stride, std::int64_t pad, std::int64_t dilation,
                std::int64_t batch = 1) {
  ConvShape s;
  s.batch = batch;
  s.groups = groups;
  s.in_channels = in_c;
  s.out_channels = out_c;
  s.in_h = h;
  s.in_w = w;
  s.kernel_h = s.kernel_w = kernel;
  s.stride_h = s.stride_w = stride;
  s.pad_top = s.pad_left = pad;
  s.dilation_h = s.dilation_w = dilation;
  const std::int64_t span = dilation * (kernel - 1) + 1;
  s.out_h = h + 2 * pad < span ? 0 : (h + 2 * pad - span) / stride + 1;
  s.out_w = w + 2 * pad < span ? 0 : (w + 2 * pad - span) / stride + 1;
  return s;
}

template <bool kIsBf16>
void check(const Target& target, const ConvShape& s, const ConvOperands& operands, const EpilogueArgs& epilogue,
           int vectors = 0, int workers = 3) {
  const bool is_depthwise = s.groups > 1;
  const std::string what = std::string(is_depthwise ? "depthwise" : "planar") + " c" + std::to_string(s.in_channels) +
                           "->" + std::to_string(s.out_channels) + " in" + std::to_string(s.in_h) + "x" +
                           std::to_string(s.in_w) + " k" + std::to_string(s.kernel_w) + " s" +
                           std::to_string(s.stride_w) + " p" + std::to_string(s.pad_left) + " d" +
                           std::to_string(s.dilation_w);
  if (s.out_h == 0 || s.out_w == 0) return;
  const std::int64_t in_hw = s.in_h * s.in_w, out_hw = s.out_h * s.out_w;
  const std::int64_t reduction = s.in_channels / s.groups * s.kernel_h * s.kernel_w;
  auto x = random_floats(s.batch * s.in_channels * in_hw, 1), w = random_floats(s.out_channels * reduction, 2);
  if (kIsBf16) x = rounded(x);
  if (kIsBf16 && !is_depthwise) w = rounded(w);
  auto bias = random_floats(s.out_channels, 3), scale = random_floats(s.out_channels, 4);
  auto residual = random_floats(s.batch * s.out_channels * out_hw, 5);
  if (kIsBf16) residual = rounded(residual);
  std::vector<float> expected(s.batch * s.out_channels * out_hw);
  reference::conv(s, epilogue, x.data(), w.data(), operands.has_scale ? scale.data() : nullptr,
                  operands.has_bias ? bias.data() : nullptr, operands.has_residual ? residual.data() : nullptr,
                  expected.data());

  const std::string type = kIsBf16 ? "bf16" : "f32";
  const KernelEntry& kernel = target.find((is_depthwise ? "depthwise_" : "conv_planar_") + type);
  const DepthwiseArgs depthwise = make_depthwise_args(s, operands, epilogue);
  PlanarConvArgs planar =
      make_planar_conv_args(s, operands, epilogue, vectors, target.traits<TileTraits>("conv_planar_" + type));
  planar.y_bytes = planar.residual_bytes = kIsBf16 ? 2 : 4;
  const PackArgs& pack = is_depthwise ? depthwise.pack : planar.pack;
  Guarded source(w);
  GuardedEither packed(std::vector<float>(pack_group_words(pack) * pack.adjacent, kNan), is_depthwise || !kIsBf16);
  run(target.find(is_depthwise || !kIsBf16 ? "pack_tiles_f32" : "pack_tiles_bf16"), &pack,
      {source.data(), packed.data()}, 1, 0);
  GuardedEither input(is_depthwise ? reference::to_blocked(x, s.batch, s.in_channels, in_hw, kNan) : x,
                      !is_depthwise || !kIsBf16);
  GuardedEither added(reference::to_blocked(residual, s.batch, s.out_channels, out_hw, kNan), !kIsBf16);
  const std::size_t padded = (s.out_channels + 15) / 16 * 16;
  bias.resize(padded, kNan);
  scale.resize(padded, kNan);
  Guarded bias_buffer(bias), scale_buffer(scale);
  GuardedEither output(std::vector<float>(s.batch * padded * out_hw, kNan), !kIsBf16);
  std::vector<void*> buffers{input.data(), packed.data()};
  if (operands.has_bias) buffers.push_back(bias_buffer.data());
  if (operands.has_scale) buffers.push_back(scale_buffer.data());
  if (operands.has_residual) buffers.push_back(added.data());
  buffers.push_back(output.data());
  const void* args = is_depthwise ? static_cast<const void*>(&depthwise) : &planar;
  const std::size_t depthwise_scratch = kIsBf16 ? depthwise_bf16_scratch_bytes(depthwise) : 0;
  run(kernel, args, buffers, workers, is_depthwise ? depthwise_scratch : planar_conv_scratch_bytes(planar));
  expect(output.intact() && packed.intact(), what + ": overrun");
  expect_close(expected, reference::from_blocked(output.values(), s.batch, s.out_channels, out_hw),
               bf16_tolerance(reduction, !kIsBf16), what);
}

template <bool kIsBf16>
void depthwise_geometry(const Target& target) {
  for (const std::int64_t kernel : {1, 2, 3, 4, 5, 6, 7})
    for (const std::int64_t stride : {1, 2, 3})
      for (const std::int64_t dilation : {1, 2})
        for (const std::int64_t pad : {0, 1, 2, 3})
          for (const std::int64_t w : {1, 2, 7, 8, 14, 17})
            check<kIsBf16>(target, shape(20, 20, 20, 6, w, kernel, stride, pad, dilation), {true, false, false}, {});
  // Several tiles of a row, and dilations of which some taps, or all but one, are in the padding.
  for (const std::int64_t kernel : {2, 3, 5, 7})
    for (const std::int64_t dilation : {2, 3, 11, 40})
      for (const std::int64_t w : {9, 29, 33})
        check<kIsBf16>(target, shape(20, 20, 20, 7, w, kernel, 1, kernel / 2 * dilation, dilation),
                       {true, w == 29, w == 33}, {Activation::kSigmoid});
}

template <bool kIsBf16>
void depthwise_channels(const Target& target) {
  for (const std::int64_t c : {2, 8, 16, 17, 31, 48, 65})
    for (int workers = 1; workers < 6; ++workers)
      check<kIsBf16>(target, shape(c, c, c, 5, 9, 3, 1, 1, 1, 2), {true, true, true}, {}, 0, workers);
}

template <bool kIsBf16>
void planar_geometry(const Target& target) {
  for (const std::int64_t kernel : {1, 2, 3, 5, 7})
    for (const std::int64_t stride : {1, 2, 3, 4})
      for (const std::int64_t dilation : {1, 2})
        for (const std::int64_t pad : {0, 1, 3})
          for (const std::int64_t w : {7, 16, 33})
            check<kIsBf16>(target, shape(3, 40, 1, 11, w, kernel, stride, pad, dilation), {true, false, false}, {});
  check<kIsBf16>(target, shape(3, 24, 1, 32, 48, 16, 16, 0, 1), {true, false, false}, {});  // patches
  const std::int64_t pixels = target.traits<TileTraits>(kIsBf16 ? "conv_planar_bf16" : "conv_planar_f32").long_pixels;
  for (const std::int64_t stride : {1, 2, 3})
    if (pixels > 0)
      check<kIsBf16>(target, shape(3, 16, 1, 11, 2 * pixels * stride, 3, stride, 1, 1), {true, true, true}, {});
}

template <bool kIsBf16>
void planar_channels(const Target& target) {
  for (const std::int64_t in_c : {1, 2, 3, 4, 8})
    for (const std::int64_t out_c : {1, 8, 16, 24, 33, 64, 96})
      for (int vectors = 1;
           vectors <= target.traits<TileTraits>(kIsBf16 ? "conv_planar_bf16" : "conv_planar_f32").max_vectors;
           ++vectors)
        check<kIsBf16>(target, shape(in_c, out_c, 1, 9, 31, 3, 2, 1, 1, 2), {true, true, true}, {}, vectors);
}

template <bool kIsBf16>
void epilogues(const Target& target) {
  for (int i = 0; i < static_cast<int>(Activation::kCount); ++i)
    for (const bool after : {false, true}) {
      const EpilogueArgs epilogue{static_cast<Activation>(i), 0.3f, 0.6f, after};
      check<kIsBf16>(target, shape(20, 20, 20, 6, 11, 3, 1, 1, 1), {true, true, true}, epilogue);
      check<kIsBf16>(target, shape(3, 20, 1, 6, 11, 3, 1, 1, 1), {true, false, true}, epilogue);
    }
}

template <bool kIsBf16>
std::vector<Case> cases() {
  return {{"depthwise geometry", depthwise_geometry<kIsBf16>},
          {"depthwise channels", depthwise_channels<kIsBf16>},
          {"planar geometry", planar_geometry<kIsBf16>},
          {"planar channels", planar_channels<kIsBf16>},
          {"epilogues", epilogues<kIsBf16>}};
}

}  // namespace

int main() {
  return run_cases(cases<false>()) + run_cases(cases<true>(), {"depthwise_bf16"});
}

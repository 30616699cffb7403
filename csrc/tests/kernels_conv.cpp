// Direct convolution against a scalar reference, with f32 and bf16 maps: tails, strides, padding, dilation and groups,
// on every instruction set.
#include <cmath>
#include <limits>

#include "kernels_bf16_common.hpp"
#include "kernels_reference_common.hpp"

using namespace engine;
using namespace engine::test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Conv {
  ConvShape shape;
  ConvOperands operands;
  EpilogueArgs epilogue;
  ConvTiling tiling;                               // vectors 0: chosen by size
  bool copies = false;                             // of f32
  bool is_y_f32 = false, is_residual_f32 = false;  // with bf16 products
};

std::string describe(const Conv& c) {
  const ConvShape& s = c.shape;
  const auto pair = [](const char* name, std::int64_t a, std::int64_t b) {
    return std::string(" ") + name + std::to_string(a) + "x" + std::to_string(b);
  };
  return "n" + std::to_string(s.batch) + " g" + std::to_string(s.groups) + pair("c", s.in_channels, s.out_channels) +
         pair("in", s.in_h, s.in_w) + pair("k", s.kernel_h, s.kernel_w) + pair("s", s.stride_h, s.stride_w) +
         pair("p", s.pad_top, s.pad_left) + pair("d", s.dilation_h, s.dilation_w) +
         pair("v", c.tiling.vectors, c.tiling.pixels) + pair("flat, block ", c.tiling.flat, c.tiling.tile_block) +
         pair("f32 ", c.is_y_f32, c.is_residual_f32) + " copies" + std::to_string(c.copies) + " act" +
         std::to_string(static_cast<int>(c.epilogue.activation));
}

// Symmetric padding, ONNX's output size.
ConvShape shape(std::int64_t in_c, std::int64_t out_c, std::int64_t h, std::int64_t w, std::int64_t kernel,
                std::int64_t stride = 1, std::int64_t pad = 0, std::int64_t dilation = 1, std::int64_t groups = 1,
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
  s.out_h = (h + 2 * pad - span) / stride + 1;
  s.out_w = (w + 2 * pad - span) / stride + 1;
  return s;
}

template <bool kIsBf16>
void check(const Target& target, const Conv& c, std::vector<float> x = {}, int workers = 3) {
  const ConvShape& s = c.shape;
  const std::int64_t in_hw = s.in_h * s.in_w, out_hw = s.out_h * s.out_w;
  const bool is_y_f32 = !kIsBf16 || c.is_y_f32, is_residual_f32 = !kIsBf16 || c.is_residual_f32;
  if (x.empty()) x = random_floats(s.batch * s.in_channels * in_hw, 1);
  const std::int64_t reduction = s.in_channels / s.groups * s.kernel_h * s.kernel_w;
  auto w = random_floats(s.out_channels * reduction, 2);
  Guarded source(w);
  if (kIsBf16) {
    x = rounded(x);
    w = rounded(w);
  }
  auto bias = random_floats(s.out_channels, 3), scale = random_floats(s.out_channels, 4);
  auto residual = random_floats(s.batch * s.out_channels * out_hw, 5);
  if (!is_residual_f32) residual = rounded(residual);
  std::vector<float> expected(s.batch * s.out_channels * out_hw);
  reference::conv(s, c.epilogue, x.data(), w.data(), c.operands.has_scale ? scale.data() : nullptr,
                  c.operands.has_bias ? bias.data() : nullptr, c.operands.has_residual ? residual.data() : nullptr,
                  expected.data());

  const std::string type = kIsBf16 ? "bf16" : "f32";
  const KernelEntry& kernel = target.find("conv_blocked_" + type);
  ConvArgs args = make_conv_args(s, c.operands, c.epilogue, c.tiling, *static_cast<const TileTraits*>(kernel.traits));
  args.copies = c.copies;
  args.y_bytes = is_y_f32 ? 4 : 2;
  args.residual_bytes = is_residual_f32 ? 4 : 2;
  const PackArgs& pack = args.pack;
  GuardedEither packed(std::vector<float>(pack.groups * pack_group_words(pack) * pack.adjacent, kNan), !kIsBf16);
  run(target.find("pack_tiles_" + type), &pack, {source.data(), packed.data()}, 2, 0);
  expect(packed.intact(), describe(c) + ": packing overrun");

  // Channels beyond the map's are NaN, which must not reach a result.
  GuardedEither input(reference::to_blocked(x, s.batch, s.in_channels, in_hw, kNan), !kIsBf16);
  GuardedEither added(reference::to_blocked(residual, s.batch, s.out_channels, out_hw, kNan), is_residual_f32);
  const std::size_t padded = (s.out_channels + 15) / 16 * 16;
  bias.resize(padded, kNan);
  scale.resize(padded, kNan);
  Guarded bias_buffer(bias), scale_buffer(scale);
  GuardedEither output(std::vector<float>(s.batch * padded * out_hw, kNan), is_y_f32);
  std::vector<void*> buffers{input.data(), packed.data()};
  if (c.operands.has_bias) buffers.push_back(bias_buffer.data());
  if (c.operands.has_scale) buffers.push_back(scale_buffer.data());
  if (c.operands.has_residual) buffers.push_back(added.data());
  buffers.push_back(output.data());
  run(kernel, &args, buffers, workers, conv_scratch_bytes(args));
  expect(output.intact(), describe(c) + ": output overrun");
  expect_close(expected, reference::from_blocked(output.values(), s.batch, s.out_channels, out_hw),
               bf16_tolerance(reduction, is_y_f32), describe(c));
}

template <bool kIsBf16>
void channel_tails(const Target& target) {
  for (const std::int64_t in_c : {1, 3, 16, 17, 40})
    for (const std::int64_t out_c : {1, 8, 15, 16, 17, 32, 33, 50, 64, 72, 100})
      check<kIsBf16>(target, {shape(in_c, out_c, 5, 9, 3, 1, 1), {true, false, false}, {}, {}});
}

template <bool kIsBf16>
void width_tails(const Target& target) {
  for (std::int64_t w = 1; w <= 34; ++w) {
    check<kIsBf16>(target, {shape(16, 32, 3, w, 3, 1, 1), {}, {}, {}});
    check<kIsBf16>(target, {shape(20, 32, 3, w, 1), {}, {}, {}});
  }
}

template <bool kIsBf16>
void every_tile(const Target& target) {
  const TileTraits& traits = target.traits<TileTraits>(kIsBf16 ? "conv_blocked_bf16" : "conv_blocked_f32");
  for (int vectors = 1; vectors <= traits.max_vectors; ++vectors)
    for (int pixels = 1; pixels <= traits.max_pixels[vectors]; ++pixels)
      for (const bool flat : {false, true})
        for (const int stride : {1, 2, 3}) {
          ConvTiling tiling{vectors, pixels, pixels % 3, 2, flat};
          check<kIsBf16>(target, {shape(19, 80, 7, 31, 3, stride, 1), {true, true, true}, {}, tiling});
          if (stride == 1) check<kIsBf16>(target, {shape(19, 80, 7, 31, 1), {true, false, true}, {}, tiling});
        }
  // Chosen where they cover the pixels without a rest.
  if (traits.long_pixels == 0) return;
  for (const std::int64_t tiles : {1, 2})
    for (const std::int64_t stride : {1, 2, 3})
      for (const bool residual : {false, true}) {
        const std::int64_t w = tiles * traits.long_pixels * stride;
        check<kIsBf16>(target, {shape(19, 16, 7, w, 3, stride, 1), {true, true, residual}, {}, {}});
        check<kIsBf16>(target, {shape(19, 16, 7, w, 1, stride), {true, false, residual}, {}, {}});
        check<kIsBf16>(target,
                       {shape(19, 16, 7, w + 3, 3, stride, 1), {true, true, residual}, {}, {1, traits.long_pixels}});
      }
}

template <bool kIsBf16>
void kernels_strides_dilations(const Target& target) {
  for (const std::int64_t kernel : {1, 2, 3, 4, 5, 6, 7})
    for (const std::int64_t stride : {1, 2, 3, 4})
      for (const std::int64_t dilation : {1, 2, 3})
        for (const std::int64_t pad : {0, 1, 3, 6}) {
          const std::int64_t span = dilation * (kernel - 1) + 1;
          if (13 + 2 * pad < span) continue;
          for (const bool flat : {false, true}) {
            Conv c{shape(18, 24, 13, 17, kernel, stride, pad, dilation), {true, false, false}, {}, {}};
            if (c.shape.out_h < 1 || c.shape.out_w < 1) continue;
            const TileTraits& traits = target.traits<TileTraits>(kIsBf16 ? "conv_blocked_bf16" : "conv_blocked_f32");
            c.tiling = {2, traits.max_pixels[2], 2, 1, flat};
            check<kIsBf16>(target, c);
          }
        }
}

template <bool kIsBf16>
void asymmetric(const Target& target) {
  ConvShape s = shape(16, 16, 9, 20, 3);
  s.kernel_w = 5;
  s.stride_h = 2;
  s.dilation_w = 2;
  s.pad_top = 2;
  s.pad_left = 1;
  s.out_h = 5;
  s.out_w = 14;  // extends beyond the input's right edge
  check<kIsBf16>(target, {s, {true, true, false}, {}, {}});
  ConvShape line = shape(24, 40, 1, 33, 3, 1, 1);  // one dimension
  line.kernel_h = 1;
  line.pad_top = 0;
  line.out_h = 1;
  check<kIsBf16>(target, {line, {true, false, false}, {}, {}});
}

// One dimension, with paddings from which some tiles skip taps, or see nothing else.
template <bool kIsBf16>
void long_kernels(const Target& target) {
  for (const std::int64_t length : {1, 3, 20, 50})
    for (const std::int64_t kernel : {9, 40})
      for (const std::int64_t stride : {1, 2, 3})
        for (const std::int64_t dilation : {1, 2})
          for (const std::int64_t pad : {kernel / 2, kernel * dilation + 20}) {
            const std::int64_t out = (length + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1;
            if (length + 2 * pad < dilation * (kernel - 1) + 1) continue;
            ConvShape s = shape(20, 24, 1, length, kernel, stride, pad, dilation);
            s.kernel_h = s.out_h = 1;
            s.pad_top = 0;
            s.out_w = out;
            check<kIsBf16>(target, {s, {true, false, false}, {}, {}});
          }
}

template <bool kIsBf16>
void groups(const Target& target) {
  check<kIsBf16>(target, {shape(32, 32, 6, 11, 3, 1, 1, 1, 2), {true, false, false}, {}, {}});
  check<kIsBf16>(target,
                 {
                     shape(64, 128, 6, 11, 3, 2, 1, 1, 4),
                     {true, true, true},
                     {},
                     {},
                 },
                 {}, 5);
  check<kIsBf16>(target, {shape(96, 48, 5, 5, 1, 1, 0, 1, 3, 2), {true, false, false}, {}, {}});
}

template <bool kIsBf16>
void batches_and_workers(const Target& target) {
  for (int workers = 1; workers <= 7; ++workers)
    for (const int split : {1, 2, 100}) {
      Conv c{shape(16, 96, 7, 7, 3, 1, 1, 1, 1, 3), {true, false, true}, {}, {2, 6, 0, split, true}};
      check<kIsBf16>(target, c, {}, workers);
      c.tiling.tile_block = 1;
      check<kIsBf16>(target, c, {}, workers);
    }
}

template <bool kIsBf16>
void empty_and_single(const Target& target) {
  check<kIsBf16>(target, {shape(1, 1, 1, 1, 1), {true, false, false}, {}, {}});
  check<kIsBf16>(target, {shape(3, 5, 4, 4, 3, 1, 1, 1, 1, 0), {true, false, false}, {}, {}});  // no image
  ConvShape none = shape(16, 16, 5, 5, 3);
  none.out_h = 0;
  check<kIsBf16>(target, {none, {}, {}, {}});
  check<kIsBf16>(target,
                 {shape(16, 16, 2, 2, 3, 1, 5), {true, false, false}, {}, {}});  // outputs that read only padding
}

template <bool kIsBf16>
void activations(const Target& target) {
  for (int i = 0; i < static_cast<int>(Activation::kCount); ++i)
    for (const bool after : {false, true}) {
      EpilogueArgs epilogue{static_cast<Activation>(i), 0.3f, 0.5f, after};
      for (const bool is_y_f32 : {false, true})
        for (const bool is_residual_f32 : {false, true})
          if (kIsBf16 || (is_y_f32 && is_residual_f32))
            check<kIsBf16>(
                target,
                {shape(20, 33, 5, 17, 3, 1, 1), {true, true, true}, epilogue, {}, false, is_y_f32, is_residual_f32});
      check<kIsBf16>(target, {shape(20, 33, 5, 17, 1), {false, false, false}, epilogue, {}});
    }
}

template <bool kIsBf16>
void not_finite(const Target& target) {
  for (const float value : {kNan, kInf, -kInf})
    for (int i = 0; i < static_cast<int>(Activation::kCount); ++i) {
      Conv c{shape(17, 33, 6, 20, 3, 1, 1), {true, false, false}, {static_cast<Activation>(i), 0.0f, 6.0f, false}, {}};
      std::vector<float> x = random_floats(17 * 6 * 20, 7);
      x[16 * 120 + 47] = value;
      check<kIsBf16>(target, c, x);
    }
}

// Tiles that read copies of their pixels; some copies are kept.
void copies(const Target& target) {
  for (const std::int64_t stride : {1, 2, 3})
    for (const std::int64_t width : {1, 9, 31})
      for (const std::int32_t block : {1, 3, 16})
        for (const std::int32_t split : {1, 4})
          for (const std::int64_t in_c : {16, 33}) {
            Conv c{shape(in_c, 100, 11, width, 1, stride, 0, 1, 1, 2), {true, false, true}, {}, {}, true};
            c.tiling.vectors = 1;
            c.tiling.pixels = 5;
            c.tiling.tile_block = block;
            c.tiling.channel_split = split;
            c.tiling.flat = true;
            check<false>(target, c);
          }
  // Copies are chosen for 64x64 pixels and many channels.
  for (const std::int64_t stride : {1, 2}) {
    const ConvShape s = shape(400, 160, 64, 64, 1, stride);
    ConvArgs args = make_conv_args(s, {}, {}, {}, target.traits<TileTraits>("conv_blocked_f32"));
    choose_copies(args);
    expect(args.copies, "stride " + std::to_string(stride) + ": no copies");
    check<false>(target, {s, {}, {}, args.tiling, true});
  }
  for (const ConvShape& s : {shape(400, 160, 63, 63, 1), shape(320, 160, 64, 64, 1), shape(400, 16, 64, 64, 1),
                             shape(400, 160, 64, 64, 3, 1, 1), shape(400, 160, 8, 8, 1, 2)}) {
    ConvArgs args = make_conv_args(s, {}, {}, {}, target.traits<TileTraits>("conv_blocked_f32"));
    choose_copies(args);
    expect(!args.copies, "copies of " + std::to_string(s.in_h) + " rows");
  }
}

template <bool kIsBf16>
std::vector<Case> cases() {
  return {{"channel tails", channel_tails<kIsBf16>},
          {"width tails", width_tails<kIsBf16>},
          {"every tile", every_tile<kIsBf16>},
          {"kernels, strides, dilations", kernels_strides_dilations<kIsBf16>},
          {"asymmetric", asymmetric<kIsBf16>},
          {"long kernels", long_kernels<kIsBf16>},
          {"groups", groups<kIsBf16>},
          {"batches and workers", batches_and_workers<kIsBf16>},
          {"empty and single", empty_and_single<kIsBf16>},
          {"activations", activations<kIsBf16>},
          {"not finite", not_finite<kIsBf16>}};
}

}  // namespace

int main() {
  return run_cases({{"copies", copies}}) + run_cases(cases<false>()) + run_cases(cases<true>(), {"conv_blocked_bf16"});
}

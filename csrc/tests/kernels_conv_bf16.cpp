// bf16 convolution against a scalar reference on the rounded values: as kernels_conv.cpp, also with mixed map types.
#include <cmath>
#include <limits>

#include "kernels/conv_bf16.hpp"
#include "kernels/pack_bf16.hpp"
#include "kernels/reference.hpp"
#include "kernels_bf16_common.hpp"

using namespace engine;
using namespace engine::test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Conv {
  ConvShape shape;
  ConvOperands operands;
  EpilogueArgs epilogue;
  ConvTiling tiling;  // vectors 0: chosen by size
  bool is_y_f32 = false, is_residual_f32 = false;
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
         pair("f32 ", c.is_y_f32, c.is_residual_f32) + " act" + std::to_string(static_cast<int>(c.epilogue.activation));
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

void check(const Target& target, const Conv& c, std::vector<float> x = {}, int workers = 3) {
  const ConvShape& s = c.shape;
  const std::int64_t in_hw = s.in_h * s.in_w, out_hw = s.out_h * s.out_w;
  if (x.empty()) x = random_floats(s.batch * s.in_channels * in_hw, 1);
  x = rounded(x);
  const std::int64_t reduction = s.in_channels / s.groups * s.kernel_h * s.kernel_w;
  const auto w = random_floats(s.out_channels * reduction, 2);
  auto bias = random_floats(s.out_channels, 3), scale = random_floats(s.out_channels, 4);
  auto residual = random_floats(s.batch * s.out_channels * out_hw, 5);
  if (!c.is_residual_f32) residual = rounded(residual);
  std::vector<float> expected(s.batch * s.out_channels * out_hw);
  reference::conv(s, c.epilogue, x.data(), rounded(w).data(), c.operands.has_scale ? scale.data() : nullptr,
                  c.operands.has_bias ? bias.data() : nullptr, c.operands.has_residual ? residual.data() : nullptr,
                  expected.data());

  const KernelEntry& kernel = target.find("conv_blocked_bf16");
  const ConvBf16Args args = {
      make_conv_args(s, c.operands, c.epilogue, c.tiling, *static_cast<const TileTraits*>(kernel.traits)),
      c.is_y_f32 ? 4 : 2, c.is_residual_f32 ? 4 : 2};
  const PackArgs& pack = args.conv.pack;
  GuardedBf16 packed(std::vector<float>(pack.groups * pack_bf16_group_size(pack), kNan));
  Guarded source(w);
  run(target.find("pack_tiles_bf16"), &pack, {source.data(), packed.data()}, 2, 0);
  expect(packed.intact(), describe(c) + ": packing overrun");

  // Channels beyond the map's are NaN, which must not reach a result.
  GuardedBf16 input(reference::to_blocked(x, s.batch, s.in_channels, in_hw, kNan));
  GuardedEither added(reference::to_blocked(residual, s.batch, s.out_channels, out_hw, kNan), c.is_residual_f32);
  const std::size_t padded = (s.out_channels + 15) / 16 * 16;
  bias.resize(padded, kNan);
  scale.resize(padded, kNan);
  Guarded bias_buffer(bias), scale_buffer(scale);
  GuardedEither output(std::vector<float>(s.batch * padded * out_hw, kNan), c.is_y_f32);
  std::vector<void*> buffers{input.data(), packed.data()};
  if (c.operands.has_bias) buffers.push_back(bias_buffer.data());
  if (c.operands.has_scale) buffers.push_back(scale_buffer.data());
  if (c.operands.has_residual) buffers.push_back(added.data());
  buffers.push_back(output.data());
  run(kernel, &args, buffers, workers, conv_scratch_bytes(args.conv));
  expect(output.intact(), describe(c) + ": output overrun");
  expect_close(expected, reference::from_blocked(output.values(), s.batch, s.out_channels, out_hw),
               bf16_tolerance(reduction, c.is_y_f32), describe(c));
}

void channel_tails(const Target& target) {
  for (const std::int64_t in_c : {1, 3, 16, 17, 40})
    for (const std::int64_t out_c : {1, 8, 15, 16, 17, 32, 33, 50, 64, 72, 100})
      check(target, {shape(in_c, out_c, 5, 9, 3, 1, 1), {true, false, false}, {}, {}});
}

void width_tails(const Target& target) {
  for (std::int64_t w = 1; w <= 34; ++w) {
    check(target, {shape(16, 32, 3, w, 3, 1, 1), {}, {}, {}});
    check(target, {shape(20, 32, 3, w, 1), {}, {}, {}});
  }
}

void every_tile(const Target& target) {
  const TileTraits& traits = target.traits<TileTraits>("conv_blocked_bf16");
  for (int vectors = 1; vectors <= traits.max_vectors; ++vectors)
    for (int pixels = 1; pixels <= traits.max_pixels[vectors]; ++pixels)
      for (const bool flat : {false, true})
        for (const int stride : {1, 2, 3}) {
          ConvTiling tiling{vectors, pixels, pixels % 3, 2, flat};
          check(target, {shape(19, 80, 7, 31, 3, stride, 1), {true, true, true}, {}, tiling});
          if (stride == 1) check(target, {shape(19, 80, 7, 31, 1), {true, false, true}, {}, tiling});
        }
  // Chosen where they cover the pixels without a rest.
  if (traits.long_pixels == 0) return;
  for (const std::int64_t tiles : {1, 2})
    for (const std::int64_t stride : {1, 2, 3})
      for (const bool residual : {false, true}) {
        const std::int64_t w = tiles * traits.long_pixels * stride;
        check(target, {shape(19, 16, 7, w, 3, stride, 1), {true, true, residual}, {}, {}});
        check(target, {shape(19, 16, 7, w, 1, stride), {true, false, residual}, {}, {}});
        check(target, {shape(19, 16, 7, w + 3, 3, stride, 1), {true, true, residual}, {}, {1, traits.long_pixels}});
      }
}

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
            const TileTraits& traits = target.traits<TileTraits>("conv_blocked_bf16");
            c.tiling = {2, traits.max_pixels[2], 2, 1, flat};
            check(target, c);
          }
        }
}

void asymmetric(const Target& target) {
  ConvShape s = shape(16, 16, 9, 20, 3);
  s.kernel_w = 5;
  s.stride_h = 2;
  s.dilation_w = 2;
  s.pad_top = 2;
  s.pad_left = 1;
  s.out_h = 5;
  s.out_w = 14;  // extends beyond the input's right edge
  check(target, {s, {true, true, false}, {}, {}});
  ConvShape line = shape(24, 40, 1, 33, 3, 1, 1);  // one dimension
  line.kernel_h = 1;
  line.pad_top = 0;
  line.out_h = 1;
  check(target, {line, {true, false, false}, {}, {}});
}

void groups(const Target& target) {
  check(target, {shape(32, 32, 6, 11, 3, 1, 1, 1, 2), {true, false, false}, {}, {}});
  check(target,
        {
            shape(64, 128, 6, 11, 3, 2, 1, 1, 4),
            {true, true, true},
            {},
            {},
        },
        {}, 5);
  check(target, {shape(96, 48, 5, 5, 1, 1, 0, 1, 3, 2), {true, false, false}, {}, {}});
}

void batches_and_workers(const Target& target) {
  for (int workers = 1; workers <= 7; ++workers)
    for (const int split : {1, 2, 100}) {
      Conv c{shape(16, 96, 7, 7, 3, 1, 1, 1, 1, 3), {true, false, true}, {}, {2, 6, 0, split, true}};
      check(target, c, {}, workers);
      c.tiling.tile_block = 1;
      check(target, c, {}, workers);
    }
}

void empty_and_single(const Target& target) {
  check(target, {shape(1, 1, 1, 1, 1), {true, false, false}, {}, {}});
  check(target, {shape(3, 5, 4, 4, 3, 1, 1, 1, 1, 0), {true, false, false}, {}, {}});  // no image
  ConvShape none = shape(16, 16, 5, 5, 3);
  none.out_h = 0;
  check(target, {none, {}, {}, {}});
  check(target, {shape(16, 16, 2, 2, 3, 1, 5), {true, false, false}, {}, {}});  // outputs that read only padding
}

void activations(const Target& target) {
  for (int i = 0; i < static_cast<int>(Activation::kCount); ++i)
    for (const bool after : {false, true}) {
      EpilogueArgs epilogue{static_cast<Activation>(i), 0.3f, 0.5f, after};
      for (const bool is_y_f32 : {false, true})
        for (const bool is_residual_f32 : {false, true})
          check(target, {shape(20, 33, 5, 17, 3, 1, 1), {true, true, true}, epilogue, {}, is_y_f32, is_residual_f32});
      check(target, {shape(20, 33, 5, 17, 1), {false, false, false}, epilogue, {}});
    }
}

void not_finite(const Target& target) {
  for (const float value : {kNan, kInf, -kInf})
    for (int i = 0; i < static_cast<int>(Activation::kCount); ++i) {
      Conv c{shape(17, 33, 6, 20, 3, 1, 1), {true, false, false}, {static_cast<Activation>(i), 0.0f, 6.0f, false}, {}};
      std::vector<float> x = random_floats(17 * 6 * 20, 7);
      x[16 * 120 + 47] = value;
      check(target, c, x);
    }
}

}  // namespace

int main() {
  return run_cases({{"channel tails", channel_tails},
                    {"width tails", width_tails},
                    {"every tile", every_tile},
                    {"kernels, strides, dilations", kernels_strides_dilations},
                    {"asymmetric", asymmetric},
                    {"groups", groups},
                    {"batches and workers", batches_and_workers},
                    {"empty and single", empty_and_single},
                    {"activations", activations},
                    {"not finite", not_finite}},
                   {"conv_blocked_bf16"});
}

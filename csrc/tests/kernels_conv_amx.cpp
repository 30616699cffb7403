// bf16 convolution on tiles against a scalar reference on the rounded values; the test of bytes is in kernels_int8.cpp.
#include <limits>

#include "kernels/prepare/codes.hpp"
#include "kernels_bf16_common.hpp"
#include "kernels_bytes_common.hpp"
#include "kernels_operation_common.hpp"
#include "kernels_reference_common.hpp"

namespace engine {
extern const OperationEntry conv_amx_operations[];
}

using namespace engine;
using namespace engine::test;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Conv {
  std::int64_t batch = 1, in = 40, out = 40, h = 6, w = 7, kernel = 1, stride = 1, pad = 0, dilation = 1;
  ConvOperands operands = {};
  EpilogueArgs epilogue = {};
  bool is_y_f32 = false, is_residual_f32 = false, is_plain = false;
  bool is_transposed = false;
  std::int64_t more = 0;                    // rows and columns of a transposed result
  std::int64_t kernel_w = 0, stride_w = 0;  // 0: the same as of rows
};

ConvShape shape_of(const Conv& c) {
  ConvShape s;
  s.batch = c.batch;
  s.in_channels = c.in;
  s.out_channels = c.out;
  s.in_h = c.h;
  s.in_w = c.w;
  s.kernel_h = c.kernel;
  s.kernel_w = c.kernel_w ? c.kernel_w : c.kernel;
  s.stride_h = c.stride;
  s.stride_w = c.stride_w ? c.stride_w : c.stride;
  s.pad_top = s.pad_left = c.pad;
  s.dilation_h = s.dilation_w = c.dilation;
  const std::int64_t span_h = c.dilation * (s.kernel_h - 1) + 1, span_w = c.dilation * (s.kernel_w - 1) + 1;
  s.out_h = (c.h + 2 * c.pad - span_h) / s.stride_h + 1;
  s.out_w = (c.w + 2 * c.pad - span_w) / s.stride_w + 1;
  if (c.is_transposed) {
    s.out_h = (c.h - 1) * s.stride_h - 2 * c.pad + span_h + c.more;
    s.out_w = (c.w - 1) * s.stride_w - 2 * c.pad + span_w + c.more;
  }
  return s;
}

AttributeMap attributes_of(const ConvShape& s, const Conv& c) {
  using List = std::vector<std::int64_t>;
  AttributeMap attributes = {{"batch", s.batch},
                             {"in_channels", s.in_channels},
                             {"out_channels", s.out_channels},
                             {"in", List{s.in_h, s.in_w}},
                             {"out", List{s.out_h, s.out_w}},
                             {"kernel", List{s.kernel_h, s.kernel_w}},
                             {"strides", List{s.stride_h, s.stride_w}},
                             {"dilations", List{s.dilation_h, s.dilation_w}},
                             {"pads", List(4, s.pad_top)}};
  if (!c.is_transposed) attributes["plain"] = std::int64_t{c.is_plain};
  return attributes;
}

Bytes bytes_of(Guarded& buffer) {
  return {buffer.data(), buffer.values().size() * sizeof(float)};
}
Bytes bytes_of(GuardedEither& buffer) {
  return {buffer.data(), buffer.size()};
}

// w as [out, kernel height, kernel width, 4].
std::vector<float> with_channels_last(const std::vector<float>& w, const ConvShape& s) {
  const std::int64_t taps = s.kernel_h * s.kernel_w;
  std::vector<float> result(s.out_channels * taps * 4);
  for (std::int64_t o = 0; o < s.out_channels; ++o)
    for (std::int64_t i = 0; i < s.in_channels; ++i)
      for (std::int64_t t = 0; t < taps; ++t) result[(o * taps + t) * 4 + i] = w[(o * s.in_channels + i) * taps + t];
  return result;
}

void check(const Target& target, const Conv& c, std::uint32_t seed, int workers = 3) {
  const std::string what = "case " + std::to_string(seed);
  const ConvShape s = shape_of(c);
  const std::int64_t in_hw = s.in_h * s.in_w, out_hw = s.out_h * s.out_w, taps = s.kernel_h * s.kernel_w;
  const auto x = rounded(random_floats(s.batch * s.in_channels * in_hw, seed));
  const auto w = random_floats(s.out_channels * s.in_channels * taps, seed + 1);
  auto bias = random_floats(s.out_channels, seed + 2), scale = random_floats(s.out_channels, seed + 3);
  auto residual = random_floats(s.batch * s.out_channels * out_hw, seed + 4);
  if (!c.is_residual_f32) residual = rounded(residual);
  std::vector<float> expected(s.batch * s.out_channels * out_hw);
  const auto define = c.is_transposed ? reference::conv_transpose : reference::conv;
  define(s, c.epilogue, x.data(), rounded(w).data(), c.operands.has_scale ? scale.data() : nullptr,
         c.operands.has_bias ? bias.data() : nullptr, c.operands.has_residual ? residual.data() : nullptr,
         expected.data());
  const std::string operation = c.is_transposed ? "conv_transpose_amx_bf16" : "conv_amx_bf16";

  AttributeMap attributes = attributes_of(s, c);
  Guarded source(c.is_plain ? with_channels_last(w, s) : w);
  Guarded packed(static_cast<std::size_t>((s.out_channels + 31) / 32 * ((s.in_channels + 31) / 32) * taps * 512));
  run_operation(target, conv_amx_operations, ("pack_" + operation).c_str(), attributes, {&source}, {&packed}, 2);

  // Channels beyond the map's are NaN, which must not reach a result.
  GuardedEither input(c.is_plain ? x : reference::to_blocked(x, s.batch, s.in_channels, in_hw, kNan), c.is_plain);
  GuardedEither added(reference::to_blocked(residual, s.batch, s.out_channels, out_hw, kNan), c.is_residual_f32);
  const std::size_t padded = (s.out_channels + 15) / 16 * 16;
  bias.resize(padded, kNan);
  scale.resize(padded, kNan);
  Guarded bias_buffer(bias), scale_buffer(scale);
  GuardedEither output(std::vector<float>(s.batch * padded * out_hw, kNan), c.is_y_f32);
  std::vector<Bytes> inputs{bytes_of(input), bytes_of(packed)};
  if (c.operands.has_bias) inputs.push_back(bytes_of(bias_buffer));
  if (c.operands.has_scale) inputs.push_back(bytes_of(scale_buffer));
  if (c.operands.has_residual) inputs.push_back(bytes_of(added));
  attributes["bias"] = std::int64_t{c.operands.has_bias};
  attributes["scale"] = std::int64_t{c.operands.has_scale};
  attributes["residual"] = std::int64_t{c.operands.has_residual};
  attributes["residual_after"] = std::int64_t{c.epilogue.residual_after};
  attributes["activation"] = name_of(c.epilogue.activation);
  attributes["alpha"] = double{c.epilogue.alpha};
  attributes["beta"] = double{c.epilogue.beta};
  attributes["y_f32"] = std::int64_t{c.is_y_f32};
  attributes["residual_f32"] = std::int64_t{c.is_residual_f32};
  run_operation(target, conv_amx_operations, operation.c_str(), attributes, inputs, {bytes_of(output)}, workers);
  expect(output.intact() && packed.intact(), what + ": overrun");
  expect_close(expected, reference::from_blocked(output.values(), s.batch, s.out_channels, out_hw),
               bf16_tolerance(s.in_channels * taps, c.is_y_f32), what);
}

Conv random_conv(Dice& dice) {
  Conv c;
  c.batch = 1 + dice.roll(2);
  c.out = 1 + dice.roll(80);
  c.stride = 1 + dice.roll(3);
  c.operands = {dice.roll(2) == 1, dice.roll(3) == 0, dice.roll(2) == 1};
  c.is_y_f32 = dice.roll(3) == 0;
  c.is_residual_f32 = dice.roll(3) == 0;
  if (dice.roll(3) == 0) c.epilogue = {static_cast<Activation>(dice.roll(11)), 0.4f, 0.6f, dice.roll(2) == 1};
  return c;
}

void blocked(const Target& target) {
  Dice dice(1);
  for (std::uint32_t seed = 0; seed < 150; ++seed) {
    Conv c = random_conv(dice);
    c.kernel = 1 + dice.roll(4);
    c.dilation = 1 + dice.roll(3);
    c.pad = dice.roll(c.dilation * c.kernel + 1);
    c.in = 1 + dice.roll(80);
    c.h = c.dilation * c.kernel + dice.roll(12);
    c.w = c.dilation * c.kernel + dice.roll(40);
    check(target, c, 10 * seed, static_cast<int>(1 + dice.roll(4)));
  }
}

void plain(const Target& target) {
  Dice dice(2);
  for (std::uint32_t seed = 0; seed < 80; ++seed) {
    Conv c = random_conv(dice);
    c.is_plain = true;
    c.in = 1 + dice.roll(4);
    c.kernel = 1 + dice.roll(8);
    c.stride = 1 + dice.roll(5);
    c.pad = dice.roll(c.kernel);
    c.h = c.kernel + dice.roll(12);
    c.w = c.kernel + dice.roll(40);
    check(target, c, 10 * seed);
  }
}

// Copies of strips, of one or more images, and more strips than workers.
void strips(const Target& target) {
  Dice dice(3);
  for (std::uint32_t seed = 0; seed < 12; ++seed) {
    Conv c = random_conv(dice);
    c.stride = 1 + dice.roll(2);
    c.kernel = 1 + 2 * dice.roll(2);
    c.pad = c.kernel / 2;
    c.in = seed % 3 == 0 ? 130 : 1 + dice.roll(40);
    c.h = c.stride * (24 + dice.roll(20));
    c.w = seed % 3 == 0 ? 60 : 1 + dice.roll(40);
    check(target, c, 10 * seed, static_cast<int>(1 + dice.roll(4)));
  }
}

void transposed(const Target& target) {
  Dice dice(4);
  for (std::uint32_t seed = 0; seed < 120; ++seed) {
    Conv c = random_conv(dice);
    c.is_transposed = true;
    c.stride_w = 1 + dice.roll(3);
    c.kernel = c.stride + dice.roll(4);
    c.kernel_w = c.stride_w + dice.roll(8);
    c.pad = dice.roll(c.kernel < c.kernel_w ? c.kernel : c.kernel_w);
    c.more = dice.roll(c.stride < c.stride_w ? c.stride : c.stride_w);
    c.in = 1 + dice.roll(80);
    c.h = 3 + c.pad + dice.roll(seed % 8 == 0 ? 30 : 8);
    c.w = 1 + 2 * c.pad + dice.roll(seed % 4 == 0 ? 20 : 6);
    check(target, c, 10 * seed, static_cast<int>(1 + dice.roll(4)));
  }
  // The places of rows whose first and last are as far apart as if all were adjacent.
  Conv c;
  c.is_transposed = true;
  c.in = 32;
  c.kernel = 3;
  c.kernel_w = 4;
  c.stride_w = 2;
  c.pad = 2;
  c.more = -1;
  c.h = 12;
  for (c.w = 3; c.w < 20; ++c.w) check(target, c, static_cast<std::uint32_t>(2000 + c.w));
  c.kernel = c.stride = 2;
  c.kernel_w = 7;
  c.stride_w = 1;
  c.pad = 1;
  c.more = 0;
  c.h = 20;
  for (c.w = 1; c.w < 8; ++c.w) check(target, c, static_cast<std::uint32_t>(3000 + c.w));
}

// More weights than stay in cache, and more steps than rows of a block.
void large(const Target& target) {
  Conv c;
  c.in = 600;
  c.out = 900;
  c.h = c.w = 9;
  check(target, c, 1);
  c.in = c.out = 250;
  c.kernel = 3;
  c.pad = 1;
  check(target, c, 2);
}

void nothing(const Target& target) {
  Conv c;
  c.batch = 0;
  check(target, c, 3);
}

void refusals(const Target& target) {
  Conv c;
  const auto is_refused = [&](const AttributeMap& more, const char* message) {
    AttributeMap attributes = more;
    attributes.merge(attributes_of(shape_of(c), c));
    expect_refused(target, conv_amx_operations, "conv_amx_bf16", attributes, {1 << 20, 1 << 20}, {1 << 20}, message);
  };
  is_refused({{"groups", std::int64_t{2}}}, "2 groups; expected 1");
  is_refused({{"plain", std::int64_t{1}}}, "40 channels");
  c.in = 3;
  c.kernel = 9;
  c.h = c.w = 20;
  is_refused({{"plain", std::int64_t{1}}}, "kernel rows of 9 pixels");
  c.is_transposed = true;
  c.kernel = 1;
  c.stride = 2;
  AttributeMap attributes = attributes_of(shape_of(c), c);
  expect_refused(target, conv_amx_operations, "conv_transpose_amx_bf16", attributes, {1 << 20, 1 << 20}, {1 << 20},
                 "a kernel smaller than its stride");
}

}  // namespace

int main() {
  return run_cases({{"blocked", blocked},
                    {"plain", plain},
                    {"strips", strips},
                    {"transposed", transposed},
                    {"large", large},
                    {"nothing", nothing},
                    {"refusals", refusals}},
                   {"conv_amx_bf16"});
}

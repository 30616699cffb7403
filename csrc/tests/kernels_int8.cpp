// Convolutions and products of 8-bit integers against scalar sums in 64 bits: sums exactly, codes within rounding.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels_bytes_common.hpp"

using namespace engine;
using namespace engine::test;

namespace engine {
extern const OperationEntry conv_amx_operations[];
extern const OperationEntry conv_int8_operations[];
extern const OperationEntry conv_transpose_int8_operations[];
extern const OperationEntry depthwise_int8_operations[];
extern const OperationEntry gemm_tiled_operations[];
}  // namespace engine

namespace {

// A code may differ from the exact value by half a quantum and the rounding of f32.
constexpr double kRounding = 0.5 + 1e-3;

std::int64_t padded(std::int64_t channels) {
  return (channels + 15) / 16 * 16;
}

// Channels in blocks; other lanes hold random bytes, which must not matter.
ByteVector to_blocked(const ByteVector& plain, std::int64_t batch, std::int64_t channels, std::int64_t pixels,
                      std::int64_t bytes = 1) {
  ByteVector blocked = random_bytes(static_cast<std::size_t>(batch * padded(channels) * pixels * bytes), 77);
  for (std::int64_t n = 0; n < batch; ++n)
    for (std::int64_t c = 0; c < channels; ++c)
      for (std::int64_t p = 0; p < pixels; ++p)
        std::memcpy(&blocked[((n * padded(channels) + c / 16 * 16) * pixels + p * 16 + c % 16) * bytes],
                    &plain[((n * channels + c) * pixels + p) * bytes], static_cast<std::size_t>(bytes));
  return blocked;
}

ByteVector from_blocked(const ByteVector& blocked, std::int64_t batch, std::int64_t channels, std::int64_t pixels,
                        std::int64_t bytes) {
  ByteVector plain(static_cast<std::size_t>(batch * channels * pixels * bytes));
  for (std::int64_t n = 0; n < batch; ++n)
    for (std::int64_t c = 0; c < channels; ++c)
      for (std::int64_t p = 0; p < pixels; ++p)
        std::memcpy(&plain[((n * channels + c) * pixels + p) * bytes],
                    &blocked[((n * padded(channels) + c / 16 * 16) * pixels + p * 16 + c % 16) * bytes],
                    static_cast<std::size_t>(bytes));
  return plain;
}

std::int64_t byte_at(const ByteVector& bytes, std::int64_t index, bool is_signed) {
  const char value = bytes[static_cast<std::size_t>(index)];
  return is_signed ? static_cast<std::int64_t>(static_cast<signed char>(value)) : static_cast<unsigned char>(value);
}

// Random weights; if pairs_fit, from -64 to 64, so that two adjacent products with any u8 fit into 16 bits.
ByteVector random_weights(std::size_t count, bool pairs_fit, std::uint32_t seed) {
  ByteVector weights = random_bytes(count, seed);
  if (pairs_fit)
    for (char& weight : weights) weight = static_cast<char>(static_cast<signed char>(weight) / 2);
  return weights;
}

// Everything after the sums; channel-wise numbers are for the output channels or columns.
struct Epilogue {
  std::string y = "u8", residual_type;  // no residual if empty
  std::int64_t zero_point = 3, residual_zero_point = 0;
  bool has_bias = false, has_middle = false;
  std::string activation = "clip";
  double alpha = -std::numeric_limits<double>::infinity(), beta = std::numeric_limits<double>::infinity();
  double factor = 1;
};

constexpr double kMiddle[3] = {-90, 100, 0.7};
constexpr double kResidualScale = 0.8;

Epilogue random_epilogue(Dice& dice) {
  static const char* const kTypes[] = {"u8", "i8", "f32", "i32"};
  Epilogue e;
  e.y = kTypes[dice.roll(10) < 7 ? dice.roll(2) : dice.roll(4)];
  if (e.y == "i32") return e;
  e.has_bias = dice.roll(2) == 1;
  e.has_middle = dice.roll(3) == 0;
  if (dice.roll(2) == 1) e.residual_type = kTypes[dice.roll(3)];
  if (e.residual_type == "u8" || e.residual_type == "i8") e.residual_zero_point = dice.roll(100);
  if (dice.roll(3) == 0) {
    e.alpha = -20;
    e.beta = 30;
  } else if (dice.roll(4) == 0) {
    e.activation = "leaky_relu";
    e.alpha = 0.25;
    e.factor = 0.5;
  }
  return e;
}

AttributeMap attributes_of(const Epilogue& e) {
  AttributeMap attributes{{"y", e.y}, {"activation", e.activation}, {"alpha", e.alpha}, {"beta", e.beta}};
  if (e.y == "u8" || e.y == "i8") attributes["zero_point"] = e.zero_point;
  if (e.activation != "clip") attributes["factor"] = e.factor;
  if (e.has_bias) attributes["bias"] = std::int64_t{1};
  if (e.has_middle) attributes["middle"] = std::vector<double>(std::begin(kMiddle), std::end(kMiddle));
  if (!e.residual_type.empty()) {
    attributes["residual"] = std::int64_t{1};
    attributes["residual_type"] = e.residual_type;
    attributes["residual_scale"] = kResidualScale;
    attributes["residual_zero_point"] = e.residual_zero_point;
  }
  return attributes;
}

std::int64_t bytes_of(const std::string& type) {
  return type == "u8" || type == "i8" ? 1 : 4;
}

double residual_at(const Epilogue& e, const ByteVector& residual, std::int64_t index) {
  if (e.residual_type.empty()) return 0;
  if (e.residual_type == "f32") return kResidualScale * value_at<float>(residual, index);
  return kResidualScale *
         static_cast<double>(byte_at(residual, index, e.residual_type == "i8") - e.residual_zero_point);
}

// Whether a result is right for a sum, scaled and biased by `value`.
bool is_right(const Epilogue& e, std::int64_t sum, double value, double added, const ByteVector& y,
              std::int64_t index) {
  if (e.y == "i32") return value_at<std::int32_t>(y, index) == sum;
  // Near the middle between two codes, either code is right.
  std::vector<double> middles{value};
  if (e.has_middle) {
    const double clipped = std::min(kMiddle[1], std::max(kMiddle[0], value));
    middles = {std::rint(clipped - 1e-4) * kMiddle[2], std::rint(clipped + 1e-4) * kMiddle[2]};
  }
  for (double exact : middles) {
    exact += added;
    if (e.activation == "clip")
      exact = std::min(e.beta, std::max(e.alpha, exact));
    else
      exact = (exact < 0 ? e.alpha * exact : exact) * (e.y == "f32" ? e.factor : e.factor);
    if (e.y == "f32") {
      const float actual = value_at<float>(y, index);
      if (std::abs(actual - exact) <= 1e-4 * (1 + std::abs(exact))) return true;
      continue;
    }
    const double low = e.y == "u8" ? 0 : -128;
    exact = std::min(low + 255, std::max(low, exact + static_cast<double>(e.zero_point)));
    if (std::abs(static_cast<double>(byte_at(y, index, e.y == "i8")) - exact) <= kRounding) return true;
  }
  return false;
}

// Channel-wise numbers in whole blocks; values beyond the channels must not matter.
struct Vectors {
  std::vector<std::int32_t> start;
  std::vector<float> scale, bias;
};

Vectors vectors_of(std::int64_t channels, Dice& dice) {
  Vectors v;
  for (std::int64_t c = 0; c < padded(channels); ++c) {
    v.start.push_back(static_cast<std::int32_t>(dice.roll(2000) - 1000));
    v.scale.push_back(static_cast<float>(1 + dice.roll(100)) / 20000.0f);
    v.bias.push_back(static_cast<float>(dice.roll(200) - 100) / 10.0f);
  }
  return v;
}

// The factors of the sums of x, in whole blocks.
std::vector<std::int32_t> factors_of(std::int64_t channels, Dice& dice) {
  std::vector<std::int32_t> factors;
  for (std::int64_t c = 0; c < padded(channels); ++c)
    factors.push_back(static_cast<std::int32_t>(dice.roll(256) - 127));
  return factors;
}

std::vector<ByteVector> operands(const ByteVector& x, const ByteVector& w, const Vectors& v, const Epilogue& e,
                                 const ByteVector& residual) {
  std::vector<ByteVector> inputs{x, w, bytes_of_values(v.start), bytes_of_values(v.scale)};
  if (e.has_bias) inputs.push_back(bytes_of_values(v.bias));
  if (!e.residual_type.empty()) inputs.push_back(residual);
  return inputs;
}

struct Conv {
  std::int64_t batch = 1, groups = 1, in = 16, out = 16, h = 5, w = 5, kernel = 1, stride = 1, pad = 0, dilation = 1;
  bool is_dilated_down = false;  // only the rows are dilated
};

// `family`: blocked, planar, depthwise; or tiles, planar tiles.
void check_conv(const Target& target, const std::string& family, const Conv& c, const Epilogue& e, AttributeMap tiling,
                std::uint32_t seed) {
  Dice dice(seed);
  const bool is_depthwise = family == "depthwise", is_planar = family.find("planar") == 0;
  const bool is_on_tiles = family.find("tiles") != std::string::npos;
  const std::int64_t own = c.in / c.groups, dilation_w = c.is_dilated_down ? 1 : c.dilation;
  const std::int64_t span_h = c.dilation * (c.kernel - 1) + 1, span_w = dilation_w * (c.kernel - 1) + 1;
  const std::int64_t out_h = (c.h + 2 * c.pad - span_h) / c.stride + 1;
  const std::int64_t out_w = (c.w + 2 * c.pad - span_w) / c.stride + 1;
  const std::int64_t zero_point = dice.roll(256);
  AttributeMap shape{{"batch", c.batch},
                     {"groups", c.groups},
                     {"in_channels", c.in},
                     {"out_channels", c.out},
                     {"in", std::vector<std::int64_t>{c.h, c.w}},
                     {"out", std::vector<std::int64_t>{out_h, out_w}},
                     {"kernel", std::vector<std::int64_t>{c.kernel, c.kernel}},
                     {"strides", std::vector<std::int64_t>{c.stride, c.stride}},
                     {"dilations", std::vector<std::int64_t>{c.dilation, dilation_w}},
                     {"pads", std::vector<std::int64_t>(4, c.pad)}};
  shape.merge(tiling);
  const ByteVector x = random_bytes(static_cast<std::size_t>(c.batch * c.in * c.h * c.w), seed + 1);
  const bool pairs_fit = dice.roll(3) == 0;
  const ByteVector weights =
      random_weights(static_cast<std::size_t>(c.out * own * c.kernel * c.kernel), pairs_fit, seed + 2);
  const Vectors v = vectors_of(c.out, dice);
  const std::int64_t outputs = c.batch * c.out * out_h * out_w;
  ByteVector residual = random_bytes(static_cast<std::size_t>(outputs), seed + 3);
  if (e.residual_type == "f32") residual = bytes_of_values(random_floats(static_cast<std::size_t>(outputs), seed + 3));

  const OperationEntry* table = is_depthwise  ? depthwise_int8_operations
                                : is_on_tiles ? conv_amx_operations
                                              : conv_int8_operations;
  const std::string name = is_depthwise ? "depthwise_int8" : is_on_tiles ? "conv_amx_int8" : "conv_" + family + "_int8";
  if (is_on_tiles) shape["plain"] = std::int64_t{is_planar};
  ByteVector source = weights;
  if (is_planar) {
    source.assign(static_cast<std::size_t>(c.out * c.kernel * c.kernel * 4), 0);
    for (std::int64_t o = 0; o < c.out; ++o)
      for (std::int64_t i = 0; i < c.in; ++i)
        for (std::int64_t t = 0; t < c.kernel * c.kernel; ++t)
          source[static_cast<std::size_t>((o * c.kernel * c.kernel + t) * 4 + i)] =
              weights[static_cast<std::size_t>((o * c.in + i) * c.kernel * c.kernel + t)];
  }
  // More than any packing needs.
  const std::size_t room =
      static_cast<std::size_t>(padded(c.out + 64) * (padded(own) + 3) * c.kernel * (c.kernel + 12) * 4);
  std::vector<ByteVector> packed{ByteVector(room, 1)};
  run_bytes(target, table, "pack_" + name, shape, {source}, packed, 4, 2);

  AttributeMap attributes = shape, more = attributes_of(e);
  attributes.merge(more);
  attributes["x_zero_point"] = zero_point;
  attributes["pairs_fit"] = std::int64_t{pairs_fit};
  const bool is_computed = (family == "blocked" || family == "planar") && dice.roll(3) == 0,
             is_zero_signed = dice.roll(2) == 1;
  if (is_computed) {
    attributes["x_zero_point"] = std::int64_t{1};
    attributes["x_zero_computed"] = std::int64_t{1};
    attributes["x_signed"] = std::int64_t{is_zero_signed};
  }
  const ByteVector input = is_planar ? x : to_blocked(x, c.batch, c.in, c.h * c.w);
  const ByteVector added = e.residual_type.empty()
                               ? residual
                               : to_blocked(residual, c.batch, c.out, out_h * out_w, bytes_of(e.residual_type));
  std::vector<ByteVector> results{
      ByteVector(static_cast<std::size_t>(c.batch * padded(c.out) * out_h * out_w * bytes_of(e.y)), 7)};
  std::vector<ByteVector> inputs = operands(input, packed[0], v, e, added);
  if (is_computed) inputs.push_back({static_cast<char>(zero_point ^ (is_zero_signed ? 128 : 0))});
  std::vector<std::int32_t> factors(static_cast<std::size_t>(padded(c.out)), 0);
  if ((family == "blocked" || family == "planar") && dice.roll(3) == 0) {
    factors = factors_of(c.out, dice);
    inputs.push_back(bytes_of_values(factors));
    attributes["w_zeros"] = std::int64_t{1};
  }
  run_bytes(target, table, name, attributes, inputs, results, 4, static_cast<int>(1 + dice.roll(4)));
  const ByteVector y = from_blocked(results[0], c.batch, c.out, out_h * out_w, bytes_of(e.y));

  for (std::int64_t index = 0; index < outputs; ++index) {
    const std::int64_t ow = index % out_w, oh = index / out_w % out_h, o = index / (out_w * out_h) % c.out;
    const std::int64_t n = index / (out_w * out_h * c.out), first = o / (c.out / c.groups) * own;
    std::int64_t sum = v.start[static_cast<std::size_t>(o)];
    for (std::int64_t i = 0; i < own; ++i)
      for (std::int64_t kh = 0; kh < c.kernel; ++kh)
        for (std::int64_t kw = 0; kw < c.kernel; ++kw) {
          const std::int64_t ih = oh * c.stride - c.pad + kh * c.dilation, iw = ow * c.stride - c.pad + kw * dilation_w;
          const bool is_inside = ih >= 0 && iw >= 0 && ih < c.h && iw < c.w;
          const std::int64_t value =
              is_inside ? byte_at(x, ((n * c.in + first + i) * c.h + ih) * c.w + iw, false) : zero_point;
          sum += value * (byte_at(weights, ((o * own + i) * c.kernel + kh) * c.kernel + kw, true) +
                          factors[static_cast<std::size_t>(o)]);
        }
    const double value = static_cast<double>(sum) * v.scale[static_cast<std::size_t>(o)] +
                         (e.has_bias ? v.bias[static_cast<std::size_t>(o)] : 0);
    if (!expect(is_right(e, sum, value, residual_at(e, residual, index), y, index),
                name + " case " + std::to_string(seed) + " at " + std::to_string(index)))
      return;
  }
}

struct Axis {
  std::int64_t in, out, kernel, stride, dilation, pad;  // pad: positions of the full result that are skipped
  std::int64_t residue(std::int64_t output) const { return ((output + pad) % stride + stride) % stride; }
  // The input position whose product with a tap is part of an output, or -1: a tap of another residue.
  std::int64_t source(std::int64_t output, std::int64_t tap, bool& is_met) const {
    const std::int64_t place = output + pad - tap * dilation;
    is_met = place % stride == 0;
    return is_met && place >= 0 && place / stride < in ? place / stride : -1;
  }
};

void check_transposed(const Target& target, std::int64_t batch, std::int64_t groups, std::int64_t in, std::int64_t out,
                      const Axis& rows, const Axis& columns, const Epilogue& e, std::uint32_t seed) {
  Dice dice(seed);
  const std::int64_t zero_point = dice.roll(256), pixels = rows.out * columns.out;
  const std::int64_t taps = rows.kernel * columns.kernel, residues = rows.stride * columns.stride;
  const std::int64_t own = in / groups, own_out = out / groups;
  const AttributeMap shape{{"batch", batch},
                           {"groups", groups},
                           {"in_channels", in},
                           {"out_channels", out},
                           {"in", std::vector<std::int64_t>{rows.in, columns.in}},
                           {"out", std::vector<std::int64_t>{rows.out, columns.out}},
                           {"kernel", std::vector<std::int64_t>{rows.kernel, columns.kernel}},
                           {"strides", std::vector<std::int64_t>{rows.stride, columns.stride}},
                           {"dilations", std::vector<std::int64_t>{rows.dilation, columns.dilation}},
                           {"pads", std::vector<std::int64_t>{rows.pad, columns.pad, 0, 0}}};
  const bool pairs_fit = dice.roll(3) == 0;
  const ByteVector x = random_bytes(static_cast<std::size_t>(batch * in * rows.in * columns.in), seed + 1);
  const ByteVector weights = random_weights(static_cast<std::size_t>(in * own_out * taps), pairs_fit, seed + 2);
  Vectors v = vectors_of(out, dice);
  v.start.clear();
  for (std::int64_t i = 0; i < residues * padded(out); ++i)
    v.start.push_back(static_cast<std::int32_t>(dice.roll(2000) - 1000));
  const std::int64_t outputs = batch * out * pixels;
  ByteVector residual = random_bytes(static_cast<std::size_t>(outputs), seed + 3);
  if (e.residual_type == "f32") residual = bytes_of_values(random_floats(static_cast<std::size_t>(outputs), seed + 3));

  const std::size_t room = static_cast<std::size_t>(padded(out + 64) * (padded(in) + 16) * taps);
  std::vector<ByteVector> packed{ByteVector(room, 1)};
  run_bytes(target, conv_transpose_int8_operations, "pack_conv_transpose_int8", shape, {weights}, packed, 4, 2);
  AttributeMap attributes = shape, more = attributes_of(e);
  attributes.merge(more);
  attributes["x_zero_point"] = zero_point;
  attributes["pairs_fit"] = std::int64_t{pairs_fit};
  const ByteVector added =
      e.residual_type.empty() ? residual : to_blocked(residual, batch, out, pixels, bytes_of(e.residual_type));
  std::vector<ByteVector> results{
      ByteVector(static_cast<std::size_t>(batch * padded(out) * pixels * bytes_of(e.y)), 7)};
  const ByteVector input = to_blocked(x, batch, in, rows.in * columns.in);
  run_bytes(target, conv_transpose_int8_operations, "conv_transpose_int8", attributes,
            operands(input, packed[0], v, e, added), results, 4, static_cast<int>(1 + dice.roll(4)));
  const ByteVector y = from_blocked(results[0], batch, out, pixels, bytes_of(e.y));

  for (std::int64_t index = 0; index < outputs; ++index) {
    const std::int64_t ow = index % columns.out, oh = index / columns.out % rows.out, o = index / pixels % out;
    const std::int64_t n = index / (pixels * out), part = rows.residue(oh) * columns.stride + columns.residue(ow);
    std::int64_t sum = v.start[static_cast<std::size_t>(part * padded(out) + o)];
    for (std::int64_t kh = 0; kh < rows.kernel; ++kh)
      for (std::int64_t kw = 0; kw < columns.kernel; ++kw) {
        bool is_row = false, is_column = false;
        const std::int64_t ih = rows.source(oh, kh, is_row), iw = columns.source(ow, kw, is_column);
        if (!is_row || !is_column) continue;
        for (std::int64_t i = o / own_out * own; i < (o / own_out + 1) * own; ++i) {
          const bool is_inside = ih >= 0 && iw >= 0;
          const std::int64_t value =
              is_inside ? byte_at(x, ((n * in + i) * rows.in + ih) * columns.in + iw, false) : zero_point;
          sum += value * byte_at(weights, (i * own_out + o % own_out) * taps + kh * columns.kernel + kw, true);
        }
      }
    const double value = static_cast<double>(sum) * v.scale[static_cast<std::size_t>(o)] +
                         (e.has_bias ? v.bias[static_cast<std::size_t>(o)] : 0);
    if (!expect(is_right(e, sum, value, residual_at(e, residual, index), y, index),
                "transposed case " + std::to_string(seed) + " at " + std::to_string(index)))
      return;
  }
}

void transposed(const Target& target) {
  Dice dice(10);
  const auto axis = [&](std::int64_t most) {
    Axis a = {};
    a.in = 1 + dice.roll(most);
    a.kernel = 1 + dice.roll(5);
    a.stride = 1 + dice.roll(4);
    a.dilation = 1 + dice.roll(3);
    const std::int64_t full = (a.in - 1) * a.stride + (a.kernel - 1) * a.dilation + 1;
    a.pad = dice.roll(6) == 0 ? -dice.roll(4) : dice.roll(std::min<std::int64_t>(full, 4));
    a.out = std::max<std::int64_t>(dice.roll(8) == 0 ? 0 : 1, full - a.pad - dice.roll(3) + dice.roll(3));
    return a;
  };
  for (std::uint32_t seed = 0; seed < 150; ++seed) {
    const Axis rows = axis(6), columns = axis(20);
    const std::int64_t groups = dice.roll(4) == 0 ? 2 : 1;
    const std::int64_t in = groups == 2 ? 32 + 32 * dice.roll(2) : 1 + dice.roll(50);
    const std::int64_t out = groups == 2 ? 32 : 1 + dice.roll(50);
    check_transposed(target, 1 + dice.roll(2), groups, in, out, rows, columns, random_epilogue(dice), 5000 + seed);
  }
}

void blocked(const Target& target) {
  Dice dice(5);
  for (std::uint32_t seed = 0; seed < 150; ++seed) {
    Conv c;
    c.batch = 1 + dice.roll(2);
    c.kernel = 1 + dice.roll(3);
    c.dilation = 1 + dice.roll(2);
    c.stride = 1 + dice.roll(3);
    c.pad = dice.roll(c.kernel + 1);
    c.in = 1 + dice.roll(50);
    c.out = 1 + dice.roll(80);
    if (dice.roll(4) == 0) {
      c.groups = 2;
      c.in = c.out = 32;
    }
    c.h = c.dilation * c.kernel + dice.roll(12);
    c.w = c.dilation * c.kernel + dice.roll(40);
    check_conv(target, "blocked", c, random_epilogue(dice), {}, seed);
  }
}

void every_tile(const Target& target) {
  for (std::int64_t vectors = 1; vectors <= 2; ++vectors)
    for (std::int64_t width = 1; width <= 14; ++width) {
      Conv c;
      c.in = 20;
      c.out = 48;
      c.h = 2;
      c.w = width;
      Dice dice(static_cast<std::uint32_t>(width));
      try {
        check_conv(target, "blocked", c, random_epilogue(dice), {{"vectors", vectors}}, 500);
        c.kernel = 3;
        c.pad = 1;
        check_conv(target, "blocked", c, random_epilogue(dice), {{"vectors", vectors}}, 501);
      } catch (const PlanError&) {
        return;  // this instruction set has fewer
      }
    }
}

void planar(const Target& target) {
  Dice dice(6);
  for (std::uint32_t seed = 0; seed < 80; ++seed) {
    Conv c;
    c.in = 1 + dice.roll(4);
    c.out = 1 + dice.roll(70);
    c.kernel = 1 + dice.roll(7);
    c.stride = 1 + dice.roll(4);
    c.pad = dice.roll(c.kernel);
    c.h = c.kernel + dice.roll(12);
    c.w = c.kernel + dice.roll(40);
    check_conv(target, "planar", c, random_epilogue(dice), {}, 1000 + seed);
  }
}

void on_tiles(const Target& target) {
  if (!target.has_own("conv_amx_int8")) return;
  Dice dice(9);
  for (std::uint32_t seed = 0; seed < 120; ++seed) {
    Conv c;
    c.batch = 1 + dice.roll(2);
    c.kernel = 1 + dice.roll(4);
    c.dilation = 1 + dice.roll(3);
    c.stride = 1 + dice.roll(4);
    c.pad = dice.roll(c.dilation * c.kernel + 1);
    c.in = 1 + dice.roll(150);
    c.out = 1 + dice.roll(80);
    // Large maps are copied by strips.
    const std::int64_t taller = seed % 8 == 0 ? 30 * c.stride : 0;
    c.h = c.dilation * c.kernel + dice.roll(12) + taller;
    c.w = c.dilation * c.kernel + dice.roll(40);
    check_conv(target, "tiles", c, random_epilogue(dice), {}, 3000 + seed);
    c.in = 1 + dice.roll(4);
    c.kernel = 1 + dice.roll(16);
    c.dilation = 1;
    c.pad = dice.roll(c.kernel);
    c.h = c.kernel + dice.roll(12) + taller;
    c.w = c.kernel + dice.roll(40);
    check_conv(target, "planar tiles", c, random_epilogue(dice), {}, 4000 + seed);
  }
}

void depthwise(const Target& target) {
  Dice dice(7);
  for (std::uint32_t seed = 0; seed < 120; ++seed) {
    Conv c;
    c.batch = 1 + dice.roll(2);
    c.in = c.out = c.groups = 2 + dice.roll(40);
    c.kernel = seed % 2 == 0 ? 3 + 2 * dice.roll(2) : 1 + dice.roll(9);
    c.stride = 1 + dice.roll(3);
    c.pad = dice.roll(c.kernel + 1);
    c.dilation = dice.roll(3) == 0 ? 2 + dice.roll(6) : 1;
    c.is_dilated_down = true;
    c.h = c.dilation * c.kernel + dice.roll(12);
    c.w = c.kernel + dice.roll(40);
    check_conv(target, "depthwise", c, random_epilogue(dice), {}, 2000 + seed);
  }
}

void products(const Target& target) {
  Dice dice(8);
  for (std::uint32_t seed = 0; seed < 150; ++seed) {
    const std::int64_t m = 1 + dice.roll(40), n = 1 + dice.roll(90), k = dice.roll(100);
    const bool is_transposed = dice.roll(2) == 1, is_signed = dice.roll(2) == 1, pairs_fit = dice.roll(3) == 0;
    const Epilogue e = random_epilogue(dice);
    const std::int64_t a_row = k + dice.roll(9), c_row = n + dice.roll(9);
    const ByteVector a = random_bytes(static_cast<std::size_t>((m - 1) * a_row + k), seed + 11);
    const ByteVector b = random_weights(static_cast<std::size_t>(n * k), pairs_fit, seed + 12);
    const Vectors v = vectors_of(n, dice);
    ByteVector residual = random_bytes(static_cast<std::size_t>(m * n), seed + 13);
    if (e.residual_type == "f32") residual = bytes_of_values(random_floats(static_cast<std::size_t>(m * n), seed + 13));
    const bool has_factors = dice.roll(3) == 0;
    std::vector<std::int32_t> factors(static_cast<std::size_t>(padded(n)), 0);
    if (has_factors) factors = factors_of(n, dice);
    AttributeMap packing{
        {"n", n}, {"k", k}, {"transposed", std::int64_t{is_transposed}}, {"b_zeros", std::int64_t{has_factors}}};
    std::vector<ByteVector> packed{ByteVector(static_cast<std::size_t>(padded(n + 64) * (padded(k) + 64)), 1)};
    run_bytes(target, gemm_tiled_operations, "pack_gemm_int8", packing, {b}, packed, 4, 2);

    AttributeMap attributes{{"m", m},
                            {"n", n},
                            {"k", k},
                            {"a_row", a_row},
                            {"c_row", c_row},
                            {"a_signed", std::int64_t{is_signed}},
                            {"b_zeros", std::int64_t{has_factors}},
                            {"pairs_fit", std::int64_t{pairs_fit}}};
    AttributeMap more = attributes_of(e);
    attributes.merge(more);
    std::vector<ByteVector> results{ByteVector(static_cast<std::size_t>(((m - 1) * c_row + n) * bytes_of(e.y)), 7)};
    std::vector<ByteVector> inputs = operands(a, packed[0], v, e, residual);
    if (has_factors) inputs.insert(inputs.end() - !e.residual_type.empty(), bytes_of_values(factors));
    run_bytes(target, gemm_tiled_operations, "gemm_int8", attributes, inputs, results, 4,
              static_cast<int>(1 + dice.roll(4)));
    for (std::int64_t row = 0; row < m; ++row)
      for (std::int64_t column = 0; column < n; ++column) {
        std::int64_t sum = v.start[static_cast<std::size_t>(column)];
        for (std::int64_t i = 0; i < k; ++i)
          sum += (byte_at(a, row * a_row + i, is_signed) + (is_signed ? 128 : 0)) *
                 (byte_at(b, is_transposed ? column * k + i : i * n + column, true) +
                  factors[static_cast<std::size_t>(column)]);
        const double value = static_cast<double>(sum) * v.scale[static_cast<std::size_t>(column)] +
                             (e.has_bias ? v.bias[static_cast<std::size_t>(column)] : 0);
        if (!expect(
                is_right(e, sum, value, residual_at(e, residual, row * n + column), results[0], row * c_row + column),
                "product case " + std::to_string(seed) + " at " + std::to_string(row) + ", " + std::to_string(column)))
          return;
      }
  }
}

void refusals(const Target& target) {
  const auto refused = [&](AttributeMap changed, const std::string& message) {
    AttributeMap attributes{{"m", std::int64_t{2}}, {"n", std::int64_t{3}}, {"k", std::int64_t{4}}};
    changed.merge(attributes);
    expect_refused(target, gemm_tiled_operations, "gemm_int8", changed, {8, 4096, 64, 64}, {24}, message);
  };
  refused({{"y", std::string("f16")}}, "f16");
  refused({{"y", std::string("u8")}, {"zero_point", std::int64_t{256}}}, "zero_point");
  refused({{"middle", std::vector<double>{1, 0, 1}}}, "middle");
  refused({{"factor", std::numeric_limits<double>::quiet_NaN()}}, "factor");
  refused({{"scale", std::int64_t{1}}}, "not optional");
  const std::vector<std::int64_t> five{5, 5}, three{3, 3}, one{1, 1};
  AttributeMap plain{{"batch", std::int64_t{1}}, {"in_channels", std::int64_t{3}}, {"out_channels", std::int64_t{16}}};
  plain.merge(
      AttributeMap{{"in", five}, {"out", one}, {"kernel", three}, {"dilations", std::vector<std::int64_t>{2, 2}}});
  AttributeMap grouped{{"batch", std::int64_t{1}},
                       {"groups", std::int64_t{2}},
                       {"in_channels", std::int64_t{40}},
                       {"out_channels", std::int64_t{32}},
                       {"in", one},
                       {"out", three},
                       {"kernel", three}};
  expect_refused(target, conv_transpose_int8_operations, "conv_transpose_int8", grouped, {48, 9216, 128, 128}, {288},
                 "groups of 20");
  expect_refused(target, conv_int8_operations, "conv_planar_int8", plain, {75, 4096, 64, 64}, {64}, "dilation");
}

}  // namespace

int main() {
  return run_cases({{"blocked", blocked},
                    {"every tile", every_tile},
                    {"planar", planar},
                    {"transposed", transposed},
                    {"depthwise", depthwise},
                    {"on tiles", on_tiles},
                    {"products", products},
                    {"refusals", refusals}},
                   {"gemm_int8", "gemm_amx_int8"});
}

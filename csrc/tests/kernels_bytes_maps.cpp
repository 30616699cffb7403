// Average pooling, sums and products of 8-bit tensors against scalar arithmetic in f64.
#include <algorithm>
#include <cmath>

#include "kernels_bytes_common.hpp"

using namespace engine;
using namespace engine::test;

namespace engine {
extern const OperationEntry average_bytes_operations[];
extern const OperationEntry binary_bytes_operations[];
}  // namespace engine

namespace {

constexpr std::int64_t kZero = 11;

std::int64_t byte_at(const ByteVector& bytes, std::int64_t index, bool is_signed) {
  const char value = bytes[static_cast<std::size_t>(index)];
  return is_signed ? static_cast<signed char>(value) : static_cast<unsigned char>(value);
}

bool is_right(const std::string& type, double value, const ByteVector& y, std::int64_t index) {
  if (type == "f32") return std::abs(value_at<float>(y, index) - value) <= 1e-5 * (1 + std::abs(value));
  const double low = type == "u8" ? 0 : -128, exact = std::min(low + 255, std::max(low, value + kZero));
  return std::abs(static_cast<double>(byte_at(y, index, type == "i8")) - exact) <= 0.5 + 1e-3;
}

std::int64_t bytes_of(const std::string& type) {
  return type == "f32" ? 4 : 1;
}

AttributeMap result_of(const std::string& type) {
  AttributeMap attributes{{"y", type}};
  if (type != "f32") attributes["zero_point"] = kZero;
  return attributes;
}

const std::string& random_type(Dice& dice) {
  static const std::string kTypes[] = {"u8", "i8", "f32"};
  return kTypes[dice.roll(3)];
}

void averages(const Target& target) {
  Dice dice(4);
  for (std::uint32_t seed = 0; seed < 150; ++seed) {
    const std::int64_t batch = 1 + dice.roll(2), channels = 1 + dice.roll(40), blocks = (channels + 15) / 16;
    const std::int64_t kernel = 1 + dice.roll(5), stride = 1 + dice.roll(3), pad = dice.roll(kernel + 1);
    const std::int64_t h = kernel + dice.roll(8), w = kernel + dice.roll(20);
    const std::int64_t out_h = (h + 2 * pad - kernel) / stride + 1, out_w = (w + 2 * pad - kernel) / stride + 1;
    const bool counts_padding = dice.roll(2) == 1, is_signed = dice.roll(2) == 1;
    const std::int64_t zero = dice.roll(256);  // as u8
    const std::string type = random_type(dice);
    const double scale = 0.37;
    AttributeMap attributes = result_of(type);
    attributes.merge(AttributeMap{{"batch", batch},
                                  {"in_channels", channels},
                                  {"out_channels", channels},
                                  {"in", std::vector<std::int64_t>{h, w}},
                                  {"out", std::vector<std::int64_t>{out_h, out_w}},
                                  {"kernel", std::vector<std::int64_t>{kernel, kernel}},
                                  {"strides", std::vector<std::int64_t>{stride, stride}},
                                  {"pads", std::vector<std::int64_t>(4, pad)},
                                  {"count_include_pad", std::int64_t{counts_padding}},
                                  {"scale", scale},
                                  {"x_zero_point", zero},
                                  {"x_signed", std::int64_t{is_signed}}});
    const ByteVector x = random_bytes(static_cast<std::size_t>(batch * blocks * 16 * h * w), seed + 1);
    std::vector<ByteVector> results{
        ByteVector(static_cast<std::size_t>(batch * blocks * 16 * out_h * out_w * bytes_of(type)), 7)};
    run_bytes(target, average_bytes_operations, "average_pool_bytes", attributes, {x}, results, 4,
              static_cast<int>(1 + dice.roll(4)));
    for (std::int64_t at = 0; at < batch * blocks * out_h * out_w * 16; ++at) {
      const std::int64_t lane = at % 16, ow = at / 16 % out_w, oh = at / 16 / out_w % out_h,
                         map = at / 16 / out_w / out_h;
      double sum = 0;
      std::int64_t count = 0;
      for (std::int64_t r = oh * stride - pad; r < oh * stride - pad + kernel; ++r)
        for (std::int64_t c = ow * stride - pad; c < ow * stride - pad + kernel; ++c) {
          const bool is_inside = r >= 0 && c >= 0 && r < h && c < w;
          if (is_inside)
            sum += static_cast<double>(byte_at(x, ((map * h + r) * w + c) * 16 + lane, is_signed) +
                                       (is_signed ? 128 : 0) - zero);
          count += is_inside || (counts_padding && r >= -pad && c >= -pad && r < h + pad && c < w + pad);
        }
      if (!is_right(type, count == 0 ? 0 : scale * sum / static_cast<double>(count), results[0], at)) {
        expect(false, "average case " + std::to_string(seed) + " at " + std::to_string(at));
        return;
      }
    }
  }
}

void sums_and_products(const Target& target) {
  Dice dice(5);
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const std::int64_t outer = 1 + dice.roll(4), lanes = dice.roll(2) == 0 ? 1 : 16;
    const std::int64_t pixels = seed % 10 == 0 ? 1000 + dice.roll(4000) : dice.roll(150);
    const bool is_product = dice.roll(2) == 1, is_repeated = dice.roll(2) == 1;
    const bool a_signed = dice.roll(2) == 1, b_signed = dice.roll(2) == 1;
    const std::int64_t a_zero = dice.roll(256), b_zero = dice.roll(256);
    const std::string type = random_type(dice);
    const double a_scale = is_product ? 0.01 : 0.6, b_scale = 0.3;
    AttributeMap attributes = result_of(type);
    attributes.merge(AttributeMap{{"outer", outer},
                                  {"pixels", pixels},
                                  {"lanes", lanes},
                                  {"product", std::int64_t{is_product}},
                                  {"b_repeated", std::int64_t{is_repeated}},
                                  {"a_scale", a_scale},
                                  {"b_scale", b_scale},
                                  {"a_zero_point", a_zero},
                                  {"b_zero_point", b_zero},
                                  {"a_signed", std::int64_t{a_signed}},
                                  {"b_signed", std::int64_t{b_signed}}});
    const std::int64_t count = outer * pixels * lanes;
    const ByteVector a = random_bytes(static_cast<std::size_t>(count), seed + 1);
    const ByteVector b = random_bytes(static_cast<std::size_t>(is_repeated ? outer * lanes : count), seed + 2);
    std::vector<ByteVector> results{ByteVector(static_cast<std::size_t>(count * bytes_of(type)), 7)};
    run_bytes(target, binary_bytes_operations, "binary_bytes", attributes, {a, b}, results, 4,
              static_cast<int>(1 + dice.roll(4)));
    for (std::int64_t at = 0; at < count; ++at) {
      const std::int64_t second = is_repeated ? at / lanes / pixels * lanes + at % lanes : at;
      const double left = static_cast<double>(byte_at(a, at, a_signed) + (a_signed ? 128 : 0) - a_zero);
      const double right = static_cast<double>(byte_at(b, second, b_signed) + (b_signed ? 128 : 0) - b_zero);
      const double value = is_product ? left * right * a_scale : left * a_scale + right * b_scale;
      if (!is_right(type, value, results[0], at)) {
        expect(false, "case " + std::to_string(seed) + " at " + std::to_string(at));
        return;
      }
    }
  }
}

void refusals(const Target& target) {
  AttributeMap attributes{{"outer", std::int64_t{2}}, {"pixels", std::int64_t{3}}, {"lanes", std::int64_t{2}}};
  expect_refused(target, binary_bytes_operations, "binary_bytes", attributes, {12, 12}, {48}, "neither 1 nor 16");
  attributes["lanes"] = std::int64_t{1};
  attributes["a_scale"] = std::nan("");
  expect_refused(target, binary_bytes_operations, "binary_bytes", attributes, {6, 6}, {24}, "a_scale");
}

}  // namespace

int main() {
  return run_cases({{"averages", averages}, {"sums and products", sums_and_products}, {"refusals", refusals}},
                   {"binary_bytes"});
}

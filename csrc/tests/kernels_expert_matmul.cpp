// Products with the matrices of chosen experts against scalar sums in f64: f32 and codes of 4 and 8 bits, tails of
// rows, columns and registers, blocks of all layouts, experts without rows and with many, NaN and infinity, wrong
// indices.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/expert_matmul.hpp"
#include "kernels/prepare/codes.hpp"
#include "kernels_bytes_common.hpp"
#include "simd/half.hpp"

namespace engine {
extern const OperationEntry expert_matmul_operations[];
}  // namespace engine

using namespace engine;
using namespace engine::test;

namespace {

struct Case {
  std::int64_t tokens, ways, x_ways, experts, n, k;
  std::int64_t bits = 0, block = 0;
  bool has_zero_points = false, has_bias = true;
  std::int64_t digits = 3;
  std::int64_t index_bytes = 8;
  ElementCode weights = ElementCode::kF32;
};

struct Inputs {
  std::vector<float> x, numbers, scales, bias;
  std::vector<std::int64_t> indices, codes, zero_points;
};

std::int64_t block_of(const Case& c) {
  return c.block == 0 ? (c.k > 0 ? c.k : 1) : c.block;
}
std::int64_t blocks_of(const Case& c) {
  return (c.k + block_of(c) - 1) / block_of(c);
}

template <class T>
std::vector<T> narrow(const std::vector<float>& values, T (*rounded)(float)) {
  std::vector<T> found(values.size());
  std::transform(values.begin(), values.end(), found.begin(), rounded);
  return found;
}

template <class T>
std::vector<float> widened(const std::vector<T>& values) {
  std::vector<float> found;
  for (const T value : values) found.push_back(to_f32(value));
  return found;
}

ByteVector bytes_of_numbers(const Case& c, const std::vector<float>& numbers) {
  if (c.weights == ElementCode::kF16) return bytes_of_values(narrow<F16>(numbers, round_to_f16));
  if (c.weights == ElementCode::kBF16) return bytes_of_values(narrow<Bf16>(numbers, to_bf16));
  return bytes_of_values(numbers);
}

Inputs random_inputs(const Case& c, std::uint32_t seed) {
  Inputs in;
  Dice dice(seed);
  in.x = random_floats(static_cast<std::size_t>(c.tokens * c.x_ways * c.k), seed);
  for (std::int64_t i = 0; i < c.tokens * c.ways; ++i) in.indices.push_back(dice.roll(2 * c.experts) - c.experts);
  if (c.bits == 0) in.numbers = random_floats(static_cast<std::size_t>(c.experts * c.n * c.k), seed + 1);
  if (c.weights == ElementCode::kF16) in.numbers = widened(narrow<F16>(in.numbers, round_to_f16));
  if (c.weights == ElementCode::kBF16) in.numbers = widened(narrow<Bf16>(in.numbers, to_bf16));
  const std::int64_t range = std::int64_t{1} << c.bits, blocks = c.experts * c.n * blocks_of(c);
  for (std::int64_t i = 0; c.bits > 0 && i < c.experts * c.n * c.k; ++i) in.codes.push_back(dice.roll(range));
  for (std::int64_t i = 0; c.bits > 0 && i < blocks; ++i) {
    in.scales.push_back(static_cast<float>(dice.roll(2000) - 300) / 16384.0f);
    in.zero_points.push_back(c.has_zero_points ? dice.roll(range) : range / 2);
  }
  in.bias = random_floats(static_cast<std::size_t>(c.experts * c.n), seed + 2);
  return in;
}

// Rows of `count` codes in bytes.
ByteVector packed(const std::vector<std::int64_t>& codes, std::int64_t count, std::int64_t bits) {
  ByteVector bytes;
  for (std::size_t row = 0; row < codes.size(); row += static_cast<std::size_t>(count))
    for (std::int64_t i = 0; i < count; i += 8 / bits) {
      std::int64_t byte = codes[row + static_cast<std::size_t>(i)];
      if (bits == 4 && i + 1 < count) byte |= codes[row + static_cast<std::size_t>(i + 1)] << 4;
      bytes.push_back(static_cast<char>(byte));
    }
  return bytes;
}

double weight(const Case& c, const Inputs& in, std::int64_t row, std::int64_t k) {
  const std::size_t at = static_cast<std::size_t>(row * c.k + k);
  if (c.bits == 0) return in.numbers[at];
  const std::size_t block = static_cast<std::size_t>(row * blocks_of(c) + k / block_of(c));
  return static_cast<double>(in.codes[at] - in.zero_points[block]) * static_cast<double>(in.scales[block]);
}

AttributeMap attributes(const Case& c) {
  AttributeMap found{{"tokens", c.tokens}, {"ways", c.ways}, {"x_ways", c.x_ways},           {"experts", c.experts},
                     {"n", c.n},           {"k", c.k},       {"index_bytes", c.index_bytes}, {"bits", c.bits}};
  found["bias"] = std::int64_t{c.has_bias};
  if (c.weights != ElementCode::kF32) found["weights"] = std::string(name_of(c.weights));
  if (c.bits > 0) {
    found["zero_points"] = std::int64_t{c.has_zero_points};
    found["digits"] = c.digits;
    if (c.block > 0) found["block"] = c.block;
  }
  return found;
}

Fault run(const Target& target, const Case& c, const Inputs& in, std::vector<float>& y) {
  std::vector<ByteVector> inputs = {bytes_of_values(in.x)};
  inputs.push_back(c.index_bytes == 8
                       ? bytes_of_values(in.indices)
                       : bytes_of_values(std::vector<std::int32_t>(in.indices.begin(), in.indices.end())));
  inputs.push_back(c.bits == 0 ? bytes_of_numbers(c, in.numbers) : packed(in.codes, c.k, c.bits));
  if (c.bits > 0) inputs.push_back(bytes_of_values(in.scales));
  if (c.has_zero_points) inputs.push_back(packed(in.zero_points, blocks_of(c), c.bits));
  if (c.has_bias) inputs.push_back(bytes_of_values(in.bias));
  std::vector<ByteVector> outputs{ByteVector(static_cast<std::size_t>(c.tokens * c.ways * c.n) * 4, '\x33')};
  const Fault fault = run_bytes(target, expert_matmul_operations, "expert_matmul", attributes(c), inputs, outputs, 4);
  y = values_of_bytes<float>(outputs[0]);
  return fault;
}

std::vector<float> wanted(const Case& c, const Inputs& in) {
  std::vector<float> y;
  for (std::int64_t row = 0; row < c.tokens * c.ways; ++row) {
    const std::int64_t index = in.indices[static_cast<std::size_t>(row)], e = index < 0 ? index + c.experts : index;
    const std::int64_t from = c.x_ways == 1 ? row / c.ways : row;
    for (std::int64_t n = 0; n < c.n; ++n) {
      double sum = c.has_bias ? static_cast<double>(in.bias[static_cast<std::size_t>(e * c.n + n)]) : 0.0;
      for (std::int64_t k = 0; k < c.k; ++k)
        sum += weight(c, in, e * c.n + n, k) * static_cast<double>(in.x[static_cast<std::size_t>(from * c.k + k)]);
      y.push_back(static_cast<float>(sum));
    }
  }
  return y;
}

void check(const Target& target, const Case& c, double rounding = 0.0) {
  const Inputs in = random_inputs(c, static_cast<std::uint32_t>(c.n * 31 + c.k + c.bits));
  std::vector<float> y;
  run(target, c, in, y);
  expect_close(wanted(c, in), y, sum_tolerance(c.k + 1) + rounding,
               std::to_string(c.bits) + " bits, n " + std::to_string(c.n) + ", k " + std::to_string(c.k) + ", block " +
                   std::to_string(c.block) + ", tokens " + std::to_string(c.tokens));
}

void multiplies_numbers(const Target& target) {
  for (const std::int64_t k : {0, 1, 7, 16, 33, 100})
    for (const std::int64_t n : {1, 3, 16, 37}) check(target, {3, 2, 1, 5, n, k});
  check(target, {40, 3, 3, 4, 21, 1100});  // many rows, in parts of k
  check(target, {2, 1, 1, 9, 5, 2100});
  check(target, {0, 2, 2, 3, 4, 5});
  check(target, {4, 0, 0, 3, 4, 5});
  Case narrow = {3, 2, 2, 5, 18, 20};
  narrow.index_bytes = 4;
  narrow.has_bias = false;
  check(target, narrow);
}

void multiplies_narrow_numbers(const Target& target) {
  for (const ElementCode weights : {ElementCode::kF16, ElementCode::kBF16}) {
    const auto with = [&](Case c) {
      c.weights = weights;
      check(target, c);
    };
    for (const std::int64_t k : {0, 1, 7, 16, 33, 100})
      for (const std::int64_t n : {1, 3, 16, 37}) with({3, 2, 1, 5, n, k});
    with({40, 3, 3, 4, 21, 1100});
    with({2, 1, 1, 9, 5, 2100});
  }
}

void keeps_infinite_weights(const Target& target) {
  for (const ElementCode weights : {ElementCode::kF16, ElementCode::kBF16})
    for (const std::int64_t tokens : {1, 3}) {
      Case c = {tokens, 1, 1, 1, 5, 100};
      c.weights = weights;
      Inputs in = random_inputs(c, 5);
      in.numbers[3] = INFINITY;
      in.numbers[100 + 97] = -INFINITY;
      in.numbers[200 + 50] = std::numeric_limits<float>::quiet_NaN();
      std::vector<float> y;
      run(target, c, in, y);
      const std::vector<float> expected = wanted(c, in);
      for (std::size_t i = 0; i < y.size(); ++i)
        expect(std::isnan(expected[i])   ? std::isnan(y[i])
               : std::isinf(expected[i]) ? y[i] == expected[i]
                                         : std::isfinite(y[i]),
               "element " + std::to_string(i));
    }
}

void multiplies_codes(const Target& target) {
  for (const std::int64_t bits : {4, 8})
    for (const bool has_zero_points : {false, true})
      for (const std::int64_t block : {0, 8, 16, 32, 24, 48, 128, 256})
        for (const std::int64_t k : {2, 48, 130, 300}) {
          check(target, {3, 2, 1, 4, 5, k, bits, block, has_zero_points});
          check(target, {9, 2, 2, 3, 19, k, bits, block, has_zero_points, false});
        }
  check(target, {2, 2, 1, 3, 4, 0, 4});
}

void rounds_to_one_digit(const Target& target) {
  // Each of the activations, at most 1, is rounded by at most 1 / 254, and a weight is at most 255 * 0.11.
  Case c = {5, 2, 1, 4, 19, 64, 4, 32, true, true, 1};
  check(target, c, 64 * 15 * 0.11 / 254);
}

void keeps_nan_and_infinity(const Target& target) {
  for (const std::int64_t bits : {0, 4, 8}) {
    Case c = {3, 2, 1, 4, 6, 40, bits, 8};
    if (bits == 0) c.block = 0;
    Inputs in = random_inputs(c, 7);
    in.x[5] = std::numeric_limits<float>::quiet_NaN();
    for (std::int64_t i = 0; i < c.k; ++i) in.x[static_cast<std::size_t>(c.k + i)] = i == 3 ? INFINITY : 0.0f;
    std::vector<float> y;
    run(target, c, in, y);
    const std::vector<float> expected = wanted(c, in);
    for (std::size_t i = 0; i < y.size(); ++i) {
      const bool is_same = std::isfinite(expected[i])
                               ? std::isfinite(y[i])
                               : (std::isnan(expected[i]) ? std::isnan(y[i]) : y[i] == expected[i]);
      expect(is_same, "element " + std::to_string(i) + " with " + std::to_string(bits) + " bits");
    }
  }
}

void reports_wrong_indices(const Target& target) {
  const Case c = {3, 2, 1, 4, 6, 8};
  for (const std::int64_t wrong : {4, -5}) {
    Inputs in = random_inputs(c, 3);
    in.indices[2] = wrong;
    std::vector<float> y;
    const Fault fault = run(target, c, in, y);
    expect(fault.found && fault.index == wrong && fault.size == 4, "index " + std::to_string(wrong));
  }
  Inputs in = random_inputs(c, 3);
  in.indices[3] = in.indices[4] = kNoExpert;
  std::vector<float> y;
  const Fault fault = run(target, c, in, y);
  expect(fault.found && is_no_expert(fault.index) && fault.index - kNoExpert == 1, "the first row without experts");
  expect(!is_no_expert(-5) && !is_no_expert(-(std::int64_t{1} << 62)), "an index");
}

void refuses_wrong_attributes(const Target& target) {
  const auto refuse = [&](const Case& c, const std::string& message) {
    std::vector<std::size_t> inputs(3 + (c.bits > 0) + c.has_zero_points + c.has_bias, 1 << 16);
    expect_refused(target, expert_matmul_operations, "expert_matmul", attributes(c), inputs, {1 << 16}, message);
  };
  refuse({1, 2, 3, 4, 5, 8}, "x_ways");
  refuse({1, 2, 1, 0, 5, 8}, "experts");
  refuse({1, 2, 1, 4, 5, 8, 5}, "bits");
  refuse({1, 2, 1, 4, 5, 32, 4, 12}, "block");
  refuse({1, 2, 1, 4, 5, 7, 4}, "whole bytes");
  refuse({1, 2, 1, 4, 5, 8, 4, 0, false, true, 2}, "digits");
  refuse({64, 2, 1, 4, 5, 1024}, "input 0");
}

}  // namespace

int main() {
  return run_cases({{"multiplies numbers", multiplies_numbers},
                    {"multiplies narrow numbers", multiplies_narrow_numbers},
                    {"keeps infinite weights", keeps_infinite_weights},
                    {"multiplies codes", multiplies_codes},
                    {"rounds to one digit", rounds_to_one_digit},
                    {"keeps NaN and infinity", keeps_nan_and_infinity},
                    {"reports wrong indices", reports_wrong_indices},
                    {"refuses wrong attributes", refuses_wrong_attributes}},
                   {"expert_matmul_f32", "expert_matmul_int8"});
}

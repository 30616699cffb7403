// Products with blocked weights of 4 and 8 bits against scalar sums of dequantized weights.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels_bytes_common.hpp"

using namespace engine;
using namespace engine::test;

namespace engine {
extern const OperationEntry gemm_weights_operations[];
extern const OperationEntry gather_weights_operations[];
}  // namespace engine

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Product {
  std::int64_t m, n, k, block;
  int bits = 4;
  bool is_signed = false, has_zero_points = false, has_half_scales = true;
  std::int64_t center = 0;  // as an unsigned number
  bool has_bias = false, has_residual = false;
  std::string activation = "clip";
  int digits = 3;
};

struct Operands {
  std::vector<float> a, scales, bias, residual;
  std::vector<std::int64_t> codes, zero_points;  // unsigned
};

std::int64_t blocks_of(const Product& p) {
  return (p.k + p.block - 1) / p.block;
}

Operands random_operands(const Product& p, std::uint32_t seed) {
  Operands o;
  Dice dice(seed);
  const std::int64_t codes = std::int64_t{1} << p.bits;
  o.a = random_floats(static_cast<std::size_t>(p.m * p.k), seed);
  for (std::int64_t i = 0; i < p.k * p.n; ++i) o.codes.push_back(dice.roll(codes));
  for (std::int64_t i = 0; i < blocks_of(p) * p.n; ++i) {
    // Exact in f16, with f16's denormals, zero and negative numbers among them.
    const std::int64_t kind = dice.roll(20);
    const float scale = static_cast<float>(1 + dice.roll(1000)) / 16384.0f;
    o.scales.push_back(kind == 0 ? 0.0f : kind == 1 ? 0x1p-23f : kind == 2 ? -scale : scale);
    if (!p.has_half_scales) o.scales.back() *= 1.00013f;
    o.zero_points.push_back(p.has_zero_points ? dice.roll(codes) : p.center);
  }
  o.bias = random_floats(static_cast<std::size_t>(p.n), seed + 1);
  o.residual = random_floats(static_cast<std::size_t>(p.m * p.n), seed + 2);
  return o;
}

ByteVector bytes_of_codes(const Product& p, const std::vector<std::int64_t>& codes) {
  ByteVector bytes;
  const std::int64_t flip = !p.is_signed ? 0 : p.bits == 4 ? 8 : 128;
  // A signed code of 4 bits is stored with its sign in the upper half.
  for (const std::int64_t code : codes) bytes.push_back(static_cast<char>(code - flip));
  return bytes;
}

AttributeMap weight_attributes(const Product& p) {
  AttributeMap attributes{{"n", p.n}, {"k", p.k}, {"block", p.block}, {"bits", std::int64_t{p.bits}}};
  attributes["half_scales"] = std::int64_t{p.has_half_scales};
  attributes["zero_points"] = std::int64_t{p.has_zero_points};
  if (!p.has_zero_points) attributes["center"] = p.center;
  return attributes;
}

// `columns`: the codes by columns, or empty.
ByteVector packed_of(const Target& target, const Product& p, const Operands& o, const ByteVector& columns = {}) {
  AttributeMap attributes = weight_attributes(p);
  attributes["is_signed"] = std::int64_t{p.is_signed};
  if (!columns.empty()) attributes["column_bytes"] = static_cast<std::int64_t>(columns.size()) / p.n;
  std::vector<ByteVector> inputs{columns.empty() ? bytes_of_codes(p, o.codes) : columns, bytes_of_values(o.scales)};
  if (p.has_zero_points) inputs.push_back(bytes_of_codes(p, o.zero_points));
  const std::int64_t pieces = (p.block + 255) / 256, length = ((p.block + pieces - 1) / pieces + 15) / 16 * 16;
  const std::int64_t records = blocks_of(p) * ((p.block + length - 1) / length);
  const std::int64_t bytes = 32 * (length * p.bits / 8 + (p.has_half_scales ? 2 : 4) + p.has_zero_points);
  std::vector<ByteVector> packed{ByteVector(static_cast<std::size_t>((p.n + 31) / 32 * records * bytes), '\x55')};
  run_bytes(target, gemm_weights_operations, "pack_weights", attributes, inputs, packed, 4);
  return packed[0];
}

// The same codes by columns, in as few bits as they have, with other bits after the last one.
ByteVector by_columns(const Product& p, const Operands& o, std::int64_t column_bytes) {
  ByteVector bytes(static_cast<std::size_t>(p.n * column_bytes), '\x5a');
  for (std::int64_t column = 0; column < p.n; ++column)
    for (std::int64_t k = 0; k < p.k; ++k) {
      char& byte = bytes[static_cast<std::size_t>(column * column_bytes + k * p.bits / 8)];
      const std::int64_t code = o.codes[static_cast<std::size_t>(k * p.n + column)] ^ (!p.is_signed  ? 0
                                                                                       : p.bits == 4 ? 8
                                                                                                     : 128);
      const int shift = p.bits == 4 ? static_cast<int>(k % 2 * 4) : 0, mask = (1 << p.bits) - 1;
      byte = static_cast<char>((byte & ~(mask << shift)) | (code & mask) << shift);
    }
  return bytes;
}

void packs_columns(const Target& target) {
  std::uint32_t seed = 1;
  for (const int bits : {4, 8})
    for (const std::int64_t block : {16, 32, 128, 256, 512})
      for (const std::int64_t n : {1, 32, 70})
        for (const std::int64_t k : {std::int64_t{0}, block - 3, 2 * block, 2 * block + 5}) {
          Product p{1, n, k, block, bits};
          p.is_signed = seed % 3 == 0;
          p.has_zero_points = seed % 2 == 0;
          const Operands o = random_operands(p, seed++);
          const std::int64_t column_bytes = std::max<std::int64_t>(1, blocks_of(p)) * block * bits / 8;
          Product longest = p;
          longest.block = std::max<std::int64_t>(1, std::min(block, k));
          expect(packed_of(target, longest, o) == packed_of(target, longest, o, by_columns(p, o, column_bytes)),
                 "columns of " + std::to_string(k) + " codes of " + std::to_string(bits) + " bits");
        }
}

// A result, and the sum of the magnitudes of its products with the largest element of each block of A in place of its
// elements: the rounding error of the digits is relative to this sum.
struct Expected {
  double value, magnitude;
};

Expected expected(const Product& p, const Operands& o, std::int64_t row, std::int64_t column) {
  double sum = 0, magnitude = 0;
  for (std::int64_t b = 0; b < blocks_of(p); ++b) {
    const std::int64_t begin = b * p.block, end = std::min(p.k, begin + p.block), at = b * p.n + column;
    double top = 0;
    for (std::int64_t k = begin; k < end; ++k)
      top = std::max(top, std::fabs(double{o.a[static_cast<std::size_t>(row * p.k + k)]}));
    for (std::int64_t k = begin; k < end; ++k) {
      const double weight = static_cast<double>(o.codes[static_cast<std::size_t>(k * p.n + column)] -
                                                o.zero_points[static_cast<std::size_t>(at)]) *
                            o.scales[static_cast<std::size_t>(at)];
      sum += o.a[static_cast<std::size_t>(row * p.k + k)] * weight;
      magnitude += top * std::fabs(weight);
    }
  }
  if (p.has_bias) sum += o.bias[static_cast<std::size_t>(column)];
  if (p.has_residual) sum += o.residual[static_cast<std::size_t>(row * p.n + column)];
  return {p.activation == "leaky_relu" && sum < 0 ? 0.25 * sum : sum, magnitude};
}

std::vector<float> run_product(const Target& target, const Product& p, const Operands& o, int workers) {
  std::vector<ByteVector> inputs{bytes_of_values(o.a), packed_of(target, p, o)};
  AttributeMap attributes = weight_attributes(p);
  attributes["m"] = p.m;
  attributes["digits"] = std::int64_t{p.digits};
  if (p.has_bias) {
    attributes["bias"] = std::int64_t{1};
    inputs.push_back(bytes_of_values(o.bias));
  }
  if (p.has_residual) {
    attributes["residual"] = std::int64_t{1};
    inputs.push_back(bytes_of_values(o.residual));
  }
  if (p.activation != "clip") {
    attributes["activation"] = p.activation;
    attributes["alpha"] = 0.25;
    attributes["beta"] = 0.0;
  }
  std::vector<ByteVector> outputs{ByteVector(static_cast<std::size_t>(p.m * p.n * 4), '\x33')};
  run_bytes(target, gemm_weights_operations, "gemm_weights", attributes, inputs, outputs, 4, workers);
  return values_of_bytes<float>(outputs[0]);
}

std::string name_of(const Product& p) {
  return std::to_string(p.m) + "x" + std::to_string(p.n) + "x" + std::to_string(p.k) + " block " +
         std::to_string(p.block) + " bits " + std::to_string(p.bits) + " zero points " +
         std::to_string(p.has_zero_points) + " half " + std::to_string(p.has_half_scales) + " digits " +
         std::to_string(p.digits);
}

void check(const Target& target, const Product& p, std::uint32_t seed, int workers = 3) {
  const Operands o = random_operands(p, seed);
  const std::vector<float> y = run_product(target, p, o, workers);
  // One digit less means eight bits less; the rest is the rounding of f32.
  const double tolerance = p.digits == 1 ? 0.004 : sum_tolerance(p.digits == 3 ? blocks_of(p) : p.k);
  for (std::int64_t row = 0; row < p.m; ++row)
    for (std::int64_t column = 0; column < p.n; ++column) {
      const Expected e = expected(p, o, row, column);
      const double actual = y[static_cast<std::size_t>(row * p.n + column)];
      if (!(std::fabs(actual - e.value) <= tolerance * (1 + e.magnitude))) {
        expect(false, name_of(p) + ": [" + std::to_string(row) + ", " + std::to_string(column) + "] is " +
                          std::to_string(actual) + ", expected " + std::to_string(e.value));
        return;
      }
    }
}

void computes_all_sizes(const Target& target) {
  std::uint32_t seed = 1;
  for (const int bits : {4, 8})
    for (const std::int64_t block : {16, 32, 64, 128, 256, 300, 24, 17})
      for (const std::int64_t n : {1, 17, 32, 70}) {
        Product p{1 + seed % 6, n, block * 2 + (seed % 3) * 5, block, bits};
        p.has_zero_points = seed % 2 == 0;
        p.is_signed = seed % 3 == 0;
        p.has_half_scales = seed % 5 != 0;
        p.center = p.has_zero_points ? 0 : bits == 4 ? 8 : 128;
        check(target, p, seed++);
      }
}

void computes_long_sums(const Target& target) {
  for (const int bits : {4, 8}) {
    Product whole{2, 40, 5000, 5000, bits};
    whole.center = bits == 4 ? 8 : 128;
    check(target, whole, 11);
    Product unsigned_codes{3, 33, 1000, 1 << 20, bits};  // a block longer than K, and zero point 0
    check(target, unsigned_codes, 12);
  }
}

void computes_many_rows(const Target& target) {
  Product p{150, 100, 640, 64};
  p.has_zero_points = true;
  check(target, p, 21);
  p.m = 37;
  p.bits = 8;
  p.has_residual = true;
  check(target, p, 22, 5);
}

void applies_the_epilogue(const Target& target, int digits) {
  Product p{5, 45, 96, 32};
  p.digits = digits;
  p.center = 8;
  p.has_bias = true;
  check(target, p, 31);
  p.has_residual = true;
  check(target, p, 32);
  p.activation = "leaky_relu";
  check(target, p, 33);
}

// The product with dequantized weights, also if they are dequantized in several parts.
void dequantizes(const Target& target) {
  std::uint32_t seed = 71;
  for (const int bits : {4, 8})
    for (const std::int64_t block : {16, 24, 128, 300})
      for (const std::int64_t n : {1, 17, 40, 64}) {
        Product p{1 + seed % 33, n, block * 2 + (seed % 3) * 5, block, bits};
        p.digits = 0;
        p.has_zero_points = seed % 2 == 0;
        p.has_half_scales = seed % 5 != 0;
        p.center = p.has_zero_points ? 0 : 7;
        check(target, p, seed++);
      }
  Product p{15, 40, 9000, 100};
  p.digits = 0;
  p.has_bias = p.has_residual = true;
  check(target, p, 72);
  Product empty{3, 20, 0, 16};
  empty.digits = 0;
  empty.has_bias = true;
  check(target, empty, 73);
  empty.digits = 3;
  check(target, empty, 74);
}

void computes_with_one_digit(const Target& target) {
  for (const int bits : {4, 8}) {
    Product p{5, 45, 256, 32, bits};
    p.digits = 1;
    check(target, p, 41);
    p.has_zero_points = true;
    check(target, p, 42);
  }
}

// Values of different magnitudes: each piece has its own unit; and the extremes of f32.
void keeps_magnitudes(const Target& target) {
  Product p{4, 40, 128, 32};
  p.center = 8;
  Operands o = random_operands(p, 51);
  for (std::int64_t k = 0; k < p.k; ++k) {
    o.a[static_cast<std::size_t>(k)] *= k < 32 ? 1e-20f : k < 64 ? 1e10f : 0.0f;
    o.a[static_cast<std::size_t>(p.k + k)] = std::ldexp(k % 2 == 0 ? 0.99999994f : -0.99999994f, 100);
    o.a[static_cast<std::size_t>(2 * p.k + k)] *= 1e-42f;
    o.a[static_cast<std::size_t>(3 * p.k + k)] = 0;
  }
  const std::vector<float> y = run_product(target, p, o, 2);
  for (std::int64_t row = 0; row < p.m; ++row)
    for (std::int64_t column = 0; column < p.n; ++column) {
      const Expected e = expected(p, o, row, column);
      const double actual = y[static_cast<std::size_t>(row * p.n + column)];
      expect(std::fabs(actual - e.value) <= sum_tolerance(4) * e.magnitude + 1e-37,
             "magnitudes: row " + std::to_string(row) + " is " + std::to_string(actual));
    }
}

void propagates_nan_and_infinity(const Target& target) {
  Product p{6, 37, 100, 32};
  p.has_zero_points = true;
  Operands o = random_operands(p, 61);
  o.a[3] = kNan;
  o.a[static_cast<std::size_t>(2 * p.k + 99)] = kInf;
  o.a[static_cast<std::size_t>(3 * p.k + 40)] = -kInf;
  const std::vector<float> y = run_product(target, p, o, 3);
  std::vector<float> wanted;
  for (std::int64_t row = 0; row < p.m; ++row)
    for (std::int64_t column = 0; column < p.n; ++column)
      wanted.push_back(static_cast<float>(expected(p, o, row, column).value));
  expect_close(wanted, y, 1e-4, "NaN and infinities");
}

void look_up(const Target& target, std::int64_t columns, std::int64_t block, int bits, bool has_zero_points,
             bool has_half_scales, std::int64_t index_bytes) {
  const std::int64_t rows = 9, blocks = (columns + block - 1) / block;
  Dice dice(static_cast<std::uint32_t>(columns + block + bits));
  std::vector<std::int64_t> codes, zero_points;
  std::vector<float> scales;
  ByteVector packed(static_cast<std::size_t>(rows * ((columns * bits + 7) / 8))), half_scales;
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    codes.push_back(dice.roll(std::int64_t{1} << bits));
    const std::int64_t c = i % columns;
    char& byte = packed[static_cast<std::size_t>(i / columns * ((columns * bits + 7) / 8) + c * bits / 8)];
    byte = static_cast<char>(byte | codes.back() << (bits == 4 ? c % 2 * 4 : 0));
  }
  for (std::int64_t i = 0; i < rows * blocks; ++i) {
    // 1.5 times a power of two, from f16's denormals on, and its bits in f16.
    const int exponent = static_cast<int>(dice.roll(20)) - 20;
    const bool is_negative = dice.roll(2) == 1;
    scales.push_back(std::ldexp(is_negative ? -1.5f : 1.5f, exponent));
    const int half = exponent < -14 ? 0x600 >> (-14 - exponent) : ((exponent + 15) << 10 | 0x200);
    const auto bits16 = static_cast<std::uint16_t>(half | (is_negative ? 0x8000 : 0));
    half_scales.insert(half_scales.end(), {static_cast<char>(bits16 & 255), static_cast<char>(bits16 >> 8)});
    zero_points.push_back(has_zero_points ? dice.roll(std::int64_t{1} << bits) : 7);
  }
  const std::vector<std::int64_t> indices{0, -1, 8, 3, -9, 3};
  ByteVector zero_bytes;
  for (const std::int64_t zero_point : zero_points) zero_bytes.push_back(static_cast<char>(zero_point));
  std::vector<ByteVector> inputs{packed, has_half_scales ? half_scales : bytes_of_values(scales)};
  if (has_zero_points) inputs.push_back(zero_bytes);
  inputs.push_back(index_bytes == 8 ? bytes_of_values(indices)
                                    : bytes_of_values(std::vector<std::int32_t>(indices.begin(), indices.end())));
  AttributeMap attributes{{"rows", rows}, {"columns", columns}, {"block", block}, {"bits", std::int64_t{bits}}};
  attributes["count"] = static_cast<std::int64_t>(indices.size());
  attributes["index_bytes"] = index_bytes;
  attributes["half_scales"] = std::int64_t{has_half_scales};
  attributes["zero_points"] = std::int64_t{has_zero_points};
  attributes["center"] = std::int64_t{7};
  std::vector<ByteVector> outputs{ByteVector(indices.size() * static_cast<std::size_t>(columns) * 4, '\x33')};
  run_bytes(target, gather_weights_operations, "gather_weights", attributes, inputs, outputs, 8);
  std::vector<float> wanted;
  for (const std::int64_t index : indices)
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::int64_t row = index < 0 ? index + rows : index, at = row * blocks + c / block;
      wanted.push_back(static_cast<float>(codes[static_cast<std::size_t>(row * columns + c)] -
                                          zero_points[static_cast<std::size_t>(at)]) *
                       scales[static_cast<std::size_t>(at)]);
    }
  expect(wanted == values_of_bytes<float>(outputs[0]),
         "look-up in " + std::to_string(columns) + " columns of " + std::to_string(bits) + " bits");
}

void looks_up_rows(const Target& target) {
  for (const std::int64_t columns : {1, 7, 32, 45})
    for (const std::int64_t block : {5, 16, 64})
      for (const int bits : {4, 8}) {
        look_up(target, columns, block, bits, true, true, 8);
        look_up(target, columns, block, bits, false, false, 4);
      }
}

void refuses_wrong_attributes(const Target& target) {
  const auto refuse = [&](const Product& p, const std::string& message) {
    AttributeMap attributes = weight_attributes(p);
    attributes["m"] = std::int64_t{1};
    expect_refused(target, gemm_weights_operations, "gemm_weights", attributes, {4 * 64, 32 * 64}, {4 * 32}, message);
  };
  refuse({1, 32, 64, 32, 5}, "bits");
  refuse({1, 32, 64, 0}, "block");
  refuse({1, 64, 64, 32}, "input 1");
  const auto refuse_columns = [&](std::int64_t block, std::int64_t bytes, const std::string& message) {
    AttributeMap attributes = weight_attributes({1, 32, 64, block});
    attributes["column_bytes"] = bytes;
    expect_refused(target, gemm_weights_operations, "pack_weights", attributes, {32 * 32, 4 * 32 * 64}, {1 << 20},
                   message);
  };
  refuse_columns(16, 31, "column_bytes");
  refuse_columns(16, 33, "input 0");
  refuse_columns(15, 32, "even");
}

}  // namespace

int main() {
  return run_cases(
      {{"packs columns", packs_columns},
       {"computes all sizes", computes_all_sizes},
       {"computes long sums", computes_long_sums},
       {"computes many rows", computes_many_rows},
       {"applies the epilogue", [](const Target& target) { applies_the_epilogue(target, 3); }},
       {"applies the epilogue to dequantized products", [](const Target& target) { applies_the_epilogue(target, 0); }},
       {"dequantizes", dequantizes},
       {"computes with one digit", computes_with_one_digit},
       {"keeps magnitudes", keeps_magnitudes},
       {"propagates NaN and infinity", propagates_nan_and_infinity},
       {"looks up rows", looks_up_rows},
       {"refuses wrong attributes", refuses_wrong_attributes}},
      {"gemm_weights_int8", "gather_weights"});
}

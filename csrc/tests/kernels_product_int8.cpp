// Products of computed matrices of 8-bit integers against scalar sums, with all kinds of zero points and batches.
#include <cmath>

#include "kernels_bytes_common.hpp"

using namespace engine;
using namespace engine::test;

namespace engine {
extern const OperationEntry product_int8_operations[];
}

namespace {

std::int64_t value_at(const ByteVector& bytes, std::int64_t index, bool is_signed) {
  const char value = bytes[static_cast<std::size_t>(index)];
  return is_signed ? static_cast<signed char>(value) : static_cast<unsigned char>(value);
}

void products(const Target& target) {
  Dice dice(3);
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const std::int64_t m = dice.roll(40), n = 1 + dice.roll(90), k = dice.roll(80);
    const bool a_signed = dice.roll(2) == 1, b_signed = dice.roll(2) == 1, transposed = dice.roll(2) == 1;
    const bool a_zeros = dice.roll(3) == 0, b_zeros = dice.roll(3) == 0, scales = dice.roll(2) == 1;
    const std::int64_t outer = 1 + dice.roll(3), inner = 1 + dice.roll(3);
    const bool a_shared = dice.roll(2) == 1, b_shared = dice.roll(2) == 1;  // by the outer dimension
    const std::int64_t a_batches = a_shared ? inner : outer * inner, b_batches = b_shared ? inner : outer * inner;
    static const char* const kTypes[] = {"i32", "f32", "u8", "i8"};
    const std::string type = kTypes[dice.roll(4)];
    const std::int64_t bytes = type == "u8" || type == "i8" ? 1 : 4;
    const ByteVector a = random_bytes(static_cast<std::size_t>(a_batches * m * k), seed + 1);
    const ByteVector b = random_bytes(static_cast<std::size_t>(b_batches * k * n), seed + 2);
    const ByteVector a_zero = random_bytes(static_cast<std::size_t>(a_zeros ? m : 1), seed + 3);
    const ByteVector b_zero = random_bytes(static_cast<std::size_t>(b_zeros ? n : 1), seed + 4);
    std::vector<float> scale(static_cast<std::size_t>(scales ? (n + 15) / 16 * 16 : 1));
    for (float& factor : scale) factor = static_cast<float>(1 + dice.roll(100)) / 20000.0f;
    AttributeMap attributes{{"m", m},
                            {"n", n},
                            {"k", k},
                            {"a_batches", a_batches},
                            {"b_batches", b_batches},
                            {"batch", std::vector<std::int64_t>{outer, inner}},
                            {"a_step", std::vector<std::int64_t>{a_shared ? 0 : inner, 1}},
                            {"b_step", std::vector<std::int64_t>{b_shared ? 0 : inner, 1}},
                            {"a_signed", std::int64_t{a_signed}},
                            {"b_signed", std::int64_t{b_signed}},
                            {"b_transposed", std::int64_t{transposed}},
                            {"a_zeros", std::int64_t{a_zeros}},
                            {"b_zeros", std::int64_t{b_zeros}},
                            {"scales", std::int64_t{scales}},
                            {"y", type}};
    const std::int64_t zero = type == "u8" ? 100 : type == "i8" ? -3 : 0;
    if (bytes == 1) attributes["zero_point"] = zero;
    std::vector<ByteVector> inputs{a, b, a_zero, b_zero};
    if (type != "i32") inputs.push_back(bytes_of_values(scale));
    std::vector<ByteVector> results{ByteVector(static_cast<std::size_t>(outer * inner * m * n * bytes), 7)};
    run_bytes(target, product_int8_operations, "product_int8", attributes, inputs, results, 4,
              static_cast<int>(1 + dice.roll(4)));
    for (std::int64_t at = 0; at < outer * inner * m * n; ++at) {
      const std::int64_t column = at % n, row = at / n % m, batch = at / n / m;
      const std::int64_t first = a_shared ? batch % inner : batch, second = b_shared ? batch % inner : batch;
      std::int64_t sum = 0;
      for (std::int64_t i = 0; i < k; ++i)
        sum += (value_at(a, (first * m + row) * k + i, a_signed) - value_at(a_zero, a_zeros ? row : 0, a_signed)) *
               (value_at(b, transposed ? (second * n + column) * k + i : (second * k + i) * n + column, b_signed) -
                value_at(b_zero, b_zeros ? column : 0, b_signed));
      const double real = static_cast<double>(sum) * scale[static_cast<std::size_t>(scales ? column : 0)];
      bool is_right = false;
      if (type == "i32") {
        is_right = test::value_at<std::int32_t>(results[0], at) == sum;
      } else if (type == "f32") {
        const float got = test::value_at<float>(results[0], at);
        is_right = std::abs(got - real) <= 1e-5 * (1 + std::abs(real));
      } else {
        const double low = type == "u8" ? 0 : -128, exact = std::min(low + 255, std::max(low, real + zero));
        is_right = std::abs(static_cast<double>(value_at(results[0], at, type == "i8")) - exact) <= 0.5 + 1e-3;
      }
      if (!is_right) {
        expect(false, "case " + std::to_string(seed) + " at " + std::to_string(at));
        return;
      }
    }
  }
}

void refusals(const Target& target) {
  const auto refused = [&](AttributeMap changed, const std::string& message) {
    AttributeMap attributes{
        {"m", std::int64_t{2}}, {"n", std::int64_t{3}}, {"k", std::int64_t{4}}, {"y", std::string("i32")}};
    changed.merge(attributes);
    expect_refused(target, product_int8_operations, "product_int8", changed, {8, 12, 1, 1}, {24}, message);
  };
  const std::vector<std::int64_t> two{2}, one{1};
  refused({{"batch", two}, {"a_step", one}, {"b_step", one}}, "matrices 1 of 1");
  refused({{"batch", two}}, "as many of each");
  refused({{"a_zeros", std::int64_t{1}}}, "input 2");
  refused({{"k", std::int64_t{5}}}, "input 0");
}

}  // namespace

int main() {
  return run_cases({{"products", products}, {"refusals", refusals}}, {"product_int8"});
}

// Elementwise operations on f32 and f64, each against its formula.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/pointwise_scalar.hpp"
#include "kernels_elementwise_common.hpp"

using namespace engine;
using namespace engine::test;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct RealOperation {
  Opcode opcode;
  const char* name;
  double tolerance;  // relative to 1 + |result|
  double (*exact)(double a, double b, double c);
  int sources;
};

using namespace scalar;

constexpr double kRounding = 1.3e-7, kOfFunction = 5e-7;
// By the costs of pointwise.def: each parameter takes part in one more operation.
constexpr double kExact(int) {
  return 0;
}
constexpr double kArithmetic(int) {
  return 3 * kRounding;
}
constexpr double kDivision(int) {
  return kRounding;
}
constexpr double kFunction(int sources) {
  return kOfFunction * sources;
}
const RealOperation kReal[] = {
    {Opcode::kCopy, "copy", 0, [](double a, double, double) { return a; }, 1},
    {Opcode::kNeg, "neg", 0, [](double a, double, double) { return -a; }, 1},
    {Opcode::kAbs, "abs", 0, [](double a, double, double) { return std::fabs(a); }, 1},
    {Opcode::kSign, "sign", 0, [](double a, double, double) { return a > 0   ? 1
                                                                     : a < 0 ? -1
                                                                             : a; }, 1},
    {Opcode::kRelu, "relu", 0, [](double a, double, double) { return a < 0 ? 0 : a; }, 1},
    {Opcode::kAdd, "add", kRounding, [](double a, double b, double) { return a + b; }, 2},
    {Opcode::kSub, "sub", kRounding, [](double a, double b, double) { return a - b; }, 2},
    {Opcode::kMul, "mul", kRounding, [](double a, double b, double) { return a * b; }, 2},
    {Opcode::kDiv, "div", kRounding, [](double a, double b, double) { return a / b; }, 2},
    {Opcode::kPow, "pow", kOfFunction, [](double a, double b, double) { return std::pow(a, b); }, 2},
    {Opcode::kFmod, "fmod", 0, [](double a, double b, double) { return std::fmod(a, b); }, 2},
    {Opcode::kMin, "min", 0, [](double a, double b, double) { return std::isnan(a) || a < b ? a : b; }, 2},
    {Opcode::kMax, "max", 0, [](double a, double b, double) { return std::isnan(a) || a > b ? a : b; }, 2},
    {Opcode::kMulAdd, "multiply and add", 2 * kRounding, [](double a, double b, double c) { return a * b + c; }, 3},
#define ENGINE_POINTWISE(Name, name, sources, cost, ...) \
  {Opcode::k##Name, name, k##cost(sources),              \
   [](double a, [[maybe_unused]] double b, [[maybe_unused]] double c) -> double { return __VA_ARGS__; }, sources},
#define ENGINE_LIBRARY(Name, name, function) \
  {Opcode::k##Name, name, 3 * kRounding, [](double a, double, double) { return function(a); }, 1},
#include "pointwise.def"
};

std::vector<float> varied(std::size_t count, std::uint32_t seed, float scale) {
  auto values = random_floats(count, seed);
  for (std::size_t i = 0; i < count; ++i) values[i] *= scale * (i % 3 == 0 ? 0.01f : 1.0f);
  return values;
}

void check_real(const Target& target, const RealOperation& op, const std::vector<std::vector<float>>& sources,
                bool as_constants, const std::string& what) {
  const std::size_t count = sources[0].size();
  std::vector<float> expected;
  std::vector<std::vector<double>> wide;
  for (const auto& source : sources) wide.emplace_back(source.begin(), source.end());
  const auto at = [&](std::size_t s, std::size_t i) {
    return s >= sources.size() ? 0.0 : static_cast<double>(sources[s][sources[s].size() == 1 ? 0 : i]);
  };
  for (std::size_t i = 0; i < count; ++i)
    expected.push_back(static_cast<float>(op.exact(at(0, i), at(1, i), at(2, i))));
  const auto f32 = apply<float>(target, code(op.opcode), kF32, sources, what, as_constants);
  expect_close(expected, f32, op.tolerance, what);
  const auto f64 = apply<double>(target, code(op.opcode), code(ElementCode::kF64), wide, what, as_constants);
  expect_close(expected, {f64.begin(), f64.end()}, 1.3e-7, what + " of f64");
}

void real_operations(const Target& target) {
  for (const RealOperation& op : kReal)
    for (const std::size_t count : {0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 100, 255, 257, 1025, 9001})
      for (const bool is_scalar : {false, true}) {
        std::vector<std::vector<float>> sources = {varied(count, 1, 4.0f)};
        for (int s = 1; s < op.sources; ++s)
          sources.push_back(is_scalar ? std::vector<float>{0.75f}
                                      : varied(count, static_cast<std::uint32_t>(s) + 1, 4.0f));
        // A quotient in an exponent magnifies its rounding error by its magnitude.
        if (op.opcode == Opcode::kCelu)
          for (float& alpha : sources[1]) alpha = 0.5f + std::fabs(alpha);
        if (is_scalar && op.sources == 1) continue;
        const std::string what = std::string(op.name) + " of " + std::to_string(count) + (is_scalar ? " by one" : "");
        check_real(target, op, sources, false, what);
        if (is_scalar && count != 1) check_real(target, op, sources, true, what + " constant");
      }
}

// Special values for which the formula gives the limit; `limits` below has the others.
void special_values(const Target& target) {
  const std::vector<float> x = {kNan,       kInf,       -kInf,   0.0f,  -0.0f,  1e-40f, -1e-40f, 3e38f,
                                -3e38f,     100.0f,     -100.0f, 0.5f,  1.5f,   2.5f,   -0.5f,   -2.5f,
                                8388609.0f, 4194304.5f, 1e-30f,  88.5f, -87.5f, -103.0f};
  for (const RealOperation& op : kReal) {
    if (op.opcode == Opcode::kMish || op.opcode == Opcode::kTan || op.opcode == Opcode::kSwish) continue;
    if (op.opcode == Opcode::kPow || op.opcode == Opcode::kGeluTanh || op.opcode == Opcode::kSinh) continue;
    std::vector<std::vector<float>> sources = {x};
    if (op.sources > 1) sources.push_back({0.5f});
    if (op.sources > 2) sources.push_back({1.0f});
    check_real(target, op, sources, false, std::string(op.name) + " of special values");
  }
  const auto check = [&](Opcode opcode, const std::vector<float>& a, const std::vector<float>& expected) {
    expect_close(expected, apply<float>(target, code(opcode), kF32, std::vector<std::vector<float>>{a}, "limits"), 0,
                 "limits of " + std::to_string(code(opcode)));
  };
  check(Opcode::kMish, {kNan, kInf, 100.0f, 0.0f, -200.0f}, {kNan, kInf, 100.0f, 0.0f, -0.0f});
  check(Opcode::kGeluTanh, {kNan, kInf, 100.0f, 0.0f, -100.0f}, {kNan, kInf, 100.0f, 0.0f, -0.0f});
  const auto max = apply<float>(target, code(Opcode::kMax), kF32,
                                std::vector<std::vector<float>>{{kNan, 1.0f}, {1.0f, kNan}}, "max");
  const auto min = apply<float>(target, code(Opcode::kMin), kF32,
                                std::vector<std::vector<float>>{{kNan, 1.0f}, {1.0f, kNan}}, "min");
  expect_close({kNan, kNan}, max, 0, "max of NaN");
  expect_close({kNan, kNan}, min, 0, "min of NaN");
  const auto zeros =
      apply<float>(target, code(Opcode::kCeil), kF32, std::vector<std::vector<float>>{{-0.5f, -0.0f, 0.0f}}, "ceil");
  expect(std::signbit(zeros[0]) && std::signbit(zeros[1]) && !std::signbit(zeros[2]), "ceil keeps the sign of zero");
}

// Functions with results near zero keep their relative accuracy there.
void relative_accuracy(const Target& target) {
  std::vector<float> x, tiny;
  for (float v = -80.0f; v < 80.0f; v += 0.037f) x.push_back(v);
  for (float v = 1e-44f; v < 3e38f; v *= 1.173f) tiny.push_back(v);
  for (float v = 0.9f; v < 1.1f; v += 1e-4f) tiny.push_back(v);
  const auto check = [&](Opcode opcode, const std::vector<float>& values, double (*exact)(double),
                         std::size_t ones = 0) {
    std::vector<std::vector<float>> sources(1 + ones, {1.0f});
    sources[0] = values;
    const auto y = apply<float>(target, code(opcode), kF32, sources, "accuracy");
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double expected = exact(values[i]);
      if (!expect(std::fabs(y[i] - expected) <= 5e-7 * std::fabs(expected) + 1e-44,
                  "opcode " + std::to_string(code(opcode)) + " of " + std::to_string(values[i]) + " is " +
                      std::to_string(y[i])))
        return;
    }
  };
  check(Opcode::kSoftplus, x, [](double v) { return std::fmax(v, 0) + std::log1p(std::exp(-std::fabs(v))); });
  check(Opcode::kLog, tiny, [](double v) { return std::log(v); });
  check(Opcode::kExp, x, [](double v) { return std::exp(v); });
  for (float& v : tiny) v = -v;
  const auto elu = [](double v) { return std::expm1(v); };
  check(Opcode::kElu, tiny, elu, 1);
  check(Opcode::kCelu, tiny, elu, 1);
  check(Opcode::kSelu, tiny, elu, 2);
}

void predicates(const Target& target) {
  for (const std::size_t count : {1, 15, 16, 17, 40, 1000}) {
    auto a = varied(count, 1, 2.0f), b = varied(count, 2, 2.0f);
    a[0] = kNan;
    a[count / 2] = b[count / 2];
    a[count - 1] = kInf;
    b[count / 3] = -kInf;
    std::vector<double> wide_a(a.begin(), a.end()), wide_b(b.begin(), b.end());
    const auto check = [&](Opcode opcode, int sources, bool (*exact)(float, float)) {
      std::vector<std::uint8_t> expected;
      for (std::size_t i = 0; i < count; ++i) expected.push_back(exact(a[i], b[i]));
      std::vector<std::vector<float>> values = {a, b};
      std::vector<std::vector<double>> wide = {wide_a, wide_b};
      values.resize(static_cast<std::size_t>(sources));
      wide.resize(static_cast<std::size_t>(sources));
      const std::string what = "predicate " + std::to_string(code(opcode));
      expect(apply<std::uint8_t>(target, code(opcode), kF32, values, what) == expected, what);
      expect(apply<std::uint8_t>(target, code(opcode), code(ElementCode::kF64), wide, what) == expected,
             what + " of f64");
    };
    check(Opcode::kEqual, 2, [](float x, float y) { return x == y; });
    check(Opcode::kLess, 2, [](float x, float y) { return x < y; });
    check(Opcode::kLessOrEqual, 2, [](float x, float y) { return x <= y; });
    check(Opcode::kIsNan, 1, [](float x, float) { return x != x; });
    check(Opcode::kIsPositiveInf, 1, [](float x, float) { return x == kInf; });
    check(Opcode::kIsNegativeInf, 1, [](float x, float) { return x == -kInf; });
  }
}

}  // namespace

int main() {
  return run_cases({{"real operations", real_operations},
                    {"special values", special_values},
                    {"relative accuracy", relative_accuracy},
                    {"predicates", predicates}});
}

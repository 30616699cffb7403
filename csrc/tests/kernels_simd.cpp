// Accuracy of the elementary functions of simd/vec.hpp in units in the last place, measured through the activations of
// a product with the identity.
#include <cmath>
#include <limits>

#include "kernels/prepare/codes.hpp"
#include "kernels/tile.hpp"
#include "kernels_operation_common.hpp"

namespace engine {
extern const OperationEntry gemm_operations[];
}

using namespace engine;
using namespace engine::test;

namespace {

// Applies an activation to every value, through a product with a 1x1 matrix of 1.
std::vector<float> apply(const Target& target, Activation activation, float alpha, const std::vector<float>& x) {
  const auto count = static_cast<std::int64_t>(x.size());
  Guarded one(std::vector<float>{1.0f}), packed(16), input(x), output(x.size());
  run_operation(target, gemm_operations, "pack_gemm_f32", {{"n", std::int64_t{1}}, {"k", std::int64_t{1}}}, {&one},
                {&packed}, 1);
  run_operation(target, gemm_operations, "gemm_f32",
                {{"m", count},
                 {"n", std::int64_t{1}},
                 {"k", std::int64_t{1}},
                 {"activation", name_of(activation)},
                 {"alpha", double{alpha}},
                 {"beta", 0.0}},
                {&input, &packed}, {&output}, 1);
  return output.values();
}

// Evenly spaced values and, for tiny magnitudes, evenly spaced exponents. The smallest is more than twice the smallest
// normal number: products have no denormal results (docs/adr/0013), and GELU and SiLU of a tiny number are half of it.
std::vector<float> samples(float low, float high) {
  std::vector<float> x;
  constexpr int kCount = 200000;
  for (int i = 0; i <= kCount; ++i) x.push_back(low + (high - low) * (static_cast<float>(i) / kCount));
  for (float tiny = 3e-38f; tiny < high; tiny *= 1.37f) {
    x.push_back(tiny);
    if (-tiny > low) x.push_back(-tiny);
  }
  return x;
}

double unit(double value) {
  const float rounded = std::fabs(static_cast<float>(value));
  return std::nextafter(rounded, std::numeric_limits<float>::infinity()) - rounded;
}

template <class Exact>
void check(const Target& target, Activation activation, float alpha, float low, float high, double bound,
           const char* name, const Exact& exact) {
  const auto x = samples(low, high);
  const auto y = apply(target, activation, alpha, x);
  double worst = 0;
  float at = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = exact(static_cast<double>(x[i]));
    const double error = std::fabs(y[i] - expected) / unit(expected);
    if (error > worst || std::isnan(error)) {
      worst = error;
      at = x[i];
    }
  }
  expect(worst <= bound, std::string(name) + ": " + std::to_string(worst) + " ulp at " + std::to_string(at) +
                             ", expected " + std::to_string(bound) + " at most");
}

void accuracy(const Target& target) {
  check(target, Activation::kSigmoid, 0, -87.0f, 100.0f, 4, "sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); });
  check(target, Activation::kTanh, 0, -12.0f, 12.0f, 3, "tanh", [](double x) { return std::tanh(x); });
  check(target, Activation::kElu, 1, -30.0f, 12.0f, 2, "elu", [](double x) { return x < 0 ? std::expm1(x) : x; });
}

// With cancellation, the error is bounded relative to the terms, not to the result.
void absolute_accuracy(const Target& target) {
  const auto x = samples(-30.0f, 30.0f);
  const auto gelu = apply(target, Activation::kGelu, 0, x), gelu_tanh = apply(target, Activation::kGeluTanh, 0, x);
  const auto silu = apply(target, Activation::kSwish, 1, x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double v = x[i], scale = 1.2e-7 * (std::fabs(v) + 1e-37);
    const double phi = (1 + std::erf(v / std::sqrt(2.0))) / 2;
    if (!expect(std::fabs(gelu[i] - v * phi) <= 3 * scale, "gelu at " + std::to_string(v))) return;
    const double gate = std::tanh(std::sqrt(2 / std::acos(-1.0)) * (v + 0.044715 * v * v * v));
    if (!expect(std::fabs(gelu_tanh[i] - v / 2 * (1 + gate)) <= 3 * scale, "gelu_tanh at " + std::to_string(v))) return;
    if (!expect(std::fabs(silu[i] - v / (1 + std::exp(-v))) <= 3 * scale, "silu at " + std::to_string(v))) return;
  }
}

void limits(const Target& target) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x{kInf, -kInf, kNan, 0.0f, 3e38f, -3e38f};
  expect_close({1, 0, kNan, 0.5f, 1, 0}, apply(target, Activation::kSigmoid, 0, x), 0, "sigmoid");
  expect_close({1, -1, kNan, 0, 1, -1}, apply(target, Activation::kTanh, 0, x), 0, "tanh");
  expect_close({kInf, -1, kNan, 0, 3e38f, -1}, apply(target, Activation::kElu, 1, x), 0, "elu");
  // At -inf, the formula of both is -inf * 0.
  const std::vector<float> gelu{kInf, kNan, kNan, 0, 3e38f, 0};
  expect_close(gelu, apply(target, Activation::kGelu, 0, x), 0, "gelu");
  expect_close(gelu, apply(target, Activation::kGeluTanh, 0, x), 0, "gelu_tanh");
}

}  // namespace

int main() {
  return run_cases({{"accuracy", accuracy}, {"absolute accuracy", absolute_accuracy}, {"limits", limits}});
}

// Division by the L1 and L2 norm, and by the greatest value, against the formula in double: rows, columns, zeros, and
// NaN.
#include <cmath>
#include <limits>

#include "kernels/lp_norm.hpp"
#include "kernels_common.hpp"

using namespace engine;
using namespace engine::test;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Of one axis; NaN if a value is NaN.
double norm_of(const std::string& name, const std::vector<double>& values) {
  double norm = name == "max" && !values.empty() ? values[0] : 0;
  for (const double value : values) {
    if (name == "max" && std::isnan(norm)) break;
    if (name == "max")
      norm = value > norm || std::isnan(value) ? value : norm;
    else
      norm += name == "l2" ? value * value : std::fabs(value);
  }
  return name == "l2" ? std::sqrt(norm) : norm;
}

void check_norm(const Target& target, const LpNormArgs& args, const std::vector<float>& x, const std::string& name) {
  std::vector<float> expected(x.size());
  for (std::int64_t o = 0; o < args.outer; ++o)
    for (std::int64_t i = 0; i < args.inner; ++i) {
      const auto at = [&](std::int64_t k) { return (o * args.axis + k) * args.inner + i; };
      std::vector<double> values;
      for (std::int64_t k = 0; k < args.axis; ++k) values.push_back(x[at(k)]);
      const double norm = norm_of(name, values);
      for (std::int64_t k = 0; k < args.axis; ++k)
        expected[at(k)] = static_cast<float>(x[at(k)] / (norm == 0 ? double{args.zero} : norm));
    }
  const std::string what = name + " " + std::to_string(args.outer) + "x" + std::to_string(args.axis) + "x" +
                           std::to_string(args.inner) + " zero " + std::to_string(args.zero);
  for (const bool in_place : {false, true}) {
    Guarded source(x), result(x.size(), kNan);
    Guarded& y = in_place ? source : result;
    run(target.find(name + "_norm_f32"), &args, {source.data(), y.data()}, 3, 0);
    expect(source.intact() && result.intact(), what + ": overrun");
    expect_close(expected, y.values(), sum_tolerance(args.axis / 16), what);
  }
}

void check(const Target& target, LpNormArgs args, const std::vector<float>& x) {
  for (const std::string name : {"l1", "l2", "max"})
    for (const float zero : {kInf, 1.0f}) {
      args.zero = zero;
      check_norm(target, args, x, name);
    }
}

void rows(const Target& target) {
  for (std::int64_t axis = 0; axis <= 70; ++axis) check(target, {3, axis, 1, 1}, random_floats(3 * axis, 1));
  check(target, {0, 5, 1, 1}, {});
}

void columns(const Target& target) {
  for (const std::int64_t axis : {0, 1, 2, 7, 21})
    for (const std::int64_t inner : {0, 2, 3, 5, 8, 15, 16, 17, 63, 64, 65, 129})
      check(target, {2, axis, inner, 1}, random_floats(2 * axis * inner, 3));
}

void special(const Target& target) {
  for (const std::int64_t inner : {1, 5})
    for (const float value : {kNan, kInf, -kInf, 0.0f}) {
      auto x = random_floats(3 * 19 * inner, 5);
      x[(19 + 13) * inner] = value;
      check(target, {3, 19, inner, 1}, x);
      check(target, {3, 19, inner, 1}, std::vector<float>(x.size(), value));
    }
}

}  // namespace

int main() {
  return run_cases({{"rows", rows}, {"columns", columns}, {"special", special}});
}

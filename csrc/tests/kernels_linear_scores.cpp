// Linear scores against products in f64: types, targets around the width of a block, transformations, labels.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/linear_scores.hpp"
#include "kernels_bytes_common.hpp"

namespace engine {
extern const OperationEntry linear_scores_operations[];
}  // namespace engine

using namespace engine;
using namespace engine::test;

namespace {

AttributeMap attributes(std::int64_t rows, std::int64_t features, std::int64_t targets) {
  return {{"type", "f32"},        {"compute", "f32"},   {"result", "f32"},           {"rows", rows},
          {"features", features}, {"targets", targets}, {"labels", std::int64_t{1}}, {"transform", "none"},
          {"complement", "none"}};
}

// Quarters from -1 to 1.
double quarter(Dice& dice, bool is_integral) {
  const double value = static_cast<double>(dice.roll(9)) / 4 - 1;
  return is_integral ? std::round(value) : value;
}

void transform_row(const std::string& function, std::vector<double>& scores) {
  const double most = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  for (double& score : scores) {
    if (function == "logistic") score = 1 / (1 + std::exp(-score));
    if (function == "softmax") score = std::exp(score - most);
    total += score;
  }
  if (function == "softmax")
    for (double& score : scores) score /= total;
}

template <class In, class C>
void check(const Target& target, std::int64_t rows, std::int64_t features, std::int64_t targets,
           const std::string& type, const std::string& function, bool has_two) {
  Dice dice(static_cast<std::uint32_t>(rows * 131 + features * 17 + targets));
  const std::int64_t blocks = (targets + 15) / 16, columns = has_two ? 2 : targets;
  std::vector<In> x;
  for (std::int64_t i = 0; i < rows * features; ++i)
    x.push_back(static_cast<In>(quarter(dice, std::is_integral<In>::value)));
  std::vector<C> vectors(static_cast<std::size_t>(blocks * features * 16)), base(static_cast<std::size_t>(blocks * 16));
  for (C& value : vectors) value = static_cast<C>(quarter(dice, false));
  for (C& value : base) value = static_cast<C>(quarter(dice, false));
  std::vector<std::int64_t> labels, expected_labels;
  for (std::int64_t i = 0; i < columns; ++i) labels.push_back(10 - i);
  std::vector<float> expected;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::vector<double> scores;
    for (std::int64_t t = 0; t < targets; ++t) {
      double sum = base[static_cast<std::size_t>(t)];
      for (std::int64_t f = 0; f < features; ++f)
        sum += static_cast<double>(x[static_cast<std::size_t>(row * features + f)]) *
               vectors[static_cast<std::size_t>((t / 16 * features + f) * 16 + t % 16)];
      scores.push_back(sum);
    }
    if (has_two) scores.insert(scores.begin(), -scores[0]);
    transform_row(function, scores);
    expected.insert(expected.end(), scores.begin(), scores.end());
    const auto best = std::max_element(scores.begin(), scores.end());
    expected_labels.push_back(labels[static_cast<std::size_t>(best - scores.begin())]);
  }
  AttributeMap given = attributes(rows, features, targets);
  given["type"] = type;
  given["compute"] = sizeof(C) == 8 ? "f64" : "f32";
  given["transform"] = function;
  if (has_two) given["complement"] = "negative";
  std::vector<ByteVector> outputs = {ByteVector(expected.size() * 4), ByteVector(expected_labels.size() * 8)};
  run_bytes(target, linear_scores_operations, "linear_scores", given,
            {bytes_of_values(x), bytes_of_values(vectors), bytes_of_values(base), bytes_of_values(labels)}, outputs, 8);
  const std::string what = function + " " + type + " " + std::to_string(rows) + "x" + std::to_string(features) + "x" +
                           std::to_string(targets);
  expect_close(expected, values_of_bytes<float>(outputs[0]), 4 * sum_tolerance(features + targets), what);
  // Sums of products of quarters are exact, so ties are ties; functions of different sums may round to one value.
  if (function == "none") expect(values_of_bytes<std::int64_t>(outputs[1]) == expected_labels, what + ": labels");
}

void scores(const Target& target) {
  for (const std::int64_t rows : {0, 1, 7, 8, 9, 300})
    for (const std::int64_t targets : {1, 2, 3, 15, 16, 17, 40})
      for (const std::int64_t features : {0, 1, 12})
        check<float, float>(target, rows, features, targets, "f32", "none", false);
  check<float, float>(target, 1, 3, 700, "f32", "softmax", false);  // wider than a chunk
  for (const std::string function : {"none", "logistic", "softmax"}) {
    for (const std::int64_t rows : {1, 9, 300}) {
      check<float, float>(target, rows, 12, 1, "f32", function, true);
      check<float, float>(target, rows, 12, 3, "f32", function, false);
      check<double, double>(target, rows, 12, 3, "f64", function, false);
    }
    check<std::int32_t, float>(target, 9, 12, 3, "i32", function, false);
    check<std::int64_t, float>(target, 9, 12, 3, "i64", function, false);
    check<double, float>(target, 9, 12, 3, "f64", function, false);
  }
}

void special(const Target& target) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  std::vector<float> vectors(16, 0.0f), base(16, 0.0f);
  vectors[1] = 1;
  for (const std::string function : {"none", "logistic", "softmax"})
    for (const float value : {kNan, kInf, -kInf}) {
      AttributeMap given = attributes(1, 1, 2);
      given["transform"] = function;
      std::vector<ByteVector> outputs = {ByteVector(8), ByteVector(8)};
      run_bytes(target, linear_scores_operations, "linear_scores", given,
                {bytes_of_values(std::vector<float>{value}), bytes_of_values(vectors), bytes_of_values(base),
                 bytes_of_values(std::vector<std::int64_t>{5, 7})},
                outputs, 8);
      const auto found = values_of_bytes<float>(outputs[0]);  // 0 * inf is NaN, too
      expect(std::isnan(found[0]) && values_of_bytes<std::int64_t>(outputs[1])[0] == 5, function + ": the first NaN");
      if (std::isnan(value)) expect(std::isnan(found[1]), function + ": a NaN stays");
    }
}

// Matrix products in f64: the results are exact, since all terms are quarters.
void doubles(const Target& target) {
  for (const std::int64_t rows : {1, 7, 8, 9, 100})
    for (const std::int64_t targets : {1, 15, 17, 600}) {
      Dice dice(static_cast<std::uint32_t>(rows * targets));
      const std::int64_t features = 19, blocks = (targets + 15) / 16;
      std::vector<double> x(static_cast<std::size_t>(rows * features)), base(static_cast<std::size_t>(blocks * 16)),
          vectors(static_cast<std::size_t>(blocks * features * 16)), expected;
      for (std::vector<double>* each : {&x, &base, &vectors})
        for (double& value : *each) value = quarter(dice, false);
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t t = 0; t < targets; ++t) {
          double sum = base[static_cast<std::size_t>(t)];
          for (std::int64_t f = 0; f < features; ++f)
            sum += x[static_cast<std::size_t>(row * features + f)] *
                   vectors[static_cast<std::size_t>((t / 16 * features + f) * 16 + t % 16)];
          expected.push_back(sum);
        }
      AttributeMap given = attributes(rows, features, targets);
      given["type"] = given["compute"] = given["result"] = "f64";
      given["labels"] = std::int64_t{0};
      std::vector<ByteVector> outputs = {ByteVector(expected.size() * 8)};
      run_bytes(target, linear_scores_operations, "linear_scores", given,
                {bytes_of_values(x), bytes_of_values(vectors), bytes_of_values(base)}, outputs, 8);
      expect(values_of_bytes<double>(outputs[0]) == expected,
             "f64 " + std::to_string(rows) + "x" + std::to_string(targets));
    }
}

void refused(const Target& target) {
  AttributeMap given = attributes(2, 3, 17);
  const std::vector<std::size_t> sizes = {24, 384, 128, 136};
  expect_refused(target, linear_scores_operations, "linear_scores", given, {24, 383, 128, 136}, {136, 16}, "input 1");
  expect_refused(target, linear_scores_operations, "linear_scores", given, {24, 384, 68, 136}, {136, 16}, "input 2");
  expect_refused(target, linear_scores_operations, "linear_scores", given, sizes, {135, 16}, "output 0");
  given["complement"] = "negative";
  expect_refused(target, linear_scores_operations, "linear_scores", given, sizes, {136, 16}, "two scores");
}

}  // namespace

int main() {
  return run_cases({{"scores", scores}, {"special", special}, {"doubles", doubles}, {"refused", refused}},
                   {"linear_scores"});
}

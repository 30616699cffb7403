// Support vector machines against sums in f64: kernels, types, spans around the width of a block, forged spans.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/support_vectors.hpp"
#include "kernels_bytes_common.hpp"

namespace engine {
extern const OperationEntry support_vectors_operations[];
}  // namespace engine

using namespace engine;
using namespace engine::test;

namespace {

using Spans = std::vector<std::int32_t>;

struct Machine {
  std::string kernel;
  Spans spans;
  std::int64_t features, degree;
  double gamma = 0.25, coef0 = 0.5;

  std::int64_t coefficients() const { return std::max<std::int64_t>(static_cast<std::int64_t>(spans.size()) - 1, 1); }
  std::int64_t blocks() const {
    std::int64_t count = 0;
    for (const std::int32_t span : spans) count += (span + 15) / 16;
    return count;
  }
};

double kernel_of(const Machine& machine, const double* vector, const double* x) {
  double product = 0, distance = 0;
  for (std::int64_t f = 0; f < machine.features; ++f) {
    product += vector[f * 16] * x[f];
    distance += (vector[f * 16] - x[f]) * (vector[f * 16] - x[f]);
  }
  if (machine.kernel == "linear") return product;
  if (machine.kernel == "rbf") return std::exp(-machine.gamma * distance);
  const double scaled = machine.gamma * product + machine.coef0;
  return machine.kernel == "sigmoid" ? std::tanh(scaled) : std::pow(scaled, static_cast<double>(machine.degree));
}

// sums[class][coefficient] of one row.
std::vector<double> sums_of(const Machine& machine, const std::vector<double>& vectors,
                            const std::vector<double>& coefficients, const double* x) {
  std::vector<double> sums;
  std::int64_t block = 0;
  for (const std::int32_t span : machine.spans) {
    std::vector<double> found(static_cast<std::size_t>(machine.coefficients()), 0.0);
    for (std::int32_t i = 0; i < span; ++i) {
      const std::int64_t at = block + i / 16;
      const double value = kernel_of(machine, vectors.data() + at * machine.features * 16 + i % 16, x);
      for (std::int64_t c = 0; c < machine.coefficients(); ++c)
        found[static_cast<std::size_t>(c)] +=
            value * coefficients[static_cast<std::size_t>((at * machine.coefficients() + c) * 16 + i % 16)];
    }
    block += (span + 15) / 16;
    sums.insert(sums.end(), found.begin(), found.end());
  }
  return sums;
}

// Quarters from -1 to 1, which every type but integers holds.
template <class T>
std::vector<T> values(std::int64_t count, Dice& dice, bool is_integral = false) {
  std::vector<T> made;
  for (std::int64_t i = 0; i < count; ++i) {
    const double value = static_cast<double>(dice.roll(9)) / 4 - 1;
    made.push_back(static_cast<T>(is_integral ? std::round(value) : value));
  }
  return made;
}

AttributeMap attributes(const Machine& machine, const std::string& mode, std::int64_t rows, bool is_wide) {
  return {{"type", is_wide ? "f64" : "f32"},
          {"compute", is_wide ? "f64" : "f32"},
          {"kernel", machine.kernel},
          {"mode", mode},
          {"gamma", machine.gamma},
          {"coef0", machine.coef0},
          {"degree", machine.degree},
          {"rows", rows},
          {"features", machine.features},
          {"blocks", machine.blocks()},
          {"classes", static_cast<std::int64_t>(machine.spans.size())}};
}

template <class In, class C>
void check(const Target& target, const Machine& machine, std::int64_t rows, const std::string& type) {
  Dice dice(static_cast<std::uint32_t>(rows * 31 + machine.features * 7 + machine.spans[0]));
  const auto x = values<In>(rows * machine.features, dice, std::is_integral<In>::value);
  auto vectors = values<C>(machine.blocks() * machine.features * 16, dice);
  const auto coefficients = values<C>(machine.blocks() * machine.coefficients() * 16, dice);
  std::int64_t block = 0;
  for (const std::int32_t span : machine.spans) {  // whatever lies behind the last vector of a class has no effect
    block += (span + 15) / 16;
    for (std::int64_t lane = span % 16; span % 16 != 0 && lane < 16; ++lane)
      for (std::int64_t f = 0; f < machine.features; ++f)
        vectors[static_cast<std::size_t>(((block - 1) * machine.features + f) * 16 + lane)] =
            std::numeric_limits<C>::infinity();
  }
  const bool is_vote = machine.spans.size() > 1;
  const std::int64_t classes = static_cast<std::int64_t>(machine.spans.size());
  const std::int64_t pairs = is_vote ? classes * (classes - 1) / 2 : 1;
  const auto rho = values<C>(pairs, dice);
  const std::vector<double> wide_x(x.begin(), x.end()), wide_vectors(vectors.begin(), vectors.end());
  const std::vector<double> wide_coefficients(coefficients.begin(), coefficients.end());
  std::vector<float> expected;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto sums = sums_of(machine, wide_vectors, wide_coefficients, wide_x.data() + row * machine.features);
    if (!is_vote) expected.push_back(static_cast<float>(sums[0] + rho[0]));
    std::size_t pair = 0;
    for (std::int64_t i = 0; i < classes; ++i)
      for (std::int64_t j = i + 1; j < classes; ++j, ++pair) {
        const auto n = machine.coefficients();
        const double margin =
            rho[pair] + sums[static_cast<std::size_t>(i * n + j - 1)] + sums[static_cast<std::size_t>(j * n + i)];
        if (classes == 2) expected.push_back(static_cast<float>(-margin));
        expected.push_back(static_cast<float>(margin));
      }
  }
  AttributeMap given = attributes(machine, is_vote ? "vote" : "sum", rows, sizeof(C) == 8);
  given["type"] = type;
  std::vector<ByteVector> inputs = {bytes_of_values(x), bytes_of_values(vectors), bytes_of_values(coefficients),
                                    bytes_of_values(machine.spans), bytes_of_values(rho)};
  std::vector<ByteVector> outputs = {ByteVector(expected.size() * 4)};
  if (is_vote) {
    std::vector<std::int64_t> labels;
    for (std::int64_t i = 0; i < classes; ++i) labels.push_back(10 * i);
    inputs.push_back(bytes_of_values(labels));
    outputs.push_back(ByteVector(static_cast<std::size_t>(rows) * 8));
  }
  run_bytes(target, support_vectors_operations, "support_vectors", given, inputs, outputs, 8);
  std::int64_t terms = machine.features;
  for (const std::int32_t span : machine.spans) terms += span;
  // A kernel is at most 5 here (polynomials of degree 3 and products of few features) or below 1.
  const double largest = machine.kernel == "polynomial" || machine.kernel == "linear"
                             ? std::pow(1 + static_cast<double>(machine.features), 1 + 2 * (machine.degree > 1))
                             : 1;
  expect_close(expected, values_of_bytes<float>(outputs[0]), 4 * largest * sum_tolerance(terms),
               machine.kernel + " " + type + " " + std::to_string(rows));
}

void sums(const Target& target) {
  for (const std::string kernel : {"linear", "polynomial", "rbf", "sigmoid"})
    for (const std::int32_t span : {1, 15, 16, 17, 40})
      for (const std::int64_t rows : {0, 1, 3, 4, 5, 37, 200})
        check<float, float>(target, {kernel, {span}, rows == 37 ? 1 : 5, 3}, rows, "f32");
  for (const std::int64_t degree : {0, 1, 2, 16})
    check<double, double>(target, {"polynomial", {17}, 3, degree}, 5, "f64");
  for (const std::string kernel : {"linear", "rbf", "sigmoid"})
    check<double, double>(target, {kernel, {17}, 3, 0}, 5, "f64");
  check<std::int32_t, float>(target, {"rbf", {17}, 3, 0}, 5, "i32");
  check<std::int64_t, float>(target, {"rbf", {17}, 3, 0}, 5, "i64");
  check<float, float>(target, {"rbf", {17}, 0, 0}, 5, "f32");
}

void votes(const Target& target) {
  for (const Spans& spans : {Spans{3, 18}, Spans{16, 1, 5}, Spans{2, 0, 33, 4, 7}})
    for (const std::int64_t rows : {1, 6, 35}) check<float, float>(target, {"rbf", spans, 5, 0}, rows, "f32");
}

// One vector of each class at 0 and kernels of 1: margins are rho, so pairs decide as given.
void probabilities(const Target& target) {
  const Machine machine = {"rbf", {1, 1, 1}, 1, 0};
  const std::vector<float> vectors(48, 0.0f), coefficients(96, 0.0f);
  const std::vector<std::int64_t> labels = {7, 8, 9};
  std::vector<double> curves(6, 0.0);
  for (int i = 0; i < 3; ++i) curves[static_cast<std::size_t>(i)] = -1;
  const auto run = [&](const std::vector<float>& rho) {
    std::vector<ByteVector> outputs = {ByteVector(12), ByteVector(8)};
    run_bytes(target, support_vectors_operations, "support_vectors", attributes(machine, "probability", 1, false),
              {bytes_of_values(std::vector<float>{0.0f}), bytes_of_values(vectors), bytes_of_values(coefficients),
               bytes_of_values(machine.spans), bytes_of_values(rho), bytes_of_values(labels), bytes_of_values(curves)},
              outputs, 8);
    return std::make_pair(values_of_bytes<float>(outputs[0]), values_of_bytes<std::int64_t>(outputs[1])[0]);
  };
  const auto even = run({0.0f, 0.0f, 0.0f});  // no margin is above 0: the second class of each pair has the vote
  expect_close({1.0f / 3, 1.0f / 3, 1.0f / 3}, even.first, 1e-6, "even pairs");
  expect(even.second == 9, "votes of margins of 0");
  const auto circle = run({1.0f, -1.0f, 1.0f});  // 0 beats 1, 2 beats 0, 1 beats 2: one vote each
  expect(circle.second == 7, "of equal votes the first");
  const auto first = run({50.0f, 50.0f, 0.0f});
  expect(first.second == 7 && first.first[0] > 0.999f, "a class that wins its pairs");
  const auto wrong = run({NAN, NAN, NAN});
  expect(std::isnan(wrong.first[0]), "a NaN stays one");
}

void signs(const Target& target) {
  const Machine machine = {"rbf", {1}, 1, 0};
  for (const float rho : {1.0f, 0.0f, -1.0f, NAN}) {
    std::vector<ByteVector> outputs = {ByteVector(4)};
    run_bytes(target, support_vectors_operations, "support_vectors", attributes(machine, "sign", 1, false),
              {bytes_of_values(std::vector<float>{0.0f}), bytes_of_values(std::vector<float>(16, 0.0f)),
               bytes_of_values(std::vector<float>(16, 0.0f)), bytes_of_values(machine.spans),
               bytes_of_values(std::vector<float>{rho})},
              outputs, 8);
    expect(values_of_bytes<float>(outputs[0])[0] == (rho > 0 ? 1.0f : -1.0f), "a sign");
  }
}

// Whatever the spans are, nothing outside is read.
void forged(const Target& target) {
  Machine machine = {"linear", {16, 16}, 2, 0};
  for (const Spans& spans : {Spans{-1, 2147483647}, Spans{2147483647, -2147483647 - 1}, Spans{1, 900}, Spans{0, 0}}) {
    std::vector<ByteVector> outputs = {ByteVector(8), ByteVector(8)};
    run_bytes(target, support_vectors_operations, "support_vectors", attributes(machine, "vote", 1, false),
              {ByteVector(8), ByteVector(256), ByteVector(128), bytes_of_values(spans), ByteVector(4), ByteVector(16)},
              outputs, 8);
  }
}

void refused(const Target& target) {
  const Machine machine = {"linear", {16, 16}, 2, 0};
  AttributeMap given = attributes(machine, "vote", 1, false);
  const std::vector<std::size_t> sizes = {8, 256, 128, 8, 4, 16};
  expect_refused(target, support_vectors_operations, "support_vectors", given, {8, 255, 128, 8, 4, 16}, {8, 8},
                 "input 1");
  expect_refused(target, support_vectors_operations, "support_vectors", given, sizes, {7, 8}, "output 0");
  given["kernel"] = "cubic";
  expect_refused(target, support_vectors_operations, "support_vectors", given, sizes, {8, 8}, "kernel");
  given = attributes(machine, "sum", 1, false);
  expect_refused(target, support_vectors_operations, "support_vectors", given, sizes, {8, 8}, "classes");
}

}  // namespace

int main() {
  return run_cases({{"sums", sums},
                    {"votes", votes},
                    {"probabilities", probabilities},
                    {"signs", signs},
                    {"forged", forged},
                    {"refused", refused}},
                   {"support_vectors"});
}

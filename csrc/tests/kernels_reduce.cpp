// Reductions against scalar loops in f64: every operation, any set of axes, parts, tails, NaN and infinities.
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/prepare/codes.hpp"
#include "kernels/reduce.hpp"
#include "kernels_bytes_common.hpp"

namespace engine {
extern const OperationEntry reduce_operations[];
}

using namespace engine;
using namespace engine::test;

namespace {

using Shape = std::vector<std::int64_t>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int kOps = static_cast<int>(ReduceOp::kCount);

std::int64_t product(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

// The elements of each output, in order.
std::vector<std::vector<double>> grouped(const std::vector<float>& x, const Shape& shape, const Shape& axes) {
  std::vector<bool> is_reduced(shape.size(), false);
  for (const std::int64_t axis : axes) is_reduced[axis] = true;
  std::int64_t outputs = 1;
  for (std::size_t d = 0; d < shape.size(); ++d) outputs *= is_reduced[d] ? 1 : shape[d];
  std::vector<std::vector<double>> groups(outputs);
  for (std::size_t i = 0; i < x.size(); ++i) {
    std::int64_t rest = static_cast<std::int64_t>(i), output = 0, step = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
      if (!is_reduced[d]) {
        output += rest % shape[d] * step;
        step *= shape[d];
      }
      rest /= shape[d];
    }
    groups[output].push_back(x[i]);
  }
  return groups;
}

double reduced(ReduceOp op, const std::vector<double>& values) {
  double sum = 0, squares = 0, absolute = 0, product = 1, most = -kInf, least = kInf, exponentials = 0;
  for (const double value : values) {
    sum += value;
    squares += value * value;
    absolute += std::fabs(value);
    product *= value;
    most = std::isnan(value) || value > most ? value : most;
    least = std::isnan(value) || value < least ? value : least;
    exponentials += std::exp(value);
  }
  const double count = static_cast<double>(values.size());
  const double results[] = {sum,      sum / count,        most,    least,         product,
                            absolute, std::sqrt(squares), squares, std::log(sum), std::log(exponentials)};
  return results[static_cast<int>(op)];
}

AttributeMap attributes(ReduceOp op, ElementCode type, const Shape& shape, const Shape& axes) {
  return {{"op", name_of(op)}, {"type", name_of(type)}, {"shape", shape}, {"axes", axes}};
}

std::vector<float> samples(std::int64_t count) {
  auto x = random_floats(count, 1);
  for (float& value : x) value = 1.0f + value / 4;  // products and logarithms stay in range
  return x;
}

void check(const Target& target, const Shape& shape, const Shape& axes, const std::vector<float>& x) {
  const auto groups = grouped(x, shape, axes);
  const std::size_t length = groups.empty() ? 0 : groups[0].size();
  for (int op = 0; op < kOps; ++op) {
    if (static_cast<ReduceOp>(op) == ReduceOp::kProd && length > 1000) continue;
    std::vector<float> expected;
    for (const auto& group : groups) expected.push_back(static_cast<float>(reduced(static_cast<ReduceOp>(op), group)));
    Guarded input(x), output(expected.size(), kNan);
    run_operation(target, reduce_operations, "reduce",
                  attributes(static_cast<ReduceOp>(op), ElementCode::kF32, shape, axes), {&input}, {&output}, 3);
    std::string what = "op " + std::to_string(op) + " of";
    for (const std::int64_t size : shape) what += " " + std::to_string(size);
    expect(output.intact(), what + ": overrun");
    const auto steps = static_cast<std::int64_t>(op == static_cast<int>(ReduceOp::kProd) ? length * length : 64);
    expect_close(expected, output.values(), sum_tolerance(steps), what);
  }
}

void axes(const Target& target) {
  const Shape shape = {2, 3, 5, 4, 3};
  const auto x = samples(product(shape));
  for (int set = 0; set < 32; ++set) {
    Shape chosen;
    for (int d = 0; d < 5; ++d)
      if (set >> d & 1) chosen.push_back(d);
    check(target, shape, chosen, x);
  }
}

void tails(const Target& target) {
  for (const std::int64_t size : {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 79, 129, 1023}) {
    check(target, {3, size}, {1}, samples(3 * size));
    check(target, {2, 5, size}, {1}, samples(10 * size));
    check(target, {2, size, 20}, {1}, samples(40 * size));
  }
}

void parts(const Target& target) {
  for (const auto& [shape, chosen] : std::vector<std::pair<Shape, Shape>>{{{100003}, {0}},
                                                                          {{3, 40009}, {1}},
                                                                          {{5003, 17}, {0}},
                                                                          {{2, 30011, 3}, {0, 1}},
                                                                          {{31, 3, 1009}, {0, 2}},
                                                                          {{4, 5, 90, 64}, {0, 2}}})
    check(target, shape, chosen, samples(product(shape)));
}

void empty(const Target& target) {
  for (const Shape& shape : {Shape{}, Shape{0}, Shape{2, 0, 3}, Shape{1, 1}})
    for (const Shape& chosen : {Shape{}, Shape{0}, Shape{1}})
      if (chosen.empty() || chosen[0] < static_cast<std::int64_t>(shape.size()))
        check(target, shape, chosen, samples(product(shape)));
}

void not_finite(const Target& target) {
  for (const float special : {kNan, kInf, -kInf})
    for (const std::int64_t at : {0, 37, 79 * 20 - 1})
      for (const Shape& chosen : {Shape{0}, Shape{1}}) {
        auto x = samples(79 * 20);
        x[at] = special;
        check(target, {79, 20}, chosen, x);
      }
}

// Integers, stored as the bit patterns of floats.
void integers(const Target& target) {
  const auto random = random_floats(7 * 70 * 3, 5);
  std::vector<std::int32_t> x;
  for (const float value : random) x.push_back(static_cast<std::int32_t>(value * 2.0e9f));
  std::vector<float> bits(x.size());
  std::memcpy(bits.data(), x.data(), bits.size() * sizeof(float));
  for (const auto& [shape, chosen] : std::vector<std::pair<Shape, Shape>>{
           {{7, 70, 3}, {1}}, {{21, 70}, {0}}, {{21, 70}, {1}}, {{7, 70, 3}, {0, 2}}, {{1470}, {0}}}) {
    std::vector<float> order(x.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<float>(i);
    const auto groups = grouped(order, shape, chosen);
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kL1}) {
      std::vector<std::int32_t> expected;
      for (const auto& group : groups) {
        std::int64_t sum = 0, absolute = 0, most = INT32_MIN, least = INT32_MAX;
        for (const double index : group) {
          const std::int64_t value = x[static_cast<std::size_t>(index)];
          sum += value;
          absolute += value < 0 ? -value : value;
          most = value > most ? value : most;
          least = value < least ? value : least;
        }
        const std::int64_t mean = sum / static_cast<std::int64_t>(group.size());
        const std::int64_t results[] = {sum, mean, most, least, 0, absolute};
        expected.push_back(static_cast<std::int32_t>(static_cast<std::uint32_t>(results[static_cast<int>(op)])));
      }
      Guarded input(bits), output(expected.size(), kNan);
      run_operation(target, reduce_operations, "reduce", attributes(op, ElementCode::kI32, shape, chosen), {&input},
                    {&output}, 3);
      const auto actual = output.values();
      expect(output.intact(), "overrun");
      expect(std::memcmp(actual.data(), expected.data(), expected.size() * 4) == 0,
             "integers, op " + std::to_string(static_cast<int>(op)));
    }
  }
}

template <class T>
std::vector<T> reduced_wide(const Target& target, ReduceOp op, ElementCode type, const std::vector<T>& x,
                            const Shape& shape, const Shape& axes, std::size_t outputs) {
  std::vector<ByteVector> result = {ByteVector(outputs * sizeof(T))};
  run_bytes(target, reduce_operations, "reduce", attributes(op, type, shape, axes), {bytes_of_values(x)}, result,
            sizeof(T));
  return values_of_bytes<T>(result[0]);
}

// f64: every operation, with rows and columns, tails of the interleaved parts, and values that f32 cannot hold.
void doubles(const Target& target) {
  for (const auto& [shape, axes] : std::vector<std::pair<Shape, Shape>>{
           {{3, 1}, {1}}, {{3, 7}, {1}}, {{3, 8}, {1}}, {{2, 83}, {1}}, {{9, 70}, {0}}, {{2, 5, 3, 4}, {1, 3}}}) {
    const std::vector<float> x = samples(product(shape));
    std::vector<double> wide(x.begin(), x.end());
    const auto groups = grouped(x, shape, axes);
    for (int op = 0; op < kOps; ++op) {
      const auto got =
          reduced_wide(target, static_cast<ReduceOp>(op), ElementCode::kF64, wide, shape, axes, groups.size());
      for (std::size_t i = 0; i < groups.size(); ++i) {
        const double wanted = reduced(static_cast<ReduceOp>(op), groups[i]);
        // A sum of n positive terms has a relative error of n epsilon at most; f64 has 2^-52.
        expect(std::fabs(got[i] - wanted) <= 1e-13 * std::fabs(wanted), "f64, op " + std::to_string(op));
      }
    }
  }
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto most =
      reduced_wide<double>(target, ReduceOp::kMax, ElementCode::kF64, {1, nan, 2, 1e300, 5, -1e300}, {2, 3}, {1}, 2);
  expect(std::isnan(most[0]) && most[1] == 1e300, "f64 maxima");
  const auto sums =
      reduced_wide<double>(target, ReduceOp::kLogSumExp, ElementCode::kF64, {1000, 1000, -kInf, -kInf}, {2, 2}, {1}, 2);
  expect(std::fabs(sums[0] - (1000 + std::log(2.0))) < 1e-12 && sums[1] == -static_cast<double>(kInf),
         "f64 exponentials");
}

void unsigned_integers(const Target& target) {
  const std::vector<std::uint64_t> x = {~0ull, 3, 1ull << 63, 7, 0, 9};
  const auto wide = [&](ReduceOp op) { return reduced_wide(target, op, ElementCode::kU64, x, {2, 3}, {1}, 2); };
  using Wide = std::vector<std::uint64_t>;
  expect(wide(ReduceOp::kSum) == Wide{(1ull << 63) + 2, 16}, "u64 sums wrap");
  expect(wide(ReduceOp::kMax) == Wide{~0ull, 9}, "u64 maxima");
  expect(wide(ReduceOp::kMin) == Wide{3, 0}, "u64 minima");
  expect(wide(ReduceOp::kMean) == Wide{((1ull << 63) + 2) / 3, 5}, "u64 means");
  expect(wide(ReduceOp::kL1) == wide(ReduceOp::kSum), "u64 norms");
  const std::vector<std::uint32_t> y = {~0u, 3, 1u << 31, 7, 0, 9};
  const auto narrow = [&](ReduceOp op) { return reduced_wide(target, op, ElementCode::kU32, y, {3, 2}, {0}, 2); };
  using Narrow = std::vector<std::uint32_t>;
  expect(narrow(ReduceOp::kSum) == Narrow{(1u << 31) - 1, 19}, "u32 sums wrap");
  expect(narrow(ReduceOp::kMax) == Narrow{~0u, 9}, "u32 maxima");
  expect(narrow(ReduceOp::kMin) == Narrow{0, 3}, "u32 minima");
}

void refused(const Target& target) {
  const auto refuse = [&](const AttributeMap& given, const std::string& message) {
    expect_refused(target, reduce_operations, "reduce", given, {24}, {24}, message);
  };
  AttributeMap unknown = attributes(ReduceOp::kSum, ElementCode::kF32, {2, 3}, {1});
  unknown["op"] = std::string("median");
  refuse(unknown, "attribute \"op\" is \"median\"; expected one of sum, mean");
  refuse(attributes(ReduceOp::kMax, ElementCode::kF16, {2, 3}, {1}), "expected one of f32, f64, i8");
  refuse(attributes(ReduceOp::kL2, ElementCode::kI32, {2, 3}, {1}), "expected one of f32");
  refuse(attributes(ReduceOp::kSum, ElementCode::kU8, {2, 3}, {1}), "expected one of f32, f64, i32, i64");
  refuse(attributes(ReduceOp::kSum, ElementCode::kF32, {2, 3}, {2}), "ascending");
  refuse(attributes(ReduceOp::kSum, ElementCode::kF32, {2, 3}, {1, 0}), "ascending");
  refuse(attributes(ReduceOp::kSum, ElementCode::kF32, {2, 3}, {-1}), "ascending");
  refuse(attributes(ReduceOp::kSum, ElementCode::kF32, {2, -3}, {1}), "negative");
  refuse(attributes(ReduceOp::kSum, ElementCode::kF32, {2, 4}, {1}), "bytes");
  refuse(attributes(ReduceOp::kSum, ElementCode::kF32, {1 << 30, 1 << 30, 0}, {1}), "elements");
  expect_refused(target, reduce_operations, "reduce",
                 attributes(ReduceOp::kSum, ElementCode::kF32, Shape(18, 2), {1, 3, 5, 7, 9, 11, 13, 15, 17}),
                 {1 << 20}, {1 << 20}, "alternate");
}

}  // namespace

int main() {
  return run_cases({{"axes", axes},
                    {"tails", tails},
                    {"parts", parts},
                    {"empty", empty},
                    {"not finite", not_finite},
                    {"integers", integers},
                    {"doubles", doubles},
                    {"unsigned", unsigned_integers},
                    {"refused", refused}});
}

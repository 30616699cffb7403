// ArgMin and ArgMax, TopK, and CumSum, against scalar loops: ties, tails, NaN.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/arg_reduce.hpp"
#include "kernels/cum_sum.hpp"
#include "kernels/top_k.hpp"
#include "kernels_bytes_common.hpp"

namespace engine {
extern const OperationEntry arg_reduce_operations[];
extern const OperationEntry cum_sum_operations[];
extern const OperationEntry top_k_operations[];
}  // namespace engine

using namespace engine;
using namespace engine::test;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Sizes {
  std::int64_t outer, axis, inner;
  std::int64_t count() const { return outer * axis * inner; }
  std::int64_t lines() const { return outer * inner; }
};

AttributeMap attributes(const Sizes& s, AttributeMap more = {}) {
  more.insert({{"outer", s.outer}, {"axis", s.axis}, {"inner", s.inner}});
  return more;
}

std::string describe(const Sizes& s) {
  return std::to_string(s.outer) + "x" + std::to_string(s.axis) + "x" + std::to_string(s.inner);
}

// Few distinct values, so that there are ties.
std::vector<float> samples(std::int64_t count, std::uint32_t seed) {
  auto x = random_floats(count, seed);
  for (float& value : x) value = std::floor(value * 6);
  return x;
}

std::vector<float> line_of(const std::vector<float>& x, const Sizes& s, std::int64_t line) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < s.axis; ++i)
    values.push_back(x[(line / s.inner * s.axis + i) * s.inner + line % s.inner]);
  return values;
}

// A NaN is larger than any number.
bool is_more(float a, float b) {
  return std::isnan(a) ? !std::isnan(b) : a > b;
}

std::int64_t position(const std::vector<float>& line, bool is_min, bool is_last) {
  std::int64_t best = 0;
  for (std::int64_t i = 1; i < static_cast<std::int64_t>(line.size()); ++i) {
    const float a = line[i], b = line[best];
    const bool is_equal = a == b || (std::isnan(a) && std::isnan(b));
    const bool is_beyond = is_min ? (std::isnan(a) ? !std::isnan(b) : a < b) : is_more(a, b);
    if (is_beyond || (is_last && is_equal)) best = i;
  }
  return best;
}

// int64 values are stored in pairs of floats, with their alignment.
Guarded make_positions(std::int64_t count) {
  return Guarded(2 * count, 0.0f, false);
}
std::vector<std::int64_t> positions_of(const Guarded& buffer) {
  const auto words = buffer.values();
  std::vector<std::int64_t> positions(words.size() / 2);
  if (!words.empty()) std::memcpy(positions.data(), words.data(), words.size() * sizeof(float));
  return positions;
}

void check_extremes(const Target& target, const Sizes& s, const std::vector<float>& x) {
  for (const bool is_min : {false, true})
    for (const bool is_last : {false, true}) {
      std::vector<std::int64_t> expected;
      for (std::int64_t i = 0; i < s.lines(); ++i) expected.push_back(position(line_of(x, s, i), is_min, is_last));
      Guarded input(x), output = make_positions(s.lines());
      run_operation(target, arg_reduce_operations, "arg_reduce",
                    attributes(s, {{"type", "f32"}, {"min", std::int64_t{is_min}}, {"last", std::int64_t{is_last}}}),
                    {&input}, {&output}, 3);
      expect(output.intact(), describe(s) + ": overrun");
      expect(positions_of(output) == expected, describe(s) + (is_min ? " min" : " max") + (is_last ? " last" : ""));
    }
  std::vector<float> expected(x.size(), 0.0f);
  for (std::int64_t i = 0; i < s.lines() && s.axis > 0; ++i)
    expected[(i / s.inner * s.axis + position(line_of(x, s, i), false, false)) * s.inner + i % s.inner] = 1.0f;
  Guarded input(x), output(x.size(), kNan);
  run_operation(target, arg_reduce_operations, "hardmax_f32", attributes(s), {&input}, {&output}, 3);
  expect(output.intact(), describe(s) + ": overrun");
  expect_close(expected, output.values(), 0, describe(s) + " hardmax");
}

void check_best(const Target& target, const Sizes& s, std::int64_t k, const std::vector<float>& x) {
  for (const bool is_smallest : {false, true}) {
    std::vector<float> values(s.lines() * k);
    std::vector<std::int64_t> positions(values.size());
    for (std::int64_t i = 0; i < s.lines(); ++i) {
      const auto line = line_of(x, s, i);
      std::vector<std::int64_t> order(s.axis);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
        return is_smallest ? is_more(line[b], line[a]) : is_more(line[a], line[b]);
      });
      for (std::int64_t j = 0; j < k; ++j) {
        const std::int64_t at = (i / s.inner * k + j) * s.inner + i % s.inner;
        values[at] = line[order[j]];
        positions[at] = order[j];
      }
    }
    Guarded input(x), best(values.size(), kNan), output = make_positions(s.lines() * k);
    run_operation(target, top_k_operations, "top_k",
                  attributes(s, {{"type", "f32"}, {"k", k}, {"smallest", std::int64_t{is_smallest}}}), {&input},
                  {&best, &output}, 3);
    const std::string what = describe(s) + " k" + std::to_string(k) + (is_smallest ? " smallest" : "");
    expect(best.intact() && output.intact(), what + ": overrun");
    expect_close(values, best.values(), 0, what);
    expect(positions_of(output) == positions, what + " positions");
  }
}

const Sizes kSizes[] = {{0, 3, 2},   {2, 3, 0},     {2, 0, 3}, {3, 1, 1},  {5, 7, 1},   {2, 16, 1}, {2, 63, 1},
                        {3, 129, 1}, {1, 20011, 1}, {2, 5, 3}, {2, 9, 64}, {1, 33, 65}, {3, 4, 130}};

void extremes(const Target& target) {
  for (const Sizes& s : kSizes) check_extremes(target, s, samples(s.count(), 1));
}

void best(const Target& target) {
  for (const Sizes& s : kSizes)
    for (const std::int64_t k : {0, 1, 2, 5, 300, 100000})
      if (s.count() == 0 ? k <= s.axis : k < 100000 || s.axis < 1000)
        check_best(target, s, std::min(k, s.axis), samples(s.count(), 2));
}

// Lines of which stretches are rejected at once: what is better may be at any place of one, and the worst kept a NaN.
void stretches(const Target& target) {
  const Sizes s = {1, 201, 1};
  for (const std::int64_t k : {1, 3})
    for (const float value : {100.0f, -100.0f, kNan, kInf, -kInf})
      for (std::int64_t at = 0; at < s.axis; at += 5) {
        auto x = samples(s.count(), 3);
        x[static_cast<std::size_t>(at)] = value;
        check_best(target, s, k, x);
      }
  auto x = samples(s.count(), 4);
  std::fill_n(x.begin(), 5, kNan);
  check_best(target, s, 3, x);
  std::fill_n(x.begin() + 70, 64, -0.0f);
  std::fill_n(x.begin() + 134, 60, 0.0f);
  check_best(target, s, 150, x);
}

template <class T>
void long_line(const Target& target, const char* name) {
  std::vector<T> x(300);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<T>(i * 7919 % 211);
  for (const std::int64_t smallest : {0, 1}) {
    std::vector<std::int64_t> order(x.size());
    std::iota(order.begin(), order.end(), 0);
    const auto at = [&](std::int64_t i) { return x[static_cast<std::size_t>(i)]; };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int64_t a, std::int64_t b) { return smallest == 1 ? at(a) < at(b) : at(a) > at(b); });
    order.resize(4);
    std::vector<ByteVector> output = {ByteVector(4 * sizeof(T)), ByteVector(4 * 8)};
    run_bytes(target, top_k_operations, "top_k",
              attributes({1, 300, 1}, {{"type", name}, {"k", std::int64_t{4}}, {"smallest", smallest}}),
              {bytes_of_values(x)}, output, sizeof(std::int64_t));
    expect(values_of_bytes<std::int64_t>(output[1]) == order, std::string("best of a long line of ") + name);
  }
}

void long_lines(const Target& target) {
  long_line<float>(target, "f32");
  long_line<double>(target, "f64");
  long_line<std::uint64_t>(target, "u64");
  long_line<std::uint32_t>(target, "u32");
  long_line<std::int16_t>(target, "i16");
  long_line<std::uint16_t>(target, "u16");
  long_line<std::int8_t>(target, "i8");
  long_line<std::uint8_t>(target, "u8");
  long_line<std::int32_t>(target, "i32");
  long_line<std::int64_t>(target, "i64");
}

// The only extreme is found wherever it is.
void one_extreme(const Target& target) {
  for (const Sizes& s : {Sizes{1, 150, 1}, Sizes{1, 9, 3}})
    for (std::int64_t at = 0; at < s.count(); ++at)
      for (const float value : {100.0f, -100.0f}) {
        auto x = samples(s.count(), 4);
        x[static_cast<std::size_t>(at)] = value;
        check_extremes(target, s, x);
      }
}

// Zeros of either sign are equal: the first one wins.
void signed_zeros(const Target& target) {
  for (const Sizes& s : {Sizes{2, 70, 1}, Sizes{1, 40, 20}}) {
    std::vector<float> x(static_cast<std::size_t>(s.count()));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = i % 7 == 3 ? 1.0f : i % 3 == 0 ? -0.0f : 0.0f;
    check_extremes(target, s, x);
    check_best(target, s, 30, x);
  }
}

void not_finite(const Target& target) {
  for (const Sizes& s : {Sizes{2, 70, 1}, Sizes{1, 400, 1}, Sizes{1, 40, 20}})
    for (const float special : {kNan, kInf, -kInf})
      for (const std::int64_t at : {0, 39, 41, 300}) {
        if (at + 17 >= s.count()) continue;
        auto x = samples(s.count(), 3);
        x[at] = x[at + 17] = special;
        check_extremes(target, s, x);
        check_best(target, s, 20, x);
        check_best(target, s, 1, x);
      }
}

void sums(const Target& target) {
  for (const Sizes& s : kSizes)
    for (const bool is_exclusive : {false, true})
      for (const bool is_reversed : {false, true}) {
        const auto x = random_floats(s.count(), 4);
        std::vector<float> expected(x.size());
        for (std::int64_t i = 0; i < s.lines(); ++i) {
          double sum = 0;
          for (std::int64_t j = 0; j < s.axis; ++j) {
            const std::int64_t at = (i / s.inner * s.axis + (is_reversed ? s.axis - 1 - j : j)) * s.inner + i % s.inner;
            const double before = sum;
            sum += x[at];
            expected[at] = static_cast<float>(is_exclusive ? before : sum);
          }
        }
        Guarded input(x), output(x.size(), kNan);
        const auto given = attributes(
            s, {{"type", "f32"}, {"exclusive", std::int64_t{is_exclusive}}, {"reverse", std::int64_t{is_reversed}}});
        run_operation(target, cum_sum_operations, "cum_sum", given, {&input}, {&output}, 3);
        expect(output.intact(), describe(s) + ": overrun");
        expect_close(expected, output.values(), 0, describe(s) + " sums");
        run_operation(target, cum_sum_operations, "cum_sum", given, {&input}, {&input}, 3);
        expect_close(expected, input.values(), 0, describe(s) + " sums in place");
      }
}

// Sums and products of f64 and of unsigned integers, which wrap.
template <class T>
void accumulate(const Target& target, const char* name, std::int64_t is_product) {
  const Sizes s = {2, 5, 67};
  std::vector<T> x(static_cast<std::size_t>(s.count())), expected(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<T>(static_cast<std::int64_t>(i * 7919 % 13) - 3);
  for (std::int64_t i = 0; i < s.lines(); ++i) {
    T total = static_cast<T>(is_product);
    for (std::int64_t j = 0; j < s.axis; ++j) {
      const auto at = static_cast<std::size_t>((i / s.inner * s.axis + j) * s.inner + i % s.inner);
      total = static_cast<T>(is_product ? total * x[at] : total + x[at]);
      expected[at] = total;
    }
  }
  std::vector<ByteVector> output = {ByteVector(x.size() * sizeof(T))};
  run_bytes(target, cum_sum_operations, "cum_sum", attributes(s, {{"type", name}, {"product", is_product}}),
            {bytes_of_values(x)}, output, sizeof(T));
  expect(values_of_bytes<T>(output[0]) == expected, std::string("running results of ") + name);
}

void running_types(const Target& target) {
  for (const std::int64_t is_product : {0, 1}) {
    accumulate<double>(target, "f64", is_product);
    accumulate<std::uint32_t>(target, "u32", is_product);
    accumulate<std::uint64_t>(target, "u64", is_product);
    accumulate<std::int64_t>(target, "i64", is_product);
  }
}

template <class T>
void select(const Target& target, const char* name, std::vector<T> x, std::vector<std::int64_t> order) {
  const Sizes s = {1, static_cast<std::int64_t>(x.size()), 1};
  for (const std::int64_t smallest : {0, 1}) {
    std::vector<ByteVector> output = {ByteVector(x.size() * sizeof(T)), ByteVector(x.size() * 8)};
    run_bytes(target, top_k_operations, "top_k", attributes(s, {{"type", name}, {"k", s.axis}, {"smallest", smallest}}),
              {bytes_of_values(x)}, output, sizeof(std::int64_t));
    expect(values_of_bytes<std::int64_t>(output[1]) == order, std::string("order of ") + name);
    std::reverse(order.begin(), order.end());
  }
}

void top_k_types(const Target& target) {
  constexpr double kNan64 = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf64 = std::numeric_limits<double>::infinity();
  select<double>(target, "f64", {-kInf64, 1e300, kNan64, -1e-300, kInf64}, {2, 4, 1, 3, 0});
  select<std::uint64_t>(target, "u64", {5, ~0ull, 0, 1ull << 63}, {1, 3, 0, 2});
  select<std::uint32_t>(target, "u32", {5, ~0u, 0, 1u << 31}, {1, 3, 0, 2});
  select<std::int16_t>(target, "i16", {5, -32768, 0, 32767}, {3, 0, 2, 1});
  select<std::uint16_t>(target, "u16", {5, 65535, 0, 32768}, {1, 3, 0, 2});
  select<std::int8_t>(target, "i8", {5, -128, 0, 127}, {3, 0, 2, 1});
  select<std::uint8_t>(target, "u8", {5, 255, 0, 128}, {1, 3, 0, 2});
}

void refused(const Target& target) {
  const Sizes s = {2, 3, 1};
  const auto type = [](const char* name) { return AttributeMap{{"type", name}}; };
  const auto refuse = [&](const OperationEntry* operations, const char* name, const AttributeMap& given,
                          const char* message) {
    const std::vector<std::size_t> outputs(name[0] == 't' ? 2 : 1, 48);
    expect_refused(target, operations, name, given, {24}, outputs, message);
  };
  refuse(arg_reduce_operations, "arg_reduce", attributes(s, type("bool")), "expected one of f32, i8, u8, i32, i64");
  refuse(arg_reduce_operations, "arg_reduce", attributes({2, -3, 1}, type("f32")), "axis");
  refuse(arg_reduce_operations, "arg_reduce", attributes({2, 3, 2}, type("f32")), "bytes");
  refuse(arg_reduce_operations, "hardmax_f32", attributes(s, type("f32")), "not one of this kernel");
  refuse(cum_sum_operations, "cum_sum", attributes(s, type("u8")), "expected one of f32, f64, i32, i64");
  refuse(cum_sum_operations, "cum_sum", attributes({1 << 30, 1 << 30, 1 << 30}, type("f32")), "overflow");
  AttributeMap many = type("f32");
  many["k"] = std::int64_t{4};
  refuse(top_k_operations, "top_k", attributes(s, many), "k");
  many["k"] = std::int64_t{-1};
  refuse(top_k_operations, "top_k", attributes(s, many), "k");
}

}  // namespace

int main() {
  return run_cases({{"extremes", extremes},
                    {"best", best},
                    {"one extreme", one_extreme},
                    {"signed zeros", signed_zeros},
                    {"not finite", not_finite},
                    {"running sums", sums},
                    {"running types", running_types},
                    {"types of TopK", top_k_types},
                    {"stretches of TopK", stretches},
                    {"long lines of TopK", long_lines},
                    {"refused", refused}});
}

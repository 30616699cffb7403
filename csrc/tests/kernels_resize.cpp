// Resizing against a sum over all taps, in f64, for each element; a Python test checks the taps of a Resize.
#include <algorithm>
#include <limits>

#include "kernels/prepare.hpp"
#include "kernels_bytes_common.hpp"

namespace engine {
extern const OperationEntry resize_operations[];
}  // namespace engine

using namespace engine;
using namespace engine::test;

namespace {

using Ints = std::vector<std::int64_t>;
using Reals = std::vector<double>;

struct Size {
  std::int64_t maps, in_h, in_w, out_h, out_w, inner;
};

// The taps of the rows or columns of a destination: [out, taps].
struct Taps {
  Ints indices;
  Reals weights;
};

enum class Order { ascends, descends, crosses };  // crosses: begins and ends outside the source

// Taps around coordinates that are spread over the source; in each third row, a single tap has all the weight.
Taps taps_of(std::int64_t in, std::int64_t out, std::int64_t taps, Order order) {
  Taps result;
  for (std::int64_t i = 0; i < out; ++i) {
    const std::int64_t at = order == Order::descends ? out - 1 - i : i;
    const std::int64_t first = at * in / out - (taps - 1) / 2;
    const bool is_outside = order == Order::crosses && (i < out / 4 || i >= out - out / 5);
    for (std::int64_t k = 0; k < taps; ++k) {
      result.indices.push_back(is_outside ? -1 : std::min(std::max<std::int64_t>(first + k, 0), in - 1));
      const double shared = (k % 2 == 0 ? 1.5 : -0.5) / static_cast<double>(taps) * (k == 3 && taps > 4 ? 0 : 1);
      result.weights.push_back(at % 3 != 0 ? shared : k == taps / 2 ? 1 : 0);
    }
  }
  return result;
}

AttributeMap attributes_of(const Size& s, const Taps& rows, const Taps& columns) {
  return {{"maps", s.maps},
          {"inner", s.inner},
          {"in", Ints{s.in_h, s.in_w}},
          {"out", Ints{s.out_h, s.out_w}},
          {"row_indices", rows.indices},
          {"column_indices", columns.indices}};
}

void check_f32(const Target& target, const Size& s, std::int64_t taps, Order order, float special = 0) {
  std::vector<float> x = random_floats(static_cast<std::size_t>(s.maps * s.in_h * s.in_w * s.inner), 1);
  if (special != 0 && !x.empty()) x[x.size() / 2] = special;
  const Taps rows = taps_of(s.in_h, s.out_h, taps, order), columns = taps_of(s.in_w, s.out_w, taps, order);
  std::vector<float> expected;
  for (std::int64_t n = 0; n < s.maps; ++n)
    for (std::int64_t h = 0; h < s.out_h; ++h)
      for (std::int64_t w = 0; w < s.out_w; ++w)
        for (std::int64_t i = 0; i < s.inner; ++i) {
          const auto row = static_cast<std::size_t>(h * taps), column = static_cast<std::size_t>(w * taps);
          const bool is_outside = rows.indices[row] < 0 || columns.indices[column] < 0;
          double sum = is_outside ? 7 : 0;
          for (std::size_t a = 0; a < static_cast<std::size_t>(taps) && !is_outside; ++a)
            for (std::size_t b = 0; b < static_cast<std::size_t>(taps); ++b) {
              const double weight = rows.weights[row + a] * columns.weights[column + b];
              if (weight == 0) continue;
              const std::int64_t at =
                  ((n * s.in_h + rows.indices[row + a]) * s.in_w + columns.indices[column + b]) * s.inner + i;
              sum += weight * x[static_cast<std::size_t>(at)];
            }
          expected.push_back(static_cast<float>(sum));
        }
  AttributeMap attributes = attributes_of(s, rows, columns);
  attributes["taps"] = taps;
  attributes["row_weights"] = rows.weights;
  attributes["column_weights"] = columns.weights;
  attributes["outside"] = 7.0;
  std::vector<ByteVector> actual = {ByteVector(expected.size() * 4)};
  run_bytes(target, resize_operations, "resize_f32", attributes, {bytes_of_values(x)}, actual, sizeof(float));
  // The magnitudes of the weights sum up to 1.5, in each of two dimensions.
  expect_close(expected, values_of_bytes<float>(actual[0]), 3 * sum_tolerance(static_cast<std::size_t>(taps * taps)),
               std::to_string(taps) + " taps, order " + std::to_string(static_cast<int>(order)));
}

const Size kSizes[] = {{2, 5, 7, 10, 14, 1},    {2, 5, 7, 10, 14, 16},   {1, 9, 8, 4, 3, 16},     {3, 1, 1, 4, 5, 3},
                       {1, 4, 300, 3, 700, 20}, {1, 6, 900, 12, 90, 16}, {2, 1, 13, 1, 26, 5},    {2, 7, 7, 7, 3, 16},
                       {0, 3, 3, 6, 6, 1},      {2, 3, 3, 0, 6, 1},      {1, 3, 5000, 2, 5001, 1}};

void sums(const Target& target) {
  for (const Size& size : kSizes)
    for (const Order order : {Order::ascends, Order::descends, Order::crosses})
      for (const std::int64_t taps : {1, 2, 4, 7}) check_f32(target, size, taps, order);
}

void not_finite(const Target& target) {
  for (const float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (const std::int64_t taps : {2, 4, 7}) {
      // One element for each row or column: taps without weight are not read.
      check_f32(target, {1, 5, 5, 1, 1, 16}, taps, Order::ascends, value);
      check_f32(target, {1, 5, 5, 1, 1, 1}, taps, Order::ascends, value);
    }
}

// Also whole numbers of repetitions, around the width of vectors.
std::vector<Size> nearest_sizes() {
  std::vector<Size> sizes(std::begin(kSizes), std::end(kSizes));
  for (const std::int64_t times : {2, 3, 4, 5, 8})
    for (const std::int64_t width : {1, 3, 4, 7, 8, 9, 15, 16, 17, 33})
      sizes.push_back({2, 3, width, 6, width * times, 1});
  return sizes;
}

void nearest(const Target& target) {
  for (const Size& s : nearest_sizes())
    for (const std::int64_t element : {1, 2, 4, 8})
      for (const Order order : {Order::ascends, Order::descends, Order::crosses}) {
        const Taps rows = taps_of(s.in_h, s.out_h, 1, order), columns = taps_of(s.in_w, s.out_w, 1, order);
        const ByteVector x = random_bytes(static_cast<std::size_t>(s.maps * s.in_h * s.in_w * s.inner * element), 2);
        const std::int64_t outside = 0x0807060504030201, block = s.inner * element;
        ByteVector expected;
        for (std::int64_t n = 0; n < s.maps; ++n)
          for (const std::int64_t row : rows.indices)
            for (const std::int64_t column : columns.indices)
              for (std::int64_t i = 0; i < block; ++i) {
                const std::int64_t at = ((n * s.in_h + row) * s.in_w + column) * block + i;
                const bool is_outside = row < 0 || column < 0;
                expected.push_back(is_outside ? static_cast<char>(1 + i % element) : x[static_cast<std::size_t>(at)]);
              }
        AttributeMap attributes = attributes_of(s, rows, columns);
        attributes["element_bytes"] = element;
        attributes["value"] = outside;
        std::vector<ByteVector> actual = {ByteVector(expected.size())};
        run_bytes(target, resize_operations, "resize_nearest", attributes, {x}, actual);
        expect(actual[0] == expected, "nearest of " + std::to_string(element) + " bytes");
      }
}

void refusals(const Target& target) {
  const auto refused = [&](const std::string& name, const Attributes::Value& value, const std::string& message) {
    const Taps taps = taps_of(4, 8, 2, Order::ascends);
    AttributeMap attributes = attributes_of({1, 4, 4, 8, 8, 1}, taps, taps);
    attributes["taps"] = std::int64_t{2};
    attributes["row_weights"] = attributes["column_weights"] = taps.weights;
    attributes[name] = value;
    expect_refused(target, resize_operations, "resize_f32", attributes, {64}, {256}, message);
  };
  Ints indices = taps_of(4, 8, 2, Order::ascends).indices;
  Reals weights = taps_of(4, 8, 2, Order::ascends).weights;
  refused("taps", 0, "expected 1 to");
  refused("taps", 3, "has 16 values; expected 24");
  refused("row_weights", Reals{0.5, 0.5}, "has 2 values; expected 16");
  weights[5] = std::numeric_limits<double>::quiet_NaN();
  refused("column_weights", weights, "not finite");
  indices[3] = 4;
  refused("row_indices", indices, "holds 4; expected indices below 4");
  indices[3] = -2;
  refused("row_indices", indices, "holds -2; expected indices below 4");
  indices[2] = 3, indices[3] = 2;
  refused("column_indices", indices, "holds 2; expected indices below 4 in ascending order");
  refused("in", Ints{0, 4}, "empty dimension");
  refused("out", Ints{8, 9}, "bytes; expected");
  refused("maps", std::int64_t{1} << 41, "expected 0 to");
}

}  // namespace

int main() {
  return run_cases({{"sums", sums}, {"not finite", not_finite}, {"nearest", nearest}, {"refusals", refusals}});
}

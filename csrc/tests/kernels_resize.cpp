// Resizing against one sum over all taps, in f64, for each element; what the taps are is tested from Python.
#include <cmath>
#include <limits>

#include "kernels/prepare/codes.hpp"
#include "kernels/prepare/resize.hpp"
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

AttributeMap attributes_of(const Size& s, Coordinates coordinates) {
  const auto scale = [](std::int64_t out, std::int64_t in) {
    return out == 0 || in == 0 ? 1.0 : static_cast<double>(out) / static_cast<double>(in);
  };
  return {{"maps", s.maps},
          {"inner", s.inner},
          {"in", Ints{s.in_h, s.in_w}},
          {"out", Ints{s.out_h, s.out_w}},
          {"scales", Reals{scale(s.out_h, s.in_h), scale(s.out_w, s.in_w)}},
          {"coordinates", name_of(coordinates)},
          {"roi", Reals{-0.2, 0.1, 0.9, 1.3}}};
}

std::vector<ResizeTap> taps_of(std::int64_t in, std::int64_t out, double begin, double end, const ResizeRule& rule) {
  return make_taps(
      {in, out, out == 0 || in == 0 ? 1.0 : static_cast<double>(out) / static_cast<double>(in), begin, end}, rule);
}

void check_f32(const Target& target, const Size& s, const ResizeRule& rule, float special = 0) {
  std::vector<float> x = random_floats(static_cast<std::size_t>(s.maps * s.in_h * s.in_w * s.inner), 1);
  if (special != 0 && !x.empty()) x[x.size() / 2] = special;
  const auto rows = taps_of(s.in_h, s.out_h, -0.2, 0.9, rule), columns = taps_of(s.in_w, s.out_w, 0.1, 1.3, rule);
  std::vector<float> expected;
  for (std::int64_t n = 0; n < s.maps; ++n)
    for (const ResizeTap& row : rows)
      for (const ResizeTap& column : columns)
        for (std::int64_t i = 0; i < s.inner; ++i) {
          double sum = row.index[0] < 0 || column.index[0] < 0 ? 7 : 0;
          for (int a = 0; a < rule.taps && sum != 7; ++a)
            for (int b = 0; b < rule.taps; ++b) {
              if (row.weight[a] == 0 || column.weight[b] == 0) continue;
              const std::int64_t at = ((n * s.in_h + row.index[a]) * s.in_w + column.index[b]) * s.inner + i;
              sum += static_cast<double>(row.weight[a]) * column.weight[b] * x[static_cast<std::size_t>(at)];
            }
          expected.push_back(static_cast<float>(sum));
        }
  AttributeMap attributes = attributes_of(s, rule.coordinates);
  attributes["taps"] = std::int64_t{rule.taps};
  attributes["exclude_outside"] = std::int64_t{rule.exclude_outside};
  attributes["outside"] = 7.0;
  std::vector<ByteVector> actual = {ByteVector(expected.size() * 4)};
  run_bytes(target, resize_operations, "resize_f32", attributes, {bytes_of_values(x)}, actual, sizeof(float));
  // Weights of a cubic sum up to less than three in magnitude, over two dimensions.
  expect_close(expected, values_of_bytes<float>(actual[0]), 9 * sum_tolerance(rule.taps * rule.taps),
               std::to_string(rule.taps) + " taps, coordinates " + std::to_string(static_cast<int>(rule.coordinates)));
}

const Size kSizes[] = {{2, 5, 7, 10, 14, 1},    {2, 5, 7, 10, 14, 16},   {1, 9, 8, 4, 3, 16},     {3, 1, 1, 4, 5, 3},
                       {1, 4, 300, 3, 700, 20}, {1, 6, 900, 12, 90, 16}, {2, 1, 13, 1, 26, 5},    {2, 7, 7, 7, 3, 16},
                       {0, 3, 3, 6, 6, 1},      {2, 3, 3, 0, 6, 1},      {1, 3, 5000, 2, 5001, 1}};

void sums(const Target& target) {
  for (const Size& size : kSizes)
    for (int mode = 0; mode < static_cast<int>(Coordinates::kCount); ++mode)
      for (const int taps : {2, 4})
        for (const bool excludes : {false, true})
          check_f32(target, size, {taps, static_cast<Coordinates>(mode), Nearest::kFloor, -0.75, excludes});
}

void not_finite(const Target& target) {
  for (const float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (const int taps : {2, 4}) {
      check_f32(target, {1, 5, 5, 9, 5, 16}, {taps, Coordinates::kAsymmetric}, value);
      check_f32(target, {1, 5, 5, 5, 9, 1}, {taps, Coordinates::kAlignCorners}, value);
    }
}

void nearest(const Target& target) {
  for (const Size& s : kSizes)
    for (const std::int64_t element : {1, 2, 4, 8})
      for (int mode = 0; mode < static_cast<int>(Nearest::kCount); ++mode)
        for (const Coordinates coordinates : {Coordinates::kHalfPixel, Coordinates::kTfCropAndResize}) {
          const ResizeRule rule = {1, coordinates, static_cast<Nearest>(mode)};
          const ByteVector x = random_bytes(static_cast<std::size_t>(s.maps * s.in_h * s.in_w * s.inner * element), 2);
          const std::int64_t outside = 0x0807060504030201, block = s.inner * element;
          ByteVector expected;
          for (std::int64_t n = 0; n < s.maps; ++n)
            for (const ResizeTap& row : taps_of(s.in_h, s.out_h, -0.2, 0.9, rule))
              for (const ResizeTap& column : taps_of(s.in_w, s.out_w, 0.1, 1.3, rule))
                for (std::int64_t i = 0; i < block; ++i) {
                  const std::int64_t at = ((n * s.in_h + row.index[0]) * s.in_w + column.index[0]) * block + i;
                  const bool is_outside = row.index[0] < 0 || column.index[0] < 0;
                  expected.push_back(is_outside ? static_cast<char>(1 + i % element) : x[static_cast<std::size_t>(at)]);
                }
          AttributeMap attributes = attributes_of(s, coordinates);
          attributes["element_bytes"] = element;
          attributes["nearest"] = std::string(name_of(static_cast<Nearest>(mode)));
          attributes["value"] = outside;
          std::vector<ByteVector> actual = {ByteVector(expected.size())};
          run_bytes(target, resize_operations, "resize_nearest", attributes, {x}, actual);
          expect(actual[0] == expected, "nearest " + std::to_string(mode));
        }
}

void refusals(const Target& target) {
  const auto refused = [&](const std::string& name, const Attributes::Value& value, const std::string& message) {
    AttributeMap attributes = attributes_of({1, 4, 4, 8, 8, 1}, Coordinates::kTfCropAndResize);
    attributes["taps"] = std::int64_t{2};
    attributes[name] = value;
    expect_refused(target, resize_operations, "resize_f32", attributes, {64}, {256}, message);
  };
  refused("taps", 3, "expected 2 or 4");
  refused("taps", 5, "expected 2 to 4");
  refused("scales", Reals{0, 1}, "not positive");
  refused("scales", Reals{std::numeric_limits<double>::quiet_NaN(), 1}, "not finite");
  refused("roi", Reals{0.9, 0, 0.1, 1}, "ends before it begins");
  refused("roi", Reals{0, 1}, "expected 4");
  refused("in", Ints{0, 4}, "empty dimension");
  refused("out", Ints{8, 9}, "bytes; expected");
  refused("maps", std::int64_t{1} << 41, "expected 0 to");
  AttributeMap tiny = attributes_of({1, 4, 4, 8, 8, 1}, Coordinates::kHalfPixelSymmetric);
  tiny["taps"] = std::int64_t{2};
  tiny["scales"] = Reals{1e-320, 1};
  expect_refused(target, resize_operations, "resize_f32", tiny, {64}, {256}, "too small");
}

}  // namespace

int main() {
  return run_cases({{"sums", sums}, {"not finite", not_finite}, {"nearest", nearest}, {"refusals", refusals}});
}

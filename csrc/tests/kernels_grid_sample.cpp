// Sampling at points inside, at borders, far outside and at NaN; a Python test compares the modes with ONNX's.
#include <cmath>
#include <limits>

#include "kernels/prepare/codes.hpp"
#include "kernels_bytes_common.hpp"

namespace engine {
extern const OperationEntry grid_sample_operations[];
}  // namespace engine

using namespace engine;
using namespace engine::test;

namespace {

constexpr GridPadding kPaddings[] = {GridPadding::kZeros, GridPadding::kBorder, GridPadding::kReflection};

using Ints = std::vector<std::int64_t>;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> sample(const Target& target, std::int64_t batch, std::int64_t channels, const Ints& in,
                          const std::vector<float>& map, const std::vector<float>& grid, std::int64_t taps,
                          GridPadding padding, std::int64_t aligns_corners) {
  const auto axes = static_cast<std::int64_t>(in.size());
  const std::int64_t points = batch == 0 ? 0 : static_cast<std::int64_t>(grid.size()) / axes / batch;
  std::vector<ByteVector> result = {ByteVector(static_cast<std::size_t>(batch * channels * points) * sizeof(float))};
  run_bytes(target, grid_sample_operations, "grid_sample_f32",
            {{"batch", batch},
             {"channels", channels},
             {"in", in},
             {"points", points},
             {"taps", taps},
             {"padding", name_of(padding)},
             {"aligns_corners", aligns_corners}},
            {bytes_of_values(map), bytes_of_values(grid)}, result, sizeof(float));
  return values_of_bytes<float>(result[0]);
}

// A grid of the map's pixels reproduces the map.
void identity(const Target& target) {
  const std::vector<float> map = random_floats(2 * 3 * 5 * 9, 1);
  std::vector<float> grid;
  for (int n = 0; n < 2; ++n)
    for (int y = 0; y < 5; ++y)
      for (int x = 0; x < 9; ++x) {
        grid.push_back(static_cast<float>(x) / 4 - 1);
        grid.push_back(static_cast<float>(y) / 2 - 1);
      }
  for (const std::int64_t taps : {1, 2, 4})
    for (const GridPadding padding : kPaddings)
      expect_close(map, sample(target, 2, 3, {5, 9}, map, grid, taps, padding, 1), sum_tolerance(16), "identity");
}

// The same with a depth; in the middle between planes, linear interpolation averages them.
void depth(const Target& target) {
  const std::vector<float> map = random_floats(2 * 3 * 3 * 5 * 9, 1);
  std::vector<float> grid, between;
  for (int n = 0; n < 2; ++n)
    for (int z = 0; z < 3; ++z)
      for (int y = 0; y < 5; ++y)
        for (int x = 0; x < 9; ++x) {
          const std::vector<float> place = {static_cast<float>(x) / 4 - 1, static_cast<float>(y) / 2 - 1};
          for (std::vector<float>* const each : {&grid, &between})
            each->insert(each->end(), place.begin(), place.end());
          grid.push_back(static_cast<float>(z) - 1);
          between.push_back(static_cast<float>(z) - 0.5f);
        }
  for (const std::int64_t taps : {1, 2, 4})
    for (const GridPadding padding : kPaddings)
      expect_close(map, sample(target, 2, 3, {3, 5, 9}, map, grid, taps, padding, 1), sum_tolerance(64), "identity");
  std::vector<float> means;
  for (std::size_t i = 0; i < map.size(); ++i)
    means.push_back(i / 45 % 3 == 2 ? map[i] / 2 : (map[i] + map[i + 45]) / 2);
  expect_close(means, sample(target, 2, 3, {3, 5, 9}, map, between, 2, GridPadding::kZeros, 1), sum_tolerance(8),
               "between planes");
}

// For any coordinates, nothing outside the map is read, and a map of ones yields ones, or less with zero padding.
void anywhere(const Target& target) {
  std::vector<float> grid = random_floats(2 * 200, 2);
  for (std::size_t i = 0; i < grid.size(); ++i) grid[i] *= i % 4 == 0 ? 1e30f : i % 4 == 1 ? 3.0f : 1.1f;
  grid.resize(6 * 66);
  for (const Ints& in : {Ints{4, 7}, {1, 1}, {1, 6}, {3, 4, 7}, {1, 1, 1}})
    for (const std::int64_t taps : {1, 2, 4})
      for (const std::int64_t aligned : {0, 1})
        for (const GridPadding padding : kPaddings) {
          const std::vector<float> ones(static_cast<std::size_t>(in[0] * in[1] * (in.size() == 3 ? in[2] : 1)), 1.0f);
          for (const float value : sample(target, 1, 1, in, ones, grid, taps, padding, aligned))
            expect(padding == GridPadding::kZeros ? std::fabs(value) < 3 : std::fabs(value - 1) < 1e-5,
                   "sum of the weights");
        }
}

void not_finite(const Target& target) {
  const std::vector<float> map(12, 1.0f);
  for (const std::int64_t taps : {1, 2, 4})
    for (const GridPadding padding : kPaddings) {
      const auto values = sample(target, 1, 1, {3, 4}, map, {kNan, 0, 0, kInf, -kInf, 0, 0, 0}, taps, padding, 0);
      expect(std::isnan(values[0]) && std::isnan(values[1]) && std::isnan(values[2]) && !std::isnan(values[3]),
             "NaN where a coordinate is not a finite number");
    }
}

void nothing(const Target& target) {
  expect(sample(target, 0, 3, {2, 2}, {}, {}, 2, GridPadding::kZeros, 0).empty(), "no image");
  expect(sample(target, 1, 0, {2, 2}, {}, {0, 0}, 2, GridPadding::kZeros, 0).empty(), "no channel");
  expect(sample(target, 1, 1, {0, 2}, {}, {}, 2, GridPadding::kZeros, 0).empty(), "no point");
  expect_refused(target, grid_sample_operations, "grid_sample_f32",
                 {{"batch", 1},
                  {"channels", 1},
                  {"in", Ints{0, 2}},
                  {"points", 1},
                  {"taps", 2},
                  {"padding", "zeros"},
                  {"aligns_corners", 0}},
                 {0, 8}, {4}, "the sampled map is empty");
}

}  // namespace

int main() {
  return run_cases({{"identity", identity},
                    {"depth", depth},
                    {"anywhere", anywhere},
                    {"not finite", not_finite},
                    {"nothing", nothing}});
}

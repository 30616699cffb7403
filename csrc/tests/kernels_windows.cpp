// Windows that are unrolled, deformed and added, and regions that are sampled, against plain loops.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels_bytes_common.hpp"

namespace engine {
extern const OperationEntry windows_operations[];
extern const OperationEntry roi_align_operations[];
}  // namespace engine

using namespace engine;
using namespace engine::test;

namespace {

using Ints = std::vector<std::int64_t>;
using Floats = std::vector<float>;

std::int64_t product(const Ints& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{1}, std::multiplies<>());
}

struct Windows {
  std::int64_t groups, channels;
  Ints images, windows, kernel, strides, dilations, pads;

  std::int64_t taps() const { return product(kernel); }
  std::int64_t width() const { return windows[3]; }
  std::int64_t rows() const { return product({windows[0], windows[1], windows[2]}); }
};

Ints coordinates(std::int64_t number, const Ints& lengths) {
  Ints at(lengths.size());
  for (std::size_t axis = lengths.size(); axis-- > 0; number /= lengths[axis]) at[axis] = number % lengths[axis];
  return at;
}

// The pixel of a window's tap, or -1.
std::int64_t pixel_of(const Windows& w, std::int64_t window, std::int64_t tap) {
  const Ints from = coordinates(window, w.windows), inside = coordinates(tap, w.kernel);
  std::int64_t pixel = 0;
  for (std::size_t axis = 0; axis < 4; ++axis) {
    const std::int64_t at = from[axis] * w.strides[axis] + inside[axis] * w.dilations[axis] - w.pads[axis];
    if (at < 0 || at >= w.images[axis]) return -1;
    pixel = pixel * w.images[axis] + at;
  }
  return pixel;
}

AttributeMap attributes(const Windows& w, std::int64_t first, std::int64_t rows) {
  return {{"groups", w.groups},       {"channels", w.channels}, {"first", first},     {"rows", rows},
          {"images", w.images},       {"windows", w.windows},   {"kernel", w.kernel}, {"strides", w.strides},
          {"dilations", w.dilations}, {"pads", w.pads}};
}

std::vector<Windows> geometries() {
  return {{1, 1, {1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}, {0, 0, 0, 0}},
          {1, 3, {1, 1, 5, 19}, {1, 1, 5, 19}, {1, 1, 3, 3}, {1, 1, 1, 1}, {1, 1, 1, 1}, {0, 0, 1, 1}},
          {2, 4, {1, 4, 5, 9}, {1, 3, 2, 5}, {1, 2, 3, 2}, {1, 1, 2, 2}, {1, 2, 1, 1}, {0, 1, 0, 1}},
          {3, 3, {3, 2, 4, 5}, {2, 2, 2, 3}, {2, 1, 2, 3}, {1, 1, 2, 3}, {2, 1, 1, 2}, {1, 0, 0, 4}},
          // Windows that lie beyond the image, on either side.
          {1, 2, {1, 1, 2, 3}, {1, 1, 4, 9}, {1, 1, 1, 2}, {1, 1, 3, 2}, {1, 1, 1, 5}, {0, 0, 4, 7}},
          {1, 2, {1, 1, 0, 3}, {1, 1, 2, 2}, {1, 1, 2, 2}, {1, 1, 1, 1}, {1, 1, 1, 1}, {0, 0, 1, 0}},
          {1, 0, {1, 1, 3, 3}, {1, 1, 2, 2}, {1, 1, 2, 2}, {1, 1, 1, 1}, {1, 1, 1, 1}, {0, 0, 0, 0}},
          {1, 2, {1, 1, 3, 3}, {1, 1, 0, 2}, {1, 1, 2, 2}, {1, 1, 1, 1}, {1, 1, 1, 1}, {0, 0, 0, 0}}};
}

void unroll(const Target& target) {
  for (const Windows& w : geometries())
    for (const bool has_ones : {false, true}) {
      const std::int64_t pixels = product(w.images), per_group = w.channels / w.groups;
      const Floats image = random_floats(static_cast<std::size_t>(w.channels * pixels), 1);
      for (std::int64_t first = 0; first <= w.rows(); first += std::max<std::int64_t>(1, w.rows() / 2)) {
        const std::int64_t rows = std::min<std::int64_t>(w.rows() - first, 3);
        Floats expected;
        for (std::int64_t group = 0; group < w.groups; ++group)
          for (std::int64_t row = 0; row < per_group * w.taps() + has_ones; ++row)
            for (std::int64_t i = 0; i < rows * w.width(); ++i) {
              if (row == per_group * w.taps()) {
                expected.push_back(1.0f);
                continue;
              }
              const std::int64_t pixel = pixel_of(w, first * w.width() + i, row % w.taps());
              const std::int64_t channel = group * per_group + row / w.taps();
              expected.push_back(pixel < 0 ? 0.0f : image[static_cast<std::size_t>(channel * pixels + pixel)]);
            }
        std::vector<ByteVector> columns = {ByteVector(expected.size() * sizeof(float))};
        AttributeMap given = attributes(w, first, rows);
        given["ones"] = std::int64_t{has_ones};
        run_bytes(target, windows_operations, "window_unroll", given, {bytes_of_values(image)}, columns, 4);
        expect(values_of_bytes<float>(columns[0]) == expected, "unrolled windows");
      }
    }
}

void add(const Target& target) {
  for (Windows w : geometries())
    for (const bool has_bias : {false, true}) {
      w.groups = 1;
      const std::int64_t pixels = product(w.images);
      // Small integers, whose sums are exact.
      Dice dice(static_cast<std::uint32_t>(pixels));
      const auto whole = [&](std::int64_t count) {
        Floats made;
        for (std::int64_t i = 0; i < count; ++i) made.push_back(static_cast<float>(dice.roll(9) - 4));
        return made;
      };
      const Floats bias = whole(w.channels);
      Floats expected;
      for (std::int64_t i = 0; i < w.channels * pixels; ++i)
        expected.push_back(has_bias ? bias[static_cast<std::size_t>(i / pixels)] : 0.0f);
      std::vector<ByteVector> images = {ByteVector(expected.size() * sizeof(float), 77)};
      const std::int64_t half = w.rows() / 2;
      for (const bool begins : {true, false}) {
        const std::int64_t first = begins ? 0 : half, rows = begins ? half : w.rows() - half;
        const Floats columns = whole(w.channels * w.taps() * rows * w.width());
        for (std::size_t i = 0; i < columns.size(); ++i) {
          const std::int64_t count = rows * w.width(), at = static_cast<std::int64_t>(i);
          const std::int64_t channel = at / count / w.taps();
          const std::int64_t pixel = pixel_of(w, first * w.width() + at % count, at / count % w.taps());
          if (pixel >= 0) expected[static_cast<std::size_t>(channel * pixels + pixel)] += columns[i];
        }
        AttributeMap given = attributes(w, first, rows);
        given["begins"] = std::int64_t{begins};
        given["bias"] = std::int64_t{has_bias};
        std::vector<ByteVector> inputs = {bytes_of_values(columns)};
        if (has_bias) inputs.push_back(bytes_of_values(bias));
        if (begins) {
          run_bytes(target, windows_operations, "window_add", given, inputs, images, 4);
          continue;
        }
        // In place: the same buffer as input and output.
        std::vector<Bytes> read;
        for (ByteVector& each : inputs) read.push_back({each.data(), each.size()});
        read.push_back({images[0].data(), images[0].size()});
        run_operation(target, windows_operations, "window_add", given, read, {{images[0].data(), images[0].size()}}, 3);
      }
      expect(values_of_bytes<float>(images[0]) == expected, "added windows");
    }
}

// The value between the pixels of a plane; zero beyond.
double between(const float* plane, std::int64_t height, std::int64_t width, double y, double x) {
  double sum = 0;
  for (const double row : {std::floor(y), std::floor(y) + 1})
    for (const double column : {std::floor(x), std::floor(x) + 1})
      if (row >= 0 && row < static_cast<double>(height) && column >= 0 && column < static_cast<double>(width))
        sum += (1 - std::fabs(y - row)) * (1 - std::fabs(x - column)) *
               static_cast<double>(plane[static_cast<std::int64_t>(row) * width + static_cast<std::int64_t>(column)]);
  return sum;
}

void deform(const Target& target) {
  const Windows w = {2, 4, {1, 1, 6, 7}, {1, 1, 3, 4}, {1, 1, 2, 3}, {1, 1, 2, 2}, {1, 1, 2, 1}, {0, 0, 1, 1}};
  const float nan = std::numeric_limits<float>::quiet_NaN(), most = std::numeric_limits<float>::infinity();
  const std::int64_t pixels = 42, all = 12, taps = 6;
  const Floats image = random_floats(static_cast<std::size_t>(w.channels * pixels), 1);
  for (const std::int64_t groups : {1, 2, 4})
    for (const bool has_mask : {false, true})
      for (const std::int64_t first : {0, 1}) {
        Floats moves = random_floats(static_cast<std::size_t>(groups * taps * 2 * all), 2);
        for (float& each : moves) each = std::round(each * 32) / 8;
        moves[20] = nan;
        moves[21] = most;
        moves[22] = -most;
        moves[23] = 1e30f;
        const Floats mask = random_floats(static_cast<std::size_t>(groups * taps * all), 3);
        Floats expected;
        for (std::int64_t row = 0; row < w.groups * (2 * taps + 1); ++row)
          for (std::int64_t i = first * w.width(); i < (first + 2) * w.width(); ++i) {
            const std::int64_t inner = row % (2 * taps + 1), tap = inner % taps;
            if (inner == 2 * taps) {
              expected.push_back(1.0f);
              continue;
            }
            const std::int64_t channel = row / (2 * taps + 1) * 2 + inner / taps;
            const auto move = static_cast<std::size_t>((channel / (4 / groups) * taps + tap) * 2 * all + i);
            const double y = static_cast<double>(i / 4 * 2 + tap / 3 * 2 - 1) + static_cast<double>(moves[move]);
            const double x = static_cast<double>(i % 4 * 2 + tap % 3 - 1) + static_cast<double>(moves[move + 12]);
            const double factor =
                has_mask ? static_cast<double>(
                               mask[static_cast<std::size_t>((channel / (4 / groups) * taps + tap) * all + i)])
                         : 1.0;
            const bool is_number = std::fabs(y) < 1e6 && std::fabs(x) < 1e6;
            expected.push_back(
                is_number ? static_cast<float>(factor * between(image.data() + channel * pixels, 6, 7, y, x)) : 0.0f);
          }
        AttributeMap given = attributes(w, first, 2);
        given["ones"] = std::int64_t{1};
        given["offset_groups"] = groups;
        given["mask"] = std::int64_t{has_mask};
        std::vector<ByteVector> inputs = {bytes_of_values(image), bytes_of_values(moves)};
        if (has_mask) inputs.push_back(bytes_of_values(mask));
        std::vector<ByteVector> columns = {ByteVector(expected.size() * sizeof(float))};
        run_bytes(target, windows_operations, "window_deform", given, inputs, columns, 4);
        expect_close(expected, values_of_bytes<float>(columns[0]), sum_tolerance(8), "deformed windows");
      }
}

struct Regions {
  std::int64_t samples;
  bool is_max, is_half_pixel;
};

// One sample after another, as the operator is defined.
Floats aligned(const Floats& map, const Floats& regions, const Ints& images, const Regions& given) {
  constexpr std::int64_t kHeight = 7, kWidth = 9, kChannels = 2, kCells = 3;
  const double scale = 0.5;
  Floats results;
  for (std::size_t region = 0; region < images.size(); ++region)
    for (std::int64_t channel = 0; channel < kChannels; ++channel)
      for (std::int64_t cell = 0; cell < kCells * kCells; ++cell) {
        const float* plane = map.data() + (images[region] * kChannels + channel) * kHeight * kWidth;
        const auto end = [&](std::size_t i) {
          return static_cast<double>(regions[region * 4 + i]) * scale - (given.is_half_pixel ? 0.5 : 0.0);
        };
        const double least = given.is_half_pixel ? -1e9 : 1.0;
        const double bin_h = std::max(end(3) - end(1), least) / kCells,
                     bin_w = std::max(end(2) - end(0), least) / kCells;
        const double count_h = given.samples > 0 ? static_cast<double>(given.samples) : std::ceil(bin_h);
        const double count_w = given.samples > 0 ? static_cast<double>(given.samples) : std::ceil(bin_w);
        double sum = 0, most = count_h > 0 && count_w > 0 ? -std::numeric_limits<double>::infinity() : 0.0;
        for (double i = 0; i < count_h; ++i)
          for (double j = 0; j < count_w; ++j) {
            double y = end(1) + static_cast<double>(cell / kCells) * bin_h + (i + 0.5) * bin_h / count_h;
            double x = end(0) + static_cast<double>(cell % kCells) * bin_w + (j + 0.5) * bin_w / count_w;
            if (y < -1 || y > kHeight || x < -1 || x > kWidth) {
              most = std::max(most, 0.0);
              continue;
            }
            y = std::min<double>(std::max(y, 0.0), kHeight - 1);
            x = std::min<double>(std::max(x, 0.0), kWidth - 1);
            const auto row = static_cast<std::int64_t>(y), column = static_cast<std::int64_t>(x);
            for (int k = 0; k < 4; ++k) {
              const std::int64_t at_y = std::min(row + k / 2, kHeight - 1), at_x = std::min(column + k % 2, kWidth - 1);
              const double t = y - static_cast<double>(row), s = x - static_cast<double>(column);
              const double part = (k / 2 == 1 ? t : 1 - t) * (k % 2 == 1 ? s : 1 - s) *
                                  static_cast<double>(plane[at_y * kWidth + at_x]);
              sum += part;
              most = std::max(most, part);
            }
          }
        const double all = count_h * count_w;
        results.push_back(static_cast<float>(given.is_max ? most : sum / (all < 1 ? 1 : all)));
      }
  return results;
}

AttributeMap region_attributes(std::int64_t regions, const Regions& given) {
  return {{"images", std::int64_t{2}},
          {"channels", std::int64_t{2}},
          {"in", Ints{7, 9}},
          {"regions", regions},
          {"cells", Ints{3, 3}},
          {"samples", given.samples},
          {"scale", 0.5},
          {"max", std::int64_t{given.is_max}},
          {"half_pixel", std::int64_t{given.is_half_pixel}}};
}

void regions(const Target& target) {
  const Floats map = random_floats(2 * 2 * 7 * 9, 1);
  // Coordinates at which no sample is as near to an edge of the map, or to a pixel, as rounding.
  Floats corners;
  Dice dice(5);
  for (int i = 0; i < 4 * 30; ++i) corners.push_back(static_cast<float>(dice.roll(40) - 8) + 0.375f);
  corners.insert(corners.end(), {-70.375f, -60.75f, 90.875f, 80.125f, 3.25f, 3.25f, 3.25f, 3.25f});
  Ints images;
  for (int i = 0; i < 32; ++i) images.push_back(i % 2);
  for (const std::int64_t samples : {0, 1, 2, 11})
    for (const bool is_max : {false, true})
      for (const bool is_half_pixel : {false, true}) {
        const Regions given = {samples, is_max, is_half_pixel};
        const Floats expected = aligned(map, corners, images, given);
        std::vector<ByteVector> results = {ByteVector(expected.size() * sizeof(float))};
        const Fault fault =
            run_bytes(target, roi_align_operations, "roi_align_f32", region_attributes(32, given),
                      {bytes_of_values(map), bytes_of_values(corners), bytes_of_values(images)}, results, 8);
        expect(!fault.found, "a fault");
        // Places are rounded to floats: an error of a few units of 40, times the slope.
        expect_close(expected, values_of_bytes<float>(results[0]), 64 * sum_tolerance(8), "regions");
      }
}

void regions_that_are_not_there(const Target& target) {
  const Floats map(2 * 2 * 7 * 9, 1.0f);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<ByteVector> results = {ByteVector(3 * 2 * 9 * sizeof(float))};
  const Fault fault =
      run_bytes(target, roi_align_operations, "roi_align_f32", region_attributes(3, {0, false, true}),
                {bytes_of_values(map), bytes_of_values(Floats{1, 1, nan, 2, -1e30f, -1e30f, 1e30f, 1e30f, 1, 1, 9, 9}),
                 bytes_of_values(Ints{0, 0, 2})},
                results, 8);
  expect(fault.found && fault.index == 2 && fault.size == 2, "an image beyond the last");
  const Floats found = values_of_bytes<float>(results[0]);
  for (std::size_t i = 0; i < 18; ++i)
    expect(std::isnan(found[i]) && std::fabs(found[18 + i]) < 1e-6f && found[36 + i] == 0, "results");
}

void refused(const Target& target) {
  const Windows w = {1, 3, {1, 1, 5, 6}, {1, 1, 5, 6}, {1, 1, 3, 3}, {1, 1, 1, 1}, {1, 1, 1, 1}, {0, 0, 1, 1}};
  AttributeMap given = attributes(w, 0, 5);
  expect_refused(target, windows_operations, "window_unroll", given, {359}, {3240}, "input 0");
  expect_refused(target, windows_operations, "window_unroll", given, {360}, {3239}, "output 0");
  given["rows"] = std::int64_t{6};
  expect_refused(target, windows_operations, "window_unroll", given, {360}, {4000}, "rows");
  given = attributes(w, 0, 5);
  given["groups"] = std::int64_t{2};
  expect_refused(target, windows_operations, "window_unroll", given, {360}, {3240}, "groups");
  given = attributes(w, 0, 5);
  given["kernel"] = Ints{1, 1, 0, 3};
  expect_refused(target, windows_operations, "window_unroll", given, {360}, {3240}, "kernel");
  given = attributes(w, 0, 5);
  given["offset_groups"] = std::int64_t{1};
  expect_refused(target, windows_operations, "window_deform", given, {360, 2159}, {3240}, "input 1");
  expect_refused(target, roi_align_operations, "roi_align_f32", region_attributes(3, {0, false, true}), {1008, 48, 23},
                 {216}, "input 2");
}

}  // namespace

int main() {
  return run_cases({{"unroll", unroll},
                    {"add", add},
                    {"deform", deform},
                    {"regions", regions},
                    {"regions that are not there", regions_that_are_not_there},
                    {"refused", refused}},
                   {"window_unroll", "window_deform", "window_add", "roi_align_f32"});
}

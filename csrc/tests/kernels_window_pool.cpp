// Pooling over up to three axes against scalar loops over padded maps: strides, gaps, padding, partial windows, NaN.
#include <cmath>
#include <limits>

#include "kernels_bytes_common.hpp"

namespace engine {
extern const OperationEntry window_pool_operations[];
}  // namespace engine

using namespace engine;
using namespace engine::test;

namespace {

using Ints = std::vector<std::int64_t>;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Window {
  Ints in, out, kernel, strides, dilations, pads;
};

const std::vector<Window> kWindows = {
    {{3, 5, 9}, {2, 4, 4}, {2, 2, 3}, {1, 1, 2}, {1, 1, 1}, {0, 0, 0, 0, 0, 0}},
    {{1, 6, 7}, {1, 3, 4}, {1, 3, 2}, {1, 2, 2}, {1, 1, 1}, {0, 1, 0, 0, 1, 1}},
    {{4, 4, 4}, {3, 2, 5}, {3, 2, 2}, {1, 3, 1}, {2, 2, 3}, {2, 1, 2, 2, 1, 2}},
    {{1, 1, 5}, {1, 1, 3}, {1, 1, 3}, {1, 1, 2}, {1, 1, 1}, {0, 0, 0, 0, 0, 0}},  // the last one is cut off
    // Rows of several vectors and a part of one.
    {{2, 3, 37}, {2, 3, 37}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1, 1, 1, 1}},
    {{4, 3, 71}, {2, 2, 36}, {2, 3, 3}, {2, 2, 2}, {1, 1, 1}, {0, 1, 1, 0, 1, 1}},
    {{3, 2, 64}, {2, 2, 32}, {2, 1, 2}, {1, 1, 2}, {1, 1, 1}, {0, 0, 0, 0, 0, 0}},
    {{2, 2, 40}, {2, 2, 36}, {1, 2, 5}, {1, 1, 1}, {1, 1, 2}, {0, 0, 2, 0, 1, 2}},
    {{1, 2, 20}, {1, 2, 17}, {1, 1, 19}, {1, 1, 2}, {1, 1, 2}, {0, 0, 30, 0, 0, 30}},  // larger than the row
    // One position along the last two axes, and windows of whole slices: rows of all of their elements.
    {{5, 3, 7}, {3, 3, 7}, {3, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0, 0, 0, 0}},
    {{5, 7, 7}, {4, 1, 1}, {2, 7, 7}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0, 0, 0, 0}},
    {{2, 1, 1}, {4, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 0, 0, 1, 0, 0}},  // windows of padding only
};

AttributeMap attributes(const Window& w, std::int64_t op, const char* type, std::int64_t maps, AttributeMap more = {}) {
  more.insert({{"op", op},
               {"type", type},
               {"maps", maps},
               {"in", w.in},
               {"out", w.out},
               {"kernel", w.kernel},
               {"strides", w.strides},
               {"dilations", w.dilations},
               {"pads", w.pads}});
  return more;
}

std::int64_t product(const Ints& sizes) {
  return sizes[0] * sizes[1] * sizes[2];
}

// For each output: the indices in the map of the positions inside of it, and how many are inside of the padded map.
struct Positions {
  std::vector<std::int64_t> inside;
  std::int64_t padded = 0;
};

std::vector<Positions> positions_of(const Window& w) {
  std::vector<Positions> found;
  for (std::int64_t o = 0; o < product(w.out); ++o) {
    const Ints output = {o / (w.out[1] * w.out[2]), o / w.out[2] % w.out[1], o % w.out[2]};
    Positions each;
    for (std::int64_t k = 0; k < product(w.kernel); ++k) {
      const Ints tap = {k / (w.kernel[1] * w.kernel[2]), k / w.kernel[2] % w.kernel[1], k % w.kernel[2]};
      bool is_inside = true, is_padded = true;
      std::int64_t index = 0;
      for (std::size_t a = 0; a < 3; ++a) {
        const std::int64_t at = output[a] * w.strides[a] - w.pads[a] + tap[a] * w.dilations[a];
        is_inside = is_inside && at >= 0 && at < w.in[a];
        is_padded = is_padded && at < w.in[a] + w.pads[a + 3];
        index = index * w.in[a] + at;
      }
      each.padded += is_padded;
      if (is_inside) each.inside.push_back(index);
    }
    found.push_back(each);
  }
  return found;
}

std::vector<ByteVector> pooled(const Target& target, const AttributeMap& given, const ByteVector& x, std::size_t count,
                               std::size_t element, bool has_positions) {
  std::vector<ByteVector> result = {ByteVector(count * element)};
  if (has_positions) result.push_back(ByteVector(count * 8));
  run_bytes(target, window_pool_operations, "window_pool", given, {x}, result,
            result.size() > 1 ? sizeof(std::int64_t) : element);
  return result;
}

void maxima(const Target& target) {
  for (const Window& w : kWindows) {
    const std::int64_t maps = 3, pixels = product(w.in);
    auto x = random_floats(static_cast<std::size_t>(maps * pixels), 3);
    for (float& value : x) value = std::floor(value * 4);  // ties
    x[1] = kNan;
    x[2] = -kInf;
    const auto taps = positions_of(w);
    const auto result =
        pooled(target, attributes(w, 0, "f32", maps, {{"positions", 1}}), bytes_of_values(x), taps.size() * 3, 4, true);
    const auto values = pooled(target, attributes(w, 0, "f32", maps), bytes_of_values(x), taps.size() * 3, 4, false);
    for (std::size_t i = 0; i < taps.size() * 3; ++i) {
      const auto map = static_cast<std::int64_t>(i / taps.size()) * pixels;
      float best = -kInf;
      std::int64_t place = -1;
      for (const std::int64_t at : taps[i % taps.size()].inside) {
        const float value = x[static_cast<std::size_t>(map + at)];
        if (value > best || place < 0 || (std::isnan(value) && !std::isnan(best))) place = map + at;
        best = value > best || std::isnan(value) ? value : best;
      }
      const float got = value_at<float>(result[0], static_cast<std::int64_t>(i));
      expect(std::isnan(best) ? std::isnan(got) : got == best, "maximum");
      expect(value_at<std::int64_t>(result[1], static_cast<std::int64_t>(i)) == place, "position of the maximum");
      const float alone = value_at<float>(values[0], static_cast<std::int64_t>(i));
      expect(std::isnan(best) ? std::isnan(alone) : alone == best, "maximum without positions");
    }
  }
}

// Without positions, rows are computed in vectors, and what does not fill one or reaches into the padding apart.
void rows(const Target& target) {
  for (const std::int64_t length : {1, 2, 15, 16, 17, 31, 33, 40, 66, 130})
    for (const std::int64_t stride : {1, 2, 3})
      for (const std::int64_t kernel : {1, 2, 3, 5})
        for (const std::int64_t dilation : {1, 2})
          for (const std::int64_t pad : {std::int64_t{0}, std::int64_t{1}, kernel}) {
            const std::int64_t room = length + 2 * pad - dilation * (kernel - 1) - 1;
            if (room < 0) continue;
            const Window w = {{2, 4, length}, {2, 3, room / stride + 1}, {2, 3, kernel},
                              {1, 2, stride}, {1, 1, dilation},          {0, 2, pad, 1, 1, pad}};
            auto x = random_floats(static_cast<std::size_t>(2 * product(w.in)), 6);
            x[static_cast<std::size_t>(length / 2)] = kNan;
            x.back() = kInf;
            x[x.size() / 2] = -kInf;
            x[x.size() / 3] = 1e-42f;
            const auto taps = positions_of(w);
            const auto result =
                pooled(target, attributes(w, 0, "f32", 2), bytes_of_values(x), taps.size() * 2, 4, false);
            for (std::size_t i = 0; i < taps.size() * 2; ++i) {
              const auto map = static_cast<std::int64_t>(i / taps.size()) * product(w.in);
              float best = -kInf;
              for (const std::int64_t at : taps[i % taps.size()].inside) {
                const float value = x[static_cast<std::size_t>(map + at)];
                best = std::isnan(best) || value <= best ? best : value;
              }
              const float got = value_at<float>(result[0], static_cast<std::int64_t>(i));
              expect(std::isnan(best) ? std::isnan(got) : got == best, "maximum of a row");
            }
          }
}

void bytes(const Target& target) {
  const Window& w = kWindows[2];
  const auto taps = positions_of(w);
  const ByteVector x = random_bytes(static_cast<std::size_t>(product(w.in)), 5);
  const auto signed_bytes = pooled(target, attributes(w, 0, "i8", 1), x, taps.size(), 1, false);
  const auto unsigned_bytes = pooled(target, attributes(w, 0, "u8", 1), x, taps.size(), 1, false);
  for (std::size_t i = 0; i < taps.size(); ++i) {
    int most = -128, highest = 0;
    for (const std::int64_t at : taps[i].inside) {
      most = std::max<int>(most, static_cast<signed char>(x[static_cast<std::size_t>(at)]));
      highest = std::max<int>(highest, static_cast<unsigned char>(x[static_cast<std::size_t>(at)]));
    }
    expect(value_at<std::int8_t>(signed_bytes[0], static_cast<std::int64_t>(i)) == most, "maximum of i8");
    expect(value_at<std::uint8_t>(unsigned_bytes[0], static_cast<std::int64_t>(i)) == highest, "maximum of u8");
  }
}

void numbers(const Target& target) {
  for (const Window& w : kWindows) {
    const auto taps = positions_of(w);
    const auto x = random_floats(static_cast<std::size_t>(2 * product(w.in)), 4);
    for (const std::int64_t mode : {0, 1, 2, 3, 4}) {  // means, without and with padding; norms 1, 2 and 3
      AttributeMap more;
      if (mode < 2) more["counts_padding"] = mode;
      if (mode >= 2) more["power"] = mode - 1;
      const auto result = pooled(target, attributes(w, mode < 2 ? 1 : 2, "f32", 2, more), bytes_of_values(x),
                                 taps.size() * 2, 4, false);
      std::vector<float> expected;
      for (std::size_t i = 0; i < taps.size() * 2; ++i) {
        double sum = 0;
        const auto& each = taps[i % taps.size()];
        for (const std::int64_t at : each.inside) {
          const double value =
              x[i / taps.size() * static_cast<std::size_t>(product(w.in)) + static_cast<std::size_t>(at)];
          sum += mode < 2 ? value : std::pow(std::fabs(value), static_cast<double>(mode - 1));
        }
        const auto count = mode == 1 ? each.padded : static_cast<std::int64_t>(each.inside.size());
        if (mode < 2 && count == 0) {
          const float got = value_at<float>(result[0], static_cast<std::int64_t>(i));
          expect(std::isnan(got), "mean of nothing");
          expected.push_back(got);
          continue;
        }
        expected.push_back(static_cast<float>(mode < 2 ? sum / static_cast<double>(count)
                                                       : std::pow(sum, 1.0 / static_cast<double>(mode - 1))));
      }
      expect_close(expected, values_of_bytes<float>(result[0]), sum_tolerance(27), "mean or norm");
    }
  }
}

void refused(const Target& target) {
  const Window& w = kWindows[0];
  const auto input = static_cast<std::size_t>(product(w.in) * 4), output = static_cast<std::size_t>(product(w.out) * 4);
  const auto refuse = [&](const AttributeMap& given, std::size_t in, std::size_t out, const char* message) {
    expect_refused(target, window_pool_operations, "window_pool", given, {in}, {out}, message);
  };
  refuse(attributes(w, 0, "f32", 1), input - 1, output, "bytes");
  refuse(attributes(w, 0, "f32", 1), input, output - 1, "bytes");
  refuse(attributes(w, 1, "u8", 1), input, output, "type");
  refuse(attributes(w, 3, "f32", 1), input, output, "op");
  Window wrong = w;
  wrong.strides[1] = 0;
  refuse(attributes(wrong, 0, "f32", 1), input, output, "strides");
  wrong = w;
  wrong.dilations[0] = std::int64_t{1} << 40;
  refuse(attributes(wrong, 0, "f32", 1), input, output, "dilations");
  wrong = w;
  wrong.pads = {0, 0, 0};
  refuse(attributes(wrong, 0, "f32", 1), input, output, "pads");
}

}  // namespace

int main() {
  return run_cases({{"maxima", maxima}, {"rows", rows}, {"bytes", bytes}, {"numbers", numbers}, {"refused", refused}});
}

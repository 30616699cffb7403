// Pooling against scalar loops, and conversion between layouts there and back.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/layout.hpp"
#include "kernels/pool.hpp"
#include "kernels/reference.hpp"
#include "kernels_common.hpp"

using namespace engine;
using namespace engine::test;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Pool {
  std::int64_t channels, h, w, kernel, stride, pad_begin, pad_end, dilation;
  bool ceil, counts_padding;
  std::int64_t batch = 1;
};

std::int64_t out_size(const Pool& p, std::int64_t size) {
  const std::int64_t room = size + p.pad_begin + p.pad_end - p.dilation * (p.kernel - 1) - 1;
  std::int64_t out = (p.ceil ? (room + p.stride - 1) / p.stride : room / p.stride) + 1;
  // A window has to start inside the input or its leading padding.
  if (p.ceil && (out - 1) * p.stride >= size + p.pad_begin) --out;
  return room < 0 ? 0 : out;
}

float reference_pool(const Pool& p, const float* map, std::int64_t oh, std::int64_t ow, bool average) {
  double sum = 0, best = -kInf;
  int inside = 0, padded = 0;
  bool has_nan = false;
  for (std::int64_t i = 0; i < p.kernel; ++i)
    for (std::int64_t j = 0; j < p.kernel; ++j) {
      const std::int64_t h = oh * p.stride - p.pad_begin + i * p.dilation;
      const std::int64_t w = ow * p.stride - p.pad_begin + j * p.dilation;
      padded += h < p.h + p.pad_end && w < p.w + p.pad_end;
      if (h < 0 || w < 0 || h >= p.h || w >= p.w) continue;
      const float value = map[h * p.w + w];
      ++inside;
      sum += value;
      has_nan = has_nan || std::isnan(value);
      best = std::max<double>(best, value);
    }
  if (!average) return has_nan ? kNan : static_cast<float>(best);
  const int count = p.counts_padding ? padded : inside;
  return count == 0 ? 0.0f : static_cast<float>(sum / count);
}

void check(const Target& target, const Pool& p, float special = 0.0f) {
  ConvShape s;
  s.batch = p.batch;
  s.in_channels = s.out_channels = p.channels;
  s.in_h = p.h;
  s.in_w = p.w;
  s.out_h = out_size(p, p.h);
  s.out_w = out_size(p, p.w);
  if (s.out_h == 0 || s.out_w == 0) return;
  s.kernel_h = s.kernel_w = p.kernel;
  s.stride_h = s.stride_w = p.stride;
  s.pad_top = s.pad_left = p.pad_begin;
  s.dilation_h = s.dilation_w = p.dilation;
  auto x = random_floats(p.batch * p.channels * p.h * p.w, 1);
  if (special != 0.0f && !x.empty()) x[x.size() / 2] = special;
  const PoolArgs args = make_pool_args(s, p.counts_padding, p.pad_end, p.pad_end);
  const std::int64_t out_hw = s.out_h * s.out_w;
  for (const bool average : {false, true}) {
    std::vector<float> expected;
    for (std::int64_t i = 0; i < p.batch * p.channels; ++i)
      for (std::int64_t o = 0; o < out_hw; ++o)
        expected.push_back(reference_pool(p, x.data() + i * p.h * p.w, o / s.out_w, o % s.out_w, average));
    Guarded input(reference::to_blocked(x, p.batch, p.channels, p.h * p.w, kNan));
    Guarded output((p.channels + 15) / 16 * 16 * p.batch * out_hw);
    run(target.find(average ? "average_pool_f32" : "max_pool_f32"), &args, {input.data(), output.data()}, 3, 0);
    const std::string what = std::string(average ? "average" : "max") + " k" + std::to_string(p.kernel) + " s" +
                             std::to_string(p.stride) + " in" + std::to_string(p.h) + "x" + std::to_string(p.w) +
                             " pads" + std::to_string(p.pad_begin) + "," + std::to_string(p.pad_end);
    expect(output.intact(), what + ": overrun");
    expect_close(expected, reference::from_blocked(output.values(), p.batch, p.channels, out_hw),
                 average ? sum_tolerance(p.kernel * p.kernel) : 0, what);
  }
}

void geometry(const Target& target) {
  for (const std::int64_t kernel : {1, 2, 3, 5})
    for (const std::int64_t stride : {1, 2, 3})
      for (const std::int64_t dilation : {1, 2})
        for (const std::int64_t begin : {0, 1})
          for (const std::int64_t end : {0, 1, 2})
            for (const bool ceil : {false, true})
              for (const bool counts : {false, true})
                check(target, {20, 8, 11, kernel, stride, begin, end, dilation, ceil, counts, 2});
}

void global_and_not_finite(const Target& target) {
  for (const std::int64_t size : {1, 3, 7, 14}) check(target, {50, size, size, size, 1, 0, 0, 1, false, false});
  for (const float value : {kNan, kInf, -kInf}) check(target, {17, 6, 6, 3, 2, 1, 1, 1, false, true}, value);
  check(target, {16, 4, 4, 2, 2, 0, 0, 1, false, false, 0});
}

void layouts(const Target& target) {
  for (const std::int64_t channels : {0, 1, 3, 15, 16, 17, 33, 64})
    for (const std::int64_t pixels : {0, 1, 3, 4, 8, 15, 16, 17, 49, 63, 65, 200})
      for (const std::int64_t batch : {0, 1, 3}) {
        const auto plain = random_floats(batch * channels * pixels, 3);
        const auto expected = reference::to_blocked(plain, batch, channels, pixels, 0.0f);
        const LayoutArgs args{batch, channels, pixels, channels * pixels, (channels + 15) / 16 * 16 * pixels};
        Guarded source(plain), blocked(expected.size(), kNan), back(plain.size(), kNan);
        run(target.find("to_blocked_f32"), &args, {source.data(), blocked.data()}, 3, 0);
        run(target.find("from_blocked_f32"), &args, {blocked.data(), back.data()}, 2, 0);
        const std::string what = std::to_string(channels) + " channels, " + std::to_string(pixels) + " pixels";
        expect(blocked.intact() && back.intact(), what + ": overrun");
        expect_close(expected, blocked.values(), 0, what + " to blocked");
        expect_close(plain, back.values(), 0, what + " back");
      }
}

}  // namespace

int main() {
  return run_cases({{"geometry", geometry}, {"global, not finite", global_and_not_finite}, {"layouts", layouts}});
}

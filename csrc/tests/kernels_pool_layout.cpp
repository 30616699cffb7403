// Pooling against scalar loops; round trips between layouts and between f32 and bf16.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include "kernels/layout.hpp"
#include "kernels/pool.hpp"
#include "kernels_bf16_common.hpp"
#include "kernels_elementwise_common.hpp"
#include "kernels_reference_common.hpp"

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
  // A window must start inside the input or its leading padding.
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
  for (const auto& [average, is_bf16] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
    if (is_bf16) x = rounded(x);
    std::vector<float> expected;
    for (std::int64_t i = 0; i < p.batch * p.channels; ++i)
      for (std::int64_t o = 0; o < out_hw; ++o)
        expected.push_back(reference_pool(p, x.data() + i * p.h * p.w, o / s.out_w, o % s.out_w, average));
    GuardedEither input(reference::to_blocked(x, p.batch, p.channels, p.h * p.w, kNan), !is_bf16);
    GuardedEither output(std::vector<float>((p.channels + 15) / 16 * 16 * p.batch * out_hw), !is_bf16);
    const std::string name = average ? "average_pool_" : "max_pool_";
    run(target.find(name + (is_bf16 ? "bf16" : "f32")), &args, {input.data(), output.data()}, 3, 0);
    const std::string what = std::string(average ? "average" : "max") + " k" + std::to_string(p.kernel) + " s" +
                             std::to_string(p.stride) + " in" + std::to_string(p.h) + "x" + std::to_string(p.w) +
                             " pads" + std::to_string(p.pad_begin) + "," + std::to_string(p.pad_end);
    expect(output.intact(), what + ": overrun");
    expect_close(expected, reference::from_blocked(output.values(), p.batch, p.channels, out_hw),
                 average ? bf16_tolerance(p.kernel * p.kernel, !is_bf16) : 0, what);
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

// Windows that overlap by much, around the number of outputs and columns that are computed together.
void wide(const Target& target) {
  for (const std::int64_t kernel : {4, 5, 9, 13, 16, 17})
    for (const std::int64_t width : {1, 5, 15, 16, 17, 33, 40})
      for (const float value : {0.0f, kNan, kInf, -kInf, 1e-42f})
        check(target, {17, 6, width, kernel, 1, kernel / 2, kernel / 2, 1, false, false}, value);
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

void byte_layouts(const Target& target) {
  for (const std::int64_t channels : {0, 1, 3, 15, 16, 17, 33, 64})
    for (const std::int64_t pixels : {0, 1, 7, 15, 16, 17, 31, 49, 63, 64, 65, 79, 80, 200})
      for (const std::int64_t batch : {0, 1, 3}) {
        std::vector<std::uint8_t> plain(static_cast<std::size_t>(batch * channels * pixels));
        for (std::size_t i = 0; i < plain.size(); ++i) plain[i] = static_cast<std::uint8_t>(i * 37 + i / 256);
        const std::int64_t padded = (channels + 15) / 16 * 16;
        std::vector<std::uint8_t> expected(static_cast<std::size_t>(batch * padded * pixels), 0);
        for (std::int64_t n = 0; n < batch; ++n)
          for (std::int64_t c = 0; c < channels; ++c)
            for (std::int64_t p = 0; p < pixels; ++p)
              expected[static_cast<std::size_t>((n * padded + c / 16 * 16) * pixels + p * 16 + c % 16)] =
                  plain[static_cast<std::size_t>((n * channels + c) * pixels + p)];
        const LayoutArgs args{batch, channels, pixels, channels * pixels, padded * pixels};
        GuardedBytes source(plain), blocked(expected.size(), 1), back(plain.size(), 1);
        run(target.find("to_blocked_byte"), &args, {source.data(), blocked.data()}, 3, 0);
        run(target.find("from_blocked_byte"), &args, {blocked.data(), back.data()}, 2, 0);
        const std::string what = std::to_string(channels) + " channels, " + std::to_string(pixels) + " pixels of bytes";
        expect(blocked.intact() && back.intact(), what + ": overrun");
        expect(std::equal(expected.begin(), expected.end(), blocked.data()), what + " to blocked");
        expect(std::equal(plain.begin(), plain.end(), back.data()), what + " back");
      }
}

// Values of every kind: midpoints between bf16 values, the largest, denormals, infinities, NaN.
std::vector<float> special_values(std::size_t count) {
  auto values = random_floats(count, 4);
  const float special[] = {1.00390625f, 1.01171875f, -1.00390625f, 3.4e38f, std::numeric_limits<float>::max(),
                           1e-40f,      -1e-41f,     9.2e-41f,     kInf,    -kInf,
                           kNan,        -0.0f};
  for (std::size_t i = 0; i < count; ++i)
    if (i % 3 == 0) values[i] = special[i / 3 % std::size(special)];
  return values;
}

void bf16_layouts(const Target& target) {
  for (const std::int64_t channels : {1, 3, 15, 16, 17, 33, 64})
    for (const std::int64_t pixels : {0, 1, 3, 4, 8, 15, 16, 17, 49, 63, 65}) {
      const std::int64_t batch = 2;
      const auto plain = special_values(batch * channels * pixels);
      const auto blocked = reference::to_blocked(rounded(plain), batch, channels, pixels, 0.0f);
      const LayoutArgs args{batch, channels, pixels, channels * pixels, (channels + 15) / 16 * 16 * pixels};
      for (const bool is_plain_f32 : {false, true})
        for (const bool is_blocked_f32 : {false, true}) {
          if (is_plain_f32 && is_blocked_f32) continue;
          const std::string plain_type = is_plain_f32 ? "f32" : "bf16", blocked_type = is_blocked_f32 ? "f32" : "bf16";
          const auto name = [](const std::string& from, const std::string& to) {
            return from == to ? from : from + "_" + to;
          };
          GuardedEither source(plain, is_plain_f32), back(std::vector<float>(plain.size(), 7.0f), is_plain_f32);
          GuardedEither there(std::vector<float>(blocked.size(), kNan), is_blocked_f32);
          run(target.find("to_blocked_" + name(plain_type, blocked_type)), &args, {source.data(), there.data()}, 3, 0);
          run(target.find("from_blocked_" + name(blocked_type, plain_type)), &args, {there.data(), back.data()}, 2, 0);
          const std::string what = std::to_string(channels) + " channels, " + std::to_string(pixels) + " pixels, " +
                                   plain_type + " to " + blocked_type;
          expect(there.intact() && back.intact(), what + ": overrun");
          expect_close(blocked, there.values(), 0, what);
          expect_close(rounded(plain), back.values(), 0, what + " back");
        }
    }
}

void conversions(const Target& target) {
  for (const std::int64_t count : {0, 1, 3, 4, 15, 16, 31, 32, 33, 64, 65, 1000})
    for (int workers = 1; workers < 5; ++workers) {
      const auto values = special_values(count);
      const ConvertArgs args{count};
      Guarded source(values), back(count, 7.0f);
      GuardedBf16 there(std::vector<float>(count, kNan));
      run(target.find("convert_f32_bf16"), &args, {source.data(), there.data()}, workers, 0);
      run(target.find("convert_bf16_f32"), &args, {there.data(), back.data()}, workers, 0);
      const std::string what = std::to_string(count) + " values, " + std::to_string(workers) + " workers";
      expect(there.intact() && back.intact(), what + ": overrun");
      expect_close(rounded(values), there.values(), 0, what);
      expect_close(rounded(values), back.values(), 0, what + " back");
    }
}

// The rounding used by the references, against values computed by hand.
void rounding(const Target&) {
  const std::pair<float, std::uint16_t> cases[] = {{1.0f, 0x3f80},        {1.00390625f, 0x3f80},  // halfway, to even
                                                   {1.01171875f, 0x3f82},                         // halfway, to even
                                                   {1.003907f, 0x3f81},   {-1.003907f, 0xbf81},  {3.4e38f, 0x7f80},
                                                   {1e-40f, 0x0001},      {-0.0f, 0x8000},       {kInf, 0x7f80},
                                                   {-kInf, 0xff80}};
  for (const auto& [value, bits] : cases)
    expect(engine::to_bf16(value).bits == bits,
           std::to_string(value) + " became " + std::to_string(engine::to_bf16(value).bits));
  const std::uint32_t signaling = 0x7f800001;
  float nan;
  std::memcpy(&nan, &signaling, sizeof nan);
  expect(engine::to_bf16(nan).bits == 0x7fc0, "a signaling NaN does not become quiet");
}

}  // namespace

int main() {
  return run_cases({{"geometry", geometry},
                    {"wide", wide},
                    {"global, not finite", global_and_not_finite},
                    {"layouts", layouts},
                    {"byte layouts", byte_layouts},
                    {"bf16 layouts", bf16_layouts},
                    {"conversions", conversions},
                    {"rounding", rounding}});
}

// to_blocked_f32, from_blocked_f32: see layout.hpp.
//
// Operands: source, destination; float alignment; they must not overlap. Lanes beyond the channels become zero. Split
// over (image, channel block, run of pixels).
#include "kernels/layout.hpp"

#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

constexpr std::int64_t kRun = 64;  // pixels: sixteen rows of 256 bytes, four kilobytes of blocks

ENGINE_INLINE std::int64_t min64(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

// Transposes kLanes x kLanes floats: log2(kLanes) rounds, each exchanging halves between rows `half` apart.
ENGINE_INLINE void transpose(const float* from, std::int64_t from_row, float* to, std::int64_t to_row) {
  Vec rows[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) rows[i] = load(from + i * from_row);
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2) {
    VecInt low{}, high{};
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      low[i] = i & half ? (i - half) + kLanes : i;
      high[i] = i & half ? i + kLanes : i + half;
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i & half) continue;
      const Vec a = rows[i], b = rows[i + half];
      rows[i] = __builtin_shuffle(a, b, low);
      rows[i + half] = __builtin_shuffle(a, b, high);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) store(to + i * to_row, rows[i]);
}

// Pixels [begin, end) of channels [channel, channel + 16) of one image.
void block_run(const LayoutArgs& args, const float* plain, float* blocked, std::int64_t channel, std::int64_t begin,
               std::int64_t end) {
  const std::int64_t valid = min64(16, args.channels - channel);
  const float* from = plain + channel * args.pixels;
  float* to = blocked + channel * args.pixels;
  std::int64_t p = begin;
  if (valid == 16)
    for (; p + kLanes <= end; p += kLanes)
      for (int l = 0; l < 16; l += kLanes) transpose(from + l * args.pixels + p, args.pixels, to + p * 16 + l, 16);
  for (; p < end; ++p) {
    for (std::int64_t k = 0; k < valid; ++k) to[p * 16 + k] = from[k * args.pixels + p];
    for (std::int64_t k = valid; k < 16; ++k) to[p * 16 + k] = 0.0f;
  }
}

void plain_run(const LayoutArgs& args, const float* blocked, float* plain, std::int64_t channel, std::int64_t begin,
               std::int64_t end) {
  const std::int64_t valid = min64(16, args.channels - channel);
  const float* from = blocked + channel * args.pixels;
  float* to = plain + channel * args.pixels;
  std::int64_t p = begin;
  if (valid == 16)
    for (; p + kLanes <= end; p += kLanes)
      for (int l = 0; l < 16; l += kLanes) transpose(from + p * 16 + l, 16, to + l * args.pixels + p, args.pixels);
  for (; p < end; ++p)
    for (std::int64_t k = 0; k < valid; ++k) to[k * args.pixels + p] = from[p * 16 + k];
}

template <bool kToBlocked>
void convert(const LayoutArgs& args, const float* source, float* destination, const KernelContext& context) {
  const std::int64_t blocks = (args.channels + 15) / 16, runs = (args.pixels + kRun - 1) / kRun;
  const WorkRange range = split_work(args.batch * blocks * runs, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t n = i / (blocks * runs), channel = i / runs % blocks * 16;
    const std::int64_t begin = i % runs * kRun, end = min64(begin + kRun, args.pixels);
    if constexpr (kToBlocked)
      block_run(args, source + n * args.plain_batch, destination + n * args.blocked_batch, channel, begin, end);
    else
      plain_run(args, source + n * args.blocked_batch, destination + n * args.plain_batch, channel, begin, end);
  }
}

void to_blocked_f32(const void* args, void* const* buffers, const KernelContext& context) {
  convert<true>(*static_cast<const LayoutArgs*>(args), static_cast<const float*>(buffers[0]),
                static_cast<float*>(buffers[1]), context);
}

void from_blocked_f32(const void* args, void* const* buffers, const KernelContext& context) {
  convert<false>(*static_cast<const LayoutArgs*>(args), static_cast<const float*>(buffers[0]),
                 static_cast<float*>(buffers[1]), context);
}

}  // namespace

extern const KernelEntry layout_kernels[] = {{"to_blocked_f32", to_blocked_f32, nullptr},
                                             {"from_blocked_f32", from_blocked_f32, nullptr},
                                             {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

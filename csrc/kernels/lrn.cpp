// lrn_blocked_f32, lrn_plain_f32: y = x / (bias + alpha * sum of x^2 over a window of channels)^beta, on NCHWc16 and on
// [batch, channels, pixels].
//
// Operands: x, y; float alignment; y must not overlap x. Lanes beyond the channels of a blocked map are undefined in x
// and y. Split over (image, run of pixels). Scratch of the blocked kernel: kLrnTile * row floats.
#include "kernels/lrn.hpp"

#include <cmath>

#include "simd/partial.hpp"
#include "simd/root.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

ENGINE_INLINE Vec divide(const LrnArgs& args, Vec x, Vec squares) {
  const Vec base = fma(broadcast(args.alpha), squares, broadcast(args.bias));
  switch (args.power) {
    case LrnPower::kHalf:
      return x / square_root(base);
    case LrnPower::kThreeQuarters: {
      const Vec root = square_root(base);
      return x / (root * square_root(root));
    }
    case LrnPower::kOne:
      return x / base;
    case LrnPower::kGeneral:
      break;
  }
  Vec power;
  for (int l = 0; l < kLanes; ++l) power[l] = __builtin_powf(base[l], args.beta);
  return x / power;
}

// Up to kLrnTile adjacent pixels of a blocked map. Their squares are stored in scratch in channel order, so that a
// window is contiguous even across blocks.
void tile_blocked(const LrnArgs& args, const float* x, float* y, float* scratch, std::int64_t count) {
  const std::int64_t step = args.pixels * kBlock, stored = (args.channels + kBlock - 1) / kBlock * kBlock;
  for (std::int64_t c = 0; c < stored; c += kLanes) {
    const float* from = x + c / kBlock * step + c % kBlock;
    const VecInt valid = first_lanes(args.channels - c);
    for (std::int64_t p = 0; p < count; ++p) {
      const Vec value = (Vec)((VecInt)load(from + p * kBlock) & valid);
      store(scratch + p * args.row + args.lead + c, value * value);
    }
  }
  for (std::int64_t c = 0; c < stored; c += kLanes) {
    const std::int64_t at = c / kBlock * step + c % kBlock;
    for (std::int64_t p = 0; p < count; ++p) {
      const float* window = scratch + p * args.row + args.lead + c - args.before;
      Vec squares = load(window);
      for (std::int64_t k = 1; k <= args.before + args.after; ++k) squares += load(window + k);
      store(y + at + p * kBlock, divide(args, load(x + at + p * kBlock), squares));
    }
  }
}

void lrn_blocked_f32(const void* raw, void* const* buffers, const KernelContext& context) {
  const auto& args = *static_cast<const LrnArgs*>(raw);
  const auto* x = static_cast<const float*>(buffers[0]);
  auto* y = static_cast<float*>(buffers[1]);
  auto* scratch = static_cast<float*>(context.scratch);
  const std::int64_t runs = (args.pixels + kLrnRun - 1) / kLrnRun;
  const std::int64_t image = (args.channels + kBlock - 1) / kBlock * args.pixels * kBlock;
  const WorkRange range = split_work(args.batch * runs, context.worker, context.workers);
  if (range.begin == range.end) return;  // a step without elements has no scratch
  for (std::int64_t i = 0; i < kLrnTile * args.row; ++i) scratch[i] = 0.0f;
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t begin = i % runs * kLrnRun, end = min64(begin + kLrnRun, args.pixels), at = i / runs * image;
    for (std::int64_t p = begin; p < end; p += kLrnTile)
      tile_blocked(args, x + at + p * kBlock, y + at + p * kBlock, scratch, min64(kLrnTile, end - p));
  }
}

// Vectors of adjacent pixels of a plain map; `count` lanes if kVectors is 1.
template <int kVectors>
void tile_plain(const LrnArgs& args, const float* x, float* y, std::int64_t count) {
  const auto read = [count](const float* from, int v) {
    return kVectors == 1 ? load_partial(from, count, zero()) : load(from + v * kLanes);
  };
  for (std::int64_t c = 0; c < args.channels; ++c) {
    const std::int64_t first = c < args.before ? 0 : c - args.before;
    const std::int64_t last = min64(args.channels - 1, c + args.after);
    Vec squares[kVectors] = {};
    for (std::int64_t k = first; k <= last; ++k)
      for (int v = 0; v < kVectors; ++v) {
        const Vec value = read(x + k * args.pixels, v);
        squares[v] = fma(value, value, squares[v]);
      }
    for (int v = 0; v < kVectors; ++v) {
      const Vec value = divide(args, read(x + c * args.pixels, v), squares[v]);
      if constexpr (kVectors == 1)
        store_partial(y + c * args.pixels, value, count);
      else
        store(y + c * args.pixels + v * kLanes, value);
    }
  }
}

void lrn_plain_f32(const void* raw, void* const* buffers, const KernelContext& context) {
  constexpr int kVectors = 4;
  const auto& args = *static_cast<const LrnArgs*>(raw);
  const auto* x = static_cast<const float*>(buffers[0]);
  auto* y = static_cast<float*>(buffers[1]);
  const std::int64_t runs = (args.pixels + kLrnRun - 1) / kLrnRun;
  const WorkRange range = split_work(args.batch * runs, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    std::int64_t p = i % runs * kLrnRun;
    const std::int64_t end = min64(p + kLrnRun, args.pixels), at = i / runs * args.channels * args.pixels;
    for (; p + kVectors * kLanes <= end; p += kVectors * kLanes)
      tile_plain<kVectors>(args, x + at + p, y + at + p, kLanes);
    for (; p < end; p += kLanes) tile_plain<1>(args, x + at + p, y + at + p, min64(kLanes, end - p));
  }
}

}  // namespace

extern const KernelEntry lrn_kernels[] = {{"lrn_blocked_f32", lrn_blocked_f32, nullptr},
                                          {"lrn_plain_f32", lrn_plain_f32, nullptr},
                                          {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

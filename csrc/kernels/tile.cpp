// Implements the tiles of tile.hpp.
//
// Tile shapes are limited by the registers: vectors * pixels accumulators, `vectors` weights and one broadcast. On
// AVX-512, 2 x 14 needs 16 loads for 28 multiply-adds and 3 x 9 needs 12 for 27, fewer loads than the one per
// multiply-add that current cores can start. Two vectors suffice, except for long products, which read their rows less
// often with three. One vector needs more than one load for each multiply-add whatever the number of pixels. Tiles of
// other shapes would be no faster, and take long to compile. NEON has as many registers, of a quarter of the width.
#include "kernels/tile.hpp"

#include "kernels/activation.hpp"
#include "kernels/tile_step.hpp"
#include "simd/indices.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kMaxProductVectors = 3;
constexpr int kMaxPixels[4] = {0, tile_pixels(14), tile_pixels(14), tile_pixels(9)};
#else
constexpr int kMaxProductVectors = 2;
// As many multiply-adds, which take 4 cycles, as are under way at a time; fewer without FMA.
#if defined(__FMA__)
constexpr int kMaxPixels[4] = {0, tile_pixels(8), tile_pixels(6), 0};
#else
constexpr int kMaxPixels[4] = {0, tile_pixels(6), tile_pixels(6), 0};
#endif
#endif
constexpr int kMaxVectors = 2, kBestVectors = 2;
// For tiles of one vector: the start and the end of a tile take as long as a short depth.
#if defined(__AVX512F__) && !defined(ENGINE_SMALL_TILES)
constexpr int kLongPixels = 28;
#else
constexpr int kLongPixels = 0;
#endif

alignas(64) const float kZeros[64] = {};

// In place of the floats between pixels.
constexpr int kIndirect = 0, kAnyStep = -1;

template <int kVectors, int kPixels>
using Accumulators = Vec[kVectors][kPixels];

// Adds to `acc` value `kDepth` of each row times the weights of that depth.
template <int kDepth, int kVectors, int kPixels>
ENGINE_ALWAYS_INLINE void add_depth(const float* x, const AnyStep& step, const float* w,
                                    Accumulators<kVectors, kPixels>& acc) {
  const StepPixels<float, kPixels> pixels(x, step);
  Vec weight[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) weight[v] = load(w + (kDepth * kVectors + v) * kLanes);
#pragma GCC unroll 28
  for (int p = 0; p < kPixels; ++p) {
    const Vec value = broadcast(pixels(p)[kDepth]);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) acc[v][p] = fma(value, weight[v], acc[v][p]);
  }
}

// The products of rows at a fixed distance.
template <int kVectors, int kPixels>
ENGINE_ALWAYS_INLINE void add_rows(const TileCall& call, Accumulators<kVectors, kPixels>& acc) {
  AnyStep step(std::int64_t{4} * call.x_pixel);
  const float* x = call.x;
  const float* w = call.w;
  const char* next = call.next;
  const std::int64_t ahead = std::int64_t{call.next_step} * 4;
  std::int64_t depth = std::int64_t{16} * (call.blocks - 1) + call.last_depth;
  for (; depth >= 4; depth -= 4) {
    step.forget();
    for (std::int64_t i = 0; i < ahead; i += 64) __builtin_prefetch(next + i, 0, 2);
    next += ahead;
    add_depth<0, kVectors>(x, step, w, acc);
    add_depth<1, kVectors>(x, step, w, acc);
    add_depth<2, kVectors>(x, step, w, acc);
    add_depth<3, kVectors>(x, step, w, acc);
    w += 4 * kVectors * kLanes;
    x += 4;
  }
  for (; depth > 0; --depth) {
    step.forget();
    add_depth<0, kVectors>(x, step, w, acc);
    w += kVectors * kLanes;
    ++x;
  }
}

// `step`: the floats between pixels if kStep does not say so.
template <int kVectors, int kPixels, int kStep>
ENGINE_ALWAYS_INLINE void add_taps(const TileCall& call, [[maybe_unused]] int step,
                                   Accumulators<kVectors, kPixels>& acc) {
  constexpr bool kIsIndirect = kStep == kIndirect;
  const std::int64_t next_step = call.next_step;
  const char* next = next_step != 0 ? call.next : reinterpret_cast<const char*>(call.w);
  [[maybe_unused]] AnyStep any(std::int64_t{4} * step);
  const float* block = call.x;
  for (int b = 0; b < call.blocks; ++b, block += call.x_block) {
    const bool is_last = b == call.blocks - 1;
    const int depth = is_last ? call.last_depth : call.depth;
    const float* w = call.w + b * call.w_block + (is_last ? call.w_lead_last : call.w_lead);
    const std::int64_t* offsets = call.offsets;
    const float* row = block;
    for (int r = 0; r < call.rows; ++r, row += call.x_row) {
      const float* x = row;
      for (int c = 0; c < call.cols; ++c, x += call.x_col) {
        if constexpr (kIsIndirect) {
          const float* pixel[kPixels];
#pragma GCC unroll 28
          for (int p = 0; p < kPixels; ++p) {
            const std::int64_t offset = offsets[p];
            pixel[p] = offset == kPaddingOffset ? kZeros : block + offset;
          }
          offsets += kPixels;
          for (int d = 0; d < depth; ++d) {
            Vec weight[kVectors];
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) weight[v] = load(w + v * kLanes);
#pragma GCC unroll 28
            for (int p = 0; p < kPixels; ++p) {
              const Vec value = broadcast(pixel[p][d]);
#pragma GCC unroll 4
              for (int v = 0; v < kVectors; ++v) acc[v][p] = fma(value, weight[v], acc[v][p]);
            }
            w += kVectors * kLanes;
            __builtin_prefetch(next, 0, 2);
            next += next_step;
          }
        } else {
          const float* at = x;
#pragma GCC unroll 2
          for (int d = 0; d < depth; ++d, ++at) {
            ENGINE_FORGET(at);
            if constexpr (kStep == kAnyStep) {
              any.forget();
              add_depth<0, kVectors>(at, any, w, acc);
            } else {
              Vec weight[kVectors];
#pragma GCC unroll 4
              for (int v = 0; v < kVectors; ++v) weight[v] = load(w + v * kLanes);
#pragma GCC unroll 28
              for (int p = 0; p < kPixels; ++p) {
                const Vec value = broadcast(at[p * kStep]);
#pragma GCC unroll 4
                for (int v = 0; v < kVectors; ++v) acc[v][p] = fma(value, weight[v], acc[v][p]);
              }
            }
            w += kVectors * kLanes;
            __builtin_prefetch(next, 0, 2);
            next += next_step;
          }
        }
      }
    }
  }
}

// Tiles of other steps share the ends, which are longer than the loops. The most frequent step has its own, since the
// compiler moves accumulators between the registers of different loops, and of the ends.
template <int kVectors, int kPixels, bool kIsBlocked1>
ENGINE_NOINLINE void run(const TileCall& call, [[maybe_unused]] PixelStep step) {
  Vec acc[kVectors][kPixels];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const Vec start = call.bias && !call.scale ? load(call.bias + v * kLanes) : zero();
#pragma GCC unroll 28
    for (int p = 0; p < kPixels; ++p) acc[v][p] = start;
  }
  if constexpr (kIsBlocked1) {
    add_taps<kVectors, kPixels, 16>(call, 16, acc);
  } else if (step == PixelStep::kRows) {
    if (call.adds_to_y) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const float* y = call.y + v / kVectorsPerBlock * call.y_block + v % kVectorsPerBlock * kLanes;
#pragma GCC unroll 28
        for (int p = 0; p < kPixels; ++p) acc[v][p] += load(y + p * call.y_pixel);
      }
    }
    add_rows<kVectors>(call, acc);
  } else if constexpr (kVectors <= kMaxVectors) {
    if (step == PixelStep::kIndirect)
      add_taps<kVectors, kPixels, kIndirect>(call, 0, acc);
    else
      add_taps<kVectors, kPixels, kAnyStep>(call,
                                            step == PixelStep::kBlocked2  ? 32
                                            : step == PixelStep::kPlanar1 ? 1
                                                                          : 2,
                                            acc);
  }

  const EpilogueArgs& epilogue = *call.epilogue;
  const bool is_clip = epilogue.activation == Activation::kClip;
  const bool finish = !is_clip || (call.residual && epilogue.residual_after);
  const float* residual = finish && epilogue.residual_after ? nullptr : call.residual;
  const Vec low = broadcast(is_clip ? epilogue.alpha : -__builtin_inff());
  const Vec high = broadcast(is_clip ? epilogue.beta : __builtin_inff());
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    constexpr int kPerBlock = kVectorsPerBlock;
    float* y = call.y + v / kPerBlock * call.y_block + v % kPerBlock * kLanes;
    const float* r = residual ? residual + v / kPerBlock * call.residual_block + v % kPerBlock * kLanes : nullptr;
    const Vec scale = call.scale ? load(call.scale + v * kLanes) : zero();
    const Vec bias = call.bias ? load(call.bias + v * kLanes) : zero();
    // One loop for each part of the epilogue: one condition for each, and not for each pixel.
    if (call.scale) {
#pragma GCC unroll 28
      for (int p = 0; p < kPixels; ++p) acc[v][p] = fma(acc[v][p], scale, bias);
    }
    if (r) {
#pragma GCC unroll 28
      for (int p = 0; p < kPixels; ++p) acc[v][p] += load(r + p * call.residual_pixel);
    }
#pragma GCC unroll 28
    for (int p = 0; p < kPixels; ++p) store(y + p * call.y_pixel, min(high, max(low, acc[v][p])));
  }
  if (finish) {
    for (int v = 0; v < kVectors; ++v) {
      float* y = call.y + v / kVectorsPerBlock * call.y_block + v % kVectorsPerBlock * kLanes;
      const float* r = call.residual && epilogue.residual_after
                           ? call.residual + v / kVectorsPerBlock * call.residual_block + v % kVectorsPerBlock * kLanes
                           : nullptr;
      finish_column(epilogue, kPixels, y, call.y_pixel, r, call.residual_pixel);
    }
  }
}

template <int kVectors, int kPixels, PixelStep kStep>
void tile(const TileCall& call) {
  PixelStep step = kStep;
  ENGINE_FORGET(step);  // or the compiler might make a copy of `run` for each
  run<kVectors, kPixels, kStep == PixelStep::kBlocked1>(call, step);
}

template <int kVectors, PixelStep kStep, int... kPixels>
TileFn pick(int pixels, Indices<kPixels...>) {
  static const TileFn table[] = {&tile<kVectors, kPixels, kStep>...};
  if constexpr (kVectors == 1 && kLongPixels > 0 && kStep != PixelStep::kRows)
    if (pixels == kLongPixels) return &tile<kVectors, kLongPixels, kStep>;
  return pixels >= 1 && pixels <= static_cast<int>(sizeof...(kPixels)) ? table[pixels - 1] : nullptr;
}

template <int kVectors>
TileFn pick(int pixels, PixelStep step) {
  typename CountTo<kMaxPixels[kVectors]>::Type all;
  if (step == PixelStep::kBlocked1) return pick<kVectors, PixelStep::kBlocked1>(pixels, all);
  if (step == PixelStep::kRows) return pick<kVectors, PixelStep::kRows>(pixels, all);
  if constexpr (kVectors <= kMaxVectors) {
    if (step == PixelStep::kBlocked2) return pick<kVectors, PixelStep::kBlocked2>(pixels, all);
    if (step == PixelStep::kPlanar1) return pick<kVectors, PixelStep::kPlanar1>(pixels, all);
    if (step == PixelStep::kPlanar2) return pick<kVectors, PixelStep::kPlanar2>(pixels, all);
    if (step == PixelStep::kIndirect) return pick<kVectors, PixelStep::kIndirect>(pixels, all);
  }
  return nullptr;
}

}  // namespace

const TileTraits tile_traits = {
    kLanes,       kMaxVectors,        {kMaxPixels[0], kMaxPixels[1], kMaxPixels[2], kMaxPixels[3]},
    kBestVectors, /*weight_bytes=*/4, kMaxProductVectors,
    kLongPixels};

TileFn tile_kernel(int vectors, int pixels, PixelStep step) {
  switch (vectors) {
    case 1:
      return pick<1>(pixels, step);
    case 2:
      return pick<2>(pixels, step);
#if defined(__AVX512F__) || defined(__aarch64__)
    case 3:
      return pick<3>(pixels, step);
#endif
  }
  return nullptr;
}

// Used only through tile_kernel, never by a plan.
extern const KernelEntry tile_kernels[] = {{nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

// Implements the tiles of tile_bf16.hpp. With AVX512_BF16, or BFDOT of Arm, one instruction computes two products for
// each lane; without it, two f32 multiply-adds in small tiles do, which is correct but slow.
#include "kernels/tile_bf16.hpp"

#include "kernels/activation.hpp"
#include "kernels/tile_step.hpp"
#include "simd/indices.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
constexpr int kMaxPixels[3] = {0, tile_pixels(14), tile_pixels(14)};
constexpr bool kHasPairDots = true;
#else
constexpr int kMaxPixels[3] = {0, tile_pixels(6), tile_pixels(6)};
constexpr bool kHasPairDots = false;
#endif
// Larger tiles are no faster (tile.cpp), and take long to compile.
constexpr int kMaxVectors = 2;
// As in tile.cpp.
#if defined(__AVX512BF16__) && !defined(ENGINE_SMALL_TILES)
constexpr int kLongPixels = 28;
#else
constexpr int kLongPixels = 0;
#endif
// In place of the elements between pixels.
constexpr int kIndirect = 0, kAnyStep = -1;

alignas(64) const Bf16 kZeros[16] = {};

// One pair of depths; pixel(p) is the address of pixel p's pair.
template <bool kIsOdd, int kVectors, int kPixels, class Pixel>
ENGINE_INLINE void multiply(const Bf16* w, const Pixel& pixel, Vec (&acc)[kVectors][kPixels]) {
  VecInt weight[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) weight[v] = load_pairs(w + v * kLanes * 2);
#pragma GCC unroll 28
  for (int p = 0; p < kPixels; ++p) {
    const VecInt value = kIsOdd ? broadcast_first(pixel(p)) : broadcast_pair(pixel(p));
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) acc[v][p] = dot_pairs(weight[v], value, acc[v][p]);
  }
}

struct DensePixels {
  const Bf16* at;
  int step;
  ENGINE_ALWAYS_INLINE const Bf16* operator()(int p) const { return at + p * step; }
};

template <int kStep, bool kIsOdd, int kVectors, int kPixels>
ENGINE_INLINE void multiply_dense(const Bf16* w, const Bf16* first, [[maybe_unused]] AnyStep& any,
                                  Vec (&acc)[kVectors][kPixels]) {
  if constexpr (kStep == kAnyStep) {
    any.forget();
    multiply<kIsOdd>(w, StepPixels<Bf16, kPixels>(first, any), acc);
  } else {
    multiply<kIsOdd>(w, DensePixels{first, kStep}, acc);
  }
}

template <int kPixels>
struct IndirectPixels {
  const Bf16* pixel[kPixels];
  std::int64_t depth;
  ENGINE_ALWAYS_INLINE const Bf16* operator()(int p) const { return pixel[p] + depth; }
};

ENGINE_INLINE Vec load_either(SizedPointer<const char> from) {
  return from.element_bytes == 2 ? load(reinterpret_cast<const Bf16*>(from.data))
                                 : load(reinterpret_cast<const float*>(from.data));
}
ENGINE_INLINE void store_either(SizedPointer<char> to, Vec value) {
  if (to.element_bytes == 2)
    store(reinterpret_cast<Bf16*>(to.data), value);
  else
    store(reinterpret_cast<float*>(to.data), value);
}

// The slow path of the epilogue, in memory: values [vectors][pixels][lanes] after scale and bias are activated in f32
// and rounded once.
ENGINE_NOINLINE void finish_tile(const TileCallBf16& call, int vectors, int pixels, float* values) {
  const EpilogueArgs& epilogue = *call.epilogue;
  const bool has_residual = call.residual.data != nullptr;
  for (int v = 0; v < vectors; ++v) {
    float* column = values + v * pixels * kLanes;
    const SizedPointer<const char> residual =
        call.residual + (v / kVectorsPerBlock * call.residual_block + v % kVectorsPerBlock * kLanes);
    const SizedPointer<char> y = call.y + (v / kVectorsPerBlock * call.y_block + v % kVectorsPerBlock * kLanes);
    if (has_residual && !epilogue.residual_after)
      for (int p = 0; p < pixels; ++p)
        store(column + p * kLanes, load(column + p * kLanes) + load_either(residual + p * call.residual_pixel));
    finish_column(epilogue, pixels, column, kLanes, nullptr, 0);
    for (int p = 0; p < pixels; ++p) {
      Vec value = load(column + p * kLanes);
      if (has_residual && epilogue.residual_after) value += load_either(residual + p * call.residual_pixel);
      store_either(y + p * call.y_pixel, value);
    }
  }
}

// Clips, and adds a residual (unless null) with the output's type.
template <class Element, int kVectors, int kPixels>
ENGINE_INLINE void store_tile(const TileCallBf16& call, Vec low, Vec high, Vec (&acc)[kVectors][kPixels]) {
  const Element* residual = reinterpret_cast<const Element*>(call.residual.data);
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const std::int64_t block = v / kVectorsPerBlock, lane = v % kVectorsPerBlock * kLanes;
    Element* y = reinterpret_cast<Element*>(call.y.data) + block * call.y_block + lane;
    const Element* r = residual ? residual + block * call.residual_block + lane : nullptr;
    if (r) {
#pragma GCC unroll 28
      for (int p = 0; p < kPixels; ++p) acc[v][p] += load(r + p * call.residual_pixel);
    }
#pragma GCC unroll 28
    for (int p = 0; p < kPixels; ++p) store(y + p * call.y_pixel, min(high, max(low, acc[v][p])));
  }
}

// step: the elements between pixels if kStep does not say so.
template <int kStep, int kVectors, int kPixels>
ENGINE_INLINE void add_taps(const TileCallBf16& call, [[maybe_unused]] int step, Vec (&acc)[kVectors][kPixels]) {
  [[maybe_unused]] AnyStep any(std::int64_t{2} * step);
  constexpr int kStride = kVectors * kLanes * 2;
  const Bf16* block = call.x;
  for (int b = 0; b < call.blocks; ++b) {
    // The call's fields are reloaded where they are needed: keeping them in registers would spill accumulators.
    const TileCallBf16* at = &call;
    ENGINE_FORGET(at);
    const bool is_last = b == at->blocks - 1;
    const int depth = is_last ? at->last_depth : at->depth;
    const Bf16* w = at->w + b * at->w_block + (is_last ? at->w_lead_last : at->w_lead);
    const std::int64_t* offsets = at->offsets;
    const Bf16* row = block;
    // All steps of a block are prefetched at once, since no register is left to spread them.
    const std::int64_t ahead = std::int64_t{at->next_step} * at->rows * at->cols * 8;
    for (std::int64_t i = 0; i < ahead; i += 64) __builtin_prefetch(at->next + b * ahead + i, 0, 2);
    for (int r = 0; r < at->rows; ++r) {
      const Bf16* x = row;
      for (int c = 0; c < at->cols; ++c) {
        if constexpr (kStep == kIndirect) {
          IndirectPixels<kPixels> pixels;
          pixels.depth = 0;
#pragma GCC unroll 28
          for (int p = 0; p < kPixels; ++p) {
            const std::int64_t offset = offsets[p];
            pixels.pixel[p] = offset == kPaddingOffset ? kZeros : block + offset;
          }
          offsets += kPixels;
          // There are more pointers than general registers; the rest would occupy vector registers of the accumulators.
          __asm__ volatile("" : "+m"(block), "+m"(offsets), "+m"(at), "+m"(b), "+m"(r), "+m"(c));
          for (; pixels.depth + 1 < depth; pixels.depth += 2, w += kStride) {
            if constexpr (kPixels > 11) __asm__ volatile("" : "+m"(pixels.pixel));
            multiply<false>(w, pixels, acc);
          }
          if (pixels.depth < depth) {
            multiply<true>(w, pixels, acc);
            w += kStride;
          }
        } else {
          const Bf16* first = x;
          int d = 0;
          for (; d + 1 < depth; d += 2, first += 2, w += kStride) {
            ENGINE_FORGET(first);
            multiply_dense<kStep, false>(w, first, any, acc);
          }
          if (d < depth) {
            multiply_dense<kStep, true>(w, first, any, acc);
            w += kStride;
          }
        }
        ENGINE_FORGET(at);
        x += at->x_col;
      }
      row += at->x_row;
    }
    block += at->x_block;
  }
}

// Steps share the ends as in tile.cpp.
template <int kVectors, int kPixels, bool kIsBlocked1>
ENGINE_NOINLINE void run(const TileCallBf16& call, [[maybe_unused]] int step) {
  Vec acc[kVectors][kPixels];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const Vec start = call.bias && !call.scale ? load(call.bias + v * kLanes) : zero();
#pragma GCC unroll 28
    for (int p = 0; p < kPixels; ++p) acc[v][p] = start;
  }

  if constexpr (kIsBlocked1)
    add_taps<16>(call, 16, acc);
  else if (step == kIndirect)
    add_taps<kIndirect>(call, 0, acc);
  else
    add_taps<kAnyStep>(call, step, acc);

  if (call.scale) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const Vec scale = load(call.scale + v * kLanes), bias = call.bias ? load(call.bias + v * kLanes) : zero();
#pragma GCC unroll 28
      for (int p = 0; p < kPixels; ++p) acc[v][p] = fma(acc[v][p], scale, bias);
    }
  }
  const EpilogueArgs& epilogue = *call.epilogue;
  const bool has_other_residual =
      call.residual.data && (epilogue.residual_after || call.residual.element_bytes != call.y.element_bytes);
  if (epilogue.activation != Activation::kClip || has_other_residual) {
    alignas(64) float values[kVectors * kPixels * kLanes];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
#pragma GCC unroll 28
      for (int p = 0; p < kPixels; ++p) store(values + (v * kPixels + p) * kLanes, acc[v][p]);
    return finish_tile(call, kVectors, kPixels, values);
  }
  const Vec low = broadcast(epilogue.alpha), high = broadcast(epilogue.beta);
  if (call.y.element_bytes == 2)
    store_tile<Bf16>(call, low, high, acc);
  else
    store_tile<float>(call, low, high, acc);
}

template <int kVectors, int kPixels, int kStep>
void tile(const TileCallBf16& call) {
  int step = kStep;
  ENGINE_FORGET(step);  // or the compiler might make a copy of `run` for each
  run<kVectors, kPixels, kHasPairDots && kStep == 16>(call, step);
}

template <int kVectors, int kStep, int... kPixels>
TileBf16Fn pick(int pixels, Indices<kPixels...>) {
  static const TileBf16Fn table[] = {&tile<kVectors, kPixels, kStep>...};
  if constexpr (kVectors == 1 && kLongPixels > 0)
    if (pixels == kLongPixels) return &tile<kVectors, kLongPixels, kStep>;
  return pixels >= 1 && pixels <= static_cast<int>(sizeof...(kPixels)) ? table[pixels - 1] : nullptr;
}

template <int kVectors>
TileBf16Fn pick(int pixels, PixelStep step) {
  typename CountTo<kMaxPixels[kVectors]>::Type all;
  switch (step) {
    case PixelStep::kBlocked1:
      return pick<kVectors, 16>(pixels, all);
    case PixelStep::kBlocked2:
      return pick<kVectors, 32>(pixels, all);
    case PixelStep::kPlanar1:
      return pick<kVectors, 1>(pixels, all);
    case PixelStep::kPlanar2:
      return pick<kVectors, 2>(pixels, all);
    case PixelStep::kIndirect:
      return pick<kVectors, 0>(pixels, all);
    case PixelStep::kRows:
    case PixelStep::kCount:
      break;
  }
  return nullptr;
}

}  // namespace

const TileTraits tile_bf16_traits = {
    kLanes, kMaxVectors, {0, kMaxPixels[1], kMaxPixels[2]}, kMaxVectors, sizeof(Bf16), kMaxVectors, kLongPixels};

TileBf16Fn tile_bf16_kernel(int vectors, int pixels, PixelStep step) {
  switch (vectors) {
    case 1:
      return pick<1>(pixels, step);
    case 2:
      return pick<2>(pixels, step);
  }
  return nullptr;
}

// Used only through tile_bf16_kernel, never by a plan.
extern const KernelEntry tile_bf16_kernels[] = {{nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

// Implements the tiles of tile_int8.hpp. With VNNI, one instruction computes four products for each lane; without it,
// two products of 16-bit integers do.
#include "kernels/tile_int8.hpp"

#include "kernels/requantize_vector.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

#if defined(__AVX512VNNI__)
constexpr int kMaxVectors = 4;
constexpr int kMaxPixels[5] = {0, 28, 14, 9, 6};
constexpr int kBestVectors = 2;
#elif defined(__AVX512BW__)
constexpr int kMaxVectors = 2;
constexpr int kMaxPixels[5] = {0, 14, 12, 0, 0};
constexpr int kBestVectors = 2;
#else
constexpr int kMaxVectors = 2;
constexpr int kMaxPixels[5] = {0, 6, 4, 0, 0};
constexpr int kBestVectors = 2;
#endif
constexpr int kDepth = 4;  // values of depth in a step

// Prevents the compiler from carrying loads to the next step (predictive commoning would spill accumulators).
#define ENGINE_FORGET(pointer) __asm__ volatile("" : "+r"(pointer))

// Four depths; pixel(p) is the address of pixel p's values.
template <int kVectors, int kPixels, class Pixel>
ENGINE_INLINE void multiply(const std::uint8_t* w, const Pixel& pixel, VecInt (&acc)[kVectors][kPixels]) {
  VecInt weight[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) weight[v] = load_byte_quads(w + v * kLanes * kDepth);
#pragma GCC unroll 28
  for (int p = 0; p < kPixels; ++p) {
    const VecInt value = broadcast_byte_quad(pixel(p));
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) acc[v][p] = dot_bytes(value, weight[v], acc[v][p]);
  }
}

template <int kStep>
struct DensePixels {
  const std::uint8_t* at;
  ENGINE_ALWAYS_INLINE const std::uint8_t* operator()(int p) const { return at + p * kStep; }
};

template <int kPixels>
struct IndirectPixels {
  const std::uint8_t* pixel[kPixels];
  std::int64_t depth;
  ENGINE_ALWAYS_INLINE const std::uint8_t* operator()(int p) const { return pixel[p] + depth; }
};

// Requantizes sums [vectors][pixels][lanes] of any kind, in memory.
ENGINE_NOINLINE void finish_tile(const TileCallInt8& call, int vectors, int pixels, const std::int32_t* sums) {
  const RequantizeArgs& args = *call.requantize;
  for (int v = 0; v < vectors; ++v) {
    const std::int64_t block = v / kVectorsPerBlock, lane = v % kVectorsPerBlock * kLanes;
    const SizedPointer<char> y = call.y + (block * call.y_block + lane);
    const SizedPointer<const char> residual = call.residual + (block * call.residual_block + lane);
    const Vec scale = load(call.scale + v * kLanes), bias = call.bias ? load(call.bias + v * kLanes) : zero();
    for (int p = 0; p < pixels; ++p) {
      const VecInt sum = load_ints(sums + (v * pixels + p) * kLanes);
      char* to = (y + p * call.y_pixel).data;
      if (args.y == ElementCode::kI32)
        store_ints(reinterpret_cast<std::int32_t*>(to), sum);
      else
        requantize(args, fma(to_floats(sum), scale, bias),
                   residual.data ? (residual + p * call.residual_pixel).data : nullptr, to);
    }
  }
}

#if defined(__AVX512BW__)
// Four vectors of integers, each within the range of a byte of y, as 64 adjacent bytes.
ENGINE_INLINE void store_four(std::uint8_t* to, VecInt a, VecInt b, VecInt c, VecInt d, bool is_signed) {
  const __m512i lower = _mm512_packs_epi32((__m512i)a, (__m512i)b), upper = _mm512_packs_epi32((__m512i)c, (__m512i)d);
  const __m512i bytes = is_signed ? _mm512_packs_epi16(lower, upper) : _mm512_packus_epi16(lower, upper);
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_si512(to, _mm512_maskz_permutexvar_epi32((__mmask16)-1, order, bytes));
}
#endif

// The common results: 8-bit integers, clipped; the residual, if any, is of 8 bits, too. A loop for each part, so that
// conditions are tested once a tile.
template <int kVectors, int kPixels>
ENGINE_INLINE void store_codes(const TileCallInt8& call, VecInt (&acc)[kVectors][kPixels]) {
  const RequantizeArgs& args = *call.requantize;
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const std::int64_t block = v / kVectorsPerBlock, lane = v % kVectorsPerBlock * kLanes;
    const Vec scale = load(call.scale + v * kLanes), bias = call.bias ? load(call.bias + v * kLanes) : zero();
    Vec value[kPixels];
#pragma GCC unroll 28
    for (int p = 0; p < kPixels; ++p) value[p] = fma(to_floats(acc[v][p]), scale, bias);
    if (args.has_middle) {
      const Vec low = broadcast(args.middle_low), high = broadcast(args.middle_high);
#pragma GCC unroll 28
      for (int p = 0; p < kPixels; ++p) value[p] = round_within(low, high, value[p]) * args.middle_scale;
    }
    if (call.residual.data) {
      const std::uint8_t* residual =
          reinterpret_cast<const std::uint8_t*>(call.residual.data) + block * call.residual_block + lane;
      const std::int32_t flip = args.residual == ElementCode::kI8 ? 128 : 0;
      const Vec factor = broadcast(args.residual_scale);
      const Vec offset = broadcast(-args.residual_zero_point - static_cast<float>(flip));
#pragma GCC unroll 28
      for (int p = 0; p < kPixels; ++p) {
        const Vec added = load_bytes(residual + p * call.residual_pixel, flip) + offset;
        value[p] = fma(added, factor, value[p]);
      }
    }
    const Vec low = broadcast(args.low), high = broadcast(args.high);
    const VecInt zero_point = args.zero_point - VecInt{};
#pragma GCC unroll 28
    for (int p = 0; p < kPixels; ++p) acc[v][p] = round_to_ints(min(high, max(low, value[p]))) + zero_point;
    std::uint8_t* y = reinterpret_cast<std::uint8_t*>(call.y.data) + block * call.y_block + lane;
#if defined(__AVX512BW__)
    if (call.y_pixel == kBlock) {
#pragma GCC unroll 7
      for (int p = 0; p + 4 <= kPixels; p += 4)
        store_four(y + p * kBlock, acc[v][p], acc[v][p + 1], acc[v][p + 2], acc[v][p + 3], args.y == ElementCode::kI8);
#pragma GCC unroll 3
      for (int p = kPixels / 4 * 4; p < kPixels; ++p) store_bytes(y + p * kBlock, acc[v][p]);
      continue;
    }
#endif
#pragma GCC unroll 28
    for (int p = 0; p < kPixels; ++p) store_bytes(y + p * call.y_pixel, acc[v][p]);
  }
}

// The same for results of f32 without a residual.
template <int kVectors, int kPixels>
ENGINE_INLINE void store_floats(const TileCallInt8& call, const VecInt (&acc)[kVectors][kPixels]) {
  const Vec low = broadcast(call.requantize->epilogue.alpha), high = broadcast(call.requantize->epilogue.beta);
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const Vec scale = load(call.scale + v * kLanes), bias = call.bias ? load(call.bias + v * kLanes) : zero();
    float* y =
        reinterpret_cast<float*>(call.y.data) + v / kVectorsPerBlock * call.y_block + v % kVectorsPerBlock * kLanes;
#pragma GCC unroll 28
    for (int p = 0; p < kPixels; ++p)
      store(y + p * call.y_pixel, min(high, max(low, fma(to_floats(acc[v][p]), scale, bias))));
  }
}

// kStep: bytes between pixels; 0 for indirect pixels.
template <int kVectors, int kPixels, int kStep>
ENGINE_NOINLINE void tile(const TileCallInt8& call) {
  constexpr int kStride = kVectors * kLanes * kDepth;
  VecInt acc[kVectors][kPixels];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const VecInt start = load_ints(call.start + v * kLanes);
#pragma GCC unroll 28
    for (int p = 0; p < kPixels; ++p) acc[v][p] = start;
  }

  const std::uint8_t* block = call.x;
  for (int b = 0; b < call.blocks; ++b) {
    // The call's fields are reloaded where they are needed: keeping them in registers would spill accumulators.
    const TileCallInt8* at = &call;
    ENGINE_FORGET(at);
    const bool is_last = b == at->blocks - 1;
    const int depth = is_last ? at->last_depth : at->depth;
    const std::uint8_t* w = at->w + b * at->w_block + (is_last ? at->w_lead_last : at->w_lead);
    const std::int64_t* offsets = at->offsets;
    const std::uint8_t* row = block;
    const std::int64_t ahead = std::int64_t{at->next_step} * at->rows * at->cols * 4;
    for (std::int64_t i = 0; i < ahead; i += 64) __builtin_prefetch(at->next + b * ahead + i, 0, 2);
    for (int r = 0; r < at->rows; ++r) {
      const std::uint8_t* x = row;
      for (int c = 0; c < at->cols; ++c) {
        if constexpr (kStep == 0) {
          IndirectPixels<kPixels> pixels;
          pixels.depth = 0;
#pragma GCC unroll 28
          for (int p = 0; p < kPixels; ++p) {
            const std::int64_t offset = offsets[p];
            pixels.pixel[p] = offset == kPaddingOffset ? at->padding : block + offset;
          }
          offsets += kPixels;
          // There are more pointers than general registers; the rest would occupy vector registers of the accumulators.
          __asm__ volatile("" : "+m"(block), "+m"(offsets), "+m"(at), "+m"(b), "+m"(r), "+m"(c));
          for (; pixels.depth < depth; pixels.depth += kDepth, w += kStride) {
            if constexpr (kPixels > 11) __asm__ volatile("" : "+m"(pixels.pixel));
            multiply(w, pixels, acc);
          }
        } else {
          DensePixels<kStep> pixels = {x};
          for (int d = 0; d < depth; d += kDepth, pixels.at += kDepth, w += kStride) {
            ENGINE_FORGET(pixels.at);
            multiply(w, pixels, acc);
          }
        }
        ENGINE_FORGET(at);
        x += at->x_col;
      }
      row += at->x_row;
    }
    block += at->x_block;
  }

  const RequantizeArgs& args = *call.requantize;
  const bool is_common = args.epilogue.activation == Activation::kClip && element_bytes_of(args.y) == 1 &&
                         (!call.residual.data || element_bytes_of(args.residual) == 1);
  if (is_common) return store_codes(call, acc);
  const bool is_real = args.epilogue.activation == Activation::kClip && args.y == ElementCode::kF32;
  if (is_real && !args.has_middle && !call.residual.data) return store_floats(call, acc);
  alignas(64) std::int32_t sums[kVectors * kPixels * kLanes];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v)
#pragma GCC unroll 28
    for (int p = 0; p < kPixels; ++p) store_ints(sums + (v * kPixels + p) * kLanes, acc[v][p]);
  finish_tile(call, kVectors, kPixels, sums);
}

template <int... kIndices>
struct Indices {};
template <int kCount, int... kIndices>
struct CountTo : CountTo<kCount - 1, kCount, kIndices...> {};
template <int... kIndices>
struct CountTo<0, kIndices...> {
  using Type = Indices<kIndices...>;
};

template <int kVectors, int kStep, int... kPixels>
TileInt8Fn pick(int pixels, Indices<kPixels...>) {
  static const TileInt8Fn table[] = {&tile<kVectors, kPixels, kStep>...};
  return pixels >= 1 && pixels <= static_cast<int>(sizeof...(kPixels)) ? table[pixels - 1] : nullptr;
}

template <int kVectors>
TileInt8Fn pick(int pixels, PixelStep step) {
  typename CountTo<kMaxPixels[kVectors]>::Type all;
  switch (step) {
    case PixelStep::kBlocked1:
      return pick<kVectors, kBlock>(pixels, all);
    case PixelStep::kBlocked2:
      return pick<kVectors, 2 * kBlock>(pixels, all);
    case PixelStep::kIndirect:
      return pick<kVectors, 0>(pixels, all);
    case PixelStep::kPlanar1:
      return pick<kVectors, 4>(pixels, all);
    case PixelStep::kPlanar2:
      return pick<kVectors, 8>(pixels, all);
    case PixelStep::kCount:
      break;
  }
  return nullptr;
}

}  // namespace

const TileTraits tile_int8_traits = {
    kLanes, kMaxVectors, {kMaxPixels[0], kMaxPixels[1], kMaxPixels[2], kMaxPixels[3], kMaxPixels[4]}, kBestVectors, 1};

TileInt8Fn tile_int8_kernel(int vectors, int pixels, PixelStep step) {
  switch (vectors) {
    case 1:
      return pick<1>(pixels, step);
    case 2:
      return pick<2>(pixels, step);
#if defined(__AVX512VNNI__)
    case 3:
      return pick<3>(pixels, step);
    case 4:
      return pick<4>(pixels, step);
#endif
  }
  return nullptr;
}

// Used only through tile_int8_kernel, never by a plan.
extern const KernelEntry tile_int8_kernels[] = {{nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

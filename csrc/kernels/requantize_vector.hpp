// `RequantizeArgs` applied to vectors. Included by kernel files only.
#pragma once

#include "kernels/activation.hpp"
#include "kernels/requantize.hpp"
#include "simd/bytes.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

// Rounds half to even where |x| is below 2^22; larger values saturate in what follows.
ENGINE_INLINE simd::Vec round_within(simd::Vec low, simd::Vec high, simd::Vec x) {
  return simd::to_floats(simd::round_to_ints(simd::min(high, simd::max(low, x))));
}

// kLanes values of the residual in f32.
ENGINE_INLINE simd::Vec load_residual(const RequantizeArgs& args, const char* from) {
  if (args.residual == ElementCode::kF32) return simd::load(reinterpret_cast<const float*>(from));
  const simd::Vec codes = args.residual == ElementCode::kI8
                              ? simd::load_bytes(reinterpret_cast<const std::int8_t*>(from))
                              : simd::load_bytes(reinterpret_cast<const std::uint8_t*>(from));
  return codes - args.residual_zero_point;
}

// The steps after the scaling of the sum, for kLanes values: `residual` is null or points to their residual.
ENGINE_INLINE void requantize(const RequantizeArgs& args, simd::Vec value, const char* residual, char* y,
                              simd::Vec middle_bias = simd::zero()) {
  using namespace simd;
  if (args.has_middle)
    value = fma(round_within(broadcast(args.middle_low), broadcast(args.middle_high), value),
                broadcast(args.middle_scale), middle_bias);
  if (residual) value = fma(load_residual(args, residual), broadcast(args.residual_scale), value);
  if (args.epilogue.activation != Activation::kClip) {
    float lanes[kLanes];
    store(lanes, value);
    finish_column(args.epilogue, 1, lanes, kLanes, nullptr, 0);
    value = load(lanes) * args.factor;
  }
  if (args.y == ElementCode::kF32) {
    if (args.epilogue.activation == Activation::kClip)
      value = min(broadcast(args.epilogue.beta), max(broadcast(args.epilogue.alpha), value));
    store(reinterpret_cast<float*>(y), value);
    return;
  }
  const VecInt codes = round_to_ints(min(broadcast(args.high), max(broadcast(args.low), value)));
  store_bytes(reinterpret_cast<std::uint8_t*>(y), codes + args.zero_point);
}

#if defined(__AVX512BW__)
// Packing two pairs of vectors of integers puts four values of each into each lane: here, in the order of the vectors.
ENGINE_INLINE __m512i sort_lanes(__m512i bytes) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_maskz_permutexvar_epi32((__mmask16)-1, order, bytes);
}

// kCount vectors of integers, at most four, as adjacent bytes: with signed saturation, plus `zero_point` in each word,
// with saturation to the type of y.
template <int kCount>
ENGINE_INLINE void store_saturated(std::uint8_t* to, const simd::VecInt* codes, __m512i zero_point, bool is_signed) {
  const auto words = [&](int i, int j) {
    return _mm512_adds_epi16(_mm512_packs_epi32((__m512i)codes[i], (__m512i)codes[j]), zero_point);
  };
  const __m512i lower = words(0, kCount > 1 ? 1 : 0), upper = kCount > 2 ? words(2, kCount > 3 ? 3 : 2) : lower;
  const __m512i sorted = sort_lanes(is_signed ? _mm512_packs_epi16(lower, upper) : _mm512_packus_epi16(lower, upper));
  typedef std::int32_t Sixteen __attribute__((vector_size(64)));
  typedef std::int32_t Eight __attribute__((vector_size(32), aligned(1), may_alias));
  typedef std::int32_t Four __attribute__((vector_size(16), aligned(1), may_alias));
  const Sixteen all = (Sixteen)sorted;
  // Not the intrinsics for parts of a vector: GCC 12 warns about their undefined operands.
  if constexpr (kCount == 4) _mm512_storeu_si512(to, sorted);
  if constexpr (kCount == 2 || kCount == 3)
    *reinterpret_cast<Eight*>(to) = __builtin_shufflevector(all, all, 0, 1, 2, 3, 4, 5, 6, 7);
  if constexpr (kCount == 3) *reinterpret_cast<Four*>(to + 32) = __builtin_shufflevector(all, all, 8, 9, 10, 11);
  if constexpr (kCount == 1) *reinterpret_cast<Four*>(to) = __builtin_shufflevector(all, all, 0, 1, 2, 3);
}
#endif

// Clips, rounds and stores one block of 16 channels, or a part of it, of kPixels pixels: 8-bit integers.
template <int kPixels>
ENGINE_INLINE void store_pixels(const RequantizeArgs& args, const simd::Vec (&value)[kPixels], std::uint8_t* y,
                                std::int64_t y_pixel) {
  using namespace simd;
  const Vec high = broadcast(args.high);
  VecInt codes[kPixels];
#if defined(__AVX512BW__)
  if (y_pixel == kBlock) {
    const bool is_signed = args.y == ElementCode::kI8;
    // Saturation clips at the bounds of the type; the upper bound is also needed, since conversion to integers wraps.
    if (args.low <= static_cast<float>((is_signed ? -128 : 0) - args.zero_point)) {
#pragma GCC unroll 16
      for (int p = 0; p < kPixels; ++p) codes[p] = round_to_ints(min(high, value[p]));
    } else {
      const Vec low = broadcast(args.low);
#pragma GCC unroll 16
      for (int p = 0; p < kPixels; ++p) codes[p] = round_to_ints(min(high, max(low, value[p])));
    }
    const __m512i zero_point = (__m512i)(static_cast<std::int16_t>(args.zero_point) - VecShort{});
#pragma GCC unroll 4
    for (int p = 0; p + 4 <= kPixels; p += 4) store_saturated<4>(y + p * kBlock, codes + p, zero_point, is_signed);
    constexpr int kRest = kPixels % 4, kLast = kPixels - kRest;
    if constexpr (kRest > 0) store_saturated<kRest>(y + kLast * kBlock, codes + kLast, zero_point, is_signed);
    return;
  }
#endif
  const Vec low = broadcast(args.low);
  const VecInt zero_point = args.zero_point - VecInt{};
#pragma GCC unroll 16
  for (int p = 0; p < kPixels; ++p) codes[p] = round_to_ints(min(high, max(low, value[p]))) + zero_point;
#pragma GCC unroll 16
  for (int p = 0; p < kPixels; ++p) store_bytes(y + p * y_pixel, codes[p]);
}

}  // namespace
}  // namespace engine::ENGINE_ISA_NS

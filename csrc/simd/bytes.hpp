// Vectors of 8-bit integers: dot products of four adjacent bytes, and conversion from f32.
#pragma once

#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS::simd {

typedef uint8_t BytesUnaligned __attribute__((vector_size(kLanes), aligned(1), may_alias));
typedef int8_t SignedBytesUnaligned __attribute__((vector_size(kLanes), aligned(1), may_alias));
typedef int32_t Int32Unaligned __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
typedef int16_t VecShort __attribute__((vector_size(kVectorBytes), aligned(kVectorBytes)));
typedef uint16_t VecHalf __attribute__((vector_size(kVectorBytes), aligned(kVectorBytes)));
typedef int32_t QuadsUnaligned __attribute__((vector_size(kVectorBytes), aligned(1), may_alias));
typedef int32_t Byte4 __attribute__((aligned(1), may_alias));

// Four bytes for each lane: adjacent ones, and the same four in all lanes.
ENGINE_INLINE VecInt load_byte_quads(const uint8_t* from) {
  return *reinterpret_cast<const QuadsUnaligned*>(from);
}
ENGINE_INLINE VecInt broadcast_byte_quad(const uint8_t* from) {
  return *reinterpret_cast<const Byte4*>(from) - VecInt{};
}
ENGINE_INLINE VecInt load_ints(const int32_t* from) {
  return *reinterpret_cast<const Int32Unaligned*>(from);
}
ENGINE_INLINE void store_ints(int32_t* to, VecInt value) {
  *reinterpret_cast<Int32Unaligned*>(to) = value;
}
ENGINE_INLINE Vec to_floats(VecInt value) {
  return __builtin_convertvector(value, Vec);
}
// kLanes signed bytes as f32. GCC converts the vector of bytes element by element, which takes ten times as long.
ENGINE_INLINE Vec load_signed_bytes(const int8_t* from) {
#if defined(__AVX512F__)
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return to_floats((VecInt)_mm512_maskz_cvtepi8_epi32((__mmask16)-1, codes));
#elif defined(__AVX2__)
  return to_floats((VecInt)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
  return __builtin_convertvector(*reinterpret_cast<const SignedBytesUnaligned*>(from), Vec);
#endif
}

// Whether one instruction computes four products for each lane.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_DOTPROD)
constexpr bool kHasDotProducts = true;
#elif defined(__aarch64__)
constexpr bool kHasDotProducts = false;
#else
constexpr bool kHasDotProducts = false;
// The sums of adjacent products of 16-bit integers, two for each lane.
ENGINE_INLINE VecInt multiply_shorts(VecInt a, VecInt b) {
#if defined(__AVX512BW__)
  return (VecInt)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (VecInt)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (VecInt)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  return ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}
#endif

// Whether products of bytes in pairs, whose sums have 16 bits, are faster than exact ones for all weights.
#if defined(__AVX2__)
constexpr bool kHasPairProducts = !kHasDotProducts;
#else
constexpr bool kHasPairProducts = false;
#endif

#if defined(__aarch64__)
// c plus, in each lane, the sum of the products of four signed bytes; exact.
ENGINE_INLINE VecInt dot_signed(VecInt a, VecInt b, VecInt c) {
#if defined(__ARM_FEATURE_DOTPROD)
  return (VecInt)vdotq_s32((int32x4_t)c, (int8x16_t)a, (int8x16_t)b);
#else
  const int16x8_t lower = vmull_s8(vget_low_s8((int8x16_t)a), vget_low_s8((int8x16_t)b));
  const int16x8_t upper = vmull_high_s8((int8x16_t)a, (int8x16_t)b);
  return c + (VecInt)vpaddq_s32(vpaddlq_s16(lower), vpaddlq_s16(upper));
#endif
}
#endif

// c plus, in each lane, the sum of the products of four unsigned bytes of `a` and four signed bytes of `b`; exact.
// kPairsFit: the caller has proven that the sums of two adjacent products fit into 16 bits.
template <bool kPairsFit = false>
ENGINE_INLINE VecInt dot_bytes(VecInt a, VecInt b, VecInt c) {
#if defined(__AVX512VNNI__)
  // Not the intrinsic: GCC 12 copies its accumulator.
  __asm__("vpdpbusd %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  return c;
#elif defined(__AVXVNNI__) && defined(ENGINE_EMULATE_AVXVNNI)
  __asm__("vpdpbusd %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));  // the encoding of AVX-512, for tests
  return c;
#elif defined(__AVXVNNI__)
  __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
  return c;
#elif defined(__ARM_FEATURE_MATMUL_INT8)
  return (VecInt)vusdotq_s32((int32x4_t)c, (uint8x16_t)a, (int8x16_t)b);
#elif defined(__aarch64__)
  // Instructions multiply bytes of equal signs: a = (a - 128) + 128. The compiler computes the second product once for
  // all `a` that are multiplied with a `b`.
  const VecInt sign = VecInt{} + static_cast<int32_t>(0x80808080);
  return dot_signed(a ^ sign, b, c - dot_signed(sign, b, VecInt{}));
#else
#if defined(__AVX512BW__)
  if constexpr (kPairsFit)
    return c + multiply_shorts((VecInt)_mm512_maddubs_epi16((__m512i)a, (__m512i)b), 0x00010001 - VecInt{});
#elif defined(__AVX2__)
  if constexpr (kPairsFit)
    return c + multiply_shorts((VecInt)_mm256_maddubs_epi16((__m256i)a, (__m256i)b), 0x00010001 - VecInt{});
#endif
  const VecInt a_even = a & 0x00ff00ff, a_odd = (VecInt)((VecHalf)a >> 8);
  const VecInt b_even = (VecInt)((VecShort)((VecShort)b << 8) >> 8), b_odd = (VecInt)((VecShort)b >> 8);
  return c + multiply_shorts(a_even, b_even) + multiply_shorts(a_odd, b_odd);
#endif
}

// Rounds to the nearest integer, ties to even; |x| must be below 2^22, or NaN, which becomes any integer.
ENGINE_INLINE VecInt round_to_ints(Vec x) {
#if defined(__AVX512F__)
  return (VecInt)_mm512_maskz_cvtps_epi32((__mmask16)-1, (__m512)x);
#elif defined(__AVX__)
  return (VecInt)_mm256_cvtps_epi32((__m256)x);
#elif defined(__SSE2__)
  return (VecInt)_mm_cvtps_epi32((__m128)x);
#elif defined(__aarch64__)
  return (VecInt)vcvtnq_s32_f32((float32x4_t)x);
#else
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: the sum has no fractional bits
  return (VecInt)(x + kRound) - (VecInt)broadcast(kRound);
#endif
}

// kLanes integers as bytes, modulo 256.
ENGINE_INLINE void store_bytes(uint8_t* to, VecInt value) {
#if defined(__AVX512F__)
  *reinterpret_cast<BytesUnaligned*>(to) = (BytesUnaligned)_mm512_maskz_cvtepi32_epi8((__mmask16)-1, (__m512i)value);
#elif defined(__AVX2__)
  // The extensions would convert one element at a time.
  const __m256i low = (__m256i)(value & 255);
  const __m128i shorts = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(shorts, shorts));
#elif defined(__SSE2__)
  const __m128i shorts = _mm_packs_epi32((__m128i)(value & 255), (__m128i)(value & 255));
  *reinterpret_cast<Byte4*>(to) = _mm_cvtsi128_si32(_mm_packus_epi16(shorts, shorts));
#else
  *reinterpret_cast<BytesUnaligned*>(to) = __builtin_convertvector(value, BytesUnaligned);
#endif
}
// kLanes bytes in f32.
ENGINE_INLINE Vec load_bytes(const uint8_t* from) {
#if defined(__AVX512F__)
  return to_floats((VecInt)_mm512_maskz_cvtepu8_epi32((__mmask16)-1, _mm_loadu_si128((const __m128i*)from)));
#elif defined(__AVX2__)
  return to_floats((VecInt)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from)));
#else
  return to_floats(__builtin_convertvector(*reinterpret_cast<const BytesUnaligned*>(from), VecInt));
#endif
}
ENGINE_INLINE Vec load_bytes(const int8_t* from) {
#if defined(__AVX512F__)
  return to_floats((VecInt)_mm512_maskz_cvtepi8_epi32((__mmask16)-1, _mm_loadu_si128((const __m128i*)from)));
#elif defined(__AVX2__)
  return to_floats((VecInt)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
#else
  return to_floats(__builtin_convertvector(*reinterpret_cast<const SignedBytesUnaligned*>(from), VecInt));
#endif
}

// The same after an exclusive or with the lowest byte of `flip`: 128 adds 128 to i8.
ENGINE_INLINE Vec load_bytes(const uint8_t* from, int32_t flip) {
  return flip == 0 ? load_bytes(from) : load_bytes(reinterpret_cast<const int8_t*>(from)) + 128.0f;
}

// Four rows of 16 bytes as [16][4].
ENGINE_INLINE void store_byte_quads(uint8_t* to, const uint8_t* const (&row)[4]) {
#if defined(__SSE2__)
  const auto read = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row[i])); };
  const __m128i a = read(0), b = read(1), c = read(2), d = read(3);
  const __m128i ab0 = _mm_unpacklo_epi8(a, b), ab1 = _mm_unpackhi_epi8(a, b);
  const __m128i cd0 = _mm_unpacklo_epi8(c, d), cd1 = _mm_unpackhi_epi8(c, d);
  __m128i* out = reinterpret_cast<__m128i*>(to);
  _mm_storeu_si128(out, _mm_unpacklo_epi16(ab0, cd0));
  _mm_storeu_si128(out + 1, _mm_unpackhi_epi16(ab0, cd0));
  _mm_storeu_si128(out + 2, _mm_unpacklo_epi16(ab1, cd1));
  _mm_storeu_si128(out + 3, _mm_unpackhi_epi16(ab1, cd1));
#elif defined(__aarch64__)
  vst4q_u8(to, (uint8x16x4_t{{vld1q_u8(row[0]), vld1q_u8(row[1]), vld1q_u8(row[2]), vld1q_u8(row[3])}}));
#else
  for (int c = 0; c < 16; ++c)
    for (int i = 0; i < 4; ++i) to[c * 4 + i] = row[i][c];
#endif
}

}  // namespace engine::ENGINE_ISA_NS::simd

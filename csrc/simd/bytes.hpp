// Vectors of 8-bit integers: dot products of four adjacent bytes, and conversion from f32.
#pragma once

#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS::simd {

typedef uint8_t BytesUnaligned __attribute__((vector_size(kLanes), aligned(1), may_alias));
typedef int32_t Int32Unaligned __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
typedef int16_t VecShort __attribute__((vector_size(kVectorBytes), aligned(kVectorBytes)));
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

#if !defined(__AVX512VNNI__)
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

// c plus, in each lane, the sum of the products of four unsigned bytes of `a` and four signed bytes of `b`; exact.
ENGINE_INLINE VecInt dot_bytes(VecInt a, VecInt b, VecInt c) {
#if defined(__AVX512VNNI__)
  // Not the intrinsic: GCC 12 copies its accumulator.
  __asm__("vpdpbusd %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  return c;
#else
  const VecInt a_even = a & 0x00ff00ff, a_odd = (VecInt)((VecBits)a >> 8) & 0x00ff00ff;
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
#else
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: the sum has no fractional bits
  return (VecInt)(x + kRound) - (VecInt)broadcast(kRound);
#endif
}

// kLanes integers as bytes, modulo 256.
ENGINE_INLINE void store_bytes(uint8_t* to, VecInt value) {
#if defined(__AVX512F__)
  *reinterpret_cast<BytesUnaligned*>(to) = (BytesUnaligned)_mm512_maskz_cvtepi32_epi8((__mmask16)-1, (__m512i)value);
#else
  *reinterpret_cast<BytesUnaligned*>(to) = __builtin_convertvector(value, BytesUnaligned);
#endif
}
// kLanes unsigned bytes, after an exclusive or with the lowest byte of `flip`, in f32: 0 for u8; 128 adds 128 to i8.
ENGINE_INLINE Vec load_bytes(const uint8_t* from, int32_t flip) {
#if defined(__AVX512F__)
  const VecInt value = (VecInt)_mm512_maskz_cvtepu8_epi32((__mmask16)-1, _mm_loadu_si128((const __m128i*)from));
#elif defined(__AVX2__)
  const VecInt value = (VecInt)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from));
#else
  const VecInt value = __builtin_convertvector(*reinterpret_cast<const BytesUnaligned*>(from), VecInt);
#endif
  return to_floats(value ^ flip);
}

}  // namespace engine::ENGINE_ISA_NS::simd

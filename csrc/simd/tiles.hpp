// The tile instructions of AMX: eight tiles of 16 rows of 64 bytes, and products of two of them.
//
//   C[m][n] += sum over k of A[m][k] * B[k][n]
//
// A has 16 rows of 64 bytes of depth, 32 values of bf16 or 64 of 8 bits. B has 16 rows, each with a group of adjacent
// depths (2 of bf16, 4 of 8 bits) of 16 columns. C has 16 x 16 values of 32 bits.
//
// `native` is assembly. GCC 12's intrinsics are not used: they do not tell the compiler which memory they read, and the
// number of a tile cannot be a template argument. So no flag of the compiler is needed, either. `emulated` computes the
// same with loops, on any CPU, and traps where the CPU would fault. Only the names that are exported at the end are
// used by kernels: they are emulated in a build with ENGINE_EMULATE_AMX.
//
// All shapes are equal, since a smaller tile would take just as long: kernels pad their operands in memory. Each thread
// configures its tiles at the start of a phase, which takes 50 ns, and releases them at its end: no other code has to
// know, and the system saves their 8 KiB only while they are used. The content of a kernel's tiles is lost at the end
// of the phase.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd/isa.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace engine::ENGINE_ISA_NS::tiles {

constexpr int kTiles = 8;
constexpr int kRows = 16;
constexpr int kRowBytes = 64;
constexpr int kTileBytes = kRows * kRowBytes;

// The operand of LDTILECFG.
struct alignas(64) TileConfig {
  std::uint8_t palette;
  std::uint8_t start_row;
  std::uint8_t reserved[14];
  std::uint16_t row_bytes[16];
  std::uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64, "LDTILECFG reads 64 bytes");

[[maybe_unused]] static const TileConfig kAllTiles = {
    1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

#if defined(__x86_64__)
namespace native {

ENGINE_INLINE void configure() {
  __asm__ volatile("ldtilecfg %0" : : "m"(kAllTiles));
}
ENGINE_INLINE void release() {
  __asm__ volatile("tilerelease");
}
template <int kTile>
ENGINE_INLINE void clear() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
// Rows are `step` bytes apart. A streamed tile is not kept in L1.
template <int kTile>
ENGINE_INLINE void load(const void* from, std::int64_t step) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(step), "i"(kTile) : "memory");
}
template <int kTile>
ENGINE_INLINE void load_streamed(const void* from, std::int64_t step) {
  __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(step), "i"(kTile) : "memory");
}
template <int kTile>
ENGINE_INLINE void store(void* to, std::int64_t step) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(step), "i"(kTile) : "memory");
}
// kC += kA * kB, which are three different tiles. The first products of all pairs are summed apart from the second
// ones, each by FMA from zero; their sum is added to kC last. Denormal operands count as zero, and denormal sums become
// zero, with their sign. Rounding is to nearest, whatever MXCSR says.
template <int kC, int kA, int kB>
ENGINE_INLINE void multiply_bf16() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}
// The same for integers, A unsigned and B signed; exact modulo 2^32.
template <int kC, int kA, int kB>
ENGINE_INLINE void multiply_u8s8() {
  __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}

}  // namespace native
#endif

namespace emulated {

// The tiles of a thread.
struct TileFile {
  alignas(64) std::uint8_t data[kTiles][kRows][kRowBytes];
  TileConfig config;
};
[[maybe_unused]] static thread_local TileFile file;

ENGINE_INLINE void configure() {
  file = {};
  file.config = kAllTiles;
}
ENGINE_INLINE void release() {
  file = {};
}

// Traps if the tiles are not configured, as the instructions fault then.
ENGINE_INLINE void expect_configured(int tile) {
  if (file.config.palette != 1 || file.config.rows[tile] != kRows || file.config.row_bytes[tile] != kRowBytes)
    __builtin_trap();
}

template <int kTile>
ENGINE_INLINE void clear() {
  expect_configured(kTile);
  std::memset(file.data[kTile], 0, kTileBytes);
}
template <int kTile>
ENGINE_INLINE void load(const void* from, std::int64_t step) {
  expect_configured(kTile);
  for (int r = 0; r < kRows; ++r)
    std::memcpy(file.data[kTile][r], static_cast<const char*>(from) + r * step, kRowBytes);
}
template <int kTile>
ENGINE_INLINE void load_streamed(const void* from, std::int64_t step) {
  load<kTile>(from, step);
}
template <int kTile>
ENGINE_INLINE void store(void* to, std::int64_t step) {
  expect_configured(kTile);
  for (int r = 0; r < kRows; ++r) std::memcpy(static_cast<char*>(to) + r * step, file.data[kTile][r], kRowBytes);
}

// A row of a tile, as vectors: with loops over elements, tests under sanitizers would take a minute longer.
typedef std::uint32_t RowBits __attribute__((vector_size(kRowBytes)));
typedef std::int32_t RowInts __attribute__((vector_size(kRowBytes)));
typedef float RowFloats __attribute__((vector_size(kRowBytes)));

constexpr float kNormal = 1.17549435e-38f;

// Vectors are passed by reference: how they are passed by value depends on the instruction set.

// The floats of these bits; denormal ones become zero, with their sign.
ENGINE_INLINE void flush(const RowBits& bits, RowFloats& result) {
  result = (RowFloats)(bits & ((RowBits)((bits & 0x7f800000u) != 0) | 0x80000000u));
}

// sums += value * weights, rounded once.
ENGINE_INLINE void fuse(float value, const RowFloats& weights, RowFloats& sums) {
#if defined(__AVX512F__)
  sums = (RowFloats)_mm512_fmadd_ps(_mm512_set1_ps(value), (__m512)weights, (__m512)sums);
#elif defined(__FMA__)
  __m256 halves[2], factors[2];
  std::memcpy(halves, &sums, kRowBytes);
  std::memcpy(factors, &weights, kRowBytes);
  for (int i = 0; i < 2; ++i) halves[i] = _mm256_fmadd_ps(_mm256_set1_ps(value), factors[i], halves[i]);
  std::memcpy(&sums, halves, kRowBytes);
#else
  for (int i = 0; i < kRows; ++i) sums[i] = __builtin_fmaf(value, weights[i], sums[i]);
#endif
  flush((RowBits)sums, sums);
}

// Both halves of pairs of bf16 as f32, whose denormal numbers become zero.
struct RowPairs {
  RowFloats first, second;

  ENGINE_ALWAYS_INLINE explicit RowPairs(const std::uint8_t* from) {
    RowBits pairs;
    std::memcpy(&pairs, from, kRowBytes);
    RowBits bits = pairs << 16;
    flush(bits, first);
    bits = pairs & 0xffff0000u;
    flush(bits, second);
  }
};

// The result of an instruction is the first NaN among its operands, made quiet; if there is none, this one.
ENGINE_INLINE bool first_nan(const float* operands, int count, float& result) {
  for (int i = 0; i < count; ++i)
    if (operands[i] != operands[i]) {
      std::uint32_t bits;
      std::memcpy(&bits, operands + i, sizeof(bits));
      bits |= 0x00400000u;
      std::memcpy(&result, &bits, sizeof(bits));
      return true;
    }
  if (result == result) return false;
  const std::uint32_t bits = 0xffc00000u;
  std::memcpy(&result, &bits, sizeof(bits));
  return true;
}

// Column n of a row of C, as the loops below compute it. For values that are NaN, whose bits would otherwise depend on
// the order in which the compiler passes operands.
[[maybe_unused]] static ENGINE_NOINLINE float multiply_nan(const std::uint8_t* c, const std::uint8_t* a,
                                                           const std::uint8_t (*b)[kRowBytes], int n) {
  const RowPairs values(a);
  float sums[3] = {};
  for (int k = 0; k < kRows; ++k) {
    const RowPairs weights(b[k]);
    for (int half = 0; half < 2; ++half) {
      const RowFloats &left = half ? values.second : values.first, &right = half ? weights.second : weights.first;
      const float operands[3] = {left[k], right[n], sums[half]};
      float sum = __builtin_fmaf(operands[0], operands[1], operands[2]);
      if (!first_nan(operands, 3, sum) && sum < kNormal && sum > -kNormal) sum *= 0.0f;
      sums[half] = sum;
    }
  }
  RowBits bits;
  RowFloats added;
  std::memcpy(&bits, c, kRowBytes);
  flush(bits, added);
  for (int i = 1; i < 3; ++i) {
    const float operands[2] = {i == 1 ? sums[0] : added[n], i == 1 ? sums[1] : sums[2]};
    float sum = operands[0] + operands[1];
    if (!first_nan(operands, 2, sum) && sum < kNormal && sum > -kNormal) sum *= 0.0f;
    sums[2] = sum;
  }
  return sums[2];
}

// Every bit as the hardware computes it (csrc/tests/kernels_tiles.cpp).
[[maybe_unused]] static ENGINE_NOINLINE void multiply_bf16(std::uint8_t (*c)[kRowBytes],
                                                           const std::uint8_t (*a)[kRowBytes],
                                                           const std::uint8_t (*b)[kRowBytes]) {
  for (int m = 0; m < kRows; ++m) {
    const RowPairs values(a[m]);
    RowFloats first = {}, second = {};
    for (int k = 0; k < kRows; ++k) {
      const RowPairs weights(b[k]);
      fuse(values.first[k], weights.first, first);
      fuse(values.second[k], weights.second, second);
    }
    RowFloats sums = first + second;
    flush((RowBits)sums, first);
    RowBits bits;
    std::memcpy(&bits, c[m], kRowBytes);
    flush(bits, second);
    sums = second + first;
    flush((RowBits)sums, sums);
    for (int n = 0; n < kRows; ++n)
      if (sums[n] != sums[n]) sums[n] = multiply_nan(c[m], a[m], b, n);
    std::memcpy(c[m], &sums, kRowBytes);
  }
}

[[maybe_unused]] static ENGINE_NOINLINE void multiply_u8s8(std::uint8_t (*c)[kRowBytes],
                                                           const std::uint8_t (*a)[kRowBytes],
                                                           const std::uint8_t (*b)[kRowBytes]) {
  for (int m = 0; m < kRows; ++m) {
    RowBits sums, weights;
    std::memcpy(&sums, c[m], kRowBytes);
    for (int k = 0; k < kRows; ++k) {
      std::memcpy(&weights, b[k], kRowBytes);
      for (int i = 0; i < 4; ++i)
        sums += static_cast<std::uint32_t>(a[m][4 * k + i]) * (RowBits)((RowInts)(weights << (24 - 8 * i)) >> 24);
    }
    std::memcpy(c[m], &sums, kRowBytes);
  }
}

template <int kC, int kA, int kB>
ENGINE_INLINE void multiply_bf16() {
  static_assert(kC != kA && kC != kB && kA != kB, "three different tiles");
  expect_configured(kC);
  expect_configured(kA);
  expect_configured(kB);
  multiply_bf16(file.data[kC], file.data[kA], file.data[kB]);
}
template <int kC, int kA, int kB>
ENGINE_INLINE void multiply_u8s8() {
  static_assert(kC != kA && kC != kB && kA != kB, "three different tiles");
  expect_configured(kC);
  expect_configured(kA);
  expect_configured(kB);
  multiply_u8s8(file.data[kC], file.data[kA], file.data[kB]);
}

}  // namespace emulated

#if defined(ENGINE_EMULATE_AMX) || !defined(__x86_64__)
using namespace emulated;
#else
using namespace native;
#endif

}  // namespace engine::ENGINE_ISA_NS::tiles

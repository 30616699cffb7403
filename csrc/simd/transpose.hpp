// Transposition of square blocks in registers, for elements of 1, 2, 4 and 8 bytes.
#pragma once

#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS::simd {

// Integers that represent any element type of the same size.
template <int kBytes>
struct ElementOf;
template <>
struct ElementOf<1> {
  typedef std::int8_t type;
};
template <>
struct ElementOf<2> {
  typedef std::int16_t type;
};
template <>
struct ElementOf<4> {
  typedef std::int32_t type;
};
template <>
struct ElementOf<8> {
  typedef std::int64_t type;
};

// rows[i][j] becomes rows[j][i]: log2(kSize) rounds, each exchanging halves between rows `half` apart.
template <class Row, class Indices, int kSize>
ENGINE_INLINE void exchange_halves(Row (&rows)[kSize]) {
#pragma GCC unroll 4
  for (int half = kSize / 2; half > 0; half /= 2) {
    Indices low{}, high{};
#pragma GCC unroll 16
    for (int i = 0; i < kSize; ++i) {
      low[i] = i & half ? (i - half) + kSize : i;
      high[i] = i & half ? i + kSize : i + half;
    }
#pragma GCC unroll 16
    for (int i = 0; i < kSize; ++i) {
      if (i & half) continue;
      const Row a = rows[i], b = rows[i + half];
      rows[i] = ENGINE_SHUFFLE(a, b, low);
      rows[i + half] = ENGINE_SHUFFLE(a, b, high);
    }
  }
}

// The same by interleaving row i with row i + kSize / 2 in each round: one instruction for narrow elements in 16-byte
// vectors.
template <class Row, int kSize>
ENGINE_INLINE void interleave_rows(Row (&rows)[kSize]) {
  Row low{}, high{};
#pragma GCC unroll 16
  for (int i = 0; i < kSize; ++i) {
    low[i] = i / 2 + (i & 1 ? kSize : 0);
    high[i] = (i + kSize) / 2 + (i & 1 ? kSize : 0);
  }
#pragma GCC unroll 4
  for (int round = kSize; round > 1; round /= 2) {
    Row next[kSize];
#pragma GCC unroll 16
    for (int i = 0; i < kSize / 2; ++i) {
      next[2 * i] = ENGINE_SHUFFLE(rows[i], rows[i + kSize / 2], low);
      next[2 * i + 1] = ENGINE_SHUFFLE(rows[i], rows[i + kSize / 2], high);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kSize; ++i) rows[i] = next[i];
  }
}

// A square of floats, each row of which fills a vector register.
ENGINE_INLINE void transpose_square(Vec (&rows)[kLanes]) {
  exchange_halves<Vec, VecInt, kLanes>(rows);
}

// kSize x kSize elements of kBytes each, from memory to memory; rows are `from_row` and `to_row` bytes apart.
template <int kBytes, int kSize>
ENGINE_INLINE void transpose_elements(const char* from, std::int64_t from_row, char* to, std::int64_t to_row) {
  typedef typename ElementOf<kBytes>::type Row __attribute__((vector_size(kBytes * kSize)));
  Row rows[kSize];
#pragma GCC unroll 16
  for (int i = 0; i < kSize; ++i) __builtin_memcpy(&rows[i], from + i * from_row, sizeof(Row));
  if constexpr (kBytes >= 4)
    exchange_halves<Row, Row, kSize>(rows);
  else
    interleave_rows<Row, kSize>(rows);
#pragma GCC unroll 16
  for (int i = 0; i < kSize; ++i) __builtin_memcpy(to + i * to_row, &rows[i], sizeof(Row));
}

}  // namespace engine::ENGINE_ISA_NS::simd

// Products, or squared distances, of a few rows and blocks of 16 vectors, in f32 or f64.
#pragma once

#include "kernels/codes.hpp"
#include "kernels/kernel.hpp"
#include "kernels/row_blocks.hpp"
#include "simd/vec.hpp"

namespace engine {

namespace ENGINE_ISA_NS {
namespace {

template <class C>
struct Lanes {
  typedef C Vector __attribute__((vector_size(simd::kVectorBytes)));
  typedef C Unaligned __attribute__((vector_size(simd::kVectorBytes), aligned(sizeof(C)), may_alias));
  static constexpr int kCount = simd::kVectorBytes / sizeof(C);
  static constexpr int kVectors = kRowBlock / kCount;
  static ENGINE_ALWAYS_INLINE Vector load(const C* from) { return *reinterpret_cast<const Unaligned*>(from); }
  static ENGINE_ALWAYS_INLINE void store(C* to, Vector value) { *reinterpret_cast<Unaligned*>(to) = value; }
};

ENGINE_INLINE simd::Vec add_product(simd::Vec a, simd::Vec b, simd::Vec sum) {
  return simd::fma(a, b, sum);
}
ENGINE_INLINE Lanes<double>::Vector add_product(Lanes<double>::Vector a, Lanes<double>::Vector b,
                                                Lanes<double>::Vector sum) {
  return a * b + sum;
}

// The products, or squared distances, of kRows rows and the 16 vectors of a block [features, 16]: found [kRows, 16].
template <class C, int kRows, bool is_distance>
ENGINE_NOINLINE void small_row_products(const C* vectors, const C* x, std::int64_t features, C* found) {
  using L = Lanes<C>;
  typename L::Vector total[kRows][L::kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 8
    for (int i = 0; i < L::kVectors; ++i) total[row][i] = typename L::Vector{};
  for (std::int64_t f = 0; f < features; ++f) {
    typename L::Vector vector[L::kVectors];
    for (int i = 0; i < L::kVectors; ++i) vector[i] = L::load(vectors + f * kRowBlock + i * L::kCount);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const typename L::Vector value = x[row * features + f] - typename L::Vector{};
#pragma GCC unroll 8
      for (int i = 0; i < L::kVectors; ++i) {
        const typename L::Vector difference = vector[i] - value;
        total[row][i] = is_distance ? add_product(difference, difference, total[row][i])
                                    : add_product(vector[i], value, total[row][i]);
      }
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 8
    for (int i = 0; i < L::kVectors; ++i) L::store(found + row * kRowBlock + i * L::kCount, total[row][i]);
}

// The same; of a narrow instruction set, in parts whose sums stay in registers.
template <class C, int kRows, bool is_distance>
ENGINE_INLINE void row_products(const C* vectors, const C* x, std::int64_t features, C* found) {
  constexpr int kSmall = kRows == 1 || Lanes<C>::kVectors == 1 ? kRows : kRows / 2;
  for (int row = 0; row < kRows; row += kSmall)
    small_row_products<C, kSmall, is_distance>(vectors, x + row * features, features, found + row * kRowBlock);
}

// Elements of another type.
template <class In, class C>
void convert_rows(const void* from, std::int64_t begin, std::int64_t count, C* to) {
  const In* x = static_cast<const In*>(from) + begin;
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<C>(x[i]);
}

template <class C>
void read_rows(ElementCode type, const void* from, std::int64_t begin, std::int64_t count, C* to) {
  if (type == ElementCode::kF32) convert_rows<float>(from, begin, count, to);
  if (type == ElementCode::kF64) convert_rows<double>(from, begin, count, to);
  if (type == ElementCode::kI32) convert_rows<std::int32_t>(from, begin, count, to);
  if (type == ElementCode::kI64) convert_rows<std::int64_t>(from, begin, count, to);
}

}  // namespace
}  // namespace ENGINE_ISA_NS

}  // namespace engine

// Writes blocks of sums, which tiles of AMX have computed, as results: what the tiles of other instruction sets do in
// registers. Included by kernel files only.
#pragma once

#include "kernels/activation.hpp"
#include "kernels/requantize_vector.hpp"
#include "kernels/tile_bf16.hpp"
#include "kernels/tile_int8.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

constexpr int kSumsRow = 32;   // sums are [rows][32]
constexpr int kMostRows = 32;  // of a call
constexpr int kQuad = 4;       // rows that are written together

// Which row of y each row of a product is; -1: it is dropped.
struct RowPlaces {
  const std::int32_t* listed;  // or null: all are in order
  std::int64_t rows;
  ENGINE_ALWAYS_INLINE std::int64_t operator()(std::int64_t row) const {
    return listed ? listed[row] : row < rows ? row : -1;
  }
};

// Where four rows are. Dropped rows are written to a place that nobody reads.
struct QuadPlaces {
  std::int64_t place[kQuad];
  ENGINE_ALWAYS_INLINE QuadPlaces(const RowPlaces& places, std::int64_t row) {
    for (int i = 0; i < kQuad; ++i) place[i] = places(row + i);
  }
  ENGINE_ALWAYS_INLINE bool is_whole() const { return place[0] >= 0 && place[kQuad - 1] == place[0] + kQuad - 1; }
  ENGINE_ALWAYS_INLINE char* to(int i, char* y, std::int64_t row_bytes, char* dropped) const {
    return place[i] < 0 ? dropped : y + place[i] * row_bytes;
  }
  ENGINE_ALWAYS_INLINE const char* from(int i, const char* residual, std::int64_t row_bytes) const {
    return place[i] < 0 ? residual : residual + place[i] * row_bytes;
  }
};

// A matrix in elements: rows, and blocks of 16 columns, are this far apart.
template <class Pointer>
struct MatrixRows {
  Pointer data;  // or null
  std::int64_t row, block;
  ENGINE_ALWAYS_INLINE Pointer at(std::int64_t r, std::int64_t column) const {
    return data.data ? data + (r * row + column / 16 * block) : data;
  }
};

ENGINE_INLINE simd::Vec load_either(EitherPointer<const char> from) {
  return from.element_bytes == 2 ? simd::load(reinterpret_cast<const Bf16*>(from.data))
                                 : simd::load(reinterpret_cast<const float*>(from.data));
}
ENGINE_INLINE void store_either(EitherPointer<char> to, simd::Vec value) {
  if (to.element_bytes == 2)
    simd::store(reinterpret_cast<Bf16*>(to.data), value);
  else
    simd::store(reinterpret_cast<float*>(to.data), value);
}

// Sums of f32, as EpilogueArgs say. Set the fields, then call prepare.
struct MixedWriter {
  const EpilogueArgs* epilogue;
  const float *bias, *scale;  // or null; for columns rounded up to 16
  MatrixRows<EitherPointer<const char>> residual;
  MatrixRows<EitherPointer<char>> y;
  RowPlaces places;
  std::int64_t columns;
  bool is_whole;  // whether the last block of y and of the residual has 16 columns in memory

  void prepare() {
    low = simd::broadcast(epilogue->alpha);
    high = simd::broadcast(epilogue->beta);
    const bool is_clip = epilogue->activation == Activation::kClip;
    const bool has_residual = residual.data.data != nullptr, is_bf16 = y.data.element_bytes == 2;
    const bool is_usual = is_clip && !(has_residual && (epilogue->residual_after || residual.data.element_bytes != 2));
    if (!is_usual)
      write_fn = &MixedWriter::write_any;
    else if (has_residual)
      write_fn = is_bf16 ? &MixedWriter::write_clipped<true, Bf16> : &MixedWriter::write_clipped<true, float>;
    else
      write_fn = is_bf16 ? &MixedWriter::write_clipped<false, Bf16> : &MixedWriter::write_clipped<false, float>;
  }

  // Up to 32 columns from `column`; sums are readable for a multiple of four rows. Unless is_whole, places are not
  // listed.
  ENGINE_ALWAYS_INLINE void write(const float* sums, int count, std::int64_t row, std::int64_t column) const {
    for (int half = 0; half < 2 && column < columns; ++half, column += 16, sums += 16) {
      const Target target = {places, y.at(0, column), y.row, residual.at(0, column), residual.row};
      if (is_whole || column + 16 <= columns)
        (this->*write_fn)(sums, count, row, column, target);
      else
        write_partial(sums, count, row, column, target);
    }
  }

 private:
  // Sixteen columns of y and of the residual.
  struct Target {
    RowPlaces places;
    EitherPointer<char> y;
    std::int64_t y_row;
    EitherPointer<const char> residual;
    std::int64_t residual_row;
  };
  using WriteFn = void (MixedWriter::*)(const float* sums, int count, std::int64_t row, std::int64_t column,
                                        const Target& target) const;

  simd::Vec low, high;
  WriteFn write_fn;

  // Clipped results, with a residual of bf16, if any.
  template <bool kHasResidual, class Result>
  ENGINE_NOINLINE void write_clipped(const float* sums, int count, std::int64_t row, std::int64_t column,
                                     const Target& target) const {
    using namespace simd;
    const std::int64_t to_bytes = target.y_row * static_cast<std::int64_t>(sizeof(Result));
    const std::int64_t from_bytes = target.residual_row * 2;
    alignas(64) char dropped[64];
    for (int v = 0; v < kVectorsPerBlock; ++v, column += kLanes) {
      const Vec factor = scale ? load(scale + column) : broadcast(1.0f), offset = bias ? load(bias + column) : zero();
      const char* const from = target.residual.data + v * kLanes * 2;
      char* const to = target.y.data + v * kLanes * static_cast<std::int64_t>(sizeof(Result));
      const float* at = sums + v * kLanes;
      for (int r = 0; r < count; r += kQuad, at += kQuad * kSumsRow) {
        const QuadPlaces quad(target.places, row + r);
        Vec values[kQuad];
#pragma GCC unroll 4
        for (int i = 0; i < kQuad; ++i) {
          Vec value = fma(load(at + i * kSumsRow), factor, offset);
          if constexpr (kHasResidual) value += load(reinterpret_cast<const Bf16*>(quad.from(i, from, from_bytes)));
          values[i] = min(high, max(low, value));
        }
#if defined(__AVX512BF16__)
        if (sizeof(Result) == 2 && to_bytes == 32 && quad.is_whole()) {
          char* whole = to + quad.place[0] * 32;
          store_pairs(whole, values[0], values[1]);
          store_pairs(whole + 64, values[2], values[3]);
          continue;
        }
#endif
#pragma GCC unroll 4
        for (int i = 0; i < kQuad; ++i) store(reinterpret_cast<Result*>(quad.to(i, to, to_bytes, dropped)), values[i]);
      }
    }
  }

#if defined(__AVX512BF16__)
  // Sixteen values of bf16, and sixteen more.
  static ENGINE_ALWAYS_INLINE void store_pairs(char* to, simd::Vec first, simd::Vec second) {
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
  }
#endif

  ENGINE_NOINLINE void write_any(const float* sums, int count, std::int64_t row, std::int64_t column,
                                 const Target& target) const {
    using namespace simd;
    const EpilogueArgs& args = *epilogue;
    const bool has_residual = target.residual.data != nullptr, is_after = args.residual_after;
    for (int v = 0; v < kVectorsPerBlock; ++v) {
      const Vec factor = scale ? load(scale + column + v * kLanes) : broadcast(1.0f);
      const Vec offset = bias ? load(bias + column + v * kLanes) : zero();
      for (int r = 0; r < count; r += kQuad) {
        const QuadPlaces quad(target.places, row + r);
        const auto load_residual = [&](int i) {
          const std::int64_t place = quad.place[i] < 0 ? 0 : quad.place[i];
          return load_either(target.residual + (place * target.residual_row + v * kLanes));
        };
        alignas(64) float lanes[kQuad * kLanes];
        for (int i = 0; i < kQuad; ++i) {
          Vec value = fma(load(sums + (r + i) * kSumsRow + v * kLanes), factor, offset);
          if (has_residual && !is_after) value += load_residual(i);
          store(lanes + i * kLanes, value);
        }
        finish_column(args, kQuad, lanes, kLanes, nullptr, 0);
        for (int i = 0; i < kQuad; ++i) {
          if (quad.place[i] < 0) continue;
          Vec value = load(lanes + i * kLanes);
          if (has_residual && is_after) value += load_residual(i);
          store_either(target.y + (quad.place[i] * target.y_row + v * kLanes), value);
        }
      }
    }
  }

  // The last columns of rows: computes a block aside.
  ENGINE_NOINLINE void write_partial(const float* sums, int count, std::int64_t row, std::int64_t column,
                                     const Target& target) const {
    alignas(64) float from[kMostRows * 16] = {}, result[kMostRows * 16];
    const int rows = static_cast<int>(places.rows - row < count ? places.rows - row : count);
    const int valid = static_cast<int>(columns - column);
    if (target.residual.data)
      for (int r = 0; r < rows; ++r)
        for (int i = 0; i < valid; ++i) {
          const auto added = target.residual + ((row + r) * target.residual_row + i);
          from[r * 16 + i] = added.element_bytes == 2 ? to_f32(*reinterpret_cast<const Bf16*>(added.data))
                                                      : *reinterpret_cast<const float*>(added.data);
        }
    const bool has_residual = target.residual.data != nullptr;
    write_any(sums, count, 0, column,
              {{nullptr, kMostRows},
               {reinterpret_cast<char*>(result), 4},
               16,
               {has_residual ? reinterpret_cast<const char*>(from) : nullptr, 4},
               16});
    for (int r = 0; r < rows; ++r)
      for (int i = 0; i < valid; ++i) {
        const auto to = target.y + ((row + r) * target.y_row + i);
        if (to.element_bytes == 2)
          *reinterpret_cast<Bf16*>(to.data) = to_bf16(result[r * 16 + i]);
        else
          *reinterpret_cast<float*>(to.data) = result[r * 16 + i];
      }
  }
};

// Sums of i32, as RequantizeArgs say. Set the fields, then call prepare.
struct IntegerWriter {
  const RequantizeArgs* requantize;
  const std::int32_t* start;  // added to sums; for columns rounded up to 16, as are the scale and the biases
  const float *scale, *bias, *middle_bias;  // biases: or null
  MatrixRows<SizedPointer<const char>> residual;
  MatrixRows<SizedPointer<char>> y;
  RowPlaces places;
  std::int64_t columns;
  bool is_whole;

  void prepare() {
    using namespace simd;
    const RequantizeArgs& args = *requantize;
    const bool is_clip = args.epilogue.activation == Activation::kClip, has_residual = residual.data.data != nullptr;
    const bool is_codes = is_clip && element_bytes_of(args.y) == 1;
    const bool is_real = is_clip && args.y == ElementCode::kF32;
    const bool is_byte_residual = !has_residual || element_bytes_of(args.residual) == 1;
    const bool is_real_residual = !has_residual || args.residual == ElementCode::kF32;
    low = broadcast(is_real ? args.epilogue.alpha : args.low);
    high = broadcast(is_real ? args.epilogue.beta : args.high);
    middle_low = broadcast(args.middle_low);
    middle_high = broadcast(args.middle_high);
    middle_scale = broadcast(args.middle_scale);
    is_signed = args.y == ElementCode::kI8;
    flip = args.residual == ElementCode::kI8 ? 128 : 0;
    residual_offset = broadcast(-args.residual_zero_point - static_cast<float>(flip));
    residual_scale = broadcast(args.residual_scale);
    // Saturation clips at the bounds of the type; the upper bound is also needed, since conversion to integers wraps.
    has_low = args.low > static_cast<float>((is_signed ? -128 : 0) - args.zero_point);
    if (is_codes && is_byte_residual)
      write_fn = pick<true>(has_residual, args.has_middle);
    else if (is_real && is_real_residual)
      write_fn = pick<false>(has_residual, args.has_middle);
    else
      write_fn = &IntegerWriter::write_any;
  }

  ENGINE_ALWAYS_INLINE void write(const std::int32_t* sums, int count, std::int64_t row, std::int64_t column) const {
    for (int half = 0; half < 2 && column < columns; ++half, column += 16, sums += 16) {
      const Target target = {places, y.at(0, column), y.row, residual.at(0, column), residual.row};
      if (is_whole || column + 16 <= columns)
        (this->*write_fn)(sums, count, row, column, target);
      else
        write_partial(sums, count, row, column, target);
    }
  }

 private:
  // Sixteen columns of y and of the residual.
  struct Target {
    RowPlaces places;
    SizedPointer<char> y;
    std::int64_t y_row;
    SizedPointer<const char> residual;
    std::int64_t residual_row;
  };
  using WriteFn = void (IntegerWriter::*)(const std::int32_t* sums, int count, std::int64_t row, std::int64_t column,
                                          const Target& target) const;

  simd::Vec low, high, middle_low, middle_high, middle_scale, residual_offset, residual_scale;
  WriteFn write_fn;
  std::int32_t flip;
  bool is_signed, has_low;

  template <bool kIsCodes>
  static WriteFn pick(bool has_residual, bool has_middle) {
    if (has_residual)
      return has_middle ? &IntegerWriter::write_clipped<kIsCodes, true, true>
                        : &IntegerWriter::write_clipped<kIsCodes, true, false>;
    return has_middle ? &IntegerWriter::write_clipped<kIsCodes, false, true>
                      : &IntegerWriter::write_clipped<kIsCodes, false, false>;
  }

  // Clipped results and a residual, if any: both of 8 bits, or both of f32.
  template <bool kIsCodes, bool kHasResidual, bool kHasMiddle>
  ENGINE_NOINLINE void write_clipped(const std::int32_t* sums, int count, std::int64_t row, std::int64_t column,
                                     const Target& target) const {
    using namespace simd;
    constexpr std::int64_t kBytes = kIsCodes ? 1 : 4;
    const std::int64_t to_bytes = target.y_row * kBytes, from_bytes = target.residual_row * kBytes;
    for (int v = 0; v < kVectorsPerBlock; ++v, column += kLanes) {
      const VecInt first = load_ints(start + column);
      const Vec factor = load(scale + column), offset = bias ? load(bias + column) : zero();
      const Vec late = kHasMiddle && middle_bias ? load(middle_bias + column) : zero();
      const char* const from = target.residual.data + v * kLanes * kBytes;
      char* const to = target.y.data + v * kLanes * kBytes;
      const std::int32_t* at = sums + v * kLanes;
      for (int r = 0; r < count; r += kQuad, at += kQuad * kSumsRow) {
        const QuadPlaces quad(target.places, row + r);
        Vec values[kQuad];
#pragma GCC unroll 4
        for (int i = 0; i < kQuad; ++i) {
          Vec value = fma(to_floats(load_ints(at + i * kSumsRow) + first), factor, offset);
          if constexpr (kHasMiddle) value = fma(round_within(middle_low, middle_high, value), middle_scale, late);
          if constexpr (kHasResidual) {
            const char* added = quad.from(i, from, from_bytes);
            const Vec codes = kIsCodes ? load_bytes(reinterpret_cast<const std::uint8_t*>(added), flip)
                                       : load(reinterpret_cast<const float*>(added));
            value = fma(codes + residual_offset, residual_scale, value);
          }
          values[i] = value;
        }
        if constexpr (kIsCodes)
          store_codes(values, quad, to, to_bytes);
        else
          store_floats(values, quad, to, to_bytes);
      }
    }
  }

  ENGINE_ALWAYS_INLINE void store_floats(const simd::Vec (&values)[kQuad], const QuadPlaces& quad, char* to,
                                         std::int64_t to_bytes) const {
    using namespace simd;
    alignas(64) char dropped[64];
#pragma GCC unroll 4
    for (int i = 0; i < kQuad; ++i)
      store(reinterpret_cast<float*>(quad.to(i, to, to_bytes, dropped)), min(high, max(low, values[i])));
  }

  ENGINE_ALWAYS_INLINE void store_codes(simd::Vec (&values)[kQuad], const QuadPlaces& quad, char* to,
                                        std::int64_t to_bytes) const {
    using namespace simd;
    VecInt codes[kQuad];
    alignas(64) char dropped[64];
#if defined(__AVX512BW__)
    if (has_low)
#pragma GCC unroll 4
      for (Vec& value : values) value = max(low, value);
#pragma GCC unroll 4
    for (int i = 0; i < kQuad; ++i) codes[i] = round_to_ints(min(high, values[i]));
    const __m512i zero_point = (__m512i)(static_cast<std::int16_t>(requantize->zero_point) - VecShort{});
    if (to_bytes == kBlock && quad.is_whole()) {
      auto* at = reinterpret_cast<std::uint8_t*>(to + quad.place[0] * kBlock);
      return store_saturated<kQuad>(at, codes, zero_point, is_signed);
    }
    alignas(64) char rows[kQuad * kBlock];
    _mm512_store_si512(rows, saturate<kQuad>(codes, zero_point, is_signed));
#pragma GCC unroll 4
    for (int i = 0; i < kQuad; ++i) std::memcpy(quad.to(i, to, to_bytes, dropped), rows + i * kBlock, kBlock);
#else
    for (int i = 0; i < kQuad; ++i) codes[i] = round_to_ints(min(high, max(low, values[i]))) + requantize->zero_point;
    for (int i = 0; i < kQuad; ++i)
      store_bytes(reinterpret_cast<std::uint8_t*>(quad.to(i, to, to_bytes, dropped)), codes[i]);
#endif
  }

  ENGINE_NOINLINE void write_any(const std::int32_t* sums, int count, std::int64_t row, std::int64_t column,
                                 const Target& target) const {
    using namespace simd;
    const RequantizeArgs& args = *requantize;
    for (int v = 0; v < kVectorsPerBlock; ++v, column += kLanes) {
      const VecInt first = load_ints(start + column);
      const Vec factor = load(scale + column), offset = bias ? load(bias + column) : zero();
      const Vec late = middle_bias ? load(middle_bias + column) : zero();
      for (int r = 0; r < count; ++r) {
        const std::int64_t place = target.places(row + r);
        if (place < 0) continue;
        const VecInt sum = load_ints(sums + r * kSumsRow + v * kLanes) + first;
        char* at = (target.y + (place * target.y_row + v * kLanes)).data;
        const char* added =
            target.residual.data ? (target.residual + (place * target.residual_row + v * kLanes)).data : nullptr;
        if (args.y == ElementCode::kI32)
          store_ints(reinterpret_cast<std::int32_t*>(at), sum);
        else
          ENGINE_ISA_NS::requantize(args, fma(to_floats(sum), factor, offset), added, at, late);
      }
    }
  }

  // The last columns of rows: computes a block aside.
  ENGINE_NOINLINE void write_partial(const std::int32_t* sums, int count, std::int64_t row, std::int64_t column,
                                     const Target& target) const {
    alignas(64) char from[kMostRows * 16 * 4] = {}, result[kMostRows * 16 * 4];
    const int rows = static_cast<int>(places.rows - row < count ? places.rows - row : count);
    const std::int64_t valid = columns - column, from_bytes = target.residual.element_bytes;
    const std::int64_t to_bytes = target.y.element_bytes;
    const bool has_residual = target.residual.data != nullptr;
    if (has_residual)
      for (int r = 0; r < rows; ++r)
        std::memcpy(from + r * 16 * from_bytes, (target.residual + (row + r) * target.residual_row).data,
                    static_cast<std::size_t>(valid * from_bytes));
    write_any(sums, count, 0, column,
              {{nullptr, kMostRows},
               {result, target.y.element_bytes},
               16,
               {has_residual ? from : nullptr, target.residual.element_bytes},
               16});
    for (int r = 0; r < rows; ++r)
      std::memcpy((target.y + (row + r) * target.y_row).data, result + r * 16 * to_bytes,
                  static_cast<std::size_t>(valid * to_bytes));
  }
};

}  // namespace
}  // namespace engine::ENGINE_ISA_NS

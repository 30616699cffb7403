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

// Where the sixteen columns of four rows are. Dropped rows are written to a place that nobody reads.
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

// Sums of f32, as EpilogueArgs say.
struct MixedWriter {
  const EpilogueArgs* epilogue;
  const float *bias, *scale;  // or null; for columns rounded up to 16
  MatrixRows<EitherPointer<const char>> residual;
  MatrixRows<EitherPointer<char>> y;
  RowPlaces places;
  std::int64_t columns;
  bool is_whole;  // whether the last block of y and of the residual has 16 columns in memory

  // Up to 32 columns from `column`; sums are readable for a multiple of four rows. Unless is_whole, places are not
  // listed.
  ENGINE_NOINLINE void write(const float* sums, int count, std::int64_t row, std::int64_t column) const {
    for (int half = 0; half < 2 && column < columns; ++half, column += 16, sums += 16) {
      const EitherPointer<char> to = y.at(0, column);
      const EitherPointer<const char> added = residual.at(0, column);
      if (is_whole || column + 16 <= columns)
        write_block(sums, count, row, column, places, to, y.row, added, residual.row);
      else
        write_partial(sums, count, row, column, to, added, static_cast<int>(columns - column));
    }
  }

 private:
  void write_block(const float* sums, int count, std::int64_t row, std::int64_t column, const RowPlaces& of_rows,
                   EitherPointer<char> to, std::int64_t to_row, EitherPointer<const char> added,
                   std::int64_t added_row) const {
    using namespace simd;
    const EpilogueArgs& args = *epilogue;
    const bool has_residual = residual.data.data != nullptr, is_after = args.residual_after;
    const bool is_clip = args.activation == Activation::kClip;
    const Vec low = broadcast(args.alpha), high = broadcast(args.beta);
    const std::int64_t to_bytes = to_row * to.element_bytes, added_bytes = added_row * added.element_bytes;
    alignas(64) char dropped[64];
    for (int v = 0; v < kVectorsPerBlock; ++v) {
      const Vec factor = scale ? load(scale + column + v * kLanes) : broadcast(1.0f);
      const Vec offset = bias ? load(bias + column + v * kLanes) : zero();
      const EitherPointer<char> y_at = to + v * kLanes;
      const EitherPointer<const char> added_at = added + v * kLanes;
      for (int r = 0; r < count; r += kQuad) {
        const QuadPlaces quad(of_rows, row + r);
        const auto load_residual = [&](int i) {
          return load_either({quad.from(i, added_at.data, added_bytes), added_at.element_bytes});
        };
        Vec values[kQuad];
        for (int i = 0; i < kQuad; ++i) {
          values[i] = fma(load(sums + (r + i) * kSumsRow + v * kLanes), factor, offset);
          if (has_residual && !is_after) values[i] += load_residual(i);
        }
        if (is_clip) {
          for (Vec& value : values) value = min(high, max(low, value));
        } else {
          alignas(64) float lanes[kQuad * kLanes];
          for (int i = 0; i < kQuad; ++i) store(lanes + i * kLanes, values[i]);
          finish_column(args, kQuad, lanes, kLanes, nullptr, 0);
          for (int i = 0; i < kQuad; ++i) values[i] = load(lanes + i * kLanes);
        }
        for (int i = 0; i < kQuad; ++i) {
          if (has_residual && is_after) values[i] += load_residual(i);
          store_either({quad.to(i, y_at.data, to_bytes, dropped), to.element_bytes}, values[i]);
        }
      }
    }
  }

  // The last columns of rows: computes a block aside.
  ENGINE_NOINLINE void write_partial(const float* sums, int count, std::int64_t row, std::int64_t column,
                                     EitherPointer<char> to, EitherPointer<const char> added, int valid) const {
    alignas(64) float from[kMostRows * 16] = {}, result[kMostRows * 16];
    count = static_cast<int>(places.rows - row < count ? places.rows - row : count);
    to = to + row * y.row;
    if (added.data) added = added + row * residual.row;
    if (added.data)
      for (int r = 0; r < count; ++r)
        for (int i = 0; i < valid; ++i) {
          const char* at = (added + (r * residual.row + i)).data;
          from[r * 16 + i] = added.element_bytes == 2 ? to_f32(*reinterpret_cast<const Bf16*>(at))
                                                      : *reinterpret_cast<const float*>(at);
        }
    write_block(sums, count, 0, column, {nullptr, kMostRows}, {reinterpret_cast<char*>(result), 4}, 16,
                {reinterpret_cast<const char*>(from), 4}, 16);
    for (int r = 0; r < count; ++r)
      for (int i = 0; i < valid; ++i) {
        char* at = (to + (r * y.row + i)).data;
        if (to.element_bytes == 2)
          *reinterpret_cast<Bf16*>(at) = to_bf16(result[r * 16 + i]);
        else
          *reinterpret_cast<float*>(at) = result[r * 16 + i];
      }
  }
};

// Sums of i32, as RequantizeArgs say.
struct IntegerWriter {
  const RequantizeArgs* requantize;
  const std::int32_t* start;  // added to sums; for columns rounded up to 16, as are the scale and the biases
  const float *scale, *bias, *middle_bias;  // biases: or null
  MatrixRows<SizedPointer<const char>> residual;
  MatrixRows<SizedPointer<char>> y;
  RowPlaces places;
  std::int64_t columns;
  bool is_whole;

  ENGINE_NOINLINE void write(const std::int32_t* sums, int count, std::int64_t row, std::int64_t column) const {
    for (int half = 0; half < 2 && column < columns; ++half, column += 16, sums += 16) {
      const SizedPointer<char> to = y.at(0, column);
      const SizedPointer<const char> added = residual.at(0, column);
      if (is_whole || column + 16 <= columns)
        write_block(sums, count, row, column, places, to, y.row, added, residual.row);
      else
        write_partial(sums, count, row, column, to, added, static_cast<int>(columns - column));
    }
  }

 private:
  void write_block(const std::int32_t* sums, int count, std::int64_t row, std::int64_t column, const RowPlaces& of_rows,
                   SizedPointer<char> to, std::int64_t to_row, SizedPointer<const char> added,
                   std::int64_t added_row) const {
    using namespace simd;
    const RequantizeArgs& args = *requantize;
    const bool has_residual = residual.data.data != nullptr, is_clip = args.epilogue.activation == Activation::kClip;
    const bool is_codes =
        is_clip && element_bytes_of(args.y) == 1 && (!has_residual || element_bytes_of(args.residual) == 1);
    const bool is_real =
        is_clip && args.y == ElementCode::kF32 && (!has_residual || args.residual == ElementCode::kF32);
    const std::int64_t to_bytes = to_row * to.element_bytes, added_bytes = added_row * added.element_bytes;
    for (int v = 0; v < kVectorsPerBlock; ++v) {
      const Columns of_columns = {load_ints(start + column + v * kLanes), load(scale + column + v * kLanes),
                                  bias ? load(bias + column + v * kLanes) : zero(),
                                  middle_bias ? load(middle_bias + column + v * kLanes) : zero()};
      char* y_at = (to + v * kLanes).data;
      const char* added_at = has_residual ? (added + v * kLanes).data : nullptr;
      for (int r = 0; r < count; r += kQuad) {
        const QuadPlaces quad(of_rows, row + r);
        const std::int32_t* at = sums + r * kSumsRow + v * kLanes;
        if (is_codes)
          write_codes(at, quad, of_columns, y_at, to_bytes, added_at, added_bytes);
        else if (is_real)
          write_floats(at, quad, of_columns, y_at, to_bytes, added_at, added_bytes);
        else
          write_any(at, quad, of_columns, y_at, to_bytes, added_at, added_bytes);
      }
    }
  }

  // What kLanes columns have in common.
  struct Columns {
    simd::VecInt start;
    simd::Vec scale, bias, middle_bias;
  };

  // The scaled sum, rounded in the middle, if it is.
  ENGINE_ALWAYS_INLINE simd::Vec scaled(const std::int32_t* sums, const Columns& c) const {
    using namespace simd;
    const RequantizeArgs& args = *requantize;
    const Vec value = fma(to_floats(load_ints(sums) + c.start), c.scale, c.bias);
    if (!args.has_middle) return value;
    return fma(round_within(broadcast(args.middle_low), broadcast(args.middle_high), value),
               broadcast(args.middle_scale), c.middle_bias);
  }

  // Clipped results of 8 bits, with a residual of 8 bits, if any.
  ENGINE_ALWAYS_INLINE void write_codes(const std::int32_t* sums, const QuadPlaces& quad, const Columns& columns,
                                        char* to, std::int64_t to_bytes, const char* added,
                                        std::int64_t added_bytes) const {
    using namespace simd;
    const RequantizeArgs& args = *requantize;
    const std::int32_t flip = args.residual == ElementCode::kI8 ? 128 : 0;
    const Vec residual_scale = broadcast(args.residual_scale);
    const Vec residual_offset = broadcast(-args.residual_zero_point - static_cast<float>(flip));
    Vec values[kQuad];
    for (int i = 0; i < kQuad; ++i) {
      values[i] = scaled(sums + i * kSumsRow, columns);
      if (added) {
        const auto* codes = reinterpret_cast<const std::uint8_t*>(quad.from(i, added, added_bytes));
        values[i] = fma(load_bytes(codes, flip) + residual_offset, residual_scale, values[i]);
      }
    }
    alignas(64) char dropped[64];
    const Vec high = broadcast(args.high);
    VecInt codes[kQuad];
#if defined(__AVX512BW__)
    const bool is_signed = args.y == ElementCode::kI8;
    const __m512i zero_point = (__m512i)(static_cast<std::int16_t>(args.zero_point) - VecShort{});
    // Saturation clips at the bounds of the type; the upper bound is also needed, since conversion to integers wraps.
    if (args.low > static_cast<float>((is_signed ? -128 : 0) - args.zero_point))
      for (Vec& value : values) value = max(broadcast(args.low), value);
    for (int i = 0; i < kQuad; ++i) codes[i] = round_to_ints(min(high, values[i]));
    if (quad.is_whole() && to_bytes == kBlock) {
      auto* at = reinterpret_cast<std::uint8_t*>(to + quad.place[0] * kBlock);
      return store_saturated<kQuad>(at, codes, zero_point, is_signed);
    }
    alignas(64) char rows[kQuad * kBlock];
    _mm512_store_si512(rows, saturate<kQuad>(codes, zero_point, is_signed));
    for (int i = 0; i < kQuad; ++i) std::memcpy(quad.to(i, to, to_bytes, dropped), rows + i * kBlock, kBlock);
#else
    const Vec low = broadcast(args.low);
    for (int i = 0; i < kQuad; ++i) codes[i] = round_to_ints(min(high, max(low, values[i]))) + args.zero_point;
    for (int i = 0; i < kQuad; ++i)
      store_bytes(reinterpret_cast<std::uint8_t*>(quad.to(i, to, to_bytes, dropped)), codes[i]);
#endif
  }

  // Clipped results of f32, with a residual of f32, if any.
  ENGINE_ALWAYS_INLINE void write_floats(const std::int32_t* sums, const QuadPlaces& quad, const Columns& columns,
                                         char* to, std::int64_t to_bytes, const char* added,
                                         std::int64_t added_bytes) const {
    using namespace simd;
    const RequantizeArgs& args = *requantize;
    const Vec low = broadcast(args.epilogue.alpha), high = broadcast(args.epilogue.beta);
    const Vec residual_scale = broadcast(args.residual_scale);
    alignas(64) char dropped[64];
    for (int i = 0; i < kQuad; ++i) {
      Vec value = scaled(sums + i * kSumsRow, columns);
      if (added) {
        const auto* floats = reinterpret_cast<const float*>(quad.from(i, added, added_bytes));
        value = fma(load(floats), residual_scale, value);
      }
      store(reinterpret_cast<float*>(quad.to(i, to, to_bytes, dropped)), min(high, max(low, value)));
    }
  }

  ENGINE_NOINLINE void write_any(const std::int32_t* sums, const QuadPlaces& quad, const Columns& columns, char* to,
                                 std::int64_t to_bytes, const char* added, std::int64_t added_bytes) const {
    using namespace simd;
    const RequantizeArgs& args = *requantize;
    for (int i = 0; i < kQuad; ++i) {
      if (quad.place[i] < 0) continue;
      char* at = to + quad.place[i] * to_bytes;
      const VecInt sum = load_ints(sums + i * kSumsRow) + columns.start;
      if (args.y == ElementCode::kI32)
        store_ints(reinterpret_cast<std::int32_t*>(at), sum);
      else
        ENGINE_ISA_NS::requantize(args, fma(to_floats(sum), columns.scale, columns.bias),
                                  added ? quad.from(i, added, added_bytes) : nullptr, at, columns.middle_bias);
    }
  }

  // The last columns of rows: computes a block aside.
  ENGINE_NOINLINE void write_partial(const std::int32_t* sums, int count, std::int64_t row, std::int64_t column,
                                     SizedPointer<char> to, SizedPointer<const char> added, int valid) const {
    alignas(64) char from[kMostRows * 16 * 4] = {}, result[kMostRows * 16 * 4];
    count = static_cast<int>(places.rows - row < count ? places.rows - row : count);
    to = to + row * y.row;
    if (added.data) added = added + row * residual.row;
    const std::int64_t from_bytes = added.element_bytes, to_bytes = to.element_bytes;
    if (added.data)
      for (int r = 0; r < count; ++r)
        std::memcpy(from + r * 16 * from_bytes, (added + r * residual.row).data,
                    static_cast<std::size_t>(valid * from_bytes));
    write_block(sums, count, 0, column, {nullptr, kMostRows}, {result, to.element_bytes}, 16,
                {from, added.element_bytes}, 16);
    for (int r = 0; r < count; ++r)
      std::memcpy((to + r * y.row).data, result + r * 16 * to_bytes, static_cast<std::size_t>(valid * to_bytes));
  }
};

}  // namespace
}  // namespace engine::ENGINE_ISA_NS

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
  std::int64_t columns;
  bool is_whole;  // whether the last block of y and of the residual has 16 columns in memory

  // Up to 32 columns from `column`.
  ENGINE_NOINLINE void write(const float* sums, int count, std::int64_t row, std::int64_t column) const {
    for (int half = 0; half < 2 && column < columns; ++half, column += 16, sums += 16) {
      const EitherPointer<char> to = y.at(row, column);
      const EitherPointer<const char> added = residual.at(row, column);
      if (is_whole || column + 16 <= columns)
        write_block(sums, count, column, to, y.row, added, residual.row);
      else
        write_partial(sums, count, column, to, added, static_cast<int>(columns - column));
    }
  }

 private:
  void write_block(const float* sums, int count, std::int64_t column, EitherPointer<char> to, std::int64_t to_row,
                   EitherPointer<const char> added, std::int64_t added_row) const {
    using namespace simd;
    const EpilogueArgs& args = *epilogue;
    const bool has_residual = residual.data.data != nullptr;
    const bool is_direct = args.activation == Activation::kClip && !(has_residual && args.residual_after);
    const Vec low = broadcast(args.alpha), high = broadcast(args.beta);
    alignas(64) float values[kMostRows * 16];
    for (int v = 0; v < kVectorsPerBlock; ++v) {
      const Vec factor = scale ? load(scale + column + v * kLanes) : broadcast(1.0f);
      const Vec offset = bias ? load(bias + column + v * kLanes) : zero();
      for (int r = 0; r < count; ++r) {
        Vec value = fma(load(sums + r * kSumsRow + v * kLanes), factor, offset);
        if (has_residual && !args.residual_after) value += load_either(added + (r * added_row + v * kLanes));
        if (is_direct)
          store_either(to + (r * to_row + v * kLanes), min(high, max(low, value)));
        else
          store(values + (v * count + r) * kLanes, value);
      }
    }
    if (is_direct) return;
    finish_column(args, count * kVectorsPerBlock, values, kLanes, nullptr, 0);
    for (int v = 0; v < kVectorsPerBlock; ++v)
      for (int r = 0; r < count; ++r) {
        Vec value = load(values + (v * count + r) * kLanes);
        if (has_residual && args.residual_after) value += load_either(added + (r * added_row + v * kLanes));
        store_either(to + (r * to_row + v * kLanes), value);
      }
  }

  // The last columns of rows: computes a block aside.
  ENGINE_NOINLINE void write_partial(const float* sums, int count, std::int64_t column, EitherPointer<char> to,
                                     EitherPointer<const char> added, int valid) const {
    alignas(64) float from[kMostRows * 16] = {}, result[kMostRows * 16];
    if (added.data)
      for (int r = 0; r < count; ++r)
        for (int i = 0; i < valid; ++i) {
          const char* at = (added + (r * residual.row + i)).data;
          from[r * 16 + i] = added.element_bytes == 2 ? to_f32(*reinterpret_cast<const Bf16*>(at))
                                                      : *reinterpret_cast<const float*>(at);
        }
    write_block(sums, count, column, {reinterpret_cast<char*>(result), 4}, 16, {reinterpret_cast<const char*>(from), 4},
                16);
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
  std::int64_t columns;
  bool is_whole;

  ENGINE_NOINLINE void write(const std::int32_t* sums, int count, std::int64_t row, std::int64_t column) const {
    for (int half = 0; half < 2 && column < columns; ++half, column += 16, sums += 16) {
      const SizedPointer<char> to = y.at(row, column);
      const SizedPointer<const char> added = residual.at(row, column);
      if (is_whole || column + 16 <= columns)
        write_block(sums, count, column, to, y.row, added, residual.row);
      else
        write_partial(sums, count, column, to, added, static_cast<int>(columns - column));
    }
  }

 private:
  void write_block(const std::int32_t* sums, int count, std::int64_t column, SizedPointer<char> to, std::int64_t to_row,
                   SizedPointer<const char> added, std::int64_t added_row) const {
    using namespace simd;
    const RequantizeArgs& args = *requantize;
    const bool has_residual = residual.data.data != nullptr;
    const bool is_common = args.epilogue.activation == Activation::kClip && element_bytes_of(args.y) == 1 &&
                           (!has_residual || element_bytes_of(args.residual) == 1);
    for (int v = 0; v < kVectorsPerBlock; ++v) {
      const VecInt first = load_ints(start + column + v * kLanes);
      const Vec factor = load(scale + column + v * kLanes);
      const Vec offset = bias ? load(bias + column + v * kLanes) : zero();
      const Vec late = middle_bias ? load(middle_bias + column + v * kLanes) : zero();
      if (is_common) {
        write_codes(sums + v * kLanes, count, first, factor, offset, late, to + v * kLanes, to_row,
                    has_residual ? added + v * kLanes : added, added_row);
        continue;
      }
      for (int r = 0; r < count; ++r) {
        const VecInt sum = load_ints(sums + r * kSumsRow + v * kLanes) + first;
        char* at = (to + (r * to_row + v * kLanes)).data;
        if (args.y == ElementCode::kI32)
          store_ints(reinterpret_cast<std::int32_t*>(at), sum);
        else
          ENGINE_ISA_NS::requantize(args, fma(to_floats(sum), factor, offset),
                                    has_residual ? (added + (r * added_row + v * kLanes)).data : nullptr, at, late);
      }
    }
  }

  // Clipped results of 8 bits, with a residual of 8 bits, if any: no condition in the loop depends on memory that it
  // writes.
  void write_codes(const std::int32_t* sums, int count, simd::VecInt first, simd::Vec factor, simd::Vec offset,
                   simd::Vec late, SizedPointer<char> to, std::int64_t to_row, SizedPointer<const char> added,
                   std::int64_t added_row) const {
    using namespace simd;
    const RequantizeArgs& args = *requantize;
    const bool has_residual = residual.data.data != nullptr, has_middle = args.has_middle;
    const Vec middle_low = broadcast(args.middle_low), middle_high = broadcast(args.middle_high);
    const Vec middle_scale = broadcast(args.middle_scale), residual_scale = broadcast(args.residual_scale);
    const std::int32_t flip = args.residual == ElementCode::kI8 ? 128 : 0;
    const Vec residual_offset = broadcast(-args.residual_zero_point - static_cast<float>(flip));
    const Vec low = broadcast(args.low), high = broadcast(args.high);
    const VecInt zero_point = args.zero_point - VecInt{};
    std::uint8_t* at = reinterpret_cast<std::uint8_t*>(to.data);
    const std::uint8_t* from = reinterpret_cast<const std::uint8_t*>(added.data);
    for (int r = 0; r < count; ++r, at += to_row) {
      Vec value = fma(to_floats(load_ints(sums + r * kSumsRow) + first), factor, offset);
      if (has_middle) value = fma(round_within(middle_low, middle_high, value), middle_scale, late);
      if (has_residual) value = fma(load_bytes(from + r * added_row, flip) + residual_offset, residual_scale, value);
      store_bytes(at, round_to_ints(min(high, max(low, value))) + zero_point);
    }
  }

  // The last columns of rows: computes a block aside.
  ENGINE_NOINLINE void write_partial(const std::int32_t* sums, int count, std::int64_t column, SizedPointer<char> to,
                                     SizedPointer<const char> added, int valid) const {
    alignas(64) char from[kMostRows * 16 * 4] = {}, result[kMostRows * 16 * 4];
    const std::int64_t from_bytes = added.element_bytes, to_bytes = to.element_bytes;
    if (added.data)
      for (int r = 0; r < count; ++r)
        std::memcpy(from + r * 16 * from_bytes, (added + r * residual.row).data,
                    static_cast<std::size_t>(valid * from_bytes));
    write_block(sums, count, column, {result, to.element_bytes}, 16, {from, added.element_bytes}, 16);
    for (int r = 0; r < count; ++r)
      std::memcpy((to + r * y.row).data, result + r * 16 * to_bytes, static_cast<std::size_t>(valid * to_bytes));
  }
};

}  // namespace
}  // namespace engine::ENGINE_ISA_NS

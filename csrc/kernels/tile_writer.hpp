// Writes blocks of sums, which tiles of AMX have computed, as results. The tiles of other instruction sets do this in
// registers. Included by kernel files only.
#pragma once

#include <cmath>
#include <cstring>

#include "kernels/activation.hpp"
#include "kernels/requantize_vector.hpp"
#include "kernels/tile_bf16.hpp"
#include "kernels/tile_int8.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

constexpr int kSumsRow = 32;    // sums are [rows][32]
constexpr int kBlockRows = 32;  // of a block
constexpr int kQuad = 4;        // rows that are written together

// The row of y that each row of a product is; -1: it is dropped.
struct RowPlaces {
  const std::int32_t* listed;  // or null: all are in order
  std::int64_t rows;
  bool is_spread;  // whether rows that are not dropped may be more than one place apart
  ENGINE_ALWAYS_INLINE std::int64_t operator()(std::int64_t row) const {
    return listed ? listed[row] : row < rows ? row : -1;
  }
};

// A matrix whose rows, and blocks of 16 columns, are this many bytes apart.
template <class Byte>
struct ByteMatrix {
  Byte* data;  // or null
  std::int64_t row, block;
  ENGINE_ALWAYS_INLINE Byte* at(std::int64_t r, std::int64_t column) const {
    return data ? data + r * row + column / 16 * block : nullptr;
  }
};

// A block of up to 32 rows and 32 columns of a product. `sums` are readable for all 32 rows.
template <class Sum>
struct TileBlock {
  const Sum* sums;
  std::int64_t row, column;
  std::int32_t rows;    // 0: there is none
  std::int32_t halves;  // of the columns, that have 16 columns in memory
  bool is_partial;      // whether a block with fewer follows
  bool is_adjacent;     // whether row r is at y + r * row, and so in the residual
  char* y[2];           // of each half, its first row, or row 0 of the matrix
  const char* residual[2];
};

// The common part of results of all types. Unless is_whole, places are not listed.
struct BlockWriter {
  const void* starts;  // the starts of sums, 4 bytes for each column rounded up to 16; or null: 0
  ByteMatrix<char> y;
  ByteMatrix<const char> residual;
  RowPlaces places;
  std::int64_t columns;
  bool is_whole;  // whether the last block of y and of the residual has 16 columns in memory

  template <class Sum>
  ENGINE_ALWAYS_INLINE TileBlock<Sum> begin(const Sum* sums, std::int64_t row, std::int64_t column,
                                            std::int64_t rows) const {
    TileBlock<Sum> block = {};
    block.sums = sums;
    block.row = row;
    block.column = column;
    block.rows = static_cast<std::int32_t>(rows);
    const std::int64_t left = columns - column;
    block.halves = left >= 32 || (is_whole && left > 16) ? 2 : left >= 16 || is_whole ? 1 : 0;
    block.is_partial = block.halves < 2 && left > block.halves * 16;
    const std::int64_t first = places(row);
    block.is_adjacent = !places.is_spread && first >= 0 && places(row + kBlockRows - 1) == first + kBlockRows - 1;
    for (int half = 0; half < 2; ++half) {
      block.y[half] = y.at(block.is_adjacent ? first : 0, column + half * 16);
      block.residual[half] = residual.at(block.is_adjacent ? first : 0, column + half * 16);
    }
    return block;
  }
};

// The places of four rows of y, and of the residual.
struct Quad {
  char* y[kQuad];
  const char* residual[kQuad];
  bool is_adjacent;  // by `row` bytes
};

// The residual that dropped rows read, since other workers may be writing the real one.
[[maybe_unused]] alignas(64) static const char kNoResidual[64] = {};

// The rows of `half` from `first`. Dropped rows are written to `dropped`, which nobody reads.
template <class Sum>
ENGINE_ALWAYS_INLINE Quad quad_of(const BlockWriter& writer, const TileBlock<Sum>& block, int half, std::int64_t first,
                                  char* dropped) {
  const std::int64_t to_row = writer.y.row, from_row = writer.residual.row;
  Quad quad;
  std::int64_t place[kQuad];
  for (int i = 0; i < kQuad; ++i) {
    place[i] = block.is_adjacent ? first + i : writer.places(block.row + first + i);
    quad.y[i] = place[i] < 0 ? dropped : block.y[half] + place[i] * to_row;
    quad.residual[i] = place[i] < 0 ? kNoResidual : block.residual[half] + place[i] * from_row;
  }
  quad.is_adjacent = !writer.places.is_spread && place[0] >= 0 && place[kQuad - 1] == place[0] + kQuad - 1;
  return quad;
}

// Calls write with each quad of rows of `half`.
template <class Sum, class Write>
ENGINE_ALWAYS_INLINE void for_quads(const BlockWriter& writer, const TileBlock<Sum>& block, int half,
                                    std::int64_t first, std::int64_t end, const Write& write) {
  const Sum* sums = block.sums + first * kSumsRow + half * 16;
  if (!block.is_adjacent) {
    alignas(64) char dropped[64];
    for (std::int64_t r = first; r < end; r += kQuad, sums += kQuad * kSumsRow)
      write(sums, quad_of(writer, block, half, r, dropped));
    return;
  }
  const std::int64_t to_row = writer.y.row, from_row = writer.residual.row;
  char* y = block.y[half] + first * to_row;
  const char* residual = block.residual[half] + first * from_row;
  for (std::int64_t r = first; r < end; r += kQuad, sums += kQuad * kSumsRow) {
    Quad quad;
    for (int i = 0; i < kQuad; ++i, y += to_row, residual += from_row) {
      quad.y[i] = y;
      quad.residual[i] = residual;
    }
    quad.is_adjacent = true;
    write(sums, quad);
  }
}

// Sums of f32, as EpilogueArgs say. Set the fields, then call prepare.
struct MixedWriter : BlockWriter {
  using Block = TileBlock<float>;

  const EpilogueArgs* epilogue;
  const float *bias, *scale;             // or null; for columns rounded up to 16
  std::int32_t y_bytes, residual_bytes;  // of an element: 2 or 4

  void prepare() {
    // Without a scale, sums start with the bias.
    starts = scale ? nullptr : bias;
    low = simd::broadcast(epilogue->alpha);
    high = simd::broadcast(epilogue->beta);
    const bool is_clip = epilogue->activation == Activation::kClip, has_residual = residual.data != nullptr;
    const bool is_usual = is_clip && !(has_residual && (epilogue->residual_after || residual_bytes != 2));
    if (!is_usual)
      write_fn = &MixedWriter::write_any;
    else if (has_residual)
      write_fn = y_bytes == 2 ? &MixedWriter::write_clipped<true, Bf16> : &MixedWriter::write_clipped<true, float>;
    else
      write_fn = y_bytes == 2 ? &MixedWriter::write_clipped<false, Bf16> : &MixedWriter::write_clipped<false, float>;
  }

  // `count` rows of a block, a multiple of four unless they are its last.
  ENGINE_ALWAYS_INLINE void finish(const Block& block, std::int64_t first, std::int64_t count) const {
    (this->*write_fn)(block, first, first + count);
    if (block.is_partial) write_partial(block, first, first + count);
  }

 private:
  using WriteFn = void (MixedWriter::*)(const Block& block, std::int64_t first, std::int64_t end) const;

  simd::Vec low, high;
  WriteFn write_fn;

  // The scaled sum of kLanes columns.
  ENGINE_ALWAYS_INLINE simd::Vec scaled(const float* sums, std::int64_t column) const {
    const simd::Vec sum = simd::load(sums);
    if (!scale) return sum;
    return simd::fma(sum, simd::load(scale + column), bias ? simd::load(bias + column) : simd::zero());
  }

  // Clipped results, with a residual of bf16, if any.
  template <bool kHasResidual, class Result>
  ENGINE_NOINLINE void write_clipped(const Block& block, std::int64_t first, std::int64_t end) const {
    using namespace simd;
    for (int half = 0; half < block.halves; ++half)
      for_quads(*this, block, half, first, end, [&](const float* sums, const Quad& quad) {
        for (int v = 0; v < kVectorsPerBlock; ++v) {
          const std::int64_t column = block.column + half * 16 + v * kLanes;
          Vec values[kQuad];
#pragma GCC unroll 4
          for (int i = 0; i < kQuad; ++i) {
            Vec value = scaled(sums + i * kSumsRow + v * kLanes, column);
            if constexpr (kHasResidual) value += load(reinterpret_cast<const Bf16*>(quad.residual[i]) + v * kLanes);
            values[i] = min(high, max(low, value));
          }
#if defined(__AVX512BF16__)
          if (sizeof(Result) == 2 && y.row == 32 && quad.is_adjacent) {
            store_pairs(quad.y[0], values[0], values[1]);
            store_pairs(quad.y[0] + 64, values[2], values[3]);
            continue;
          }
#endif
#pragma GCC unroll 4
          for (int i = 0; i < kQuad; ++i) store(reinterpret_cast<Result*>(quad.y[i]) + v * kLanes, values[i]);
        }
      });
  }

#if defined(__AVX512BF16__)
  // Sixteen values of bf16, and sixteen more.
  static ENGINE_ALWAYS_INLINE void store_pairs(char* to, simd::Vec first, simd::Vec second) {
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
  }
#endif

  static ENGINE_ALWAYS_INLINE simd::Vec load_either(const char* from, std::int32_t bytes, int lane) {
    return bytes == 2 ? simd::load(reinterpret_cast<const Bf16*>(from) + lane)
                      : simd::load(reinterpret_cast<const float*>(from) + lane);
  }

  ENGINE_NOINLINE void write_any(const Block& block, std::int64_t first, std::int64_t end) const {
    alignas(64) char dropped[64];
    for (int half = 0; half < block.halves; ++half)
      for (std::int64_t r = first; r < end; r += kQuad)
        write_quad(block, half, r, quad_of(*this, block, half, r, dropped), y_bytes, residual_bytes);
  }

  void write_quad(const Block& block, int half, std::int64_t row, const Quad& quad, std::int32_t to_bytes,
                  std::int32_t from_bytes) const {
    using namespace simd;
    const EpilogueArgs& args = *epilogue;
    const bool has_residual = residual.data != nullptr, is_after = args.residual_after;
    alignas(64) float lanes[kQuad * 16];
    const float* at = block.sums + row * kSumsRow + half * 16;
    for (int l = 0; l < 16; l += kLanes) {
      const std::int64_t column = block.column + half * 16 + l;
      for (int i = 0; i < kQuad; ++i) {
        Vec value = scaled(at + i * kSumsRow + l, column);
        if (has_residual && !is_after) value += load_either(quad.residual[i], from_bytes, l);
        store(lanes + i * 16 + l, value);
      }
    }
    finish_column(args, kQuad * kVectorsPerBlock, lanes, kLanes, nullptr, 0);
    for (int i = 0; i < kQuad; ++i)
      for (int l = 0; l < 16; l += kLanes) {
        Vec value = load(lanes + i * 16 + l);
        if (has_residual && is_after) value += load_either(quad.residual[i], from_bytes, l);
        if (to_bytes == 2)
          store(reinterpret_cast<Bf16*>(quad.y[i]) + l, value);
        else
          store(reinterpret_cast<float*>(quad.y[i]) + l, value);
      }
  }

  // The last columns of rows: computes a block aside.
  ENGINE_NOINLINE void write_partial(const Block& block, std::int64_t first, std::int64_t end) const {
    const int half = block.halves;
    const std::int64_t valid = columns - block.column - half * 16;
    for (std::int64_t r = first; r < end; r += kQuad) {
      alignas(64) float from[kQuad * 16] = {}, result[kQuad * 16];
      Quad quad = {};
      for (int i = 0; i < kQuad; ++i) {
        quad.y[i] = reinterpret_cast<char*>(result + i * 16);
        quad.residual[i] = reinterpret_cast<const char*>(from + i * 16);
        const std::int64_t row = block.row + r + i;
        if (!residual.data || row >= places.rows) continue;
        const char* added = residual.at(row, block.column + half * 16);
        for (std::int64_t l = 0; l < valid; ++l)
          from[i * 16 + l] = residual_bytes == 2 ? to_f32(reinterpret_cast<const Bf16*>(added)[l])
                                                 : reinterpret_cast<const float*>(added)[l];
      }
      write_quad(block, half, r, quad, 4, 4);
      for (int i = 0; i < kQuad && block.row + r + i < places.rows; ++i) {
        char* to = y.at(block.row + r + i, block.column + half * 16);
        for (std::int64_t l = 0; l < valid; ++l)
          if (y_bytes == 2)
            reinterpret_cast<Bf16*>(to)[l] = to_bf16(result[i * 16 + l]);
          else
            reinterpret_cast<float*>(to)[l] = result[i * 16 + l];
      }
    }
  }
};

// Sums of i32, as RequantizeArgs say. Set the fields, then call prepare.
struct IntegerWriter : BlockWriter {
  using Block = TileBlock<std::int32_t>;

  const RequantizeArgs* requantize;
  const float *scale, *bias, *middle_bias;  // for columns rounded up to 16; biases: or null
  std::int64_t depth;

  void prepare() {
    using namespace simd;
    const RequantizeArgs& args = *requantize;
    const bool is_clip = args.epilogue.activation == Activation::kClip, has_residual = residual.data != nullptr;
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
    zero_point = static_cast<std::int16_t>(args.zero_point) - VecShort{};
    has_zero_point = args.zero_point != 0;
    const float least = static_cast<float>((is_signed ? -128 : 0) - args.zero_point);
    saturates = args.low <= least && args.high >= least + 255 && largest() < 1e9f;
    if (is_codes && is_byte_residual)
      write_fn = pick<true>(has_residual, args.has_middle);
    else if (is_real && is_real_residual)
      write_fn = pick<false>(has_residual, args.has_middle);
    else
      write_fn = &IntegerWriter::write_any;
  }

  // `count` rows of a block, a multiple of four unless they are its last.
  ENGINE_ALWAYS_INLINE void finish(const Block& block, std::int64_t first, std::int64_t count) const {
    (this->*write_fn)(block, first, first + count);
    if (block.is_partial) write_partial(block, first, first + count);
  }

 private:
  using WriteFn = void (IntegerWriter::*)(const Block& block, std::int64_t first, std::int64_t end) const;

  simd::Vec low, high, middle_low, middle_high, middle_scale, residual_offset, residual_scale;
  simd::VecShort zero_point;
  WriteFn write_fn;
  std::int32_t flip;
  bool is_signed, has_zero_point;
  bool saturates;  // whether conversion to the type of y clips as it should, since integers of 32 bits hold all results

  // A bound on the magnitude of results before they are clipped; NaN if any is not finite.
  float largest() const {
    using namespace simd;
    const Vec sum = broadcast(static_cast<float>(depth) * 255 * 128);
    Vec most = zero(), not_finite = zero();
    for (std::int64_t c = 0; c < columns; c += kLanes) {
      const Vec total = sum + abs(to_floats(load_ints(static_cast<const std::int32_t*>(starts) + c)));
      Vec value = fma(total, abs(load(scale + c)), bias ? abs(load(bias + c)) : zero());
      not_finite += value - value;
      if (requantize->has_middle)
        value = fma(max(abs(middle_low), abs(middle_high)), abs(middle_scale),
                    middle_bias ? abs(load(middle_bias + c)) : zero());
      not_finite += value - value;
      most = max(most, value);
    }
    const float added = residual.data ? 512 * std::fabs(requantize->residual_scale) : 0;
    return reduce_max(most) + reduce_add(not_finite) + added;
  }

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
  ENGINE_NOINLINE void write_clipped(const Block& block, std::int64_t first, std::int64_t end) const {
    using namespace simd;
    constexpr std::int64_t kBytes = kIsCodes ? 1 : 4;
    for (int half = 0; half < block.halves; ++half)
      for (int v = 0; v < kVectorsPerBlock; ++v) {
        const std::int64_t column = block.column + half * 16 + v * kLanes;
        const Vec factor = load(scale + column), offset = bias ? load(bias + column) : zero();
        const Vec late = kHasMiddle && middle_bias ? load(middle_bias + column) : zero();
        for_quads(*this, block, half, first, end, [&](const std::int32_t* sums, const Quad& quad) {
          Vec values[kQuad];
#pragma GCC unroll 4
          for (int i = 0; i < kQuad; ++i) {
            Vec value = fma(to_floats(load_ints(sums + i * kSumsRow + v * kLanes)), factor, offset);
            if constexpr (kHasMiddle) value = fma(round_within(middle_low, middle_high, value), middle_scale, late);
            if constexpr (kHasResidual) {
              const char* added = quad.residual[i] + v * kLanes * kBytes;
              const Vec codes = kIsCodes ? load_bytes(reinterpret_cast<const std::uint8_t*>(added), flip)
                                         : load(reinterpret_cast<const float*>(added));
              value = fma(codes + residual_offset, residual_scale, value);
            }
            values[i] = value;
          }
          if constexpr (kIsCodes) {
            store_codes(values, quad, v);
          } else {
#pragma GCC unroll 4
            for (int i = 0; i < kQuad; ++i)
              store(reinterpret_cast<float*>(quad.y[i]) + v * kLanes, min(high, max(low, values[i])));
          }
        });
      }
  }

  ENGINE_ALWAYS_INLINE void store_codes(simd::Vec (&values)[kQuad], const Quad& quad, [[maybe_unused]] int v) const {
    using namespace simd;
    VecInt codes[kQuad];
#if defined(__AVX512BW__)
    if (!saturates)
#pragma GCC unroll 4
      for (Vec& value : values) value = min(high, max(low, value));
#pragma GCC unroll 4
    for (int i = 0; i < kQuad; ++i) codes[i] = round_to_ints(values[i]);
    const __m512i bytes = saturate(codes, (__m512i)zero_point, has_zero_point, is_signed);
    if (y.row == kBlock && quad.is_adjacent) return _mm512_storeu_si512(quad.y[0], bytes);
    alignas(64) char rows[kQuad * kBlock];
    _mm512_store_si512(rows, bytes);
#pragma GCC unroll 4
    for (int i = 0; i < kQuad; ++i) std::memcpy(quad.y[i], rows + i * kBlock, kBlock);
#else
    for (int i = 0; i < kQuad; ++i) codes[i] = round_to_ints(min(high, max(low, values[i]))) + requantize->zero_point;
    for (int i = 0; i < kQuad; ++i) store_bytes(reinterpret_cast<std::uint8_t*>(quad.y[i]) + v * kLanes, codes[i]);
#endif
  }

#if defined(__AVX512BW__)
  // Sixteen bytes for each vector, with saturation.
  static ENGINE_ALWAYS_INLINE __m512i saturate(const simd::VecInt (&codes)[kQuad], __m512i zero_point,
                                               bool has_zero_point, bool is_signed) {
    __m512i lower = _mm512_packs_epi32((__m512i)codes[0], (__m512i)codes[1]);
    __m512i upper = _mm512_packs_epi32((__m512i)codes[2], (__m512i)codes[3]);
    if (has_zero_point) {
      lower = _mm512_adds_epi16(lower, zero_point);
      upper = _mm512_adds_epi16(upper, zero_point);
    }
    const __m512i bytes = is_signed ? _mm512_packs_epi16(lower, upper) : _mm512_packus_epi16(lower, upper);
    return sort_lanes(bytes);
  }
#endif

  ENGINE_NOINLINE void write_any(const Block& block, std::int64_t first, std::int64_t end) const {
    alignas(64) char dropped[64];
    for (int half = 0; half < block.halves; ++half)
      for (std::int64_t r = first; r < end; r += kQuad)
        write_quad(block, half, r, quad_of(*this, block, half, r, dropped));
  }

  void write_quad(const Block& block, int half, std::int64_t row, const Quad& quad) const {
    using namespace simd;
    const RequantizeArgs& args = *requantize;
    const std::int64_t to_bytes = element_bytes_of(args.y), from_bytes = element_bytes_of(args.residual);
    for (int l = 0; l < 16; l += kLanes) {
      const std::int64_t column = block.column + half * 16 + l;
      const Vec factor = load(scale + column), offset = bias ? load(bias + column) : zero();
      const Vec late = middle_bias ? load(middle_bias + column) : zero();
      for (int i = 0; i < kQuad; ++i) {
        const VecInt sum = load_ints(block.sums + (row + i) * kSumsRow + half * 16 + l);
        char* at = quad.y[i] + l * to_bytes;
        if (args.y == ElementCode::kI32)
          store_ints(reinterpret_cast<std::int32_t*>(at), sum);
        else
          ENGINE_ISA_NS::requantize(args, fma(to_floats(sum), factor, offset),
                                    residual.data ? quad.residual[i] + l * from_bytes : nullptr, at, late);
      }
    }
  }

  // The last columns of rows: computes a block aside.
  ENGINE_NOINLINE void write_partial(const Block& block, std::int64_t first, std::int64_t end) const {
    const int half = block.halves;
    const std::int64_t valid = columns - block.column - half * 16;
    const std::int64_t to_bytes = element_bytes_of(requantize->y), from_bytes = element_bytes_of(requantize->residual);
    for (std::int64_t r = first; r < end; r += kQuad) {
      alignas(64) char from[kQuad * 64] = {}, result[kQuad * 64];
      Quad quad = {};
      for (int i = 0; i < kQuad; ++i) {
        quad.y[i] = result + i * 64;
        quad.residual[i] = from + i * 64;
        if (residual.data && block.row + r + i < places.rows)
          std::memcpy(from + i * 64, residual.at(block.row + r + i, block.column + half * 16),
                      static_cast<std::size_t>(valid * from_bytes));
      }
      write_quad(block, half, r, quad);
      for (int i = 0; i < kQuad && block.row + r + i < places.rows; ++i)
        std::memcpy(y.at(block.row + r + i, block.column + half * 16), result + i * 64,
                    static_cast<std::size_t>(valid * to_bytes));
    }
  }
};

}  // namespace
}  // namespace engine::ENGINE_ISA_NS

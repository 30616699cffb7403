// Parts of records of weights (gemm_weights.hpp) as vectors. Included by kernel files only.
#pragma once

#include "kernels/gemm_weights.hpp"
#include "simd/bytes.hpp"
#include "simd/half.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

// kLanes scales of f16 or f32.
ENGINE_INLINE simd::Vec load_scales(const std::uint8_t* from, std::int32_t bytes) {
  using namespace simd;
  if (bytes == 4) return load(reinterpret_cast<const float*>(from));
  return load(reinterpret_cast<const F16*>(from));
}

// The scales and zero points of kLanes columns of a record, from `column` of the group on.
struct RecordColumns {
  simd::Vec scale, zero_point;
};
ENGINE_INLINE RecordColumns record_columns(const WeightsFormat& f, const std::uint8_t* record, int column) {
  const std::uint8_t* scales = record + record_code_bytes(f);
  const std::uint8_t* zero_points = scales + kWeightColumns * f.scale_bytes;
  return {
      load_scales(scales + column * f.scale_bytes, f.scale_bytes),
      f.has_zero_points ? simd::load_bytes(zero_points + column, 0) : simd::broadcast(static_cast<float>(f.center))};
}

// The codes of kLanes columns, from `column` of the group on, in the rows that share bytes with row `at` of a record.
template <int kBits>
constexpr int kRowsInQuad = kBits == 4 ? 8 : 4;
template <int kBits>
ENGINE_INLINE simd::VecInt load_quads(const std::uint8_t* record, std::int64_t at, int column) {
  return simd::load_byte_quads(record + (at / kRowsInQuad<kBits> * kWeightColumns + column) * 4);
}

// The weights of row `in_quad` of these rows.
template <int kBits>
ENGINE_INLINE simd::Vec dequantized(simd::VecInt quads, int in_quad, const RecordColumns& columns) {
  const int shift = 8 * (in_quad % 4) + (kBits == 4 ? in_quad / 4 * 4 : 0);
  const simd::VecInt codes = (quads >> shift) & ((1 << kBits) - 1);
  return (simd::to_floats(codes) - columns.zero_point) * columns.scale;
}

}  // namespace
}  // namespace engine::ENGINE_ISA_NS

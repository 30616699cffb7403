// The register-tiled product of tile.hpp for 8-bit integers: x unsigned, w signed, sums exact in i32.
//
// Four adjacent depths are multiplied and summed at once. Weights have the order of tile.hpp with adjacent depths in
// fours, and depth rounded up to a multiple of four with weights of zero:
//
//   w [block][row][col][depth / 4][vectors * lanes][4]
//
// The values of x beyond last_depth, up to that multiple, are read, but do not contribute.
#pragma once

#include "kernels/requantize.hpp"
#include "kernels/tile.hpp"

namespace engine {

// A pointer to elements of 1 or 4 bytes, determined when the plan is built.
template <class Byte>
struct SizedPointer {
  Byte* data;
  std::int32_t element_bytes;
};
template <class Byte>
ENGINE_INLINE SizedPointer<Byte> operator+(SizedPointer<Byte> pointer, std::int64_t elements) {
  return {pointer.data + elements * pointer.element_bytes, pointer.element_bytes};
}

// `scale` is not null; `epilogue` is not used.
struct TileCallInt8 : TileCallOf<std::uint8_t, SizedPointer<char>, SizedPointer<const char>> {
  const std::int32_t* start;    // [vectors * lanes]: the sums begin with these
  const std::uint8_t* padding;  // 16 values that taps in the padding read: the zero point of x
  const float* middle_bias;     // [vectors * lanes], or null
  const RequantizeArgs* requantize;
};
using TileInt8Fn = void (*)(const TileCallInt8& call);

namespace ENGINE_ISA_NS {

extern const TileTraits tile_int8_traits;
// Those of weights whose pairs fit (see tile_int8_kernel), as the entry "tile_pairs_int8": there may be more pixels.
extern const TileTraits tile_pairs_int8_traits;

// The kernel for a tile of exactly this shape; null if there is none. Planar steps are for pixels of four bytes.
// pairs_fit: the weights are such that no sum of two adjacent products exceeds 16 bits, which may be faster.
TileInt8Fn tile_int8_kernel(int vectors, int pixels, PixelStep step, bool pairs_fit);

}  // namespace ENGINE_ISA_NS
}  // namespace engine

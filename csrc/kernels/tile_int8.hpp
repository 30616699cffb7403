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

// `scale` is not null; `epilogue` is not used.
struct TileCallInt8 : TileCallOf<std::uint8_t, SizedPointer<char>, SizedPointer<const char>> {
  const std::int32_t* start;    // [vectors * lanes]: the sums begin with these
  const std::uint8_t* padding;  // 16 values that taps in the padding read: the zero point of x
  const float* middle_bias;     // [vectors * lanes], or null
  const RequantizeArgs* requantize;
  // If weights have zero points: [pixels], the sums of x, and [vectors * lanes], their factors; otherwise null. The
  // products are added to the sums' start.
  const std::int32_t *pixel_sums, *factors;
};
using TileInt8Fn = void (*)(const TileCallInt8& call);

namespace ENGINE_ISA_NS {

extern const TileTraits tile_int8_traits;
// The tiles for weights whose pairs fit (see tile_int8_kernel), as the entry "tile_pairs_int8"; they may have more
// pixels.
extern const TileTraits tile_pairs_int8_traits;

// The kernel for a tile of exactly this shape; null if there is none. Planar steps are for pixels of four bytes.
// pairs_fit: no sum of two adjacent products exceeds 16 bits with these weights, which may be faster.
TileInt8Fn tile_int8_kernel(int vectors, int pixels, PixelStep step, bool pairs_fit);

template <PixelStep kOne = PixelStep::kBlocked1, PixelStep kTwo = PixelStep::kBlocked2>
struct TileInt8 {
  using Call = TileCallInt8;
  static constexpr int kDepthStep = 4;
  static constexpr bool kIsPaddingZero = false;
  static constexpr PixelStep kStep1 = kOne, kStep2 = kTwo;
  // As in a call, for the first channel.
  struct More {
    const std::int32_t* start;
    const std::uint8_t* padding;
    const float* middle_bias;
    const RequantizeArgs* requantize;
    bool pairs_fit;
    const std::int32_t *pixel_sums, *factors;
  };
  static ENGINE_ALWAYS_INLINE void complete(const More& more, std::int64_t channel, std::int64_t pixel,
                                            TileCallInt8& call) {
    call.start = more.start + channel;
    call.padding = more.padding;
    call.middle_bias = more.middle_bias ? more.middle_bias + channel : nullptr;
    call.requantize = more.requantize;
    if (more.factors == nullptr) return;
    call.pixel_sums = more.pixel_sums + pixel;
    call.factors = more.factors + channel;
  }
  static ENGINE_ALWAYS_INLINE TileInt8Fn kernel(const More& more, int vectors, int pixels, PixelStep step) {
    return tile_int8_kernel(vectors, pixels, step, more.pairs_fit);
  }
};

}  // namespace ENGINE_ISA_NS
}  // namespace engine

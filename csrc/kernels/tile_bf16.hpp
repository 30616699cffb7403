// The register-tiled product of tile.hpp for bf16: pairs of adjacent depths are multiplied and summed in f32.
//
// x and w are bf16, y and the residual each bf16 or f32, bias and scale f32. Weights have the order of tile.hpp with
// adjacent depths in pairs, and depth rounded up to even:
//
//   w [block][row][col][depth / 2][vectors * lanes][2]
//
// If last_depth is odd, the value of x after the last one is not used.
#pragma once

#include "kernels/tile.hpp"
#include "simd/bf16.hpp"

namespace engine {

using TileCallBf16 = TileCallOf<Bf16, SizedPointer<char>, SizedPointer<const char>>;
using TileBf16Fn = void (*)(const TileCallBf16& call);

namespace ENGINE_ISA_NS {

extern const TileTraits tile_bf16_traits;

// The kernel for a tile of exactly this shape; null if there is none.
TileBf16Fn tile_bf16_kernel(int vectors, int pixels, PixelStep step);

struct TileBf16 {
  using Call = TileCallBf16;
  static constexpr int kDepthStep = 2;
  static constexpr bool kIsPaddingZero = true;
  static constexpr PixelStep kStep1 = PixelStep::kBlocked1, kStep2 = PixelStep::kBlocked2;
  struct More {};
  static ENGINE_ALWAYS_INLINE void complete(const More&, std::int64_t, std::int64_t, TileCallBf16&) {}
  static ENGINE_ALWAYS_INLINE TileBf16Fn kernel(const More&, int vectors, int pixels, PixelStep step) {
    return tile_bf16_kernel(vectors, pixels, step);
  }
};

}  // namespace ENGINE_ISA_NS
}  // namespace engine

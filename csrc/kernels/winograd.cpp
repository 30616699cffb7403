// Winograd convolution; see winograd.hpp for operands and layouts. Buffers have element alignment; y must not overlap
// x, u or a temporary; the residual may be y.
#include "kernels/winograd.hpp"

#include "kernels/activation.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

ENGINE_INLINE std::int64_t min64(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
ENGINE_INLINE std::int64_t blocks_of(std::int64_t channels) {
  return (channels + 15) / 16;
}

constexpr int kWeightLanes = 16;  // a cache line of results

// The one-dimensional transforms. Interpolation points: 0, 1, -1, infinity for m = 2, and also 2, -2 for m = 4.
template <int kTile>
struct Transform;

template <>
struct Transform<2> {
  static constexpr int kPoints = 4;
  static inline __attribute__((always_inline)) void input(const Vec (&d)[4], Vec (&t)[4]) {
    t[0] = d[0] - d[2];
    t[1] = d[1] + d[2];
    t[2] = d[2] - d[1];
    t[3] = d[1] - d[3];
  }
  static inline __attribute__((always_inline)) void output(const Vec (&m)[4], Vec (&s)[2]) {
    s[0] = m[0] + m[1] + m[2];
    s[1] = m[1] - m[2] - m[3];
  }
  static inline __attribute__((always_inline)) void weights(const double (&g)[3][kWeightLanes],
                                                            double (&u)[4][kWeightLanes]) {
    for (int lane = 0; lane < kWeightLanes; ++lane) {
      u[0][lane] = g[0][lane];
      u[1][lane] = (g[0][lane] + g[1][lane] + g[2][lane]) / 2;
      u[2][lane] = (g[0][lane] - g[1][lane] + g[2][lane]) / 2;
      u[3][lane] = g[2][lane];
    }
  }
};

template <>
struct Transform<4> {
  static constexpr int kPoints = 6;
  static inline __attribute__((always_inline)) void input(const Vec (&d)[6], Vec (&t)[6]) {
    const Vec four = broadcast(4.0f), five = broadcast(5.0f), two = broadcast(2.0f);
    const Vec even = d[4] - four * d[2], odd = d[3] - four * d[1];
    const Vec even2 = d[4] - d[2], odd2 = two * (d[3] - d[1]);
    t[0] = fma(four, d[0], d[4] - five * d[2]);
    t[1] = even + odd;
    t[2] = even - odd;
    t[3] = even2 + odd2;
    t[4] = even2 - odd2;
    t[5] = fma(four, d[1], d[5] - five * d[3]);
  }
  static inline __attribute__((always_inline)) void output(const Vec (&m)[6], Vec (&s)[4]) {
    const Vec sum1 = m[1] + m[2], difference1 = m[1] - m[2];
    const Vec sum2 = m[3] + m[4], difference2 = m[3] - m[4];
    s[0] = m[0] + sum1 + sum2;
    s[1] = fma(broadcast(2.0f), difference2, difference1);
    s[2] = fma(broadcast(4.0f), sum2, sum1);
    s[3] = fma(broadcast(8.0f), difference2, difference1) + m[5];
  }
  static inline __attribute__((always_inline)) void weights(const double (&g)[3][kWeightLanes],
                                                            double (&u)[6][kWeightLanes]) {
    for (int lane = 0; lane < kWeightLanes; ++lane) {
      u[0][lane] = g[0][lane] / 4;
      u[1][lane] = -(g[0][lane] + g[1][lane] + g[2][lane]) / 6;
      u[2][lane] = -(g[0][lane] - g[1][lane] + g[2][lane]) / 6;
      u[3][lane] = (g[0][lane] + 2 * g[1][lane] + 4 * g[2][lane]) / 24;
      u[4][lane] = (g[0][lane] - 2 * g[1][lane] + 4 * g[2][lane]) / 24;
      u[5][lane] = g[2][lane];
    }
  }
};

struct TilePosition {
  std::int64_t image, h, w;  // of the first output pixel
};
ENGINE_INLINE TilePosition position(const WinogradArgs& args, std::int64_t tile) {
  const std::int64_t per_image = args.tiles_h * args.tiles_w, in_image = tile % per_image;
  return {tile / per_image, in_image / args.tiles_w * args.output_tile, in_image % args.tiles_w * args.output_tile};
}

// The input of a tile in a block of channels: rows of `row` values, 16 for each pixel.
template <class Map>
struct TileInput {
  const Map* from;
  std::int64_t row;
};

// Finds the input of the tile at `at`; copies it into `padded` if a part of it is padding.
template <int kSide, class Map>
ENGINE_INLINE TileInput<Map> tile_input(const WinogradArgs& args, const Map* x, std::int64_t block,
                                        const TilePosition& at, Map* padded) {
  const ConvShape& s = args.shape;
  const std::int64_t h = at.h - s.pad_top, w = at.w - s.pad_left;
  const Map* map = x + at.image * args.x_batch + block * s.in_h * s.in_w * 16;
  if (h >= 0 && w >= 0 && h + kSide <= s.in_h && w + kSide <= s.in_w) return {map + (h * s.in_w + w) * 16, s.in_w * 16};
  for (int i = 0; i < kSide; ++i)
    for (int j = 0; j < kSide; ++j) {
      const bool is_inside = h + i >= 0 && h + i < s.in_h && w + j >= 0 && w + j < s.in_w;
      for (int l = 0; l < 16; l += kLanes)
        store(padded + (i * kSide + j) * 16 + l, is_inside ? load(map + ((h + i) * s.in_w + w + j) * 16 + l) : zero());
    }
  return {padded, kSide * 16};
}

// Magnitudes are compared as integers, among which those of NaN are the largest.
typedef std::int32_t Four __attribute__((vector_size(16), aligned(4), may_alias));
typedef std::int32_t Lane __attribute__((may_alias));

ENGINE_INLINE VecInt larger(VecInt a, VecInt b) {
  return a > b ? a : b;
}

// Which peak pixel i, j of a tile belongs to: that of the square of windows that contain it, or the rest.
template <int kTile>
constexpr int peak_of(int i, int j) {
  const bool is_inner = i >= 1 && j >= 1 && i <= kTile && j <= kTile;
  return is_inner ? (i - 1) / 2 * (kTile / 2) + (j - 1) / 2 : kTile * kTile / 4;
}

// The largest of lanes with the same position in fours.
ENGINE_INLINE Four largest_four(VecInt lanes) {
  Four parts[kLanes / 4];
  __builtin_memcpy(parts, &lanes, sizeof(lanes));
  Four most = parts[0];
#pragma GCC unroll 3
  for (int i = 1; i < kLanes / 4; ++i) most = parts[i] > most ? parts[i] : most;
  return most;
}

// Transforms tiles [begin, end) of channel block `block`, whose first `channels` are used. The tiles' peaks are
// `peaks_step` apart.
template <int kTile, class Map>
ENGINE_NOINLINE void transform_input(const WinogradArgs& args, const Map* x, std::int64_t block, std::int64_t channels,
                                     std::int64_t begin, std::int64_t end, float* v, std::int64_t stride,
                                     float* peaks) {
  using T = Transform<kTile>;
  constexpr int kSide = T::kPoints;
  constexpr int kPeaks = kTile * kTile / 4 + 1;
  const bool by_channel = args.has_merged_groups;
  alignas(64) std::int32_t used[16];
  for (int l = 0; l < 16; ++l) used[l] = l < channels ? 0x7fffffff : 0;
  for (std::int64_t tile = begin; tile < end; ++tile, v += 16, peaks += winograd_peak_floats(args)) {
    alignas(64) Map padded[kSide * kSide * 16];
    const auto [from, row] = tile_input<kSide>(args, x, block, position(args, tile), padded);
    VecInt all[kPeaks] = {};
    for (int l = 0; l < 16; l += kLanes) {
      const VecInt magnitude = *reinterpret_cast<const VecInt*>(used + l);
      Vec half[kSide][kSide];
      VecInt found[kPeaks] = {};
#pragma GCC unroll 6
      for (int j = 0; j < kSide; ++j) {
        Vec column[kSide], out[kSide];
#pragma GCC unroll 6
        for (int i = 0; i < kSide; ++i) {
          column[i] = load(from + i * row + j * 16 + l);
          VecInt& peak = found[peak_of<kTile>(i, j)];
          peak = larger(peak, (VecInt)column[i] & magnitude);
        }
        T::input(column, out);
#pragma GCC unroll 6
        for (int i = 0; i < kSide; ++i) half[i][j] = out[i];
      }
#pragma GCC unroll 6
      for (int i = 0; i < kSide; ++i) {
        Vec out[kSide];
        T::input(half[i], out);
#pragma GCC unroll 6
        for (int j = 0; j < kSide; ++j) store(v + (i * kSide + j) * stride + l, out[j]);
      }
#pragma GCC unroll 5
      for (int p = 0; p < kPeaks; ++p)
        if (by_channel)
          store(peaks + p * 16 + l, (Vec)found[p]);
        else
          all[p] = larger(all[p], found[p]);
    }
    if (by_channel) continue;
#pragma GCC unroll 5
    for (int p = 0; p < kPeaks; ++p) *reinterpret_cast<Four*>(peaks + p * 4) = largest_four(all[p]);
  }
}

// Whether a tile with these peaks is computed directly. `rows` and `cols` are those of its outputs that exist.
template <int kTile>
ENGINE_INLINE bool is_direct(const WinogradArgs& args, float limit, const std::int32_t* bits, std::int64_t rows,
                             std::int64_t cols) {
  constexpr int kSquares = kTile * kTile / 4;
  std::int32_t largest_bits = bits[kSquares];
  for (int i = 0; i < kSquares; ++i) largest_bits = bits[i] > largest_bits ? bits[i] : largest_bits;
  if (largest_bits >= 0x7f800000) return true;
  float peaks[kSquares], largest;
  __builtin_memcpy(peaks, bits, sizeof(peaks));
  __builtin_memcpy(&largest, &largest_bits, sizeof(largest));
  if (largest > limit) return true;
  for (int i = 0; i < kSquares; ++i) {
    const bool has_outputs = i / (kTile / 2) * 2 < rows && i % (kTile / 2) * 2 < cols;
    if (has_outputs && largest > args.range * peaks[i]) return true;
  }
  return false;
}

// Writes whether each of the tiles [begin, end) of `ins` channels, starting at `in_first`, is computed directly.
// `peaks` are those of tile `begin` in the first of these channels' blocks, and `step` floats before those of the next.
template <int kTile>
ENGINE_NOINLINE void judge_tiles(const WinogradArgs& args, float limit, std::int64_t ins, std::int64_t begin,
                                 std::int64_t end, const float* peaks, std::int64_t step, std::uint8_t* direct) {
  constexpr int kPeaks = kTile * kTile / 4 + 1;
  const std::int64_t per_group = args.has_merged_groups ? args.shape.in_channels / args.shape.groups : ins;
  for (std::int64_t tile = begin; tile < end; ++tile, peaks += winograd_peak_floats(args)) {
    const TilePosition at = position(args, tile);
    const std::int64_t rows = args.shape.out_h - at.h, cols = args.shape.out_w - at.w;
    bool found = false;
    for (std::int64_t first = 0; first < ins; first += per_group) {
      std::int32_t most[kPeaks] = {};
      if (args.has_merged_groups) {
        for (std::int64_t c = first; c < first + per_group; ++c) {
          const Lane* peak = reinterpret_cast<const Lane*>(peaks + c / 16 * step + c % 16);
          for (int p = 0; p < kPeaks; ++p) most[p] = peak[p * 16] > most[p] ? peak[p * 16] : most[p];
        }
      } else {
        Four all[kPeaks] = {};
        for (std::int64_t b = 0; b < blocks_of(ins); ++b)
          for (int p = 0; p < kPeaks; ++p) {
            const Four peak = *reinterpret_cast<const Four*>(peaks + b * step + p * 4);
            all[p] = peak > all[p] ? peak : all[p];
          }
        for (int p = 0; p < kPeaks; ++p)
          for (int l = 0; l < 4; ++l) most[p] = all[p][l] > most[p] ? all[p][l] : most[p];
      }
      found = found || is_direct<kTile>(args, limit, most, rows, cols);
    }
    direct[tile - begin] = found;
  }
}

template <class Map>
struct OutputOperands {
  const float *bias, *scale;
  const Map* residual;
  Map* y;
};

// Channels that are computed apart, and their weights.
struct Group {
  std::int64_t in_first, ins, out_first, outs;
  std::int64_t tile_channels, tiles;  // of outputs
  std::int64_t weights, direct;       // floats before them, transformed and as they were

  std::int64_t width(std::int64_t tile) const {
    const std::int64_t rest = outs - tile * tile_channels;
    return min64(tile_channels, (rest + kLanes - 1) / kLanes * kLanes);
  }
};
ENGINE_INLINE Group group_at(const WinogradArgs& args, std::int64_t index) {
  Group group = {};
  group.in_first = index * args.in_group;
  group.ins = min64(args.in_group, args.shape.in_channels - group.in_first);
  group.out_first = index * args.out_group;
  group.outs = min64(args.out_group, args.shape.out_channels - group.out_first);
  group.tile_channels = args.tile_channels;
  group.tiles = (group.outs + args.tile_channels - 1) / args.tile_channels;
  const std::int64_t points = (args.output_tile + 2) * (args.output_tile + 2);
  group.weights = index * points * args.in_group * args.out_group;
  group.direct = args.weights_at + index * 9 * args.in_group * args.out_group;
  return group;
}

// What tiles are computed directly from.
template <class Map>
struct DirectOperands {
  const Map* x;
  const float* weights;  // of the group
};

// Computes the tile at `at` for channels [channel, channel + 16) of a group directly, into `sums`. A channel of several
// groups that are computed as one adds to the outputs of its own group only: zero times infinity would be NaN.
template <int kTile, class Map>
ENGINE_NOINLINE void sum_directly(const WinogradArgs& args, const Group& group, const DirectOperands<Map>& operands,
                                  const TilePosition& at, std::int64_t channel, float* sums) {
  constexpr int kSide = Transform<kTile>::kPoints;
  const ConvShape& s = args.shape;
  const std::int64_t ins = s.in_channels / s.groups, outs = s.out_channels / s.groups;
  const float* w = operands.weights + channel / 16 * group.ins * 9 * 16;
  alignas(64) Map padded[kSide * kSide * 16];
  alignas(64) float window[kSide * kSide * 16];
  for (int i = 0; i < kTile * kTile * 16; i += kLanes) store(sums + i, zero());
  for (std::int64_t c = 0; c < group.ins; ++c, w += 9 * 16) {
    if (c % 16 == 0) {
      const auto [from, row] = tile_input<kSide>(args, operands.x, (group.in_first + c) / 16, at, padded);
      for (int i = 0; i < kSide; ++i)
        for (int j = 0; j < kSide * 16; j += kLanes) store(window + i * kSide * 16 + j, load(from + i * row + j));
    }
    std::int64_t first = 0, last = 16;
    if (args.has_merged_groups) {
      first = c / ins * outs - channel;
      last = first + outs;
      if (first >= 16 || last <= 0) continue;
    }
    for (int l = 0; l < 16; l += kLanes) {
      VecInt is_own;
      for (int lane = 0; lane < kLanes; ++lane) is_own[lane] = l + lane >= first && l + lane < last ? -1 : 0;
      Vec taps[9];
#pragma GCC unroll 9
      for (int tap = 0; tap < 9; ++tap) taps[tap] = load(w + tap * 16 + l);
      for (int i = 0; i < kTile; ++i) {
        float* row = sums + i * kTile * 16 + l;
        Vec sum[kTile];
#pragma GCC unroll 4
        for (int j = 0; j < kTile; ++j) sum[j] = load(row + j * 16);
#pragma GCC unroll 9
        for (int tap = 0; tap < 9; ++tap) {
          const float* values = window + ((i + tap / 3) * kSide + tap % 3) * 16 + c % 16;
#pragma GCC unroll 4
          for (int j = 0; j < kTile; ++j)
            sum[j] = fma((Vec)((VecInt)broadcast(values[j * 16]) & is_own), taps[tap], sum[j]);
        }
#pragma GCC unroll 4
        for (int j = 0; j < kTile; ++j) store(row + j * 16, sum[j]);
      }
    }
  }
}

// Where the sums of a row of a tile go, in some lanes of a block of channels.
template <class Map>
struct RowTarget {
  Vec bias, scale, low, high;
  bool has_scale, finish;
  int cols;
};

// Stores the sums of a row after the epilogue.
template <int kTile, class Map>
ENGINE_INLINE void finish_row(const EpilogueArgs& epilogue, const Vec (&sums)[kTile], const RowTarget<Map>& target,
                              const Map* residual, Map* y) {
  // The steps after the clip are computed in f32: in place, or in a temporary so that a bf16 map is rounded once.
  constexpr bool kIsAside = sizeof(Map) != sizeof(float);
  [[maybe_unused]] float aside[kTile * kLanes];
  const int cols = target.cols;
#pragma GCC unroll 4
  for (int j = 0; j < kTile; ++j) {
    if (j >= cols) break;
    Vec value = target.has_scale ? fma(sums[j], target.scale, target.bias) : sums[j] + target.bias;
    if (residual && !epilogue.residual_after) value += load(residual + j * 16);
    value = min(target.high, max(target.low, value));
    if (kIsAside && target.finish)
      store(aside + j * kLanes, value);
    else
      store(y + j * 16, value);
  }
  if (!target.finish) return;
  const Map* added = residual && epilogue.residual_after ? residual : nullptr;
  if constexpr (kIsAside) {
    finish_column(epilogue, cols, aside, kLanes, nullptr, 0);
    for (int j = 0; j < cols; ++j) {
      Vec value = load(aside + j * kLanes);
      if (added) value += load(added + j * 16);
      store(y + j * 16, value);
    }
  } else {
    finish_column(epilogue, cols, y, 16, added, 16);
  }
}

// Inverse-transforms tiles [begin, end) of channels [channel, channel + 16) of a group, or computes those marked in
// `direct`, and stores them after the epilogue.
template <int kTile, class Map>
ENGINE_NOINLINE void transform_output(const WinogradArgs& args, const float* m, std::int64_t stride, const Group& group,
                                      std::int64_t channel, std::int64_t begin, std::int64_t end,
                                      const std::uint8_t* direct, const DirectOperands<Map>& direct_operands,
                                      const OutputOperands<Map>& operands) {
  using T = Transform<kTile>;
  constexpr int kSide = T::kPoints;
  const ConvShape& s = args.shape;
  const EpilogueArgs& epilogue = args.epilogue;
  const bool is_clip = epilogue.activation == Activation::kClip;
  RowTarget<Map> target = {};
  target.low = broadcast(is_clip ? epilogue.alpha : -__builtin_inff());
  target.high = broadcast(is_clip ? epilogue.beta : __builtin_inff());
  target.finish = !is_clip || (operands.residual && epilogue.residual_after);
  target.has_scale = operands.scale != nullptr;
  const std::int64_t out = group.out_first + channel;
  for (std::int64_t tile = begin; tile < end; ++tile, m += 16) {
    const TilePosition at = position(args, tile);
    const std::int64_t first = (out / 16 * s.out_h + at.h) * s.out_w * 16 + at.w * 16;
    const int rows = static_cast<int>(min64(kTile, s.out_h - at.h));
    target.cols = static_cast<int>(min64(kTile, s.out_w - at.w));
    alignas(64) float sums[kTile * kTile * 16];
    const bool is_summed = direct[tile - begin];
    if (is_summed) sum_directly<kTile>(args, group, direct_operands, at, channel, sums);
    for (int l = 0; l < 16; l += kLanes) {
      target.bias = operands.bias ? load(operands.bias + out + l) : zero();
      target.scale = operands.scale ? load(operands.scale + out + l) : zero();
      Map* y = operands.y + at.image * args.y_batch + first + l;
      const Map* residual =
          operands.residual ? operands.residual + at.image * args.residual_batch + first + l : nullptr;
      const std::int64_t row = s.out_w * 16;
      Vec finished[kTile];
      if (is_summed) {
        for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
          for (int j = 0; j < kTile; ++j) finished[j] = load(sums + (i * kTile + j) * 16 + l);
          finish_row(epilogue, finished, target, residual ? residual + i * row : nullptr, y + i * row);
        }
        continue;
      }
      Vec half[kTile][kSide];
#pragma GCC unroll 6
      for (int j = 0; j < kSide; ++j) {
        Vec column[kSide], transformed[kTile];
#pragma GCC unroll 6
        for (int i = 0; i < kSide; ++i) column[i] = load(m + (i * kSide + j) * stride + l);
        T::output(column, transformed);
#pragma GCC unroll 4
        for (int i = 0; i < kTile; ++i) half[i][j] = transformed[i];
      }
#pragma GCC unroll 4
      for (int i = 0; i < kTile; ++i) {
        if (i >= rows) break;
        T::output(half[i], finished);
        finish_row(epilogue, finished, target, residual ? residual + i * row : nullptr, y + i * row);
      }
    }
  }
}

// The product for one point: `tiles` pixels of V, of `channels`, times the weights of one channel tile. Meanwhile
// prefetches `next`, the weights of the next point; null if there are none.
ENGINE_NOINLINE void multiply(const WinogradArgs& args, const float* v, std::int64_t v_block, const float* u,
                              std::int64_t channels, std::int64_t width, std::int64_t tiles, float* m,
                              std::int64_t m_block, const float* next) {
  static const EpilogueArgs kPlain{};
  const std::int64_t count = (tiles + args.pixels - 1) / args.pixels;
  const int pixels = static_cast<int>(tiles / count);
  const std::int64_t wide = tiles % count;
  const int vectors = static_cast<int>(width / kLanes);
  TileCall call = {};
  call.x_block = v_block;
  call.w = u;
  call.w_block = 16 * width;
  call.blocks = static_cast<std::int32_t>(blocks_of(channels));
  call.rows = call.cols = 1;
  call.depth = 16;
  call.last_depth = static_cast<std::int32_t>(channels - 16 * (call.blocks - 1));
  call.y_block = m_block;
  call.y_pixel = 16;
  call.epilogue = &kPlain;
  const TileFn wider = wide > 0 ? tile_kernel(vectors, pixels + 1, PixelStep::kBlocked1) : nullptr;
  const TileFn plain = tile_kernel(vectors, pixels, PixelStep::kBlocked1);
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (next) prefetch_part(call, next, width, channels, i, count);
    call.x = v + at * 16;
    call.y = m + at * 16;
    (i < wide ? wider : plain)(call);
    at += pixels + (i < wide);
  }
}

template <class Map>
ENGINE_INLINE OutputOperands<Map> output_operands(const WinogradArgs& args, void* const* buffers, int operand) {
  OutputOperands<Map> found = {};
  if (args.operands.has_bias) found.bias = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_scale) found.scale = static_cast<const float*>(buffers[operand++]);
  if (args.operands.has_residual) found.residual = static_cast<const Map*>(buffers[operand++]);
  found.y = static_cast<Map*>(buffers[operand]);
  return found;
}

// The index of V among the operands; M follows.
ENGINE_INLINE int temporaries_at(const WinogradArgs& args) {
  return 3 + args.operands.has_bias + args.operands.has_scale + args.operands.has_residual;
}

// A channel tile of any group.
struct ChannelTile {
  Group group;
  std::int64_t tile;  // in the group
};
ENGINE_INLINE std::int64_t tiles_of_all(const WinogradArgs& args) {
  return (args.groups - 1) * group_at(args, 0).tiles + group_at(args, args.groups - 1).tiles;
}
ENGINE_INLINE ChannelTile channel_tile_at(const WinogradArgs& args, std::int64_t index) {
  const std::int64_t in_group = group_at(args, 0).tiles, group = min64(index / in_group, args.groups - 1);
  return {group_at(args, group), index - group * in_group};
}

// One worker's share of a fused step: a range of the tiles of all groups, and of the channel tiles of each group.
struct FusedShare {
  WorkRange tiles, channels;
};
FusedShare fused_share(const WinogradArgs& args, const KernelContext& context) {
  const std::int64_t all = args.groups * args.tiles;
  if (!args.by_channels) return {split_work(all, context.worker, context.workers), {0, INT64_MAX}};
  // Channel tiles that share a block stay together.
  std::int64_t together = 1;
  while (together * args.tile_channels % 16 != 0) ++together;
  const std::int64_t parts = (group_at(args, 0).tiles + together - 1) / together;
  int split = static_cast<int>(min64(context.workers, parts));
  while (split > 1 && context.workers % split != 0) --split;
  if (split < 1) split = 1;
  const WorkRange own = split_work(parts, context.worker % split, split);
  return {split_work(all, context.worker / split, context.workers / split), {own.begin * together, own.end * together}};
}

// Computes tiles [range.begin, range.end) of channel tiles [channels.begin, channels.end) of a group.
template <int kTile, class Map>
void fuse_group(const WinogradArgs& args, const Group& group, const Map* x, const float* u,
                const OutputOperands<Map>& operands, const WorkRange& range, const WorkRange& channels, float* v) {
  constexpr int kPoints = Transform<kTile>::kPoints * Transform<kTile>::kPoints;
  const std::int64_t ins = group.ins, in_blocks = blocks_of(ins);
  const std::int64_t parts = (range.end - range.begin + args.block_tiles - 1) / args.block_tiles;
  const std::int64_t v_stride = winograd_point_stride(in_blocks, args.block_tiles);
  const std::int64_t m_stride = winograd_point_stride(blocks_of(args.tile_channels), args.block_tiles);
  float* m = v + kPoints * v_stride;
  float* peaks = m + kPoints * m_stride;
  const std::int64_t peaks_step = args.block_tiles * winograd_peak_floats(args);
  std::uint8_t* direct = reinterpret_cast<std::uint8_t*>(peaks + in_blocks * peaks_step);
  const DirectOperands<Map> direct_operands = {x, u + group.direct};
  const float* group_weights = u + group.weights;
  const float* first_weights = group_weights + channels.begin * args.tile_channels * ins * kPoints;
  for (std::int64_t part = 0; part < parts; ++part) {
    const WorkRange share = split_work(range.end - range.begin, static_cast<int>(part), static_cast<int>(parts));
    const std::int64_t begin = range.begin + share.begin, end = range.begin + share.end, tiles = end - begin;
    for (std::int64_t b = 0; b < in_blocks; ++b)
      transform_input<kTile>(args, x, group.in_first / 16 + b, ins - b * 16, begin, end, v + b * tiles * 16, v_stride,
                             peaks + b * peaks_step);
    judge_tiles<kTile>(args, u[args.limit_at], ins, begin, end, peaks, peaks_step, direct);
    // A vector narrower than a block (lanes 4, one vector) fills a block in several channel tiles.
    for (std::int64_t t = channels.begin; t < channels.end; ++t) {
      const std::int64_t width = group.width(t), channel = t * args.tile_channels;
      const float* weights = group_weights + channel * ins * kPoints;
      const bool is_last = t == channels.end - 1;
      const float* after_last = part + 1 < parts ? first_weights : nullptr;
      for (int p = 0; p < kPoints; ++p)
        multiply(args, v + p * v_stride, tiles * 16, weights + p * ins * width, ins, width, tiles,
                 m + p * m_stride + channel % 16, tiles * 16,
                 is_last && p == kPoints - 1 ? after_last : weights + (p + 1) * ins * width);
      const bool is_block_done = (channel + width) % 16 == 0 || t == group.tiles - 1;
      if (!is_block_done) continue;
      for (std::int64_t c = channel / 16 * 16; c < channel + width; c += 16)
        transform_output<kTile>(args, m + (c - channel / 16 * 16) * tiles, m_stride, group, c, begin, end, direct,
                                direct_operands, operands);
    }
  }
}

template <int kTile, class Map>
void fused(const WinogradArgs& args, void* const* buffers, const KernelContext& context) {
  const Map* x = static_cast<const Map*>(buffers[0]);
  const float* u = static_cast<const float*>(buffers[1]);
  const OutputOperands<Map> operands = output_operands<Map>(args, buffers, 2);
  const FusedShare own = fused_share(args, context);
  for (std::int64_t at = own.tiles.begin; at < own.tiles.end;) {
    const Group group = group_at(args, at / args.tiles);
    const std::int64_t begin = at % args.tiles, end = min64(args.tiles, begin + own.tiles.end - at);
    fuse_group<kTile>(args, group, x, u, operands, {begin, end},
                      {own.channels.begin, min64(own.channels.end, group.tiles)}, static_cast<float*>(context.scratch));
    at += end - begin;
  }
}

template <class Map>
void winograd_fused(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const WinogradArgs& args = *static_cast<const WinogradArgs*>(raw_args);
  return args.output_tile == 2 ? fused<2, Map>(args, buffers, context) : fused<4, Map>(args, buffers, context);
}

// Split over (channel block, tile).
template <class Map>
void winograd_input(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const WinogradArgs& args = *static_cast<const WinogradArgs*>(raw_args);
  const Map* x = static_cast<const Map*>(buffers[0]);
  float* v = static_cast<float*>(buffers[temporaries_at(args)]);
  const std::int64_t blocks = blocks_of(args.shape.in_channels);
  const std::int64_t stride = winograd_point_stride(blocks, args.tiles);
  const std::int64_t peak = winograd_peak_floats(args);
  float* peaks = v + (args.output_tile + 2) * (args.output_tile + 2) * stride;
  const WorkRange range = split_work(blocks * args.tiles, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end;) {
    const std::int64_t block = i / args.tiles, begin = i % args.tiles;
    const std::int64_t end = min64(args.tiles, begin + range.end - i), channels = args.shape.in_channels - block * 16;
    float* to = v + (block * args.tiles + begin) * 16;
    if (args.output_tile == 2)
      transform_input<2>(args, x, block, channels, begin, end, to, stride, peaks + i * peak);
    else
      transform_input<4>(args, x, block, channels, begin, end, to, stride, peaks + i * peak);
    i += end - begin;
  }
}

// Split over (channel tile, point), so that each weight is read by one worker.
void winograd_gemm_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const WinogradArgs& args = *static_cast<const WinogradArgs*>(raw_args);
  if (args.tiles == 0) return;
  const float* v = static_cast<const float*>(buffers[temporaries_at(args)]);
  const float* u = static_cast<const float*>(buffers[1]);
  float* m = static_cast<float*>(buffers[temporaries_at(args) + 1]);
  const std::int64_t points = (args.output_tile + 2) * (args.output_tile + 2);
  const std::int64_t v_stride = winograd_point_stride(blocks_of(args.shape.in_channels), args.tiles);
  const std::int64_t m_stride = winograd_point_stride(blocks_of(args.shape.out_channels), args.tiles);
  const WorkRange range = split_work(tiles_of_all(args) * points, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const auto [group, t] = channel_tile_at(args, i / points);
    const std::int64_t p = i % points, ins = group.ins, width = group.width(t), channel = t * args.tile_channels;
    const float* weights = u + group.weights + channel * ins * points + p * ins * width;
    const std::int64_t out = group.out_first + channel;
    multiply(args, v + p * v_stride + group.in_first * args.tiles, args.tiles * 16, weights, ins, width, args.tiles,
             m + p * m_stride + out / 16 * args.tiles * 16 + out % 16, args.tiles * 16,
             i + 1 < range.end ? weights + ins * width : nullptr);
  }
}

// Transforms tiles [begin, end) of channels [channel, channel + 16) of a group, which are `block` of the output.
template <int kTile, class Map>
void finish_tiles(const WinogradArgs& args, void* const* buffers, const Group& group, std::int64_t channel,
                  std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kMost = 64;
  const float* v = static_cast<const float*>(buffers[temporaries_at(args)]);
  const float* m = static_cast<const float*>(buffers[temporaries_at(args) + 1]);
  const float* u = static_cast<const float*>(buffers[1]);
  const std::int64_t peak = winograd_peak_floats(args), points = (kTile + 2) * (kTile + 2);
  const float* peaks = v + points * winograd_point_stride(blocks_of(args.shape.in_channels), args.tiles) +
                       group.in_first / 16 * args.tiles * peak;
  const std::int64_t stride = winograd_point_stride(blocks_of(args.shape.out_channels), args.tiles);
  const std::int64_t block = (group.out_first + channel) / 16;
  const DirectOperands<Map> direct_operands = {static_cast<const Map*>(buffers[0]), u + group.direct};
  const OutputOperands<Map> operands = output_operands<Map>(args, buffers, 2);
  for (std::int64_t next; begin < end; begin = next) {
    std::uint8_t direct[kMost];
    next = min64(end, begin + kMost);
    judge_tiles<kTile>(args, u[args.limit_at], group.ins, begin, next, peaks + begin * peak, args.tiles * peak, direct);
    transform_output<kTile>(args, m + (block * args.tiles + begin) * 16, stride, group, channel, begin, next, direct,
                            direct_operands, operands);
  }
}

// Split over (channel block, tile).
template <class Map>
void winograd_output(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const WinogradArgs& args = *static_cast<const WinogradArgs*>(raw_args);
  const std::int64_t blocks = blocks_of(args.shape.out_channels);
  const WorkRange range = split_work(blocks * args.tiles, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end;) {
    const std::int64_t block = i / args.tiles, begin = i % args.tiles;
    const std::int64_t end = min64(args.tiles, begin + range.end - i);
    const Group group = group_at(args, min64(block * 16 / args.out_group, args.groups - 1));
    if (args.output_tile == 2)
      finish_tiles<2, Map>(args, buffers, group, block * 16 - group.out_first, begin, end);
    else
      finish_tiles<4, Map>(args, buffers, group, block * 16 - group.out_first, begin, end);
    i += end - begin;
  }
}

// Split over (channel tile, input channel). Computed in doubles, for several output channels at a time.
template <int kTile>
void transform_weights(const WinogradArgs& args, const float* w, float* u, const KernelContext& context) {
  using T = Transform<kTile>;
  constexpr int kSide = T::kPoints;
  const ConvShape& s = args.shape;
  // Weights between channels of different groups of the shape are zero, and not stored.
  const std::int64_t stored = s.in_channels / s.groups, outs_of_stored = s.out_channels / s.groups;
  const WorkRange range = split_work(tiles_of_all(args) * args.in_group, context.worker, context.workers);
  for (std::int64_t item = range.begin; item < range.end; ++item) {
    const auto [group, t] = channel_tile_at(args, item / args.in_group);
    const std::int64_t c = item % args.in_group, in = group.in_first + c;
    if (c >= group.ins) continue;
    const std::int64_t width = group.width(t), channel = t * args.tile_channels;
    float* to = u + group.weights + channel * group.ins * kSide * kSide + c * width;
    for (std::int64_t k = 0; k < width; k += kWeightLanes) {
      const std::int64_t wanted = min64(kWeightLanes, width - k);
      const std::int64_t present = min64(wanted, group.outs - channel - k);
      double taps[3][3][kWeightLanes] = {}, half[3][kSide][kWeightLanes], column[3][kWeightLanes];
      double all[kSide][kWeightLanes];
      for (std::int64_t lane = 0; lane < present; ++lane) {
        const std::int64_t out = group.out_first + channel + k + lane;
        if (in / stored != out / outs_of_stored) continue;
        const float* from = w + (out * stored + in % stored) * 9;
        for (int i = 0; i < 3; ++i)
          for (int j = 0; j < 3; ++j) taps[i][j][lane] = from[3 * i + j];
      }
      for (int i = 0; i < 3; ++i) T::weights(taps[i], half[i]);
      for (int j = 0; j < kSide; ++j) {
        for (int i = 0; i < 3; ++i)
          for (int lane = 0; lane < kWeightLanes; ++lane) column[i][lane] = half[i][j][lane];
        T::weights(column, all);
        for (int i = 0; i < kSide; ++i) {
          float* point = to + (i * kSide + j) * group.ins * width + k;
          for (std::int64_t lane = 0; lane < wanted; ++lane) point[lane] = static_cast<float>(all[i][lane]);
        }
      }
    }
  }
}

// The weights as they were; zero between groups, and for channels that fill a block. Split over blocks of outputs.
void copy_weights(const WinogradArgs& args, const float* w, float* u, const KernelContext& context) {
  const ConvShape& s = args.shape;
  const std::int64_t stored = s.in_channels / s.groups, outs_of_stored = s.out_channels / s.groups;
  const WorkRange range = split_work(blocks_of(s.out_channels), context.worker, context.workers);
  for (std::int64_t block = range.begin; block < range.end; ++block) {
    const Group group = group_at(args, min64(block * 16 / args.out_group, args.groups - 1));
    float* to = u + group.direct + (block * 16 - group.out_first) * group.ins * 9;
    for (std::int64_t c = 0; c < group.ins; ++c)
      for (int tap = 0; tap < 9; ++tap, to += 16)
        for (int lane = 0; lane < 16; ++lane) {
          const std::int64_t in = group.in_first + c, out = block * 16 + lane;
          const bool is_stored = out < s.out_channels && in / stored == out / outs_of_stored;
          to[lane] = is_stored ? w[(out * stored + in % stored) * 9 + tap] : 0.0f;
        }
  }
}

// The largest input for which no intermediate result overflows: each is at most the amplification (winograd.hpp) times
// the sum of an output's largest weights. Negative if transformed weights could overflow, or be denormal numbers.
float largest_input(const WinogradArgs& args, const float* w) {
  const double amplification = args.output_tile == 2 ? 64.0 : 2304.0, most = 1.5e38;
  const std::int64_t ins = args.shape.in_channels / args.shape.groups;
  double largest = 1.0;
  for (std::int64_t out = 0; out < args.shape.out_channels; ++out) {
    double sum = 0.0, peak = 0.0;
    for (std::int64_t c = 0; c < ins; ++c, w += 9) {
      double tap = 0.0;
      for (int i = 0; i < 9; ++i) {
        const double magnitude = __builtin_fabs(static_cast<double>(w[i]));
        if (!(magnitude <= most)) return -1.0f;
        tap = magnitude > tap ? magnitude : tap;
      }
      sum += tap;
      peak = tap > peak ? tap : peak;
    }
    if (peak > 0.0 && peak < 1e-35) return -1.0f;
    largest = sum > largest ? sum : largest;
  }
  return static_cast<float>(most / (amplification * largest));
}

void winograd_weights_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const WinogradArgs& args = *static_cast<const WinogradArgs*>(raw_args);
  const float* w = static_cast<const float*>(buffers[0]);
  float* u = static_cast<float*>(buffers[1]);
  copy_weights(args, w, u, context);
  if (context.worker == 0) u[args.limit_at] = largest_input(args, w);
  if (args.output_tile == 2)
    transform_weights<2>(args, w, u, context);
  else
    transform_weights<4>(args, w, u, context);
}

}  // namespace

extern const KernelEntry winograd_kernels[] = {{"winograd_fused_f32", winograd_fused<float>, &tile_traits},
                                               {"winograd_fused_bf16", winograd_fused<Bf16>, &tile_traits},
                                               {"winograd_input_f32", winograd_input<float>, &tile_traits},
                                               {"winograd_input_bf16", winograd_input<Bf16>, &tile_traits},
                                               {"winograd_gemm_f32", winograd_gemm_f32, &tile_traits},
                                               {"winograd_output_f32", winograd_output<float>, &tile_traits},
                                               {"winograd_output_bf16", winograd_output<Bf16>, &tile_traits},
                                               {"winograd_weights_f32", winograd_weights_f32, &tile_traits},
                                               {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

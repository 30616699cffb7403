// The tiles of a Winograd convolution, and which of their outputs the transforms may compute (see winograd.hpp).
// Included by a kernel file only.
#pragma once

#include "kernels/winograd.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

ENGINE_INLINE std::int64_t blocks_of(std::int64_t channels) {
  return (channels + 15) / 16;
}

// Along an axis of dilation d, tiles begin at pixels 0 .. d - 1, then m * d .. m * d + d - 1, and so on.
ENGINE_INLINE std::int64_t first_output(std::int64_t index, std::int64_t output_tile, std::int64_t dilation) {
  return dilation == 1 ? index * output_tile : index / dilation * output_tile * dilation + index % dilation;
}
ENGINE_INLINE std::int64_t next_output(std::int64_t first, std::int64_t output_tile, std::int64_t dilation) {
  if (dilation == 1) return first + output_tile;
  return (first + 1) % dilation == 0 ? first + 1 + (output_tile - 1) * dilation : first + 1;
}

struct TilePosition {
  std::int64_t image, h, w;  // of the first output pixel
};
ENGINE_INLINE TilePosition position(const WinogradArgs& args, std::int64_t tile) {
  const ConvShape& s = args.shape;
  const std::int64_t per_image = args.tiles_h * args.tiles_w, in_image = tile % per_image;
  return {tile / per_image, first_output(in_image / args.tiles_w, args.output_tile, s.dilation_h),
          first_output(in_image % args.tiles_w, args.output_tile, s.dilation_w)};
}

// Moves on to the next tile; a division takes as long as a part of a tile.
ENGINE_INLINE void advance(const WinogradArgs& args, TilePosition& at) {
  const ConvShape& s = args.shape;
  at.w = next_output(at.w, args.output_tile, s.dilation_w);
  if (at.w < s.out_w) return;
  at.w = 0;
  at.h = next_output(at.h, args.output_tile, s.dilation_h);
  if (at.h < s.out_h) return;
  at.h = 0;
  ++at.image;
}

// How many of the positions 0, dilation, 2 * dilation .. are below `rest`: at most `most`.
ENGINE_INLINE std::int64_t count_below(std::int64_t rest, std::int64_t most, std::int64_t dilation) {
  return min64(most, dilation == 1 ? rest : (rest + dilation - 1) / dilation);
}
// How many of the positions first, first + dilation .. are below 0.
ENGINE_INLINE std::int64_t count_before(std::int64_t first, std::int64_t dilation) {
  return first >= 0 ? 0 : dilation == 1 ? -first : (-first + dilation - 1) / dilation;
}
ENGINE_INLINE std::int64_t output_rows(const WinogradArgs& args, std::int64_t h) {
  return count_below(args.shape.out_h - h, args.output_tile, args.shape.dilation_h);
}
ENGINE_INLINE std::int64_t output_cols(const WinogradArgs& args, std::int64_t w) {
  return count_below(args.shape.out_w - w, args.output_tile, args.shape.dilation_w);
}

// The outputs of a tile that exist: bit i * m + j is output i, j.
template <int kTile>
ENGINE_INLINE std::uint32_t outputs_of(const WinogradArgs& args, const TilePosition& at) {
  const std::int64_t rows = output_rows(args, at.h), cols = output_cols(args, at.w);
  std::uint32_t found = 0;
  for (std::int64_t i = 0; i < rows; ++i) found |= ((1u << cols) - 1) << (i * kTile);
  return found;
}

// The input of a tile in a block of channels: rows of `row` values, 16 for each pixel.
template <class Map>
struct TileInput {
  const Map* from;
  std::int64_t row;
};

// Finds the input of the tile at `at`; copies it into `padded` if a part of it is padding, or pixels are not adjacent.
template <int kSide, class Map>
ENGINE_INLINE TileInput<Map> tile_input(const WinogradArgs& args, const Map* x, std::int64_t block,
                                        const TilePosition& at, Map* padded) {
  const ConvShape& s = args.shape;
  const std::int64_t h = at.h - s.pad_top, w = at.w - s.pad_left;
  const Map* map = x + at.image * args.x_batch + block * s.in_h * s.in_w * 16;
  const bool is_dense = s.dilation_h == 1 && s.dilation_w == 1;
  if (is_dense && h >= 0 && w >= 0 && h + kSide <= s.in_h && w + kSide <= s.in_w)
    return {map + (h * s.in_w + w) * 16, s.in_w * 16};
  for (int i = 0; i < kSide; ++i)
    for (int j = 0; j < kSide; ++j) {
      const std::int64_t row = h + i * s.dilation_h, col = w + j * s.dilation_w;
      const bool is_inside = row >= 0 && row < s.in_h && col >= 0 && col < s.in_w;
      for (int l = 0; l < 16; l += kLanes)
        store(padded + (i * kSide + j) * 16 + l, is_inside ? load(map + (row * s.in_w + col) * 16 + l) : zero());
    }
  return {padded, kSide * 16};
}

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

// Magnitudes are compared as integers, among which NaNs are the largest.
typedef std::int32_t Four __attribute__((vector_size(16), aligned(4), may_alias));
typedef std::int32_t Lane __attribute__((may_alias));
constexpr std::int32_t kInfinite = 0x7f800000;

ENGINE_INLINE VecInt larger(VecInt a, VecInt b) {
  return a > b ? a : b;
}
ENGINE_INLINE std::int32_t larger(std::int32_t a, std::int32_t b) {
  return a > b ? a : b;
}
ENGINE_INLINE float magnitude_of(std::int32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

// The largest lane.
ENGINE_INLINE std::int32_t largest(VecInt lanes) {
  Four parts[kLanes / 4];
  __builtin_memcpy(parts, &lanes, sizeof(lanes));
  Four most = parts[0];
#pragma GCC unroll 3
  for (int i = 1; i < kLanes / 4; ++i) most = parts[i] > most ? parts[i] : most;
  return larger(larger(most[0], most[1]), larger(most[2], most[3]));
}

// Selects the sign-less bits of channels [first, last) of a block.
ENGINE_INLINE VecInt magnitudes_of(std::int64_t first, std::int64_t last, int l) {
  VecInt mask;
  for (int i = 0; i < kLanes; ++i) mask[i] = l + i >= first && l + i < last ? 0x7fffffff : 0;
  return mask;
}

// The peak to which pixel i, j of a tile belongs: the one of the square of windows that contain it, or of the rest.
template <int kTile>
constexpr int peak_of(int i, int j) {
  const bool is_inner = i >= 1 && j >= 1 && i <= kTile && j <= kTile;
  return is_inner ? (i - 1) / 2 * (kTile / 2) + (j - 1) / 2 : kTile * kTile / 4;
}

// Adds the pixels of a tile's input in some channels to its peaks: those inside of the map, of `rows` x `cols`. `first`
// is the offset of the tile's first pixel, inside or not; pixels of a row are `col` apart.
template <int kTile, bool kIsWhole, class Map>
ENGINE_INLINE void add_peaks(const Map* map, std::int64_t first, std::int64_t row, std::int64_t col,
                             const WorkRange& rows, const WorkRange& cols, VecInt magnitudes,
                             VecInt (&peaks)[kTile * kTile / 4 + 1]) {
#pragma GCC unroll 6
  for (int i = 0; i < kTile + 2; ++i) {
    if (!kIsWhole && (i < rows.begin || i >= rows.end)) continue;
#pragma GCC unroll 6
    for (int j = 0; j < kTile + 2; ++j) {
      if (!kIsWhole && (j < cols.begin || j >= cols.end)) continue;
      VecInt& peak = peaks[peak_of<kTile>(i, j)];
      peak = larger(peak, (VecInt)load(map + (first + i * row + j * col)) & magnitudes);
    }
  }
}

// Adds block `block` to the peaks of tiles [begin, end), [tile][peak][16], or starts them. Its first `channels` are
// used.
template <int kTile, class Map>
ENGINE_NOINLINE void find_peaks(const WinogradArgs& args, const Map* x, std::int64_t block, std::int64_t channels,
                                std::int64_t begin, std::int64_t end, bool is_first, float* peaks) {
  constexpr int kSide = kTile + 2;
  constexpr int kPeaks = kTile * kTile / 4 + 1;
  const ConvShape& s = args.shape;
  TilePosition at = position(args, begin);
  for (std::int64_t tile = begin; tile < end; ++tile, advance(args, at), peaks += kPeaks * 16) {
    const std::int64_t h = at.h - s.pad_top, w = at.w - s.pad_left;
    const WorkRange rows = {count_before(h, s.dilation_h), count_below(s.in_h - h, kSide, s.dilation_h)};
    const WorkRange cols = {count_before(w, s.dilation_w), count_below(s.in_w - w, kSide, s.dilation_w)};
    const bool is_whole = rows.begin == 0 && cols.begin == 0 && rows.end == kSide && cols.end == kSide;
    const std::int64_t row = s.dilation_h * s.in_w * 16, col = s.dilation_w * 16;
    const Map* map = x + at.image * args.x_batch + block * s.in_h * s.in_w * 16;
    for (int l = 0; l < 16; l += kLanes) {
      const VecInt magnitudes = magnitudes_of(0, channels, l);
      VecInt found[kPeaks];
#pragma GCC unroll 5
      for (int p = 0; p < kPeaks; ++p) found[p] = is_first ? VecInt{} : (VecInt)load(peaks + p * 16 + l);
      if (is_whole && col == 16)
        add_peaks<kTile, true>(map, (h * s.in_w + w) * 16 + l, row, 16, rows, cols, magnitudes, found);
      else
        add_peaks<kTile, false>(map, (h * s.in_w + w) * 16 + l, row, col, rows, cols, magnitudes, found);
#pragma GCC unroll 5
      for (int p = 0; p < kPeaks; ++p) store(peaks + p * 16 + l, (Vec)found[p]);
    }
  }
}

// The verdict of the channels' peaks on a tile: it is zero; all of its outputs may be transformed; windows decide; or
// none may be. Of several groups, the largest verdict counts.
enum Verdict { kZero, kWhole, kMixed, kDirect };

template <int kTile>
ENGINE_INLINE Verdict verdict_of(const WinogradArgs& args, float limit, const std::int32_t* peaks, std::int64_t rows,
                                 std::int64_t cols) {
  constexpr int kSquares = kTile * kTile / 4;
  std::int32_t most = peaks[kSquares];
  for (int i = 0; i < kSquares; ++i) most = larger(most, peaks[i]);
  if (most >= kInfinite || magnitude_of(most) > limit) return kDirect;
  if (most == 0) return kZero;
  for (int i = 0; i < kSquares; ++i) {
    const bool has_outputs = i / (kTile / 2) * 2 < rows && i % (kTile / 2) * 2 < cols;
    if (has_outputs && magnitude_of(most) > args.range * magnitude_of(peaks[i])) return kMixed;
  }
  return kWhole;
}

// The largest magnitude that each output of the tile at `at` sees in input channels [first, last), and in all.
template <int kTile>
struct Reach {
  std::int32_t windows[kTile][kTile];
  std::int32_t all;
};
template <int kTile, class Map>
ENGINE_INLINE Reach<kTile> reach_of(const WinogradArgs& args, const Map* x, std::int64_t first, std::int64_t last,
                                    const TilePosition& at) {
  constexpr int kSide = kTile + 2;
  VecInt most[kSide * kSide] = {};
  for (std::int64_t block = first / 16; block * 16 < last; ++block) {
    alignas(64) Map padded[kSide * kSide * 16];
    const auto [from, row] = tile_input<kSide>(args, x, block, at, padded);
    for (int l = 0; l < 16; l += kLanes) {
      const VecInt magnitudes = magnitudes_of(first - block * 16, last - block * 16, l);
      for (int i = 0; i < kSide; ++i)
        for (int j = 0; j < kSide; ++j) {
          VecInt& pixel = most[i * kSide + j];
          pixel = larger(pixel, (VecInt)load(from + i * row + j * 16 + l) & magnitudes);
        }
    }
  }
  std::int32_t columns[kTile][kSide], rows[kSide][kSide];
  Reach<kTile> reach = {};
  for (int i = 0; i < kSide; ++i)
    for (int j = 0; j < kSide; ++j) {
      rows[i][j] = largest(most[i * kSide + j]);
      reach.all = larger(reach.all, rows[i][j]);
    }
  for (int i = 0; i < kTile; ++i)
    for (int j = 0; j < kSide; ++j) columns[i][j] = larger(larger(rows[i][j], rows[i + 1][j]), rows[i + 2][j]);
  for (int i = 0; i < kTile; ++i)
    for (int j = 0; j < kTile; ++j)
      reach.windows[i][j] = larger(larger(columns[i][j], columns[i][j + 1]), columns[i][j + 2]);
  return reach;
}

// Judges each output of the tile at `at` by its window, in each group of the shape that `group` consists of.
template <int kTile, class Map>
ENGINE_NOINLINE WinogradMarks judge_windows(const WinogradArgs& args, const Map* x, const Group& group,
                                            const TilePosition& at) {
  // The time of a tile's transforms, measured in sums for one output.
  constexpr int kTransformed = kTile == 4 ? 8 : 2;
  const std::int64_t channels = args.has_merged_groups ? args.shape.in_channels / args.shape.groups : group.ins;
  const std::uint32_t existing = outputs_of<kTile>(args, at);
  std::uint32_t direct = 0, zero = existing, beside = 0;  // `beside`: zeros beside other values
  for (std::int64_t first = group.in_first; first < group.in_first + group.ins; first += channels) {
    const Reach<kTile> reach = reach_of<kTile>(args, x, first, first + channels, at);
    std::uint32_t zeros = 0;
    for (int bit = 0; bit < kTile * kTile; ++bit) {
      const std::int32_t seen = reach.windows[bit / kTile][bit % kTile];
      if (seen == 0)
        zeros |= 1u << bit;
      else if (magnitude_of(reach.all) > args.range * magnitude_of(seen))
        direct |= 1u << bit;
    }
    zero &= zeros;
    if (reach.all != 0) beside |= zeros;
  }
  direct = (direct | beside) & existing & ~zero;
  const std::uint32_t rest = existing & ~zero & ~direct;
  const bool is_whole = (direct | zero) == 0;
  const bool is_transformed = is_whole || __builtin_popcount(rest) > kTransformed;
  if (!is_transformed) direct |= rest;
  return {static_cast<std::uint16_t>(direct), static_cast<std::uint16_t>(zero),
          static_cast<std::uint16_t>(is_transformed ? rest : 0)};
}

// Judges tiles [begin, end) of a group. `limit`: see `largest_input`. `peaks`: memory, see `WinogradScratch`.
template <int kTile, class Map>
ENGINE_NOINLINE void judge_tiles(const WinogradArgs& args, const Map* x, const Group& group, float limit,
                                 std::int64_t begin, std::int64_t end, float* peaks, WinogradMarks* marks) {
  constexpr int kPeaks = kTile * kTile / 4 + 1;
  const std::int64_t channels = args.has_merged_groups ? args.shape.in_channels / args.shape.groups : group.ins;
  const std::int64_t step = args.has_merged_groups ? kWinogradJudged * kPeaks * 16 : 0;
  for (std::int64_t next; begin < end; begin = next) {
    next = min64(end, begin + kWinogradJudged);
    for (std::int64_t b = 0; b < blocks_of(group.ins); ++b)
      find_peaks<kTile>(args, x, group.in_first / 16 + b, group.ins - b * 16, begin, next, b == 0 || step > 0,
                        peaks + b * step);
    const float* at_peaks = peaks;
    TilePosition at = position(args, begin);
    for (std::int64_t tile = begin; tile < next; ++tile, advance(args, at), at_peaks += kPeaks * 16, ++marks) {
      const std::int64_t rows = output_rows(args, at.h), cols = output_cols(args, at.w);
      Verdict verdict = kZero;
      for (std::int64_t first = 0; first < group.ins; first += channels) {
        std::int32_t most[kPeaks] = {};
        if (args.has_merged_groups) {
          for (std::int64_t c = first; c < first + channels; ++c) {
            const Lane* peak = reinterpret_cast<const Lane*>(at_peaks + c / 16 * step + c % 16);
            for (int p = 0; p < kPeaks; ++p) most[p] = larger(most[p], peak[p * 16]);
          }
        } else {
          for (int p = 0; p < kPeaks; ++p)
            for (int l = 0; l < 16; l += kLanes)
              most[p] = larger(most[p], largest((VecInt)load(at_peaks + p * 16 + l)));
        }
        const Verdict found = verdict_of<kTile>(args, limit, most, rows, cols);
        verdict = found > verdict ? found : verdict;
      }
      const std::uint16_t existing = static_cast<std::uint16_t>(outputs_of<kTile>(args, at));
      if (verdict == kMixed)
        *marks = judge_windows<kTile>(args, x, group, at);
      else if (verdict == kDirect)
        *marks = {existing, 0, 0};
      else
        *marks = verdict == kZero ? WinogradMarks{0, existing, 0} : WinogradMarks{0, 0, existing};
    }
  }
}

// Lists the tiles of [begin, end) whose outputs are computed by the transforms, and returns their number.
ENGINE_INLINE std::int64_t list_transformed(const WinogradArgs& args, const WinogradMarks* marks, std::int64_t begin,
                                            std::int64_t end, WinogradTile* tiles) {
  std::int64_t count = 0;
  TilePosition at = position(args, begin);
  for (std::int64_t tile = begin; tile < end; ++tile, advance(args, at))
    if (marks[tile].transformed) tiles[count++] = {at.image, at.h, at.w, marks[tile]};
  return count;
}
ENGINE_INLINE std::int64_t count_transformed(const WinogradMarks* marks, std::int64_t begin, std::int64_t end) {
  std::int64_t count = 0;
  for (std::int64_t tile = begin; tile < end; ++tile) count += marks[tile].transformed != 0;
  return count;
}

// Appends the outputs of a tile in `bits` to a list. See `WinogradScratch::outputs`.
ENGINE_INLINE std::int64_t append_outputs(std::int64_t tile, std::uint32_t bits, std::int64_t* outputs,
                                          std::int64_t count) {
  for (; bits; bits &= bits - 1) outputs[count++] = tile * 16 + __builtin_ctz(bits);
  return count;
}

}  // namespace
}  // namespace engine::ENGINE_ISA_NS

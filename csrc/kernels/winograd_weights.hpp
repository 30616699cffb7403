// The weights of a Winograd convolution: transformed, as they were, and the largest input that they permit (see
// winograd.hpp). Included by a kernel file only.
#pragma once

#include "kernels/winograd_tiles.hpp"
#include "kernels/winograd_transforms.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

// The channels of a tile, filled up to whole vectors of the kernels that read the weights: this kernel may be that of a
// lower instruction set, whose vectors are shorter (KernelRegistry::portable).
static inline std::int64_t packed_width(const WinogradArgs& args, const Group& group, std::int64_t tile) {
  const std::int64_t rest = group.outs - tile * args.tile_channels;
  return min64(args.tile_channels, (rest + args.lanes - 1) / args.lanes * args.lanes);
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
    const std::int64_t width = packed_width(args, group, t), channel = t * args.tile_channels;
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

// The weights as they were; zero between groups, and for channels that fill a tile. Split over channel tiles.
void copy_weights(const WinogradArgs& args, const float* w, float* u, const KernelContext& context) {
  const ConvShape& s = args.shape;
  const std::int64_t stored = s.in_channels / s.groups, outs_of_stored = s.out_channels / s.groups;
  const WorkRange range = split_work(tiles_of_all(args), context.worker, context.workers);
  for (std::int64_t item = range.begin; item < range.end; ++item) {
    const auto [group, t] = channel_tile_at(args, item);
    const std::int64_t width = packed_width(args, group, t), channel = t * args.tile_channels;
    float* to = u + group.direct + channel * group.ins * 9;
    for (std::int64_t c = 0; c < group.ins; ++c) {
      // Of a block, all channels of a tap are adjacent.
      const std::int64_t block = c / 16 * 16, depth = min64(16, group.ins - block), in = group.in_first + c;
      for (int tap = 0; tap < 9; ++tap) {
        float* row = to + (block * 9 + tap * depth + c - block) * width;
        for (std::int64_t lane = 0; lane < width; ++lane) {
          const std::int64_t out = group.out_first + channel + lane;
          const bool is_stored = channel + lane < group.outs && in / stored == out / outs_of_stored;
          row[lane] = is_stored ? w[(out * stored + in % stored) * 9 + tap] : 0.0f;
        }
      }
    }
  }
}

// The largest input for which no intermediate result overflows: each is at most the amplification (winograd.hpp) times
// the sum of an output's largest weights. Smaller if transformed weights may be denormal numbers. Negative if they
// could overflow, or if the weights of an output differ too much for the transforms.
float largest_input(const WinogradArgs& args, const float* w) {
  const double amplification = args.output_tile == 2 ? 64.0 : 2304.0, most = 1.5e38;
  const std::int64_t ins = args.shape.in_channels / args.shape.groups;
  const auto larger = [](double a, double b) { return a > b ? a : b; };
  double largest = 1.0, limit = most;
  for (std::int64_t out = 0; out < args.shape.out_channels; ++out) {
    double sum = 0.0, peak = 0.0, squares[4] = {};
    for (std::int64_t c = 0; c < ins; ++c, w += 9) {
      double taps[9], of_square[4], tap = 0.0;
      for (int i = 0; i < 9; ++i) {
        taps[i] = __builtin_fabs(static_cast<double>(w[i]));
        if (!(taps[i] <= most)) return -1.0f;
      }
      for (int i = 0; i < 4; ++i) {
        const double* first = taps + i / 2 * 3 + i % 2;
        of_square[i] = larger(larger(first[0], first[1]), larger(first[3], first[4]));
        squares[i] += of_square[i];
        tap = larger(tap, of_square[i]);
      }
      sum += tap;
      peak = larger(peak, tap);
    }
    if (peak < kWinogradTinyWeight) {
      if (peak > 0.0) limit = kWinogradTinyInput;
      continue;
    }
    for (const double square : squares)
      if (sum > kWinogradWeightRange * square) return -1.0f;
    largest = larger(largest, sum);
  }
  const double found = most / (amplification * largest);
  return static_cast<float>(found < limit ? found : limit);
}

}  // namespace
}  // namespace engine::ENGINE_ISA_NS

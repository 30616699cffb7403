// roi_align_f32: see roi_align.hpp.
//
// Operands: map, regions [regions, 4] of x, y of two corners, image of each region (int64), result [regions, channels,
// cells_h, cells_w]; element alignment; none may overlap. A region that is not finite yields NaN, and a NaN
// of the map a maximum NaN; a region of an image that
// does not exist is a fault, and yields zeros. Split over regions and blocks of
// channels.
//
// The samples of a region are found once for a block of channels. Those beyond the map are zeros: only their number
// matters, so that a region of any size takes no more time than a few maps.
#include "kernels/roi_align.hpp"

#include <cmath>

#include "simd/isa.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

constexpr int kBatch = 256;

struct Sample {
  std::int64_t cell;
  std::int64_t at[4];
  float weight[4];
};

// Samples begin + (i + 0.5) * size / count along one side of a cell; those from `first` to `last` may be on the map.
struct Side {
  float begin, size;
  double count;
  std::int64_t first, last;
};

Side side_of(float start, float bin, std::int64_t cell, double count, std::int64_t length) {
  Side side = {start + static_cast<float>(cell) * bin, bin, count, 0, 0};
  if (count < 1) return side;
  side.last = static_cast<std::int64_t>(count < 1e15 ? count : 1e15);
  const double step = static_cast<double>(bin) / count;
  if (!(step > 0)) return side;  // all at one place, or in reverse, which only a given number of samples can be
  // One sample more on each side, because of rounding.
  const double low = (-1.0 - static_cast<double>(side.begin)) / step - 2;
  const double high = (static_cast<double>(length) - static_cast<double>(side.begin)) / step + 2;
  if (low > 0) side.first = low < static_cast<double>(side.last) ? static_cast<std::int64_t>(low) : side.last;
  if (high < static_cast<double>(side.last)) side.last = high > 0 ? static_cast<std::int64_t>(high) : 0;
  if (side.first > side.last) side.first = side.last;
  return side;
}

struct Axis {
  bool is_on;
  std::int64_t low, high;
  float weight_low, weight_high;
};

Axis axis_at(const Side& side, std::int64_t i, std::int64_t length) {
  float at = side.begin + (static_cast<float>(i) + 0.5f) * side.size / static_cast<float>(side.count);
  if (!(at >= -1.0f && at <= static_cast<float>(length))) return {false, 0, 0, 0.0f, 0.0f};
  if (at < 0) at = 0;
  std::int64_t low = static_cast<std::int64_t>(at), high = low + 1;
  if (low >= length - 1) {
    low = high = length - 1;
    at = static_cast<float>(low);
  }
  const float t = at - static_cast<float>(low);
  return {true, low, high, 1.0f - t, t};
}

// Places along an axis of a cell that are on the map.
std::int64_t count_on(const Side& side, std::int64_t length) {
  std::int64_t count = 0;
  for (std::int64_t i = side.first; i < side.last; ++i) count += axis_at(side, i, length).is_on;
  return count;
}

// The channels of a region that a worker computes.
struct Block {
  const float* planes;
  float* results;  // [channels, cells]
  std::int64_t channels;
};

// A NaN counts as the largest.
ENGINE_INLINE float larger(float a, float b) {
  return a > b || a != a ? a : b;
}

void add_samples(const RoiAlignArgs& args, const Block& block, const Sample* samples, int count) {
  const std::int64_t pixels = args.height * args.width, cells = args.cells_h * args.cells_w;
  for (std::int64_t channel = 0; channel < block.channels; ++channel) {
    const float* plane = block.planes + channel * pixels;
    float* results = block.results + channel * cells;
    for (int i = 0; i < count; ++i) {
      const Sample& s = samples[i];
      const float a = s.weight[0] * plane[s.at[0]], b = s.weight[1] * plane[s.at[1]];
      const float c = s.weight[2] * plane[s.at[2]], d = s.weight[3] * plane[s.at[3]];
      if (args.is_max) {
        results[s.cell] = larger(results[s.cell], larger(larger(a, b), larger(c, d)));
      } else {
        results[s.cell] += a + b + c + d;
      }
    }
  }
}

struct Region {
  float top, left, bin_h, bin_w;
  double count_h, count_w;
};

void align_region(const RoiAlignArgs& args, const Region& region, const Block& block) {
  Sample samples[kBatch];
  int count = 0;
  const std::int64_t cells = args.cells_h * args.cells_w;
  const double all = region.count_h * region.count_w;
  for (std::int64_t cell = 0; cell < cells; ++cell) {
    const Side rows = side_of(region.top, region.bin_h, cell / args.cells_w, region.count_h, args.height);
    const Side columns = side_of(region.left, region.bin_w, cell % args.cells_w, region.count_w, args.width);
    float first = 0.0f;
    if (args.is_max && all >= 1) {
      const double on =
          static_cast<double>(count_on(rows, args.height)) * static_cast<double>(count_on(columns, args.width));
      if (on >= all) first = -INFINITY;
    }
    for (std::int64_t channel = 0; channel < block.channels; ++channel) block.results[channel * cells + cell] = first;
    for (std::int64_t i = rows.first; i < rows.last; ++i) {
      const Axis y = axis_at(rows, i, args.height);
      if (!y.is_on) continue;
      for (std::int64_t j = columns.first; j < columns.last; ++j) {
        const Axis x = axis_at(columns, j, args.width);
        if (!x.is_on) continue;
        samples[count] = {cell,
                          {y.low * args.width + x.low, y.low * args.width + x.high, y.high * args.width + x.low,
                           y.high * args.width + x.high},
                          {y.weight_low * x.weight_low, y.weight_low * x.weight_high, y.weight_high * x.weight_low,
                           y.weight_high * x.weight_high}};
        if (++count == kBatch) {
          add_samples(args, block, samples, count);
          count = 0;
        }
      }
    }
  }
  add_samples(args, block, samples, count);
  if (args.is_max) return;
  const float divisor = static_cast<float>(all < 1 ? 1.0 : all);
  for (std::int64_t i = 0; i < block.channels * cells; ++i) block.results[i] /= divisor;
}

void roi_align_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const RoiAlignArgs& args = *static_cast<const RoiAlignArgs*>(raw_args);
  const float* maps = static_cast<const float*>(buffers[0]);
  const float* regions = static_cast<const float*>(buffers[1]);
  const std::int64_t* images = static_cast<const std::int64_t*>(buffers[2]);
  const std::int64_t cells = args.cells_h * args.cells_w;
  const std::int64_t blocks = (args.channels + kRoiChannels - 1) / kRoiChannels;
  const WorkRange range = split_work(args.regions * blocks, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t number = i / blocks, first = i % blocks * kRoiChannels, image = images[number];
    Block block = {maps, static_cast<float*>(buffers[3]) + (number * args.channels + first) * cells,
                   args.channels - first < kRoiChannels ? args.channels - first : kRoiChannels};
    float ends[4];
    bool is_finite = true;
    for (int k = 0; k < 4; ++k) {
      ends[k] = regions[number * 4 + k] * args.scale - (args.is_half_pixel ? 0.5f : 0.0f);
      is_finite &= ends[k] - ends[k] == 0;
    }
    float width = ends[2] - ends[0], height = ends[3] - ends[1];
    is_finite &= (width - width == 0) & (height - height == 0);
    const bool is_there = image >= 0 && image < args.images;
    if (!is_there) report_index(context, image, args.images);
    if (!is_there || !is_finite) {
      for (std::int64_t k = 0; k < block.channels * cells; ++k) block.results[k] = is_there ? NAN : 0.0f;
      continue;
    }
    if (!args.is_half_pixel) {
      width = width > 1 ? width : 1.0f;
      height = height > 1 ? height : 1.0f;
    }
    block.planes = maps + (image * args.channels + first) * args.height * args.width;
    Region region = {ends[1],
                     ends[0],
                     height / static_cast<float>(args.cells_h),
                     width / static_cast<float>(args.cells_w),
                     static_cast<double>(args.samples),
                     static_cast<double>(args.samples)};
    if (args.samples == 0) {
      region.count_h = static_cast<double>(std::ceil(region.bin_h));
      region.count_w = static_cast<double>(std::ceil(region.bin_w));
    }
    align_region(args, region, block);
  }
}

}  // namespace

extern const KernelEntry roi_align_kernels[] = {{"roi_align_f32", roi_align_f32, nullptr}, {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

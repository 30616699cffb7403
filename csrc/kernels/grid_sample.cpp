// grid_sample_f32: see grid_sample.hpp.
//
// Operands: map, grid, destination; float alignment; they must not overlap. A coordinate that is not finite yields NaN.
// Split over (image, chunk of points): the taps of a chunk's points are computed once for all channels.
#include "kernels/grid_sample.hpp"

#include "simd/isa.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

constexpr std::int64_t kChunk = 32;
constexpr int kMaxTaps = 4;

// Taps along one axis; index -1: a zero.
struct AxisTaps {
  std::int64_t index[kMaxTaps];
  float weight[kMaxTaps];
};

struct Axis {
  std::int64_t size;
  double low, high;  // the bounds of the map
};

ENGINE_INLINE double clamp(double value, double low, double high) {
  return value < low ? low : value > high ? high : value;
}

double reflect(double x, double low, double high) {
  const double range = high - low;
  if (!(range > 0)) return low;
  if (x >= low && x <= high) return x;
  const double beyond = x < low ? low - x : x - high;
  const double rest = __builtin_fmod(beyond, range);
  const bool is_even = __builtin_fmod(__builtin_floor(beyond / range), 2) == 0;
  return is_even == (x < low) ? low + rest : high - rest;
}

std::int64_t tap_index(double at, const Axis& axis, GridPadding padding) {
  const double last = static_cast<double>(axis.size - 1);
  if (padding == GridPadding::kZeros && (at < 0 || at > last)) return -1;
  if (padding == GridPadding::kReflection) at = reflect(at, axis.low, axis.high);
  return static_cast<std::int64_t>(clamp(at, 0, last));
}

void set_weights(float t, int taps, float* weight) {
  constexpr float a = -0.75f;
  const float rest = 1 - t;
  if (taps == 1) {
    weight[0] = 1;
  } else if (taps == 2) {
    weight[0] = rest;
    weight[1] = t;
  } else {
    weight[0] = ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a;
    weight[1] = ((a + 2) * t - (a + 3)) * t * t + 1;
    weight[2] = ((a + 2) * rest - (a + 3)) * rest * rest + 1;
    weight[3] = ((a * (rest + 1) - 5 * a) * (rest + 1) + 8 * a) * (rest + 1) - 4 * a;
  }
}

AxisTaps make_taps(float coordinate, const Axis& axis, const GridSampleArgs& args) {
  const float size = static_cast<float>(axis.size);
  float x = args.aligns_corners ? (coordinate + 1) / 2 * (size - 1) : ((coordinate + 1) * size - 1) / 2;
  AxisTaps taps = {};
  if (!(x - x == 0)) {  // infinite or NaN
    for (int k = 0; k < args.taps; ++k) taps.weight[k] = x - x;
    return taps;
  }
  if (args.taps == 1) x = __builtin_rintf(x);
  // Cubic interpolation moves only the neighbours that it reads, as PyTorch and onnxruntime do.
  if (args.taps < 4 && (x < axis.low || x > axis.high)) {
    if (args.padding == GridPadding::kBorder) x = static_cast<float>(clamp(x, 0, static_cast<double>(axis.size - 1)));
    if (args.padding == GridPadding::kReflection) x = static_cast<float>(reflect(x, axis.low, axis.high));
  }
  const float below = __builtin_floorf(x);
  const double first = static_cast<double>(below) - (args.taps == 4 ? 1 : 0);
  for (int k = 0; k < args.taps; ++k) taps.index[k] = tap_index(first + k, axis, args.padding);
  set_weights(x - below, args.taps, taps.weight);
  return taps;
}

float sample(const float* map, std::int64_t width, const AxisTaps& rows, const AxisTaps& columns, int taps) {
  float sum = 0;
  for (int i = 0; i < taps; ++i) {
    float row = 0;
    for (int j = 0; j < taps; ++j) {
      const bool is_inside = rows.index[i] >= 0 && columns.index[j] >= 0;
      row += columns.weight[j] * (is_inside ? map[rows.index[i] * width + columns.index[j]] : 0.0f);
    }
    sum += rows.weight[i] * row;
  }
  return sum;
}

Axis axis_of(std::int64_t size, bool aligns_corners) {
  const double margin = aligns_corners ? 0 : 0.5;
  return {size, -margin, static_cast<double>(size - 1) + margin};
}

void grid_sample_f32(const void* arguments, void* const* buffers, const KernelContext& context) {
  const GridSampleArgs& args = *static_cast<const GridSampleArgs*>(arguments);
  const Axis rows = axis_of(args.height, args.aligns_corners), columns = axis_of(args.width, args.aligns_corners);
  const Axis planes = axis_of(args.depth, args.aligns_corners);
  const std::int64_t chunks = (args.points + kChunk - 1) / kChunk, pixels = args.height * args.width;
  const WorkRange range = split_work(args.batch * chunks, context.worker, context.workers);
  AxisTaps plane_taps[kChunk], row_taps[kChunk], column_taps[kChunk];
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t n = i / chunks, first = i % chunks * kChunk;
    const std::int64_t count = args.points - first < kChunk ? args.points - first : kChunk;
    const float* const grid = static_cast<const float*>(buffers[1]) + (n * args.points + first) * args.axes;
    for (std::int64_t p = 0; p < count; ++p) {
      column_taps[p] = make_taps(grid[args.axes * p], columns, args);
      row_taps[p] = make_taps(grid[args.axes * p + 1], rows, args);
      if (args.axes == 3) plane_taps[p] = make_taps(grid[args.axes * p + 2], planes, args);
    }
    for (std::int64_t c = 0; c < args.channels; ++c) {
      const float* const map = static_cast<const float*>(buffers[0]) + (n * args.channels + c) * args.depth * pixels;
      float* const to = static_cast<float*>(buffers[2]) + (n * args.channels + c) * args.points + first;
      for (std::int64_t p = 0; p < count; ++p) {
        if (args.axes == 2) {
          to[p] = sample(map, args.width, row_taps[p], column_taps[p], args.taps);
          continue;
        }
        float sum = 0;
        for (int k = 0; k < args.taps; ++k) {
          const std::int64_t plane = plane_taps[p].index[k];
          const float* const from = map + (plane < 0 ? 0 : plane) * pixels;
          const float value = sample(from, args.width, row_taps[p], column_taps[p], args.taps);
          sum += plane_taps[p].weight[k] * (plane < 0 ? 0.0f : value);
        }
        to[p] = sum;
      }
    }
  }
}

}  // namespace

extern const KernelEntry grid_sample_kernels[] = {{"grid_sample_f32", grid_sample_f32, nullptr},
                                                  {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

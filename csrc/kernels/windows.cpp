// window_unroll: image [channels, ...] -> columns. window_deform: the same of windows whose elements are moved by
// `offset` [offset group][tap][2][positions] and weighted by `mask` [offset group][tap][positions], for images of two
// axes (the last ones); between pixels it interpolates linearly, and beyond them are zeros. Split over rows of columns.
// window_add: columns, [bias of channels] -> image, to which each window is added. Split over channels.
//
// See windows.hpp. Element alignment; the image of window_add may be an operand before, too: it is the initial content
// if `begins` is not set. Nothing else may overlap.
#include "kernels/windows.hpp"

#include <cmath>
#include <cstring>

#include "simd/isa.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

constexpr int kLast = kWindowAxes - 1;
constexpr std::int64_t kChunk = 64;  // positions of deformed windows whose corners are found at a time

std::int64_t taps_of(const WindowsArgs& args) {
  std::int64_t taps = 1;
  for (const std::int64_t length : args.kernel) taps *= length;
  return taps;
}

// A tap's place in each axis, from its number.
struct Tap {
  std::int64_t at[kWindowAxes];
};

Tap tap_at(const WindowsArgs& args, std::int64_t number) {
  Tap tap;
  for (int axis = kLast; axis >= 0; --axis) {
    tap.at[axis] = number % args.kernel[axis] * args.dilations[axis] - args.pads[axis];
    number /= args.kernel[axis];
  }
  return tap;
}

// The windows of a row of the last axis that are within the image, and the image's row; none if it is not.
struct Row {
  std::int64_t offset;  // of the image's row
  std::int64_t begin, end;
};

ENGINE_INLINE std::int64_t divide_up(std::int64_t value, std::int64_t by) {
  return value <= 0 ? 0 : (value + by - 1) / by;
}

Row row_at(const WindowsArgs& args, const Tap& tap, std::int64_t number) {
  std::int64_t at[kWindowAxes] = {};
  for (int axis = kLast - 1; axis >= 0; --axis) {
    at[axis] = number % args.windows[axis] * args.strides[axis] + tap.at[axis];
    number /= args.windows[axis];
    if (at[axis] < 0 || at[axis] >= args.images[axis]) return {0, 0, 0};
  }
  Row row = {0, 0, 0};
  for (int axis = 0; axis < kLast; ++axis) row.offset = (row.offset + at[axis]) * args.images[axis + 1];
  const std::int64_t begin = divide_up(-tap.at[kLast], args.strides[kLast]);
  const std::int64_t end = divide_up(args.images[kLast] - tap.at[kLast], args.strides[kLast]);
  row.end = end < args.windows[kLast] ? end : args.windows[kLast];
  row.begin = begin < row.end ? begin : row.end;
  return row;
}

std::int64_t pixels_of(const WindowsArgs& args) {
  std::int64_t pixels = 1;
  for (const std::int64_t length : args.images) pixels *= length;
  return pixels;
}

// The content of a row of the columns.
struct ColumnRow {
  std::int64_t channel, tap;  // channel -1: ones
};

ColumnRow column_row(const WindowsArgs& args, std::int64_t number, std::int64_t taps) {
  const std::int64_t deep = args.channels / args.groups * taps, all = deep + args.has_ones;
  const std::int64_t group = number / all, inner = number % all;
  if (inner == deep) return {-1, 0};
  return {group * (args.channels / args.groups) + inner / taps, inner % taps};
}

std::int64_t column_rows(const WindowsArgs& args, std::int64_t taps) {
  return args.channels * taps + args.groups * args.has_ones;
}

void set_ones(float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = 1.0f;
}

void window_unroll(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const WindowsArgs& args = *static_cast<const WindowsArgs*>(raw_args);
  const float* image = static_cast<const float*>(buffers[0]);
  const std::int64_t taps = taps_of(args), pixels = pixels_of(args), width = args.windows[kLast];
  const WorkRange range = split_work(column_rows(args, taps), context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    float* to = static_cast<float*>(buffers[1]) + i * args.rows * width;
    const ColumnRow which = column_row(args, i, taps);
    if (which.channel < 0) {
      set_ones(to, args.rows * width);
      continue;
    }
    const Tap tap = tap_at(args, which.tap);
    for (std::int64_t r = 0; r < args.rows; ++r, to += width) {
      const Row row = row_at(args, tap, args.first + r);
      const float* from = image + which.channel * pixels + row.offset + tap.at[kLast];
      const std::int64_t stride = args.strides[kLast];
      for (std::int64_t j = 0; j < row.begin; ++j) to[j] = 0.0f;
      if (stride == 1) {
        if (row.end > row.begin)
          std::memcpy(to + row.begin, from + row.begin, static_cast<std::size_t>(row.end - row.begin) * sizeof(float));
      } else {
        for (std::int64_t j = row.begin; j < row.end; ++j) to[j] = from[j * stride];
      }
      for (std::int64_t j = row.end; j < width; ++j) to[j] = 0.0f;
    }
  }
}

void window_add(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const WindowsArgs& args = *static_cast<const WindowsArgs*>(raw_args);
  const float* columns = static_cast<const float*>(buffers[0]);
  const float* bias = args.has_bias ? static_cast<const float*>(buffers[1]) : nullptr;
  float* images = static_cast<float*>(buffers[1 + args.has_bias + !args.begins]);
  const std::int64_t taps = taps_of(args), pixels = pixels_of(args), width = args.windows[kLast];
  const WorkRange range = split_work(args.channels, context.worker, context.workers);
  for (std::int64_t channel = range.begin; channel < range.end; ++channel) {
    float* image = images + channel * pixels;
    const float value = bias == nullptr ? 0.0f : bias[channel];
    for (std::int64_t i = 0; i < pixels && args.begins; ++i) image[i] = value;
    const float* from = columns + channel * taps * args.rows * width;
    for (std::int64_t number = 0; number < taps; ++number) {
      const Tap tap = tap_at(args, number);
      const std::int64_t stride = args.strides[kLast];
      for (std::int64_t r = 0; r < args.rows; ++r, from += width) {
        const Row row = row_at(args, tap, args.first + r);
        float* to = image + row.offset + tap.at[kLast];
        if (stride == 1) {
          for (std::int64_t j = row.begin; j < row.end; ++j) to[j] += from[j];
        } else {
          for (std::int64_t j = row.begin; j < row.end; ++j) to[j * stride] += from[j];
        }
      }
    }
  }
}

// The pixels around a place, -1 for a zero outside of the image, and their weights.
struct Corners {
  std::int64_t at[4];
  float weight[4];
};

struct AxisCorners {
  std::int64_t at[2];
  float weight[2];
};

AxisCorners axis_corners(float place, std::int64_t length) {
  const float below = std::floor(place), t = place - below;
  AxisCorners found = {{-1, -1}, {0.0f, 0.0f}};
  for (int i = 0; i < 2; ++i) {
    const float at = below + static_cast<float>(i);
    if (!(at >= 0 && at < static_cast<float>(length))) continue;  // nor NaN
    found.at[i] = static_cast<std::int64_t>(at);
    if (found.at[i] >= length) found.at[i] = length - 1;  // lengths beyond 2^24 are rounded
    found.weight[i] = i == 0 ? 1 - t : t;
  }
  return found;
}

Corners corners_at(float y, float x, std::int64_t height, std::int64_t width) {
  const AxisCorners rows = axis_corners(y, height), columns = axis_corners(x, width);
  Corners found;
  for (int i = 0; i < 4; ++i) {
    const std::int64_t row = rows.at[i / 2], column = columns.at[i % 2];
    found.at[i] = row < 0 || column < 0 ? -1 : row * width + column;
    found.weight[i] = rows.weight[i / 2] * columns.weight[i % 2];
  }
  return found;
}

// 0 times a pixel that is not read may be NaN.
ENGINE_INLINE float pixel(const float* from, std::int64_t at) {
  return at < 0 ? 0.0f : from[at];
}

void window_deform(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const WindowsArgs& args = *static_cast<const WindowsArgs*>(raw_args);
  const float* image = static_cast<const float*>(buffers[0]);
  const float* offsets = static_cast<const float*>(buffers[1]);
  const float* mask = args.has_mask ? static_cast<const float*>(buffers[2]) : nullptr;
  float* columns = static_cast<float*>(buffers[2 + args.has_mask]);
  const std::int64_t taps = taps_of(args), pixels = pixels_of(args), width = args.windows[kLast];
  const std::int64_t height = args.images[kLast - 1], all = args.windows[kLast - 1] * width, count = args.rows * width;
  const std::int64_t deep = args.channels / args.groups * taps + args.has_ones;
  const std::int64_t each = args.channels / args.offset_groups, per_group = args.channels / args.groups;
  // One tap of an offset group, for all its channels: the corners are found once.
  const WorkRange range = split_work(args.offset_groups * taps, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t group = i / taps, number = i % taps;
    const Tap tap = tap_at(args, number);
    const float* moves = offsets + i * 2 * all;
    for (std::int64_t begin = 0; begin < count; begin += kChunk) {
      const std::int64_t some = count - begin < kChunk ? count - begin : kChunk;
      Corners corners[kChunk];
      for (std::int64_t p = 0; p < some; ++p) {
        const std::int64_t at = args.first * width + begin + p;
        const float top = static_cast<float>(at / width * args.strides[kLast - 1] + tap.at[kLast - 1]);
        const float left = static_cast<float>(at % width * args.strides[kLast] + tap.at[kLast]);
        corners[p] = corners_at(moves[at] + top, moves[all + at] + left, height, args.images[kLast]);
        const float factor = mask == nullptr ? 1.0f : mask[i * all + at];
        for (float& weight : corners[p].weight) weight *= factor;
      }
      for (std::int64_t channel = group * each; channel < (group + 1) * each; ++channel) {
        const float* from = image + channel * pixels;
        float* to = columns + (channel / per_group * deep + channel % per_group * taps + number) * count + begin;
        for (std::int64_t p = 0; p < some; ++p) {
          const Corners& c = corners[p];
          to[p] = (pixel(from, c.at[0]) * c.weight[0] + pixel(from, c.at[1]) * c.weight[1]) +
                  (pixel(from, c.at[2]) * c.weight[2] + pixel(from, c.at[3]) * c.weight[3]);
        }
      }
    }
  }
  if (!args.has_ones || context.worker != 0) return;
  for (std::int64_t group = 0; group < args.groups; ++group)
    set_ones(columns + ((group + 1) * deep - 1) * count, count);
}

}  // namespace

extern const KernelEntry windows_kernels[] = {{"window_unroll", window_unroll, nullptr},
                                              {"window_deform", window_deform, nullptr},
                                              {"window_add", window_add, nullptr},
                                              {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

// resize_nearest, resize_f32: source -> destination, maps [maps, height, width, inner]. Attributes:
//
//   maps, inner, in: [height, width], out: [height, width], scales: [height, width] (reals)
//   coordinates (Coordinates), roi ([0, 0, 1, 1]: begin of height and width, then their ends), outside (0.0)
//   resize_nearest: element_bytes, nearest (Nearest), value (the bits of what lies outside)
//   resize_f32: taps (2 linear, 4 cubic), cubic_a (-0.75), exclude_outside (0), outside (0.0)
#include "kernels/prepare/resize.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/prepare/codes.hpp"
#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/movement_request.hpp"

namespace engine {
namespace {

// Floats of a combined row of the source: half of a first cache.
constexpr std::int64_t kScratchFloats = 4096;
constexpr std::int64_t kLargest = std::int64_t{1} << 30;

double source_coordinate(std::int64_t at, const ResizeDim& dim, Coordinates coordinates) {
  const double x = static_cast<double>(at), in = static_cast<double>(dim.in);
  const double out = dim.scale * in;  // ONNX's resized length: not rounded
  switch (coordinates) {
    case Coordinates::kAlignCorners:
      return out == 1 ? 0 : x * (in - 1) / (out - 1);
    case Coordinates::kAsymmetric:
      return x / dim.scale;
    case Coordinates::kTfCropAndResize: {
      const double span = (dim.roi_end - dim.roi_begin) * (in - 1);
      return (out == 1 ? span / 2 : x * (dim.roi_end - dim.roi_begin) * (in - 1) / (out - 1)) +
             dim.roi_begin * (in - 1);
    }
    case Coordinates::kPytorchHalfPixel:
      return dim.out == 1 ? 0 : (x + 0.5) / dim.scale - 0.5;
    case Coordinates::kHalfPixelSymmetric:
      return in / 2 * (1 - static_cast<double>(dim.out) / out) + (x + 0.5) / dim.scale - 0.5;
    default:
      return (x + 0.5) / dim.scale - 0.5;
  }
}

double nearest_offset(double ratio, Nearest nearest) {
  switch (nearest) {
    case Nearest::kRoundPreferFloor:
      return ratio > 0.5 ? 1 : 0;
    case Nearest::kRoundPreferCeil:
      return ratio >= 0.5 ? 1 : 0;
    case Nearest::kFloor:
      return 0;
    default:
      return ratio > 0 ? 1 : 0;
  }
}

void set_weights(double ratio, const ResizeRule& rule, double* weights) {
  if (rule.taps == 1) weights[0] = 1;
  if (rule.taps == 2) {
    weights[0] = 1 - ratio;
    weights[1] = ratio;
  }
  if (rule.taps != 4) return;
  const double a = rule.cubic_a, rest = 1 - ratio;
  weights[0] = ((a * (ratio + 1) - 5 * a) * (ratio + 1) + 8 * a) * (ratio + 1) - 4 * a;
  weights[1] = ((a + 2) * ratio - (a + 3)) * ratio * ratio + 1;
  weights[2] = ((a + 2) * rest - (a + 3)) * rest * rest + 1;
  weights[3] = ((a * (rest + 1) - 5 * a) * (rest + 1) + 8 * a) * (rest + 1) - 4 * a;
}

ResizeTap make_tap(double x, const ResizeDim& dim, const ResizeRule& rule) {
  const double below = std::floor(x), ratio = x - below;
  const double first = rule.taps == 1 ? below + nearest_offset(ratio, rule.nearest) : below - (rule.taps / 2 - 1);
  double weights[kMaxTaps] = {};
  set_weights(ratio, rule, weights);
  ResizeTap tap = {};
  double sum = 0;
  for (int k = 0; k < rule.taps; ++k) {
    const double at = first + k, last = static_cast<double>(dim.in - 1);
    if (rule.exclude_outside && (at < 0 || at > last)) weights[k] = 0;
    sum += weights[k];
    tap.index[k] = static_cast<std::int32_t>(std::clamp(at, 0.0, last));
  }
  tap.only = -1;
  for (int k = 0; k < rule.taps; ++k) {
    tap.weight[k] = static_cast<float>(rule.exclude_outside && sum != 0 ? weights[k] / sum : weights[k]);
    if (tap.weight[k] == 1) tap.only = k;
  }
  for (int k = 0; k < rule.taps; ++k)
    if (k != tap.only && tap.weight[k] != 0) tap.only = -1;
  return tap;
}

std::vector<double> read_reals(const Attributes& attributes, const char* name, std::size_t count) {
  const std::vector<double> values = attributes.reals(name);
  if (values.size() != count) {
    throw PlanError(std::string("attribute \"") + name + "\" has " + std::to_string(values.size()) +
                    " values; expected " + std::to_string(count));
  }
  for (const double value : values) {
    if (!std::isfinite(value)) throw PlanError(std::string("attribute \"") + name + "\" is not finite");
  }
  return values;
}

struct ResizeRequest {
  ResizeArgs args;
  ResizeDim rows, columns;
  ResizeRule rule;
};

ResizeRequest read_resize(const Attributes& attributes) {
  ResizeRequest resize = {};
  ResizeArgs& args = resize.args;
  args.maps = attributes.integer("maps", 0, std::int64_t{1} << 40);
  args.inner = attributes.integer("inner", 0, kLargest);
  const auto in = read_shape(attributes, "in", 2, 2), out = read_shape(attributes, "out", 2, 2);
  const auto scales = read_reals(attributes, "scales", 2);
  const auto roi = attributes.has("roi") ? read_reals(attributes, "roi", 4) : std::vector<double>{0, 0, 1, 1};
  for (int d = 0; d < 2; ++d) {
    if (in[d] > kLargest || out[d] > kLargest) throw PlanError("a dimension is larger than 2^30");
    if (!(scales[d] > 0)) throw PlanError("scale " + std::to_string(scales[d]) + " is not positive");
    if (in[d] == 0 && out[d] > 0) {
      throw PlanError("an empty dimension is resized to " + std::to_string(out[d]));
    }
  }
  args.in_h = in[0];
  args.in_w = in[1];
  args.out_h = out[0];
  args.out_w = out[1];
  resize.rows = {in[0], out[0], scales[0], roi[0], roi[2]};
  resize.columns = {in[1], out[1], scales[1], roi[1], roi[3]};
  resize.rule.coordinates = read_code<Coordinates>(attributes, "coordinates");
  return resize;
}

PreparedStep prepare_resize(const StepRequest& request, const char* kernel, const ResizeRequest& resize,
                            std::int64_t element) {
  const ResizeArgs& args = resize.args;
  const auto in_bytes = static_cast<std::size_t>(bytes_of({args.maps, args.in_h, args.in_w, args.inner}, element));
  const auto out_bytes = static_cast<std::size_t>(bytes_of({args.maps, args.out_h, args.out_w, args.inner}, element));
  request.expect_operands(1, 1);
  request.expect_input(0, in_bytes);
  request.expect_output(0, out_bytes);
  // Of nothing there is nothing to make tables for, however large its other dimensions.
  const bool is_empty = out_bytes == 0;
  ResizeDim rows = resize.rows, columns = resize.columns;
  ResizeArgs checked = args;
  if (is_empty) checked.maps = checked.out_h = checked.out_w = rows.out = columns.out = 0;
  PreparedPhase phase =
      make_resize(request.kernels.find(kernel), checked, make_taps(rows, resize.rule), make_taps(columns, resize.rule));
  phase.max_workers = workers_for_bytes(static_cast<double>(out_bytes) * resize.rule.taps);
  const std::size_t scratch = phase.scratch_bytes;
  return one_phase(std::move(phase), scratch, 0);
}

PreparedStep prepare_resize_nearest(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  ResizeRequest resize = read_resize(attributes);
  resize.rule.taps = 1;
  resize.rule.nearest = read_code<Nearest>(attributes, "nearest");
  resize.args.element = read_element_bytes(attributes);
  resize.args.pattern = read_pattern(attributes, resize.args.element);
  return prepare_resize(request, "resize_nearest", resize, resize.args.element);
}

PreparedStep prepare_resize_f32(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  ResizeRequest resize = read_resize(attributes);
  const std::int64_t taps = attributes.integer("taps", 2, 4);
  if (taps == 3) throw PlanError("3 taps; expected 2 or 4");
  resize.rule.taps = static_cast<int>(taps);
  resize.rule.cubic_a = attributes.real_or("cubic_a", -0.75);
  resize.rule.exclude_outside = attributes.has("exclude_outside") && attributes.integer("exclude_outside", 0, 1) == 1;
  resize.args.taps = static_cast<std::int32_t>(taps);
  resize.args.outside = static_cast<float>(attributes.real_or("outside", 0));
  return prepare_resize(request, "resize_f32", resize, 4);
}

}  // namespace

std::vector<ResizeTap> make_taps(const ResizeDim& dim, const ResizeRule& rule) {
  std::vector<ResizeTap> taps;
  taps.reserve(static_cast<std::size_t>(dim.out));
  for (std::int64_t i = 0; i < dim.out; ++i) {
    const double x = source_coordinate(i, dim, rule.coordinates);
    if (!std::isfinite(x)) throw PlanError("a scale of " + std::to_string(dim.scale) + " is too small");
    const bool is_cropped = rule.coordinates == Coordinates::kTfCropAndResize;
    taps.push_back(make_tap(x, dim, rule));
    if (taps.size() > 1 && rule.taps > 1 && taps.back().index[0] < taps[taps.size() - 2].index[0]) {
      throw PlanError(
          "the region of interest ends before it begins, or a scale does not fit its sizes; expected "
          "coordinates that ascend");
    }
    if (is_cropped && (x < 0 || x > static_cast<double>(dim.in - 1))) taps.back().index[0] = -1;
  }
  return taps;
}

PreparedPhase make_resize(const KernelEntry& kernel, ResizeArgs args, const std::vector<ResizeTap>& rows,
                          const std::vector<ResizeTap>& columns) {
  // The widest part of the source that `chunk` columns need.
  const auto span = [&](std::int64_t chunk) {
    std::int64_t widest = 0;
    for (std::int64_t x = 0; x < args.out_w; ++x) {
      const std::int64_t last = std::min(x + chunk, args.out_w) - 1;
      const ResizeTap &a = columns[static_cast<std::size_t>(x)], &b = columns[static_cast<std::size_t>(last)];
      if (args.taps > 0 && a.index[0] >= 0)
        widest = std::max<std::int64_t>(widest, b.index[args.taps - 1] + 1 - a.index[0]);
    }
    return widest;
  };
  args.chunk = std::max<std::int64_t>(1, args.out_w);
  while (args.taps > 0 && args.chunk > 1 && span(args.chunk) * args.inner > kScratchFloats)
    args.chunk = (args.chunk + 1) / 2;
  PreparedPhase phase = PreparedPhase::of(kernel, args);
  const std::size_t bytes = (rows.size() + columns.size()) * sizeof(ResizeTap);
  phase.args.resize(sizeof args + bytes);
  if (!rows.empty()) std::memcpy(phase.args.data() + sizeof args, rows.data(), rows.size() * sizeof(ResizeTap));
  if (!columns.empty()) {
    std::memcpy(phase.args.data() + sizeof args + rows.size() * sizeof(ResizeTap), columns.data(),
                columns.size() * sizeof(ResizeTap));
  }
  phase.scratch_bytes = static_cast<std::size_t>(span(args.chunk) * args.inner) * sizeof(float);
  return phase;
}

extern const OperationEntry resize_operations[] = {
    {"resize_nearest", prepare_resize_nearest}, {"resize_f32", prepare_resize_f32}, {}};

}  // namespace engine

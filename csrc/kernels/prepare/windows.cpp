// Columns have room for [groups, channels / groups * taps + ones, rows * windows of the last axis] floats.
//
// window_unroll: image -> columns.
// window_deform: image, offset, [mask] -> columns.
// window_add: columns, [bias], [images] -> images; those that are given are the same buffer.
//
// Attributes: groups (1), channels, first, rows; images, windows, kernel, strides, dilations, pads: of each of four
// axes, the last of which are the image's; ones (0); window_deform: offset_groups, mask (0); window_add: begins, bias
// (0). See windows.hpp and the kernel.
#include "kernels/windows.hpp"

#include <algorithm>

#include "kernels/prepare/movement_request.hpp"

namespace engine {
namespace {

constexpr std::int64_t kLargestWindows = std::int64_t{1} << 40;
constexpr std::int64_t kLargestStep = std::int64_t{1} << 20;

void read_axes(const Attributes& attributes, const char* name, std::int64_t least, std::int64_t most,
               std::int64_t* values) {
  const auto& given = attributes.integers(name, kWindowAxes, least, most);
  std::copy(given.begin(), given.end(), values);
}

std::int64_t product_of(const std::int64_t* lengths, int count) {
  return static_cast<std::int64_t>(checked_product({lengths, lengths + count}));
}

WindowsArgs read_args(const Attributes& attributes) {
  WindowsArgs args = {};
  args.groups = attributes.integer_or("groups", 1, kLargestWindows, 1);
  args.channels = attributes.integer("channels", 0, kLargestWindows);
  if (args.channels % args.groups != 0) throw PlanError("the groups do not divide the channels");
  read_axes(attributes, "images", 0, kLargestWindows, args.images);
  read_axes(attributes, "windows", 0, kLargestWindows, args.windows);
  read_axes(attributes, "kernel", 1, kLargestWindows, args.kernel);
  read_axes(attributes, "strides", 1, kLargestStep, args.strides);
  read_axes(attributes, "dilations", 1, kLargestStep, args.dilations);
  read_axes(attributes, "pads", -kLargestWindows, kLargestWindows, args.pads);
  const std::int64_t rows = product_of(args.windows, kWindowAxes - 1);
  args.first = attributes.integer("first", 0, rows);
  args.rows = attributes.integer("rows", 0, rows - args.first);
  args.has_ones = attributes.flag("ones");
  product_of(args.images, kWindowAxes);
  checked_product({product_of(args.kernel, kWindowAxes), kLargestStep});
  return args;
}

std::size_t image_bytes(const WindowsArgs& args) {
  return checked_product({args.channels, product_of(args.images, kWindowAxes), 4});
}

std::size_t column_bytes(const WindowsArgs& args) {
  const std::int64_t taps = product_of(args.kernel, kWindowAxes);
  const std::size_t rows =
      checked_add(checked_product({args.channels, taps}), args.has_ones ? static_cast<std::size_t>(args.groups) : 0);
  return checked_product({static_cast<std::int64_t>(rows), args.rows, args.windows[kWindowAxes - 1], 4});
}

PreparedStep one_step(const StepRequest& request, const char* kernel, const WindowsArgs& args, double bytes) {
  PreparedStep step;
  step.phases.push_back(PreparedPhase::of(request.kernels.find(kernel), args));
  step.phases.back().max_workers = workers_for_bytes(bytes);
  return step;
}

PreparedStep prepare_unroll(const StepRequest& request) {
  const WindowsArgs args = read_args(request.attributes);
  request.expect_operands(1, 1);
  request.expect_input(0, image_bytes(args));
  request.expect_output(0, column_bytes(args));
  return one_step(request, "window_unroll", args, static_cast<double>(column_bytes(args)));
}

PreparedStep prepare_deform(const StepRequest& request) {
  WindowsArgs args = read_args(request.attributes);
  args.offset_groups = request.attributes.integer("offset_groups", 1, kLargestWindows);
  args.has_mask = request.attributes.flag("mask");
  if (args.channels % args.offset_groups != 0) throw PlanError("the groups of offsets do not divide the channels");
  if (args.images[0] != 1 || args.images[1] != 1 || args.kernel[0] != 1 || args.kernel[1] != 1 ||
      args.windows[0] != 1 || args.windows[1] != 1 || args.pads[0] != 0 || args.pads[1] != 0)
    throw PlanError("deformed windows have two axes");
  const std::int64_t moved = static_cast<std::int64_t>(checked_product(
      {args.offset_groups, product_of(args.kernel, kWindowAxes), product_of(args.windows, kWindowAxes)}));
  if (moved > 0 && args.channels > 0 && product_of(args.images, kWindowAxes) == 0)
    throw PlanError("the sampled image is empty");
  request.expect_operands(2u + args.has_mask, 1);
  request.expect_input(0, image_bytes(args));
  request.expect_input(1, checked_product({moved, 2, 4}));
  if (args.has_mask) request.expect_input(2, checked_product({moved, 4}));
  request.expect_output(0, column_bytes(args));
  return one_step(request, "window_deform", args, 8.0 * static_cast<double>(column_bytes(args)));
}

PreparedStep prepare_add(const StepRequest& request) {
  WindowsArgs args = read_args(request.attributes);
  args.begins = request.attributes.integer("begins", 0, 1) == 1;
  args.has_bias = request.attributes.flag("bias");
  if (args.has_ones || args.groups != 1) throw PlanError("windows that are added have neither groups nor ones");
  request.expect_operands(1u + args.has_bias + !args.begins, 1);
  request.expect_input(0, column_bytes(args));
  if (args.has_bias) request.expect_input(1, checked_product({args.channels, 4}));
  if (!args.begins) request.expect_input(1u + args.has_bias, image_bytes(args));
  request.expect_output(0, image_bytes(args));
  return one_step(request, "window_add", args, static_cast<double>(column_bytes(args)));
}

}  // namespace

extern const OperationEntry windows_operations[] = {
    {"window_unroll", prepare_unroll}, {"window_deform", prepare_deform}, {"window_add", prepare_add, true}, {}};

}  // namespace engine

// window_pool: x -> y and, with positions, their positions. Attributes:
//
//   op (0 maximum, 1 mean, 2 norm), type (ElementCode), maps
//   in, out, kernel, strides, dilations: 3 values each; pads: 3 before, 3 behind
//   counts_padding, column_major, positions (0); power (2)
#include "kernels/window_pool.hpp"

#include <algorithm>

#include "kernels/prepare/codes.hpp"
#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/movement_request.hpp"

namespace engine {
namespace {

// The limit of lengths, steps and padding: with it, positions do not overflow.
constexpr std::int64_t kMaxValue = std::int64_t{1} << 30;

void read_three(const Attributes& attributes, const char* name, std::int64_t least, std::int64_t* to) {
  const auto values = read_shape(attributes, name, 3, 3);
  for (std::size_t axis = 0; axis < 3; ++axis) {
    if (values[axis] < least || values[axis] > kMaxValue) {
      throw PlanError("attribute \"" + std::string(name) + "\" has the value " + std::to_string(values[axis]) +
                      "; expected " + std::to_string(least) + " to " + std::to_string(kMaxValue));
    }
    to[axis] = values[axis];
  }
}

// Makes the last two axes one where windows have one position along both of them, or a single window has them all, so
// that rows are long; but no longer than a cache holds as f64.
void join_axes(WindowPoolArgs& args) {
  constexpr std::int64_t kMaxRow = 2048;
  const auto is_whole = [&](std::size_t axis) {
    return args.kernel[axis] == 1 && args.stride[axis] == 1 && args.begin[axis] == 0 && args.end[axis] == 0 &&
           args.out[axis] == args.in[axis];
  };
  const auto is_one = [&](std::size_t axis) {
    return args.kernel[axis] == args.in[axis] && args.dilation[axis] == 1 && args.begin[axis] == 0 &&
           args.end[axis] == 0 && args.out[axis] == 1;
  };
  const bool is_joined = (is_whole(1) && is_whole(2)) || (is_one(1) && is_one(2));
  if (args.has_positions || !is_joined || args.in[1] > kMaxRow || args.in[2] > kMaxRow ||
      args.in[1] * args.in[2] > kMaxRow)
    return;
  args.in[2] *= args.in[1];
  args.out[2] *= args.out[1];
  args.kernel[2] *= args.kernel[1];
  args.in[1] = args.out[1] = args.kernel[1] = 1;
}

// The elements of a row of the map and its padding that the windows of a row have, and those that vectors read behind.
// 0: the strides are not for vectors, or it is longer than usual windows need.
std::int64_t line_of(const WindowPoolArgs& args) {
  constexpr std::int64_t kVectors = 32, kMaxRow = 1 << 16, kMaxBegin = 64;
  const bool is_usual = args.type == ElementCode::kF32 && args.op != WindowPoolOp::kNorm && !args.has_positions;
  if (!is_usual || args.maps == 0 || args.stride[2] > 2 || args.begin[2] > kMaxBegin || args.in[2] > kMaxRow ||
      args.out[2] > kMaxRow || args.kernel[2] > kMaxRow || args.dilation[2] > kMaxRow)
    return 0;
  const std::int64_t reached = (args.out[2] - 1) * args.stride[2] + (args.kernel[2] - 1) * args.dilation[2] + 1;
  const std::int64_t line = std::max(reached, args.begin[2] + args.in[2]) + kVectors;
  return line <= 4 * kMaxRow ? line : 0;
}

PreparedStep prepare_window_pool(const StepRequest& request) {
  using Code = ElementCode;
  const Attributes& attributes = request.attributes;
  WindowPoolArgs args = {};
  args.op = static_cast<WindowPoolOp>(attributes.integer("op", 0, 2));
  args.type = args.op == WindowPoolOp::kMax ? read_code(attributes, "type", {Code::kF32, Code::kI8, Code::kU8})
                                            : read_code(attributes, "type", {Code::kF32});
  args.maps = attributes.integer("maps", 0, std::int64_t{1} << 40);
  read_three(attributes, "in", 0, args.in);
  read_three(attributes, "out", 0, args.out);
  read_three(attributes, "kernel", 1, args.kernel);
  read_three(attributes, "strides", 1, args.stride);
  read_three(attributes, "dilations", 1, args.dilation);
  const auto pads = read_shape(attributes, "pads", 6, 6);
  for (std::size_t axis = 0; axis < 3; ++axis) {
    args.begin[axis] = std::min(pads[axis], kMaxValue);
    args.end[axis] = std::min(pads[axis + 3], kMaxValue);
  }
  const auto flag = [&](const char* name) { return static_cast<std::int32_t>(attributes.integer_or(name, 0, 1, 0)); };
  args.counts_padding = flag("counts_padding");
  args.column_major = flag("column_major");
  args.has_positions = args.op == WindowPoolOp::kMax ? flag("positions") : 0;
  args.power = static_cast<std::int32_t>(attributes.integer_or("power", 1, 1 << 20, 2));
  const std::int64_t element = element_bytes(args.type);
  const std::int64_t outputs = bytes_of({args.maps, args.out[0], args.out[1], args.out[2]}, 1);
  request.expect_operands(1, args.has_positions ? 2 : 1);
  request.expect_input(0, static_cast<std::size_t>(bytes_of({args.maps, args.in[0], args.in[1], args.in[2]}, element)));
  request.expect_output(0, static_cast<std::size_t>(bytes_of({outputs}, element)));
  if (args.has_positions) request.expect_output(1, static_cast<std::size_t>(bytes_of({outputs}, 8)));
  if (outputs == 0) args.maps = 0;
  join_axes(args);
  const double steps = static_cast<double>(outputs) * static_cast<double>(args.kernel[0]) *
                       static_cast<double>(args.kernel[1]) * static_cast<double>(args.kernel[2]);
  args.line = line_of(args);
  PreparedPhase phase = PreparedPhase::of(request.kernels.find("window_pool"), args);
  phase.max_workers = workers_for_bytes(4 * steps);
  const std::int64_t row = args.line > 0 ? args.line + args.out[2] : args.in[2];
  const std::int64_t scratch = args.has_positions ? 0 : bytes_of({row}, 8);
  return one_phase(std::move(phase), static_cast<std::size_t>(scratch), steps);
}

}  // namespace

extern const OperationEntry window_pool_operations[] = {{"window_pool", prepare_window_pool}, {}};

}  // namespace engine

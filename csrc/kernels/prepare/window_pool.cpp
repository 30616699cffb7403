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
  PreparedPhase phase = PreparedPhase::of(request.kernels.find("window_pool"), args);
  const double steps = static_cast<double>(outputs) * static_cast<double>(args.kernel[0]) *
                       static_cast<double>(args.kernel[1]) * static_cast<double>(args.kernel[2]);
  phase.max_workers = workers_for_bytes(4 * steps);
  const std::int64_t scratch = args.has_positions ? 0 : bytes_of({args.in[2]}, 8);
  return one_phase(std::move(phase), static_cast<std::size_t>(scratch), steps);
}

}  // namespace

extern const OperationEntry window_pool_operations[] = {{"window_pool", prepare_window_pool}, {}};

}  // namespace engine

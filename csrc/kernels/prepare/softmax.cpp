// Plan building for Softmax.
#include "kernels/softmax.hpp"

#include "kernels/prepare/codes.hpp"
#include "kernels/prepare/norm_request.hpp"

namespace engine {
namespace {

// If there are fewer rows, all workers share each long row: a second exp of each element costs less than idle workers.
constexpr std::int64_t kFewRows = 8;

// Attributes: outer, axis, inner: the sizes; log (0): return the logarithm; columns (0): process columns even if inner
// is 1; repeatable (0): a row has the same bits for any number of rows. y may share the memory of x.
PreparedStep prepare_softmax_f32(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  SoftmaxArgs args = {};
  args.outer = attributes.integer("outer", 0, kLargestSize);
  args.axis = attributes.integer("axis", 0, kLargestSize);
  args.inner = attributes.integer("inner", 0, kLargestSize);
  args.is_log = attributes.flag("log");
  args.by_columns = attributes.flag("columns");
  const std::size_t bytes = float_bytes({args.outer, args.axis, args.inner});
  request.expect_operands(1, 1);
  request.expect_input(0, bytes);
  request.expect_output(0, bytes);
  if (bytes == 0) args.outer = 0;

  PreparedStep step;
  const bool shares_rows = !attributes.flag("repeatable") && args.outer < kFewRows;
  if (args.inner == 1 && !args.by_columns && shares_rows && args.axis >= 4 * kSoftmaxChunk) {
    args.chunks = (args.axis + kSoftmaxChunk - 1) / kSoftmaxChunk;
    step.temporaries.push_back(float_bytes({args.outer, 2, args.chunks}));
    step.phases.push_back(PreparedPhase::of(request.kernels.find("softmax_sum_f32"), args));
    step.phases.push_back(PreparedPhase::of(request.kernels.find("softmax_apply_f32"), args));
    return step;
  }
  step.phases.push_back(PreparedPhase::of(request.kernels.find("softmax_f32"), args));
  const std::int64_t runs =
      args.inner == 1 && !args.by_columns ? 1 : (args.inner + kSoftmaxColumns - 1) / kSoftmaxColumns;
  limit_workers(step.phases.back(), args.outer * runs);
  return step;
}

// Attributes: outer, axis: the sizes; x: f32, u8 or i8; x_scale (1): of integers; y: u8 or i8; y_scale; zero_point (0):
// of y. y may share the memory of x if it has its size.
PreparedStep prepare_softmax_bytes(const StepRequest& request) {
  using Code = ElementCode;
  const Attributes& attributes = request.attributes;
  SoftmaxBytesArgs args = {};
  args.outer = attributes.integer("outer", 0, kLargestSize);
  args.axis = attributes.integer("axis", 0, kLargestSize);
  args.x = read_code<Code>(attributes, "x", {Code::kF32, Code::kU8, Code::kI8});
  args.y = read_code<Code>(attributes, "y", {Code::kU8, Code::kI8});
  args.x_scale = static_cast<float>(attributes.real_or("x_scale", 1));
  args.y_scale = static_cast<float>(attributes.real("y_scale"));
  const std::int64_t low = args.y == Code::kU8 ? 0 : -128;
  args.y_zero_point = static_cast<std::int32_t>(attributes.integer_or("zero_point", low, low + 255, 0));
  const std::size_t count = checked_product({args.outer, args.axis});
  request.expect_operands(1, 1);
  request.expect_input(0, args.x == Code::kF32 ? float_bytes({args.outer, args.axis}) : count);
  request.expect_output(0, count);

  PreparedStep step;
  step.phases.push_back(PreparedPhase::of(request.kernels.find("softmax_bytes"), args));
  step.phases.back().scratch_bytes = float_bytes({args.axis});
  limit_workers(step.phases.back(), args.outer);
  return step;
}

}  // namespace

extern const OperationEntry softmax_operations[] = {
    {"softmax_f32", prepare_softmax_f32, true}, {"softmax_bytes", prepare_softmax_bytes, true}, {}};

}  // namespace engine

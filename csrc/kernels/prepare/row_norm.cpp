// Plan building for LayerNormalization and RMSNormalization.
#include "kernels/row_norm.hpp"

#include <string>

#include "kernels/prepare/norm_request.hpp"

namespace engine {
namespace {

// If there are fewer rows, all workers share each long row.
constexpr std::int64_t kFewRows = 8;

// Attributes: rows, columns: the sizes; epsilon; deviation_epsilon (0); residual, scale, bias, sum, mean, inv_std (0):
// whether the operand is present, in the order of row_norm.hpp. y and the sum may share the memory of x or the
// residual.
PreparedStep prepare(const StepRequest& request, const std::string& name) {
  const Attributes& attributes = request.attributes;
  RowNormArgs args = {};
  args.rows = attributes.integer("rows", 0, kLargestSize);
  args.columns = attributes.integer("columns", 0, kLargestSize);
  args.epsilon = read_epsilon(attributes, "epsilon");
  args.deviation_epsilon = read_epsilon_or(attributes, "deviation_epsilon", 0.0f);
  args.has_residual = attributes.flag("residual");
  args.has_scale = attributes.flag("scale");
  args.has_bias = attributes.flag("bias");
  args.stores_sum = attributes.flag("sum");
  args.stores_mean = attributes.flag("mean");
  args.stores_inv_std = attributes.flag("inv_std");
  if (args.stores_sum && !args.has_residual) throw PlanError("a sum is stored, but there is no residual to add");

  const std::size_t bytes = float_bytes({args.rows, args.columns});
  const std::size_t row_bytes = float_bytes({args.columns}), column_bytes = float_bytes({args.rows});
  request.expect_operands(1 + std::size_t{args.has_residual} + args.has_scale + args.has_bias,
                          1 + std::size_t{args.stores_sum} + args.stores_mean + args.stores_inv_std);
  std::size_t input = 0, output = 0;
  request.expect_input(input++, bytes);
  if (args.has_residual) request.expect_input(input++, bytes);
  if (args.has_scale) request.expect_input(input++, row_bytes);
  if (args.has_bias) request.expect_input(input++, row_bytes);
  request.expect_output(output++, bytes);
  if (args.stores_sum) request.expect_output(output++, bytes);
  if (args.stores_mean) request.expect_output(output++, column_bytes);
  if (args.stores_inv_std) request.expect_output(output++, column_bytes);

  PreparedStep step;
  const bool shares_rows = !attributes.flag("repeatable") && args.rows < kFewRows;
  if (shares_rows && args.columns >= 4 * kRowNormChunk) {
    args.chunks = (args.columns + kRowNormChunk - 1) / kRowNormChunk;
    step.temporaries.push_back(float_bytes({args.rows, args.chunks, 2}));
    for (const char* phase : {"_parts_f32", "_apply_f32"})
      step.phases.push_back(PreparedPhase::of(request.kernels.find(name + phase), args));
  } else {
    step.phases.push_back(PreparedPhase::of(request.kernels.find(name + "_f32"), args));
    limit_workers(step.phases.back(), args.rows);
  }
  return step;
}

PreparedStep prepare_layer_norm_f32(const StepRequest& request) {
  return prepare(request, "layer_norm");
}
PreparedStep prepare_rms_norm_f32(const StepRequest& request) {
  return prepare(request, "rms_norm");
}

}  // namespace

extern const OperationEntry row_norm_operations[] = {
    {"layer_norm_f32", prepare_layer_norm_f32, true}, {"rms_norm_f32", prepare_rms_norm_f32, true}, {}};

}  // namespace engine

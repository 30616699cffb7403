// Plan building for LpNormalization.
#include "kernels/lp_norm.hpp"

#include "kernels/prepare/norm_request.hpp"

namespace engine {
namespace {

// Attributes: outer, axis, inner: the sizes; p: 1 or 2. y may share the memory of x.
PreparedStep prepare_lp_norm_f32(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  LpNormArgs args = {};
  args.outer = attributes.integer("outer", 0, kLargestSize);
  args.axis = attributes.integer("axis", 0, kLargestSize);
  args.inner = attributes.integer("inner", 0, kLargestSize);
  const bool is_squared = attributes.integer("p", 1, 2) == 2;
  const std::size_t bytes = float_bytes({args.outer, args.axis, args.inner});
  request.expect_operands(1, 1);
  request.expect_input(0, bytes);
  request.expect_output(0, bytes);
  if (bytes == 0) args.outer = 0;
  PreparedStep step;
  step.phases.push_back(PreparedPhase::of(request.kernels.find(is_squared ? "l2_norm_f32" : "l1_norm_f32"), args));
  limit_workers(step.phases.back(), args.outer * ((args.inner + kLpNormColumns - 1) / kLpNormColumns));
  return step;
}

}  // namespace

extern const OperationEntry lp_norm_operations[] = {{"lp_norm_f32", prepare_lp_norm_f32, true}, {}};

}  // namespace engine

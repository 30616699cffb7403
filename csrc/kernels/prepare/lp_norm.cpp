// Plan building for LpNormalization.
#include "kernels/lp_norm.hpp"

#include <limits>

#include "kernels/prepare/norm_request.hpp"

namespace engine {
namespace {

// Attributes: outer, axis, inner: the sizes; p: 1 or 2, 0 for the greatest value; keeps_zeros (0): whether a row whose
// norm is 0 does not change, instead of becoming 0. y may share the memory of x.
PreparedStep prepare_lp_norm_f32(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  LpNormArgs args = {};
  args.outer = attributes.integer("outer", 0, kLargestSize);
  args.axis = attributes.integer("axis", 0, kLargestSize);
  args.inner = attributes.integer("inner", 0, kLargestSize);
  const std::int64_t p = attributes.integer("p", 0, 2);
  args.zero = attributes.flag("keeps_zeros") ? 1.0f : std::numeric_limits<float>::infinity();
  const std::size_t bytes = float_bytes({args.outer, args.axis, args.inner});
  request.expect_operands(1, 1);
  request.expect_input(0, bytes);
  request.expect_output(0, bytes);
  if (bytes == 0) args.outer = 0;
  PreparedStep step;
  step.phases.push_back(PreparedPhase::of(request.kernels.find(p == 0   ? "max_norm_f32"
                                                               : p == 1 ? "l1_norm_f32"
                                                                        : "l2_norm_f32"),
                                          args));
  limit_workers(step.phases.back(), args.outer * ((args.inner + kLpNormColumns - 1) / kLpNormColumns));
  return step;
}

}  // namespace

extern const OperationEntry lp_norm_operations[] = {{"lp_norm_f32", prepare_lp_norm_f32, true}, {}};

}  // namespace engine

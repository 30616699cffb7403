// Plan building for ArgMax, ArgMin and Hardmax.
#include "kernels/arg_reduce.hpp"

#include <algorithm>

#include "kernels/prepare.hpp"
#include "kernels/prepare/codes.hpp"

namespace engine {
namespace {

// Attributes: outer, axis, inner: sizes; arg_reduce also has type (ElementCode), min (0), last (0).
constexpr std::int64_t kLargestArgReduce = std::int64_t{1} << 30;
constexpr std::int64_t kShareElements = 32 * 1024;

ArgReduceArgs read_sizes(const Attributes& attributes) {
  ArgReduceArgs args = {};
  args.outer = attributes.integer("outer", 0, kLargestArgReduce);
  args.axis = attributes.integer("axis", 0, kLargestArgReduce);
  args.inner = attributes.integer("inner", 0, kLargestArgReduce);
  return args;
}

PreparedStep make_step(const KernelEntry& kernel, const ArgReduceArgs& args, std::size_t elements) {
  PreparedStep step;
  step.phases.push_back(PreparedPhase::of(kernel, args));
  const auto workers = static_cast<std::int64_t>(elements) / kShareElements;
  step.phases.back().max_workers = static_cast<int>(std::clamp<std::int64_t>(workers, 1, 1 << 20));
  return step;
}

PreparedStep prepare_arg_reduce(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  ArgReduceArgs args = read_sizes(attributes);
  using Code = ElementCode;
  args.type = read_code(attributes, "type", {Code::kF32, Code::kI32, Code::kI64, Code::kU8, Code::kI8});
  args.is_min = attributes.flag("min");
  args.is_last = attributes.flag("last");
  request.expect_operands(1, 1);
  const std::size_t elements = checked_product({args.outer, args.axis, args.inner});
  request.expect_input(0, checked_multiply(elements, static_cast<std::size_t>(element_bytes(args.type))));
  request.expect_output(0, checked_product({args.outer, args.inner, 8}));
  return make_step(request.kernels.find("arg_reduce"), args, elements);
}

PreparedStep prepare_hardmax_f32(const StepRequest& request) {
  const ArgReduceArgs args = read_sizes(request.attributes);
  request.expect_operands(1, 1);
  const std::size_t elements = checked_product({args.outer, args.axis, args.inner});
  request.expect_input(0, checked_multiply(elements, 4));
  request.expect_output(0, checked_multiply(elements, 4));
  return make_step(request.kernels.find("hardmax_f32"), args, elements);
}

}  // namespace

extern const OperationEntry arg_reduce_operations[] = {
    {"arg_reduce", prepare_arg_reduce}, {"hardmax_f32", prepare_hardmax_f32}, {}};

}  // namespace engine

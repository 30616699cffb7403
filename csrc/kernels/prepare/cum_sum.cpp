// Plan building for CumSum.
#include "kernels/cum_sum.hpp"

#include <algorithm>

#include "kernels/prepare.hpp"
#include "kernels/prepare/codes.hpp"

namespace engine {
namespace {

// Attributes: type (ElementCode); outer, axis, inner: sizes; exclusive, reverse, product (0).
PreparedStep prepare_cum_sum(const StepRequest& request) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  constexpr std::int64_t kShareElements = 32 * 1024;
  const Attributes& attributes = request.attributes;
  CumSumArgs args = {};
  args.type = read_code(attributes, "type",
                        {ElementCode::kF32, ElementCode::kF64, ElementCode::kI32, ElementCode::kI64, ElementCode::kU32,
                         ElementCode::kU64});
  args.outer = attributes.integer("outer", 0, kLargest);
  args.axis = attributes.integer("axis", 0, kLargest);
  args.inner = attributes.integer("inner", 0, kLargest);
  args.is_exclusive = attributes.flag("exclusive");
  args.is_reversed = attributes.flag("reverse");
  args.is_product = attributes.flag("product");
  request.expect_operands(1, 1);
  const std::size_t elements = checked_product({args.outer, args.axis, args.inner});
  const std::size_t bytes = checked_multiply(elements, static_cast<std::size_t>(element_bytes(args.type)));
  request.expect_input(0, bytes);
  request.expect_output(0, bytes);
  PreparedStep step;
  step.phases.push_back(PreparedPhase::of(request.kernels.find("cum_sum"), args));
  const auto workers = static_cast<std::int64_t>(elements) / kShareElements;
  step.phases.back().max_workers = static_cast<int>(std::clamp<std::int64_t>(workers, 1, 1 << 20));
  return step;
}

}  // namespace

extern const OperationEntry cum_sum_operations[] = {{"cum_sum", prepare_cum_sum, true}, {}};

}  // namespace engine

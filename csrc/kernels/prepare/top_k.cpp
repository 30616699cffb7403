// Plan building for TopK.
#include "kernels/top_k.hpp"

#include <algorithm>

#include "kernels/prepare.hpp"
#include "kernels/prepare/codes.hpp"

namespace engine {
namespace {

// Attributes: type (ElementCode); outer, axis, inner, k: sizes; smallest (0).
PreparedStep prepare_top_k(const StepRequest& request) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  constexpr std::int64_t kShareElements = 8 * 1024;
  const Attributes& attributes = request.attributes;
  TopKArgs args = {};
  args.type = read_code(attributes, "type",
                        {ElementCode::kF32, ElementCode::kF64, ElementCode::kI32, ElementCode::kI64, ElementCode::kU64,
                         ElementCode::kU32, ElementCode::kI16, ElementCode::kU16, ElementCode::kI8, ElementCode::kU8});
  args.outer = attributes.integer("outer", 0, kLargest);
  args.axis = attributes.integer("axis", 0, kLargest);
  args.inner = attributes.integer("inner", 0, kLargest);
  args.k = attributes.integer("k", 0, args.axis);
  args.is_smallest = attributes.flag("smallest");
  request.expect_operands(1, 2);
  const std::int64_t bytes = element_bytes(args.type);
  const std::size_t elements = checked_product({args.outer, args.axis, args.inner});
  request.expect_input(0, checked_multiply(elements, static_cast<std::size_t>(bytes)));
  request.expect_output(0, checked_product({args.outer, args.k, args.inner, bytes}));
  request.expect_output(1, checked_product({args.outer, args.k, args.inner, 8}));
  PreparedStep step;
  step.phases.push_back(PreparedPhase::of(request.kernels.find("top_k"), args));
  PreparedPhase& phase = step.phases.back();
  phase.scratch_bytes = elements == 0 ? 0 : checked_product({args.k, static_cast<std::int64_t>(sizeof(TopKEntry))});
  const auto workers = static_cast<std::int64_t>(elements) / kShareElements;
  phase.max_workers = static_cast<int>(std::clamp<std::int64_t>(workers, 1, 1 << 20));
  return step;
}

}  // namespace

extern const OperationEntry top_k_operations[] = {{"top_k", prepare_top_k}, {}};

}  // namespace engine

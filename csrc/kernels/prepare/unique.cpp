// unique: x -> different slices, [first], [inverse], [counts], count; see the kernel. Attributes:
//
//   type (ElementCode), outer, axis, inner; sorted, joins_nans, first, inverse, counts (0): see UniqueArgs
#include "kernels/unique.hpp"

#include "kernels/prepare.hpp"
#include "kernels/prepare/codes.hpp"

namespace engine {
namespace {

constexpr std::int64_t kLargestUnique = std::int64_t{1} << 40;

PreparedStep prepare_unique(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  UniqueArgs args = {};
  args.type = read_code<ElementCode>(attributes, "type");
  args.outer = attributes.integer("outer", 0, kLargestUnique);
  args.axis = attributes.integer("axis", 0, kLargestUnique);
  args.inner = attributes.integer("inner", 0, kLargestUnique);
  args.is_sorted = attributes.flag("sorted");
  args.joins_nans = attributes.flag("joins_nans");
  args.has_first = attributes.flag("first");
  args.has_inverse = attributes.flag("inverse");
  args.has_counts = attributes.flag("counts");
  const std::size_t lists = 0u + args.has_first + args.has_inverse + args.has_counts;
  request.expect_operands(1, 2 + lists);
  const std::size_t bytes = checked_product({args.outer, args.axis, args.inner, element_bytes(args.type)});
  const std::size_t places = checked_product({args.axis, 8});
  request.expect_input(0, bytes);
  request.expect_output(0, bytes);
  for (std::size_t i = 1; i <= lists; ++i) request.expect_output(i, places);
  request.expect_output(1 + lists, 8);
  PreparedStep step;
  step.temporaries.assign(4, places);
  step.phases.push_back(PreparedPhase::of(request.kernels.find("unique"), args));
  step.phases.back().max_workers = 1;
  return step;
}

}  // namespace

extern const OperationEntry unique_operations[] = {{"unique", prepare_unique}, {}};

}  // namespace engine

// non_max_suppression: boxes, scores, [overlap], [least] -> selected, number of selected; see the kernel. Attributes:
//
//   batches, classes, boxes, limit (0..boxes)
//   centered, overlap, least (0): see NonMaxSuppressionArgs
#include "kernels/non_max_suppression.hpp"

#include <algorithm>

#include "kernels/prepare.hpp"

namespace engine {
namespace {

constexpr std::int64_t kLargestNonMaxSuppression = std::int64_t{1} << 31;
constexpr std::int64_t kShareBoxes = 4096;

int workers_for(double items) {
  return static_cast<int>(std::clamp(items, 1.0, 1048576.0));
}

PreparedStep prepare_non_max_suppression(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  NonMaxSuppressionArgs args = {};
  args.batches = attributes.integer("batches", 0, kLargestNonMaxSuppression);
  args.classes = attributes.integer("classes", 0, kLargestNonMaxSuppression);
  args.boxes = attributes.integer("boxes", 0, kLargestNonMaxSuppression);
  args.limit = attributes.integer("limit", 0, args.boxes);
  args.is_centered = attributes.flag("centered");
  args.has_overlap = attributes.flag("overlap");
  args.has_least = attributes.flag("least");
  request.expect_operands(2u + args.has_overlap + args.has_least, 2);
  request.expect_input(0, checked_product({args.batches, args.boxes, 4, 4}));
  request.expect_input(1, checked_product({args.batches, args.classes, args.boxes, 4}));
  for (std::size_t i = 2; i < 2u + args.has_overlap + args.has_least; ++i) request.expect_input(i, 4);
  request.expect_output(0, checked_product({args.batches, args.classes, args.limit, 3, 8}));
  request.expect_output(1, 8);
  PreparedStep step;
  step.temporaries.push_back(
      checked_product({args.batches, args.boxes, static_cast<std::int64_t>(sizeof(BoxCorners))}));
  step.temporaries.push_back(checked_product({args.batches, args.classes, 8}));
  step.temporaries.push_back(checked_product({args.batches, args.classes, args.limit, 4}));
  const double tasks = static_cast<double>(args.batches) * static_cast<double>(args.classes);
  const double share = static_cast<double>(args.boxes) / static_cast<double>(kShareBoxes);
  PreparedPhase corners = PreparedPhase::of(request.kernels.find("nms_boxes"), args);
  corners.max_workers = workers_for(static_cast<double>(args.batches) * share);
  PreparedPhase select = PreparedPhase::of(request.kernels.find("nms_select"), args);
  select.scratch_bytes = checked_add(checked_product({args.boxes, 8}), checked_product({args.limit, 5, 4}));
  select.max_workers = workers_for(std::min(tasks, tasks * share * 8));
  PreparedPhase write = PreparedPhase::of(request.kernels.find("nms_write"), args);
  write.max_workers = 1;
  step.phases = {std::move(corners), std::move(select), std::move(write)};
  return step;
}

}  // namespace

extern const OperationEntry non_max_suppression_operations[] = {{"non_max_suppression", prepare_non_max_suppression},
                                                                {}};

}  // namespace engine

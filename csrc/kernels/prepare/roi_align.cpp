// roi_align_f32: map, regions, image of each region -> result; see the kernel. Attributes:
//
//   images, channels, in: [height, width], regions, cells: [height, width], samples, scale; max, half_pixel (0)
#include "kernels/roi_align.hpp"

#include <algorithm>

#include "kernels/prepare/movement_request.hpp"

namespace engine {
namespace {

PreparedStep prepare_roi_align(const StepRequest& request) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 40;
  constexpr std::int64_t kMaxSamples = 1 << 16;
  const Attributes& attributes = request.attributes;
  const auto in = read_shape(attributes, "in", 2, 2), cells = read_shape(attributes, "cells", 2, 2);
  RoiAlignArgs args = {};
  args.images = attributes.integer("images", 0, kLargest);
  args.channels = attributes.integer("channels", 0, kLargest);
  args.height = in[0];
  args.width = in[1];
  args.regions = attributes.integer("regions", 0, kLargest);
  args.cells_h = cells[0];
  args.cells_w = cells[1];
  args.samples = attributes.integer("samples", 0, kMaxSamples);
  args.scale = static_cast<float>(attributes.real("scale"));
  args.is_max = attributes.flag("max");
  args.is_half_pixel = attributes.flag("half_pixel");
  const std::size_t bytes = checked_product({args.regions, args.channels, cells[0], cells[1], 4});
  if (bytes > 0 && (in[0] == 0 || in[1] == 0)) throw PlanError("the sampled map is empty");
  request.expect_operands(3, 1);
  request.expect_input(0, checked_product({args.images, args.channels, in[0], in[1], 4}));
  request.expect_input(1, checked_product({args.regions, 4, 4}));
  request.expect_input(2, checked_product({args.regions, 8}));
  request.expect_output(0, bytes);
  if (bytes == 0) args.regions = 0;
  PreparedStep step;
  step.phases.push_back(PreparedPhase::of(request.kernels.find("roi_align_f32"), args));
  step.phases.back().max_workers = workers_for_bytes(16.0 * static_cast<double>(bytes));
  return step;
}

}  // namespace

extern const OperationEntry roi_align_operations[] = {{"roi_align_f32", prepare_roi_align}, {}};

}  // namespace engine

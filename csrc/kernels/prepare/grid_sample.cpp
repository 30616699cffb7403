// grid_sample_f32: map, grid -> destination. Attributes:
//
//   batch, channels, in: [height, width] or [depth, height, width], points (of the grid, for each image)
//   taps (1 nearest, 2 linear, 4 cubic), padding (GridPadding), aligns_corners
#include "kernels/grid_sample.hpp"

#include <string>

#include "kernels/prepare/codes.hpp"
#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/movement_request.hpp"

namespace engine {
namespace {

PreparedStep prepare_grid_sample_f32(const StepRequest& request) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 40;
  const Attributes& attributes = request.attributes;
  const auto in = read_shape(attributes, "in", -1, 3);
  if (in.size() < 2) throw PlanError("attribute \"in\" must have two or three lengths");
  GridSampleArgs args = {};
  args.batch = attributes.integer("batch", 0, kLargest);
  args.channels = attributes.integer("channels", 0, kLargest);
  args.axes = static_cast<std::int32_t>(in.size());
  args.depth = in.size() == 3 ? in[0] : 1;
  args.height = in[in.size() - 2];
  args.width = in[in.size() - 1];
  args.points = attributes.integer("points", 0, kLargest);
  args.taps = static_cast<std::int32_t>(attributes.integer("taps", 1, 4));
  if (args.taps == 3) throw PlanError("attribute \"taps\" is 3; expected 1, 2 or 4");
  args.padding = read_code<GridPadding>(attributes, "padding");
  args.aligns_corners = static_cast<std::int32_t>(attributes.integer("aligns_corners", 0, 1));
  const std::int64_t bytes = bytes_of({args.batch, args.channels, args.points}, 4);
  if (bytes > 0 && (args.depth == 0 || args.height == 0 || args.width == 0))
    throw PlanError("the sampled map is empty");
  request.expect_operands(2, 1);
  request.expect_input(
      0, static_cast<std::size_t>(bytes_of({args.batch, args.channels, args.depth, args.height, args.width}, 4)));
  request.expect_input(1, static_cast<std::size_t>(bytes_of({args.batch, args.points, args.axes}, 4)));
  request.expect_output(0, static_cast<std::size_t>(bytes));
  if (bytes == 0) args.batch = 0;
  PreparedPhase phase = PreparedPhase::of(request.kernels.find("grid_sample_f32"), args);
  phase.max_workers =
      workers_for_bytes(static_cast<double>(bytes) * args.taps * args.taps * (args.axes == 3 ? args.taps : 1));
  return one_phase(std::move(phase), 0, 0);
}

}  // namespace

extern const OperationEntry grid_sample_operations[] = {{"grid_sample_f32", prepare_grid_sample_f32}, {}};

}  // namespace engine

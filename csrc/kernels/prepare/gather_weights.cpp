// Plan building for look-ups in a table of weights. Attributes of gather_weights: rows, columns, count (of indices),
// block, bits (4 or 8), index_bytes (4 or 8); half_scales, zero_points (0), center (0), as in gemm_weights.cpp.
#include "kernels/gather_weights.hpp"

#include <algorithm>

#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/movement_request.hpp"

namespace engine {
namespace {

constexpr std::int64_t kLargestGatherWeights = std::int64_t{1} << 40;

PreparedStep prepare_gather_weights(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  GatherWeightsArgs args = {};
  args.rows = attributes.integer("rows", 0, kLargestGatherWeights);
  args.columns = attributes.integer("columns", 0, kLargestGatherWeights);
  args.count = attributes.integer("count", 0, kLargestGatherWeights);
  args.block = attributes.integer("block", 1, kLargestGatherWeights);
  args.blocks = (args.columns + args.block - 1) / args.block;
  args.index_bytes = read_index_bytes(attributes);
  args.bits = static_cast<std::int32_t>(attributes.integer("bits", 4, 8));
  if (args.bits != 4 && args.bits != 8) throw PlanError("attribute \"bits\" must be 4 or 8");
  args.scale_bytes = attributes.flag("half_scales") ? 2 : 4;
  args.has_zero_points = attributes.flag("zero_points");
  args.center = static_cast<std::int32_t>(attributes.integer_or("center", 0, 255, 0));

  request.expect_operands(3 + static_cast<std::size_t>(args.has_zero_points), 1);
  request.expect_input(0, checked_product({args.rows, (args.columns * args.bits + 7) / 8}));
  request.expect_input(1, checked_product({args.rows, args.blocks, args.scale_bytes}));
  if (args.has_zero_points) request.expect_input(2, checked_product({args.rows, args.blocks}));
  request.expect_input(2 + static_cast<std::size_t>(args.has_zero_points),
                       checked_product({args.count, args.index_bytes}));
  const std::size_t bytes = checked_product({args.count, args.columns, 4});
  request.expect_output(0, bytes);
  PreparedPhase phase = PreparedPhase::of(request.kernels.find("gather_weights"), args);
  phase.max_workers = workers_for_bytes(static_cast<double>(bytes));
  return one_phase(std::move(phase), 0, 0);
}

}  // namespace

extern const OperationEntry gather_weights_operations[] = {{"gather_weights", prepare_gather_weights}, {}};

}  // namespace engine

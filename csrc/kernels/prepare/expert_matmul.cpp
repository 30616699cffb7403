// expert_matmul: x, experts, W, [scales], [zero points], [bias] -> y. Attributes:
//
//   tokens, ways, x_ways, experts, n, k, index_bytes: see expert_matmul.hpp
//   weights ("f32"): the type of numbers, "f32", "f16" or "bf16"
//   bits (0), block (k), digits (3): of codes; block is a multiple of 8 with 4 bits, and of 4 with 8 bits, unless it is
//   k zero_points, bias (0): whether the operand is present
#include "kernels/expert_matmul.hpp"

#include <algorithm>

#include "kernels/prepare/codes.hpp"
#include "kernels/prepare/movement_request.hpp"

namespace engine {
namespace {

constexpr std::int64_t kLargestExpertLength = std::int64_t{1} << 30;
// The least work for a worker, in bytes of weights times rows.
constexpr double kMinExpertWork = 3.0e4;
constexpr std::int64_t kExpertAlignment = 64;

ExpertBlocks layout_of_blocks(const ExpertMatmulArgs& args) {
  if (args.blocks <= 1 || args.block % args.chunk == 0) return ExpertBlocks::kOfChunks;
  if (args.chunk % args.block == 0) return ExpertBlocks::kInChunks;
  return ExpertBlocks::kIrregular;
}

void read_codes(const StepRequest& request, ExpertMatmulArgs& args) {
  const Attributes& attributes = request.attributes;
  const KernelEntry& kernel = request.kernels.find("expert_matmul_int8");
  const std::int64_t vector_bytes = static_cast<const ExpertTraits*>(kernel.traits)->vector_bytes;
  const std::int64_t most = std::max<std::int64_t>(args.k, 1);
  args.block = std::min(attributes.integer_or("block", 1, kLargestExpertLength, most), most);
  args.blocks = divide_up(args.k, args.block);
  if (args.blocks > 1 && args.block % codes_of_lane(args.bits) != 0) {
    throw PlanError("attribute \"block\" is " + std::to_string(args.block) + "; expected a multiple of " +
                    std::to_string(codes_of_lane(args.bits)) + " with codes of " + std::to_string(args.bits) + " bits");
  }
  if (args.k * args.bits % 8 != 0) {
    throw PlanError("attribute \"k\" is " + std::to_string(args.k) + "; expected rows of whole bytes");
  }
  args.digits = static_cast<std::int32_t>(attributes.integer_or("digits", 1, kExpertDigits, kExpertDigits));
  if (args.digits == 2) throw PlanError("attribute \"digits\" must be 1 or 3");
  args.has_zero_points = attributes.flag("zero_points");
  args.row_weights = args.k * args.bits / 8;
  args.row_zero_points = divide_up(args.blocks * args.bits, 8);
  args.chunk = vector_bytes * 8 / args.bits;
  args.chunks = divide_up(args.k, args.chunk);
  args.layout = layout_of_blocks(args);
  for (int lane = 0; lane < kExpertLanes; ++lane)
    args.lane_blocks[lane] = static_cast<std::int32_t>(lane * codes_of_lane(args.bits) / args.block);
  args.scales_ahead = kExpertAhead * 8 / args.bits / args.block;
  args.in_chunk = std::max<std::int64_t>(1, args.chunk / args.block);
  args.chunks_of_block = args.blocks <= 1 ? args.chunks + 1 : std::max<std::int64_t>(1, args.block / args.chunk);
  const std::int64_t row = kExpertDigitsAt + args.chunks * (vector_bytes + args.digits * args.chunk);
  args.digit_row = divide_up(row, kExpertAlignment) * kExpertAlignment;
}

int workers_for_experts(double work) {
  return static_cast<int>(std::min(1e6, std::max(1.0, work / kMinExpertWork)));
}

PreparedStep prepare_expert_matmul(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  ExpertMatmulArgs args = {};
  args.tokens = attributes.integer("tokens", 0, kLargestExpertLength);
  args.ways = attributes.integer("ways", 0, kLargestExpertLength);
  args.x_ways = attributes.integer("x_ways", 0, kLargestExpertLength);
  if (args.x_ways != 1 && args.x_ways != args.ways) {
    throw PlanError("attribute \"x_ways\" is " + std::to_string(args.x_ways) + "; expected 1 or " +
                    std::to_string(args.ways));
  }
  args.experts = attributes.integer("experts", 1, kLargestExpertLength);
  args.n = attributes.integer("n", 0, kLargestExpertLength);
  args.k = attributes.integer("k", 0, kLargestExpertLength);
  args.index_bytes = static_cast<std::int32_t>(read_index_bytes(attributes));
  args.bits = static_cast<std::int32_t>(attributes.integer_or("bits", 0, 8, 0));
  if (args.bits != 0 && args.bits != 4 && args.bits != 8) throw PlanError("attribute \"bits\" must be 0, 4 or 8");
  args.has_bias = attributes.flag("bias");
  args.weights = ElementCode::kF32;
  if (args.bits == 0 && attributes.has("weights")) {
    args.weights =
        read_code<ElementCode>(attributes, "weights", {ElementCode::kF32, ElementCode::kF16, ElementCode::kBF16});
  }
  args.row_weights = args.k * element_bytes(args.weights);
  if (args.bits != 0) read_codes(request, args);
  const std::int64_t rows = bytes_of({args.tokens, args.ways}, 1);
  args.y_at = 3 + (args.bits != 0) + args.has_zero_points + args.has_bias;

  request.expect_operands(static_cast<std::size_t>(args.y_at), 1);
  request.expect_input(0, checked_product({args.tokens, args.x_ways, args.k, 4}));
  request.expect_input(1, checked_product({rows, args.index_bytes}));
  request.expect_input(2, checked_product({args.experts, args.n, args.row_weights}));
  std::size_t next = 3;
  if (args.bits != 0) request.expect_input(next++, checked_product({args.experts, args.n, args.blocks, 4}));
  if (args.has_zero_points) request.expect_input(next++, checked_product({args.experts, args.n, args.row_zero_points}));
  if (args.has_bias) request.expect_input(next, checked_product({args.experts, args.n, 4}));
  request.expect_output(0, checked_product({rows, args.n, 4}));

  PreparedStep step;
  step.work = 2.0 * static_cast<double>(rows) * static_cast<double>(args.n) * static_cast<double>(args.k);
  step.temporaries.push_back(checked_product({args.experts + 1 + rows, 8}));
  if (args.bits != 0) {
    step.temporaries.push_back(checked_product({args.tokens, args.x_ways, args.digit_row}));
    step.phases.push_back(PreparedPhase::of(request.kernels.find("expert_digits"), args));
    step.phases.back().max_workers = workers_for_experts(static_cast<double>(step.temporaries.back()));
  } else {
    step.phases.push_back(PreparedPhase::of(request.kernels.find("expert_order"), args));
    step.phases.back().max_workers = 1;
  }
  const char* kernel = args.bits != 0 ? "expert_matmul_int8" : "expert_matmul_f32";
  step.phases.push_back(PreparedPhase::of(request.kernels.find(kernel), args));
  step.phases.back().max_workers =
      workers_for_experts(static_cast<double>(rows) * static_cast<double>(args.n * args.row_weights));
  return step;
}

}  // namespace

extern const OperationEntry expert_matmul_operations[] = {{"expert_matmul", prepare_expert_matmul}, {}};

}  // namespace engine

// Plan building for products of two computed matrices of 8-bit integers. Attributes: as in requantize_request.hpp, and
//
//   m, n, k
//   a_batches, b_batches (1): the number of matrices
//   batch, a_step, b_step ([]): the lengths of the batch's dimensions, and the matrices between two of each, or 0
//   a_signed, b_signed (0): whether the operand is i8     b_transposed (0): B is [N, K]
//   a_zeros, b_zeros, scales (0): whether there is a value for each row or column
#include "kernels/product_int8.hpp"

#include <algorithm>

#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/requantize_request.hpp"
#include "kernels/prepare/tile_request.hpp"

namespace engine {
namespace {

constexpr std::int64_t kBlock = 16, kLargestProductInt8 = std::int64_t{1} << 30;
// The fewest multiplications, and bytes to be rearranged, for a worker.
constexpr double kMinWork = 4.0e5, kMinBytes = 3.0e4;

void read_batch(const Attributes& attributes, ProductInt8Args& args) {
  const auto read = [&](const char* name) {
    return attributes.has(name) ? attributes.integers(name) : std::vector<std::int64_t>{};
  };
  const std::vector<std::int64_t> batch = read("batch"), a_step = read("a_step"), b_step = read("b_step");
  if (batch.size() > kProductBatchRank || a_step.size() != batch.size() || b_step.size() != batch.size()) {
    throw PlanError("attributes \"batch\", \"a_step\" and \"b_step\" have " + std::to_string(batch.size()) + ", " +
                    std::to_string(a_step.size()) + " and " + std::to_string(b_step.size()) +
                    " values; expected as many of each, up to " + std::to_string(kProductBatchRank));
  }
  args.batch_rank = static_cast<std::int32_t>(batch.size());
  args.batches = 1;
  std::int64_t a_last = 0, b_last = 0;
  for (std::size_t d = 0; d < batch.size(); ++d) {
    if (batch[d] < 0 || batch[d] > kLargestProductInt8 || a_step[d] < 0 || a_step[d] > kLargestProductInt8 ||
        b_step[d] < 0 || b_step[d] > kLargestProductInt8) {
      throw PlanError("dimension " + std::to_string(d) + " of the batch has a length or step below 0 or above 2^30");
    }
    args.batch[d] = batch[d];
    args.a_step[d] = a_step[d];
    args.b_step[d] = b_step[d];
    args.batches = static_cast<std::int64_t>(checked_product({args.batches, batch[d]}));
    a_last = static_cast<std::int64_t>(
        checked_add(a_last, checked_product({std::max<std::int64_t>(0, batch[d] - 1), a_step[d]})));
    b_last = static_cast<std::int64_t>(
        checked_add(b_last, checked_product({std::max<std::int64_t>(0, batch[d] - 1), b_step[d]})));
  }
  args.a_batches = attributes.integer_or("a_batches", 0, kLargestProductInt8, 1);
  args.b_batches = attributes.integer_or("b_batches", 0, kLargestProductInt8, 1);
  if (args.batches > 0 && (a_last >= args.a_batches || b_last >= args.b_batches)) {
    throw PlanError("the batch reads matrices " + std::to_string(a_last) + " of " + std::to_string(args.a_batches) +
                    " and " + std::to_string(b_last) + " of " + std::to_string(args.b_batches));
  }
}

ProductInt8Args read_product(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  const TileTraits& traits = *static_cast<const TileTraits*>(request.kernels.find("product_int8").traits);
  ProductInt8Args args = {};
  args.m = attributes.integer("m", 0, kLargestProductInt8);
  args.n = attributes.integer("n", 0, kLargestProductInt8);
  args.k = attributes.integer("k", 0, kLargestProductInt8);
  read_batch(attributes, args);
  args.is_a_signed = attributes.flag("a_signed");
  args.is_b_signed = attributes.flag("b_signed");
  args.is_b_transposed = attributes.flag("b_transposed");
  args.has_a_zeros = attributes.flag("a_zeros");
  args.has_b_zeros = attributes.flag("b_zeros");
  args.has_scales = attributes.flag("scales");
  args.requantize = read_requantize(attributes);
  args.tiling.vectors = needed_vectors(traits.best_vectors, args.n, traits);
  args.tiling.pixels = traits.max_pixels[args.tiling.vectors];
  args.pack = pack_columns(args.n, args.k, args.tiling.vectors, traits);
  const PackArgs& pack = args.pack;
  const std::int64_t tiles = pack_tiles(pack);
  args.columns = tiles == 0 ? 0 : (tiles - 1) * pack.tile_channels + pack.tail_channels;
  return args;
}

PreparedStep prepare_product_int8(const StepRequest& request) {
  ProductInt8Args args = read_product(request);
  const bool is_scaled = args.requantize.y != ElementCode::kI32;
  args.c_at = 4 + is_scaled;
  // Leaves room for the multiplications below, and in the kernels.
  checked_product({args.batches + 1, args.m + 16, args.n + 64, 64});
  checked_product({args.a_batches + 1, args.m + 16, args.k + 64, 64});
  checked_product({args.b_batches + 1, args.n + 64, args.k + 64, 64});
  request.expect_operands(static_cast<std::size_t>(args.c_at), 1);
  request.expect_input(0, checked_product({args.a_batches, args.m, args.k}));
  request.expect_input(1, checked_product({args.b_batches, args.n, args.k}));
  request.expect_input(2, args.has_a_zeros ? checked_product({args.m}) : 1);
  request.expect_input(3, args.has_b_zeros ? checked_product({args.n}) : 1);
  if (is_scaled) request.expect_input(4, args.has_scales ? blocked_bytes(1, args.n, 1, 1) : sizeof(float));
  request.expect_output(0, checked_product({args.batches, args.m, args.n, element_bytes_of(args.requantize.y)}));

  PreparedStep step;
  step.work = 2.0 * args.batches * args.m * args.n * args.k;
  const std::int64_t quads = divide_up(args.k, 4);
  step.temporaries = {checked_product({args.b_batches, args.columns, quads, 4}),
                      checked_product({args.b_batches, args.columns, 4}), checked_product({args.columns, 4}),
                      checked_product({args.a_batches, args.m, divide_up(args.k, kBlock) * kBlock}),
                      checked_product({args.a_batches, args.m, 4})};
  const auto add = [&](const char* kernel, double useful) {
    step.phases.push_back(PreparedPhase::of(request.kernels.find(kernel), args));
    step.phases.back().max_workers = static_cast<int>(std::min(1e6, std::max(1.0, useful)));
  };
  add("product_pack_int8", static_cast<double>(args.b_batches) * args.n * args.k / kMinBytes);
  add("product_panel_int8", static_cast<double>(args.a_batches) * args.m * args.k / kMinBytes);
  add("product_int8", step.work / 2 / kMinWork);
  step.phases.back().scratch_bytes = static_cast<std::size_t>(args.tiling.pixels) * 64 * sizeof(std::int32_t);
  return step;
}

}  // namespace

extern const OperationEntry product_int8_operations[] = {{"product_int8", prepare_product_int8}, {}};

}  // namespace engine

// nonzero: x -> coordinates, count. Attributes: type (ElementCode), dims.
// compress: data, condition -> slices, count. Attributes: outer, axis, inner (bytes), conditions. See the kernel.
#include "kernels/compaction.hpp"

#include <algorithm>

#include "kernels/prepare.hpp"
#include "kernels/prepare/codes.hpp"

namespace engine {
namespace {

constexpr std::int64_t kLargestCompaction = std::int64_t{1} << 40;
constexpr std::int64_t kMinChunk = 16 * 1024;

std::int64_t chunks_of(std::int64_t elements) {
  return std::clamp<std::int64_t>(elements / kMinChunk, 1, kCompactionChunks);
}

bool has_sign_of_zero(ElementCode type) {
  return type == ElementCode::kF32 || type == ElementCode::kF64 || type == ElementCode::kF16 ||
         type == ElementCode::kBF16;
}

template <class Args>
PreparedStep counted(const StepRequest& request, const char* count, const char* write, const Args& args,
                     std::int64_t writers) {
  PreparedStep step;
  step.temporaries.push_back(checked_product({args.chunks, 8}));
  step.phases.push_back(PreparedPhase::of(request.kernels.find(count), args));
  step.phases.back().max_workers = static_cast<int>(args.chunks);
  step.phases.push_back(PreparedPhase::of(request.kernels.find(write), args));
  step.phases.back().max_workers = static_cast<int>(std::clamp<std::int64_t>(writers, 1, 1 << 20));
  return step;
}

PreparedStep prepare_nonzero(const StepRequest& request) {
  NonZeroArgs args = {};
  const ElementCode type = read_code<ElementCode>(request.attributes, "type");
  const std::vector<std::int64_t>& dims = request.attributes.integers("dims");
  if (dims.size() > kMaxCompactionRank) throw PlanError("attribute \"dims\" has more than 16 lengths");
  args.bytes = element_bytes(type);
  args.elements = static_cast<std::int64_t>(checked_product(dims));
  args.rank = static_cast<std::int32_t>(dims.size());
  std::copy(dims.begin(), dims.end(), args.dims);
  args.mask = has_sign_of_zero(type) ? static_cast<std::int64_t>((std::uint64_t{1} << (args.bytes * 8 - 1)) - 1) : -1;
  args.chunks = chunks_of(args.elements);
  request.expect_operands(1, 2);
  request.expect_input(0, checked_product({args.elements, args.bytes}));
  request.expect_output(0, checked_product({args.elements, args.rank, 8}));
  request.expect_output(1, 8);
  return counted(request, "nonzero_count", "nonzero_write", args, args.chunks);
}

PreparedStep prepare_compress(const StepRequest& request) {
  CompressArgs args = {};
  args.outer = request.attributes.integer("outer", 0, kLargestCompaction);
  args.axis = request.attributes.integer("axis", 0, kLargestCompaction);
  args.inner = request.attributes.integer("inner", 0, kLargestCompaction);
  args.conditions = request.attributes.integer("conditions", 0, kLargestCompaction);
  args.chunks = chunks_of(std::min(args.axis, args.conditions));
  request.expect_operands(2, 2);
  const std::size_t bytes = checked_product({args.outer, args.axis, args.inner});
  request.expect_input(0, bytes);
  request.expect_input(1, static_cast<std::size_t>(args.conditions));
  request.expect_output(0, checked_product({args.outer, std::min(args.axis, args.conditions), args.inner}));
  request.expect_output(1, 8);
  const auto share = static_cast<std::int64_t>(bytes / (64 * 1024));
  return counted(request, "compress_count", "compress_write", args, std::min(args.outer * args.chunks, share));
}

}  // namespace

extern const OperationEntry compaction_operations[] = {
    {"nonzero", prepare_nonzero}, {"compress", prepare_compress}, {}};

}  // namespace engine

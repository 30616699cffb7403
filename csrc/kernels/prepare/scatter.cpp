// scatter_elements, scatter_nd: data, indices, updates -> destination, which may be the data.
//
// Both       op (ScatterOp), element_bytes if op is none, otherwise type (ElementCode: f32, f64, i32 or i64),
//            index_bytes (4 or 8), data_shape
// scatter_elements  shape (of the indices), axis
// scatter_nd        count (of tuples), depth (of a tuple)
#include "kernels/scatter.hpp"

#include <string>

#include "kernels/prepare/codes.hpp"
#include "kernels/prepare/movement_request.hpp"

namespace engine {
namespace {

// With fewer elements of a slice for each worker, workers would write the same cache lines.
constexpr std::int64_t kSlicePerWorker = 64;

template <class Args>
std::int64_t read_scatter(const Attributes& attributes, Args& args) {
  args.op = read_code<ScatterOp>(attributes, "op");
  args.index_bytes = read_index_bytes(attributes);
  if (args.op == ScatterOp::kNone) {
    const std::int64_t bytes = read_element_bytes(attributes);
    args.type = bytes == 1   ? ScatterType::kBytes1
                : bytes == 2 ? ScatterType::kBytes2
                : bytes == 4 ? ScatterType::kBytes4
                             : ScatterType::kBytes8;
    return bytes;
  }
  using Code = ElementCode;
  const Code code = read_code(attributes, "type", {Code::kF32, Code::kF64, Code::kI32, Code::kI64});
  args.type = code == Code::kF32   ? ScatterType::kF32
              : code == Code::kF64 ? ScatterType::kF64
              : code == Code::kI32 ? ScatterType::kI32
                                   : ScatterType::kI64;
  return element_bytes(code);
}

PreparedStep with_copy(const StepRequest& request, PreparedPhase phase, std::size_t bytes) {
  request.expect_output(0, bytes);
  const ScatterCopyArgs args = {static_cast<std::int64_t>(bytes)};
  PreparedStep step;
  step.phases.push_back(PreparedPhase::of(request.kernels.find("scatter_copy"), args));
  step.phases.back().max_workers = workers_for_bytes(static_cast<double>(bytes));
  step.phases.push_back(std::move(phase));
  return step;
}

PreparedStep prepare_scatter_elements(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  ScatterElementsArgs args = {};
  const std::int64_t element = read_scatter(attributes, args);
  const auto data = read_shape(attributes, "data_shape", -1, kMaxGatherDims);
  args.rank = static_cast<std::int64_t>(data.size());
  const auto shape = read_shape(attributes, "shape", args.rank, kMaxGatherDims);
  args.axis = attributes.integer("axis", 0, args.rank - 1);
  const std::vector<std::int64_t> strides = row_major_strides(data, 1);
  args.split = args.axis;
  for (std::int64_t d = 0; d < args.rank; ++d) {
    const auto at = static_cast<std::size_t>(d);
    if (d != args.axis && shape[at] > data[at]) throw_larger(at, shape[at], data[at]);
    if (d != args.axis && (args.split == args.axis || shape[at] > args.shape[args.split])) args.split = d;
    args.shape[d] = shape[at];
    args.stride[d] = strides[at];
  }
  args.axis_size = data[static_cast<std::size_t>(args.axis)];
  const std::int64_t updates = bytes_of(shape, element);
  request.expect_operands(3, 1);
  request.expect_input(0, static_cast<std::size_t>(bytes_of(data, element)));
  request.expect_input(1, static_cast<std::size_t>(bytes_of(shape, args.index_bytes)));
  request.expect_input(2, static_cast<std::size_t>(updates));
  PreparedPhase phase = PreparedPhase::of(request.kernels.find("scatter_elements"), args);
  phase.max_workers = args.split == args.axis ? 1 : workers_for_bytes(static_cast<double>(updates));
  return with_copy(request, std::move(phase), static_cast<std::size_t>(bytes_of(data, element)));
}

PreparedStep prepare_scatter_nd(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  ScatterNdArgs args = {};
  const std::int64_t element = read_scatter(attributes, args);
  const auto data = read_shape(attributes, "data_shape", -1, kMaxGatherDims);
  args.count = attributes.integer("count", 0, std::int64_t{1} << 60);
  args.depth = attributes.integer("depth", 0, static_cast<std::int64_t>(data.size()));
  const std::vector<std::int64_t> strides = row_major_strides(data, 1);
  args.slice = bytes_of(std::vector<std::int64_t>(data.begin() + args.depth, data.end()), 1);
  for (std::int64_t d = 0; d < args.depth; ++d) {
    args.size[d] = data[static_cast<std::size_t>(d)];
    args.stride[d] = strides[static_cast<std::size_t>(d)];
  }
  request.expect_operands(3, 1);
  request.expect_input(0, static_cast<std::size_t>(bytes_of(data, element)));
  request.expect_input(1, static_cast<std::size_t>(bytes_of({args.count, args.depth}, args.index_bytes)));
  request.expect_input(2, static_cast<std::size_t>(bytes_of({args.count, args.slice}, element)));
  PreparedPhase phase = PreparedPhase::of(request.kernels.find("scatter_nd"), args);
  const double updates = static_cast<double>(args.count) * static_cast<double>(args.slice * element);
  phase.max_workers = args.slice < 2 * kSlicePerWorker ? 1 : workers_for_bytes(updates);
  return with_copy(request, std::move(phase), static_cast<std::size_t>(bytes_of(data, element)));
}

}  // namespace

extern const OperationEntry scatter_operations[] = {
    {"scatter_elements", prepare_scatter_elements, true}, {"scatter_nd", prepare_scatter_nd, true}, {}};

}  // namespace engine

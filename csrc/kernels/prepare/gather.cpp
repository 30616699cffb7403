// gather, gather_elements, gather_nd: data, indices -> destination. one_hot: indices, values -> destination.
//
// All        element_bytes, index_bytes (4 or 8)
// gather     outer, axis, inner (of the data: elements before, along and after the axis), count (of indices)
// gather_elements  data_shape, shape (of the indices), axis
// gather_nd  data_shape, batch_dims, count (of tuples for each index of the batch dimensions), depth (of a tuple)
// one_hot    outer, depth, inner; the operand `values` has the off value, then the on value
#include "kernels/gather.hpp"

#include <string>

#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/movement_request.hpp"

namespace engine {
namespace {

constexpr std::int64_t kLargestGather = std::int64_t{1} << 60;

std::size_t expect_bytes(const std::vector<std::int64_t>& shape, std::int64_t element) {
  return static_cast<std::size_t>(bytes_of(shape, element));
}

PreparedStep one_copy(const StepRequest& request, PreparedPhase phase, std::size_t bytes) {
  request.expect_output(0, bytes);
  phase.max_workers = workers_for_bytes(static_cast<double>(bytes));
  return one_phase(std::move(phase), 0, 0);
}

PreparedStep prepare_gather(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  const std::int64_t element = read_element_bytes(attributes), inner = attributes.integer("inner", 0, kLargestGather);
  GatherArgs args = {};
  args.outer = attributes.integer("outer", 0, kLargestGather);
  args.axis = attributes.integer("axis", 0, kLargestGather);
  args.count = attributes.integer("count", 0, kLargestGather);
  args.index_bytes = read_index_bytes(attributes);
  request.expect_operands(2, 1);
  request.expect_input(0, expect_bytes({args.outer, args.axis, inner}, element));
  request.expect_input(1, expect_bytes({args.count}, args.index_bytes));
  const std::size_t bytes = expect_bytes({args.outer, args.count, inner}, element);
  args.block = inner * element;
  return one_copy(request, PreparedPhase::of(request.kernels.find("gather"), args), bytes);
}

PreparedStep prepare_gather_elements(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  GatherElementsArgs args = {};
  args.element = read_element_bytes(attributes);
  args.index_bytes = read_index_bytes(attributes);
  const auto data = read_shape(attributes, "data_shape", -1, kMaxGatherDims);
  args.rank = static_cast<std::int64_t>(data.size());
  const auto shape = read_shape(attributes, "shape", args.rank, kMaxGatherDims);
  args.axis = attributes.integer("axis", 0, args.rank - 1);
  const std::vector<std::int64_t> strides = row_major_strides(data, args.element);
  args.rows = 1;
  for (std::size_t d = 0; d < data.size(); ++d) {
    if (static_cast<std::int64_t>(d) != args.axis && shape[d] > data[d]) throw_larger(d, shape[d], data[d]);
    args.shape[d] = shape[d];
    args.stride[d] = strides[d];
    if (d + 1 < data.size()) args.rows *= shape[d];
  }
  args.axis_size = data[static_cast<std::size_t>(args.axis)];
  request.expect_operands(2, 1);
  request.expect_input(0, expect_bytes(data, args.element));
  request.expect_input(1, expect_bytes(shape, args.index_bytes));
  return one_copy(request, PreparedPhase::of(request.kernels.find("gather_elements"), args),
                  expect_bytes(shape, args.element));
}

PreparedStep prepare_gather_nd(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  const std::int64_t element = read_element_bytes(attributes);
  const auto data = read_shape(attributes, "data_shape", -1, kMaxGatherDims);
  const auto rank = static_cast<std::int64_t>(data.size());
  const std::int64_t batch_dims = attributes.integer("batch_dims", 0, rank);
  GatherNdArgs args = {};
  args.index_bytes = read_index_bytes(attributes);
  args.depth = attributes.integer("depth", 0, rank - batch_dims);
  args.count = attributes.integer("count", 0, kLargestGather);
  const std::vector<std::int64_t> strides = row_major_strides(data, element);
  const std::vector<std::int64_t> batch(data.begin(), data.begin() + batch_dims);
  const std::vector<std::int64_t> slice(data.begin() + batch_dims + args.depth, data.end());
  args.batch = bytes_of(batch, 1);
  args.block = bytes_of(slice, element);
  args.batch_stride = bytes_of(std::vector<std::int64_t>(data.begin() + batch_dims, data.end()), element);
  for (std::int64_t d = 0; d < args.depth; ++d) {
    args.size[d] = data[static_cast<std::size_t>(batch_dims + d)];
    args.stride[d] = strides[static_cast<std::size_t>(batch_dims + d)];
  }
  request.expect_operands(2, 1);
  request.expect_input(0, expect_bytes(data, element));
  request.expect_input(1, expect_bytes({args.batch, args.count, args.depth}, args.index_bytes));
  return one_copy(request, PreparedPhase::of(request.kernels.find("gather_nd"), args),
                  expect_bytes({args.batch, args.count, args.block}, 1));
}

PreparedStep prepare_one_hot(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  OneHotArgs args = {};
  args.element = read_element_bytes(attributes);
  args.index_bytes = read_index_bytes(attributes);
  args.outer = attributes.integer("outer", 0, kLargestGather);
  args.depth = attributes.integer("depth", 0, kLargestGather);
  args.inner = attributes.integer("inner", 0, kLargestGather);
  request.expect_operands(2, 1);
  request.expect_input(0, expect_bytes({args.outer, args.inner}, args.index_bytes));
  request.expect_input(1, static_cast<std::size_t>(2 * args.element));
  return one_copy(request, PreparedPhase::of(request.kernels.find("one_hot"), args),
                  expect_bytes({args.outer, args.depth, args.inner}, args.element));
}

}  // namespace

extern const OperationEntry gather_operations[] = {{"gather", prepare_gather},
                                                   {"gather_elements", prepare_gather_elements},
                                                   {"gather_nd", prepare_gather_nd},
                                                   {"one_hot", prepare_one_hot},
                                                   {}};

}  // namespace engine

// Plan building for rotary embeddings.
#include "kernels/rotary.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/prepare/conv_request.hpp"

namespace engine {
namespace {

// Attributes: batch, heads, rows, size; rotated (size): even; interleaved (0); x, y: [batch, head, row], floats between
// batches, heads and rows; table: [batch, row], the same for cos and sin, 0 if shared.
constexpr std::int64_t kLargestRotary = std::int64_t{1} << 30;
constexpr std::int64_t kLargestStride = std::int64_t{1} << 46;
// The least number of elements for which waking a worker is worthwhile.
constexpr std::int64_t kMinElements = 1 << 14;

RotaryView read_view(const Attributes& attributes, const char* name) {
  const auto& strides = attributes.integers(name, 3, 0, kLargestStride);
  return {strides[0], strides[1], strides[2]};
}

// The number of bytes from the first element to the last, inclusive.
std::size_t extent(const std::vector<std::pair<std::int64_t, std::int64_t>>& dims) {  // (count, stride)
  std::size_t elements = 1;
  for (const auto& [count, stride] : dims) {
    if (count == 0) return 0;
    elements = checked_add(elements, checked_product({count - 1, stride}));
  }
  return checked_multiply(elements, sizeof(float));
}

void expect_apart(const RotaryArgs& args) {
  std::vector<std::pair<std::int64_t, std::int64_t>> dims{
      {args.y.batch, args.batch}, {args.y.head, args.heads}, {args.y.row, args.rows}};
  std::sort(dims.begin(), dims.end());
  std::size_t inside = static_cast<std::size_t>(args.size);
  for (const auto& [stride, count] : dims) {
    if (count <= 1) continue;
    if (static_cast<std::size_t>(stride) < inside) {
      throw PlanError("rows of y overlap: " + std::to_string(count) + " parts of " + std::to_string(inside) +
                      " floats are " + std::to_string(stride) + " apart");
    }
    inside = checked_add(checked_product({count - 1, stride}), inside);
  }
}

PreparedStep prepare_rotary_f32(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  RotaryArgs args = {};
  args.batch = attributes.integer("batch", 0, kLargestRotary);
  args.heads = attributes.integer("heads", 1, kLargestRotary);
  args.rows = attributes.integer("rows", 0, kLargestRotary);
  args.size = attributes.integer("size", 0, kLargestRotary);
  args.rotated = attributes.integer_or("rotated", 0, args.size, args.size);
  args.interleaved = attributes.flag("interleaved");
  if (args.rotated % 2 != 0) {
    throw PlanError("attribute \"rotated\" is " + std::to_string(args.rotated) + "; expected an even number");
  }
  args.x = read_view(attributes, "x");
  args.y = read_view(attributes, "y");
  const auto& table = attributes.integers("table", 2, 0, kLargestStride);
  args.table_batch = table[0];
  args.table_row = table[1];

  const std::size_t count = checked_product({args.batch, args.heads, args.rows, args.size});
  request.expect_operands(3, 1);
  const auto rows_extent = [&](const RotaryView& view) {
    return extent({{args.batch, view.batch}, {args.heads, view.head}, {args.rows, view.row}, {args.size, 1}});
  };
  const std::size_t table_bytes = extent({{args.batch, table[0]}, {args.rows, table[1]}, {args.rotated / 2, 1}});
  request.expect_input(0, rows_extent(args.x));
  request.expect_input(1, table_bytes);
  request.expect_input(2, table_bytes);
  request.expect_output(0, rows_extent(args.y));
  if (count > 0) expect_apart(args);
  PreparedPhase phase = PreparedPhase::of(request.kernels.find("rotary_f32"), args);
  phase.max_workers = static_cast<int>(std::min<std::size_t>(1 << 20, 1 + count / kMinElements));
  return one_phase(std::move(phase), 0, 3.0 * static_cast<double>(count));
}

}  // namespace

extern const OperationEntry rotary_operations[] = {{"rotary_f32", prepare_rotary_f32, true}, {}};

}  // namespace engine

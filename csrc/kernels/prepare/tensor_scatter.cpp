// Plan building for TensorScatter.
//
// Attributes: batch, parts, rows (of a part of the cache), steps (of the update), row_bytes (of the update); cache,
// update: the distances [sample, part, row] in bytes; positions (1): whether operand 2 has the first position of each
// sample; circular (0); expected (-1): the only position that is allowed, and that of all samples without positions; -1
// for any, or 0; format (f32): how the cache keeps rows (cache_rows.hpp), which are narrowed from f32.
// Operands: cache, update, [positions]; y, which may be the cache.
#include "kernels/tensor_scatter.hpp"

#include <algorithm>
#include <string>

#include "kernels/prepare.hpp"
#include "kernels/prepare/codes.hpp"

namespace engine {
namespace {

constexpr std::int64_t kLargestTensorScatter = std::int64_t{1} << 46;
constexpr std::int64_t kBytesPerWorker = 64 << 10;

TensorScatterView read_view(const Attributes& attributes, const char* name) {
  const auto& values = attributes.integers(name, 3, 0, kLargestTensorScatter);
  return {values[0], values[1], values[2]};
}

std::size_t extent(const TensorScatterArgs& args, const TensorScatterView& view, std::int64_t rows,
                   std::int64_t row_bytes) {
  if (args.batch * args.parts == 0 || rows == 0) return 0;
  const std::size_t last =
      checked_add(checked_product({args.batch - 1, view.batch}),
                  checked_add(checked_product({args.parts - 1, view.part}), checked_product({rows - 1, view.row})));
  return checked_add(last, static_cast<std::size_t>(row_bytes));
}

// Workers write different parts: these must not overlap, nor their rows.
void expect_apart(const TensorScatterArgs& args) {
  std::vector<std::pair<std::int64_t, std::int64_t>> dims{
      {args.cache.batch, args.batch}, {args.cache.part, args.parts}, {args.cache.row, args.rows}};
  std::sort(dims.begin(), dims.end());
  std::int64_t inside = args.cache_row_bytes;
  for (const auto& [stride, count] : dims) {
    if (count <= 1) continue;
    if (stride < inside) throw PlanError("rows of the cache overlap");
    inside =
        static_cast<std::int64_t>(checked_add(checked_product({count - 1, stride}), static_cast<std::size_t>(inside)));
  }
}

// Rows that are narrowed begin at elements of their type.
void expect_aligned(const TensorScatterView& view, std::int64_t element, const char* name) {
  if (view.batch % element == 0 && view.part % element == 0 && view.row % element == 0) return;
  throw PlanError(std::string("attribute \"") + name + "\" has distances that are not multiples of " +
                  std::to_string(element) + " bytes");
}

PreparedStep prepare_tensor_scatter(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  TensorScatterArgs args = {};
  args.batch = attributes.integer("batch", 0, kLargestTensorScatter);
  args.parts = attributes.integer("parts", 0, kLargestTensorScatter);
  args.rows = attributes.integer("rows", 0, kLargestTensorScatter);
  args.steps = attributes.integer("steps", 0, kLargestTensorScatter);
  args.row_bytes = attributes.integer("row_bytes", 0, kLargestTensorScatter);
  args.cache = read_view(attributes, "cache");
  args.update = read_view(attributes, "update");
  args.has_positions = attributes.integer_or("positions", 1) != 0;
  args.is_circular = attributes.integer_or("circular", 0) != 0;
  args.expected = attributes.integer_or("expected", -1, kLargestTensorScatter, -1);
  args.format = read_code_or(attributes, "format", CacheFormat::kF32);
  if (args.format != CacheFormat::kF32 && args.row_bytes % 4 != 0) {
    throw PlanError("rows of " + std::to_string(args.row_bytes) + " bytes are not f32");
  }
  const bool is_narrow = args.format != CacheFormat::kF32;
  args.cache_row_bytes = is_narrow ? cache_row_bytes(args.format, args.row_bytes / 4) : args.row_bytes;
  if (is_narrow) {
    expect_aligned(args.cache, cache_element_bytes(args.format), "cache");
    expect_aligned(args.update, 4, "update");
  }
  checked_product({args.batch, args.parts, args.rows, args.row_bytes});
  expect_apart(args);
  request.expect_operands(args.has_positions ? 3 : 2, 1);
  request.expect_input(0, extent(args, args.cache, args.rows, args.cache_row_bytes));
  request.expect_input(1, extent(args, args.update, args.steps, args.row_bytes));
  if (args.has_positions) request.expect_input(2, checked_product({args.batch, 8}));
  request.expect_output(0, extent(args, args.cache, args.rows, args.cache_row_bytes));
  PreparedStep step;
  step.phases.push_back(PreparedPhase::of(request.kernels.find("tensor_scatter"), args));
  const std::int64_t parts = args.batch * args.parts;
  // With a given position, y is the cache, and only the steps are written.
  const std::int64_t bytes = parts * (args.expected < 0 ? args.rows : args.steps) * args.row_bytes;
  step.phases[0].max_workers =
      static_cast<int>(std::clamp<std::int64_t>(std::min(parts, bytes / kBytesPerWorker), 1, 1 << 20));
  return step;
}

}  // namespace

extern const OperationEntry tensor_scatter_operations[] = {{"tensor_scatter", prepare_tensor_scatter, true}, {}};

}  // namespace engine

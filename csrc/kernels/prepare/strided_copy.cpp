// strided_copy: any number of copies between the step's operands. Attributes, with the values of all P copies in order:
//
//   element_bytes                      1, 2, 4 or 8, of all copies
//   shape                              P x rank sizes
//   source_strides, destination_strides  P x rank, in elements; the source's may be zero or negative
//   operands ([0, 0, 0, 0])            P x (input, output, offset in the input, offset in the output), in elements
//
// Elements of an output that no copy writes keep their content; copies of one step must not write the same element.
#include "kernels/prepare/strided_copy.hpp"

#include <algorithm>
#include <string>

#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/movement_request.hpp"

namespace engine {
namespace {

constexpr std::int64_t kLargestStridedCopy = std::int64_t{1} << 62;
// Bytes of a block: its source and destination together fit the L1 cache.
constexpr std::int64_t kBlockBytes = 16 << 10;
constexpr std::int64_t kShortColumns = 16, kLongColumns = 1024, kShortRows = 16;

std::int64_t checked_scale(std::int64_t value, std::int64_t factor) {
  std::int64_t product;
  if (__builtin_mul_overflow(value, factor, &product) || product > kLargestStridedCopy ||
      product < -kLargestStridedCopy) {
    throw PlanError("a stride or an offset overflows: " + std::to_string(value) + " times " + std::to_string(factor));
  }
  return product;
}

std::int64_t checked_sum(std::int64_t a, std::int64_t b) {
  std::int64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) throw PlanError("the offsets of a copy overflow");
  return sum;
}

// The first and last byte that a copy accesses must be in the buffer.
void check_extent(const char* what, const CopyRequest& copy, std::int64_t CopyDim::* stride, std::int64_t offset,
                  std::int64_t element, std::size_t bytes) {
  std::int64_t low = offset, high = checked_sum(offset, element);
  for (const CopyDim& dim : copy.dims) {
    const std::int64_t reach = checked_scale(dim.*stride, dim.size - 1);
    (reach < 0 ? low : high) = checked_sum(reach < 0 ? low : high, reach);
  }
  if (low < 0 || static_cast<std::uint64_t>(high) > bytes) {
    throw PlanError(std::string("a copy accesses bytes ") + std::to_string(low) + " to " + std::to_string(high) +
                    " of its " + what + ", which has " + std::to_string(bytes));
  }
}

std::int64_t magnitude(std::int64_t value) {
  return value < 0 ? -value : value;
}

bool is_empty(const CopyRequest& copy) {
  return std::any_of(copy.dims.begin(), copy.dims.end(), [](const CopyDim& dim) { return dim.size == 0; });
}

// Removes dimensions of size one, makes the destination's strides positive and descending, and merges neighbours.
void normalise(CopyRequest& copy) {
  std::vector<CopyDim>& dims = copy.dims;
  dims.erase(std::remove_if(dims.begin(), dims.end(), [](const CopyDim& dim) { return dim.size == 1; }), dims.end());
  for (CopyDim& dim : dims) {
    if (dim.destination > 0) continue;
    copy.source_offset += dim.source * (dim.size - 1);
    copy.destination_offset += dim.destination * (dim.size - 1);
    dim.source = -dim.source;
    dim.destination = -dim.destination;
  }
  std::stable_sort(dims.begin(), dims.end(),
                   [](const CopyDim& a, const CopyDim& b) { return a.destination > b.destination; });
  std::vector<CopyDim> merged;
  for (const CopyDim& dim : dims) {
    if (!merged.empty() && merged.back().source == dim.source * dim.size &&
        merged.back().destination == dim.destination * dim.size) {
      merged.back() = {merged.back().size * dim.size, dim.source, dim.destination};
    } else {
      merged.push_back(dim);
    }
  }
  dims = std::move(merged);
}

// Merges contiguous neighbours that are as large as a wider element. Returns the element's bytes.
std::int64_t widen(std::vector<CopyDim>& dims, std::int64_t element) {
  if (dims.size() < 2 || dims.back().source != element || dims.back().destination != element) return element;
  const std::int64_t bytes = dims.back().size * element;
  if (bytes != 2 && bytes != 4 && bytes != 8 && bytes != 16) return element;
  dims.pop_back();
  return bytes;
}

CopyDim take(std::vector<CopyDim>& dims, std::size_t index) {
  const CopyDim dim = dims[index];
  dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(index));
  return dim;
}

// Blocks of about `target` or slightly more, of similar sizes, each except the last a multiple of `step`.
void split_evenly(std::int64_t size, std::int64_t target, std::int64_t step, std::int64_t& block,
                  std::int64_t& blocks) {
  const std::int64_t wanted = std::max<std::int64_t>(1, size / std::max<std::int64_t>(1, target));
  block = ((size + wanted - 1) / wanted + step - 1) / step * step;
  blocks = (size + block - 1) / block;
}

CopyMode mode_of(const CopyDim& column, std::int64_t element) {
  if (column.destination != element) return CopyMode::element;
  if (column.source == element) return CopyMode::run;
  return column.source == 0 ? CopyMode::fill : CopyMode::element;
}

void split_into_blocks(CopyPart& part) {
  switch (part.mode) {
    case CopyMode::run:
    case CopyMode::fill:
    case CopyMode::element:
      split_evenly(part.columns, 2 * kBlockBytes / part.element, 64, part.column_block, part.column_blocks);
      split_evenly(part.rows, kBlockBytes / (std::min(part.column_block, part.columns) * part.element), 1,
                   part.row_block, part.row_blocks);
      break;
    case CopyMode::interleave:
      part.column_block = part.columns;
      part.column_blocks = 1;
      split_evenly(part.rows, kBlockBytes / (part.columns * part.element), 16, part.row_block, part.row_blocks);
      break;
    case CopyMode::transpose:
      split_evenly(part.rows, 256 / part.element, 16, part.row_block, part.row_blocks);
      split_evenly(part.columns, kBlockBytes / (std::min(part.row_block, part.rows) * part.element), 16,
                   part.column_block, part.column_blocks);
      break;
  }
}

std::vector<CopyDim> read_dims(const StepRequest& request, std::size_t part, std::size_t rank, std::int64_t element) {
  const auto& shape = request.attributes.integers("shape");
  const auto& source = request.attributes.integers("source_strides");
  const auto& destination = request.attributes.integers("destination_strides");
  std::vector<CopyDim> dims;
  for (std::size_t d = part * rank; d < (part + 1) * rank; ++d) {
    if (shape[d] < 0) throw PlanError("the size " + std::to_string(shape[d]) + " of a copy is negative");
    dims.push_back({shape[d], checked_scale(source[d], element), checked_scale(destination[d], element)});
  }
  return dims;
}

std::vector<CopyRequest> read_copies(const StepRequest& request, std::int64_t element) {
  const Attributes& attributes = request.attributes;
  const std::vector<std::int64_t> operands =
      attributes.has("operands") ? attributes.integers("operands") : std::vector<std::int64_t>(4, 0);
  const std::size_t values = attributes.integers("shape").size(), parts = operands.size() / 4;
  if (parts == 0 || operands.size() % 4 != 0 || values % parts != 0 || values / parts > kMaxCopyDims ||
      attributes.integers("source_strides").size() != values ||
      attributes.integers("destination_strides").size() != values) {
    throw PlanError("attributes \"operands\", \"shape\", \"source_strides\" and \"destination_strides\" do not fit: " +
                    std::to_string(operands.size()) + " and " + std::to_string(values) +
                    " values; expected 4 and as many as dimensions, at most " + std::to_string(kMaxCopyDims) +
                    ", for each copy");
  }
  std::vector<CopyRequest> copies;
  for (std::size_t p = 0; p < parts; ++p) {
    const std::int64_t* const at = operands.data() + 4 * p;
    if (at[0] < 0 || static_cast<std::size_t>(at[0]) >= request.inputs.size() || at[1] < 0 ||
        static_cast<std::size_t>(at[1]) >= request.outputs.size()) {
      throw PlanError("copy " + std::to_string(p) + " is from input " + std::to_string(at[0]) + " to output " +
                      std::to_string(at[1]) + "; the step has " + std::to_string(request.inputs.size()) + " and " +
                      std::to_string(request.outputs.size()));
    }
    copies.push_back({static_cast<std::int32_t>(at[0]), static_cast<std::int32_t>(at[1]), checked_scale(at[2], element),
                      checked_scale(at[3], element), read_dims(request, p, values / parts, element)});
  }
  return copies;
}

PreparedStep prepare_strided_copy(const StepRequest& request) {
  const std::int64_t element = read_element_bytes(request.attributes);
  std::vector<CopyRequest> copies = read_copies(request, element);
  for (CopyRequest& copy : copies) {
    check_copy(copy, element, request.inputs[static_cast<std::size_t>(copy.source)],
               request.outputs[static_cast<std::size_t>(copy.destination)]);
    copy.destination += static_cast<std::int32_t>(request.inputs.size());
  }
  return one_phase(make_strided_copy(request.kernels.find("strided_copy"), copies, element), 0, 0);
}

}  // namespace

void check_copy(const CopyRequest& copy, std::int64_t element, std::size_t source_bytes,
                std::size_t destination_bytes) {
  if (is_empty(copy)) return;
  check_extent("source", copy, &CopyDim::source, copy.source_offset, element, source_bytes);
  check_extent("destination", copy, &CopyDim::destination, copy.destination_offset, element, destination_bytes);
  std::vector<CopyDim> dims = copy.dims;
  std::sort(dims.begin(), dims.end(),
            [](const CopyDim& a, const CopyDim& b) { return magnitude(a.destination) < magnitude(b.destination); });
  std::int64_t reach = element;  // bytes spanned so far: within the buffer, so that sums do not overflow
  for (const CopyDim& dim : dims) {
    if (dim.size == 1) continue;
    if (magnitude(dim.destination) < reach) {
      throw PlanError("a stride of " + std::to_string(dim.destination) +
                      " bytes in the destination makes elements of " + std::to_string(reach) + " bytes overlap");
    }
    reach += (dim.size - 1) * magnitude(dim.destination);
  }
}

CopyPart make_copy_part(CopyRequest copy, std::int64_t element, std::int64_t first_item) {
  normalise(copy);
  std::vector<CopyDim>& dims = copy.dims;
  element = widen(dims, element);
  CopyPart part = {};
  CopyDim column = dims.empty() ? CopyDim{1, element, element} : take(dims, dims.size() - 1);
  part.mode = mode_of(column, element);
  // Rows: the dimension that is contiguous in the source, or the next one.
  const auto contiguous =
      std::find_if(dims.begin(), dims.end(), [&](const CopyDim& dim) { return dim.source == element; });
  CopyDim row = {1, 0, 0};
  if (part.mode == CopyMode::element && contiguous != dims.end() && column.destination == element) {
    if (contiguous->size >= 4 && column.size >= 4 && element <= 8) part.mode = CopyMode::transpose;
    if (column.size <= 4 && contiguous->destination == column.size * element) part.mode = CopyMode::interleave;
  }
  // Few long columns share source cache lines, and short columns would make small blocks; otherwise a larger dimension
  // is better as the rows.
  const bool wants_contiguous = part.mode != CopyMode::run && part.mode != CopyMode::fill &&
                                (column.size < kShortColumns || column.size >= kLongColumns);
  if (part.mode == CopyMode::transpose || part.mode == CopyMode::interleave ||
      (wants_contiguous && contiguous != dims.end())) {
    row = take(dims, static_cast<std::size_t>(contiguous - dims.begin()));
  } else if (!dims.empty()) {
    // The next dimension, or the longest if blocks of the next would be too small.
    const auto longest =
        std::max_element(dims.begin(), dims.end(), [](const CopyDim& a, const CopyDim& b) { return a.size < b.size; });
    const bool is_short = dims.back().size < kShortRows;
    row = take(dims, is_short ? static_cast<std::size_t>(longest - dims.begin()) : dims.size() - 1);
  }
  if (part.mode == CopyMode::element && row.size > column.size) std::swap(row, column);
  part.source = copy.source;
  part.destination = copy.destination;
  part.source_offset = copy.source_offset;
  part.destination_offset = copy.destination_offset;
  part.element = part.mode == CopyMode::run ? 1 : static_cast<std::int32_t>(element);
  part.rows = row.size;
  part.source_row = row.source;
  part.destination_row = row.destination;
  part.columns = part.mode == CopyMode::run ? column.size * element : column.size;
  part.source_column = part.mode == CopyMode::run ? 1 : column.source;
  part.destination_column = part.mode == CopyMode::run ? 1 : column.destination;
  split_into_blocks(part);
  part.outer_rank = static_cast<std::int32_t>(dims.size());
  std::int64_t items = part.row_blocks * part.column_blocks;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    part.outer_size[d] = dims[d].size;
    part.outer_source[d] = dims[d].source;
    part.outer_destination[d] = dims[d].destination;
    items *= dims[d].size;
  }
  part.end_item = first_item + items;
  return part;
}

PreparedPhase make_strided_copy(const KernelEntry& kernel, const std::vector<CopyRequest>& copies,
                                std::int64_t element) {
  StridedCopyArgs args = {};
  std::vector<CopyPart> parts;
  double bytes = 0;
  for (const CopyRequest& copy : copies) {
    if (is_empty(copy)) continue;
    parts.push_back(make_copy_part(copy, element, args.items));
    args.items = parts.back().end_item;
    double size = static_cast<double>(element);
    for (const CopyDim& dim : copy.dims) size *= static_cast<double>(dim.size);
    bytes += size;
  }
  args.parts = static_cast<std::int64_t>(parts.size());
  PreparedPhase phase = PreparedPhase::of(kernel, args);
  if (!parts.empty()) {
    phase.args.resize(sizeof args + parts.size() * sizeof(CopyPart));
    std::memcpy(phase.args.data() + sizeof args, parts.data(), parts.size() * sizeof(CopyPart));
  }
  phase.max_workers = workers_for_bytes(bytes);
  return phase;
}

extern const OperationEntry strided_copy_operations[] = {{"strided_copy", prepare_strided_copy}, {}};

}  // namespace engine

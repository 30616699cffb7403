// resize_nearest, resize_f32: source -> destination, maps [maps, height, width, inner]. Attributes:
//
//   maps, inner, in: [height, width], out: [height, width]
//   row_indices, column_indices: for each row and column of the destination, the source indices of its taps,
//       [out, taps], ascending along the taps; the first is -1 for the value outside
//   resize_nearest: element_bytes, value (the bits of the value outside); one tap
//   resize_f32: taps, row_weights, column_weights (numbers, [out, taps]), outside (0.0)
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/prepare.hpp"
#include "kernels/prepare/conv_request.hpp"
#include "kernels/prepare/movement_request.hpp"
#include "kernels/resize.hpp"

namespace engine {
namespace {

// Floats of a combined source row: half of an L1 cache.
constexpr std::int64_t kScratchFloats = 4096;
constexpr std::int64_t kLargestResize = std::int64_t{1} << 30;
constexpr std::int64_t kMaxTaps = std::int64_t{1} << 16;

// The taps of the rows or columns of the destination, in the kernels' format.
class TapTable {
 public:
  TapTable(const Attributes& attributes, const std::string& name, std::int64_t in, std::int64_t out, std::int64_t taps,
           bool has_weights)
      : taps_(static_cast<std::size_t>(taps)), words_(static_cast<std::size_t>(resize_tap_words(taps))) {
    const std::string weights_name = name + "_weights", indices_name = name + "_indices";
    const std::size_t count = static_cast<std::size_t>(out) * taps_;
    const std::vector<std::int64_t>& indices = attributes.integers(indices_name);
    const auto weights = has_weights ? attributes.reals(weights_name) : std::vector<double>(count, 1.0);
    check_count(indices_name, indices.size(), count);
    check_count(weights_name, weights.size(), count);
    table_.resize(static_cast<std::size_t>(out) * words_);
    for (std::size_t i = 0; i < static_cast<std::size_t>(out); ++i) {
      fill(indices_name, &table_[i * words_], &indices[i * taps_], &weights[i * taps_], in);
    }
  }

  const std::vector<std::int32_t>& words() const { return table_; }
  std::int32_t first(std::int64_t i) const { return table_[static_cast<std::size_t>(i) * words_]; }
  std::int32_t last(std::int64_t i) const { return table_[static_cast<std::size_t>(i) * words_ + taps_ - 1]; }

  // Whether some row or column has a single tap with all the weight.
  bool has_single() const {
    for (std::size_t at = 0; at < table_.size(); at += words_) {
      if (table_[at + 2 * taps_] >= 0) return true;
    }
    return false;
  }

  // Whether the first indices ascend, except those outside.
  bool ascends() const {
    std::int32_t before = 0;
    for (std::size_t at = 0; at < table_.size(); at += words_) {
      if (table_[at] < 0) continue;
      if (table_[at] < before) return false;
      before = table_[at];
    }
    return true;
  }

 private:
  static void check_count(const std::string& name, std::size_t found, std::size_t expected) {
    if (found == expected) return;
    throw PlanError("attribute \"" + name + "\" has " + std::to_string(found) + " values; expected " +
                    std::to_string(expected));
  }

  void fill(const std::string& name, std::int32_t* tap, const std::int64_t* indices, const double* weights,
            std::int64_t in) {
    std::int32_t only = -1, used = 0;
    for (std::size_t k = 0; k < taps_; ++k) {
      const bool is_outside = indices[0] == -1;
      const std::int64_t index = is_outside ? -1 : indices[k];
      if (index >= in || (!is_outside && (index < 0 || (k > 0 && index < indices[k - 1])))) {
        throw PlanError("attribute \"" + name + "\" holds " + std::to_string(index) + "; expected indices below " +
                        std::to_string(in) + " in ascending order, or -1");
      }
      if (!std::isfinite(weights[k])) throw PlanError("a weight of attribute \"" + name + "\" is not finite");
      const auto weight = static_cast<float>(weights[k]);
      tap[k] = static_cast<std::int32_t>(index);
      std::memcpy(&tap[taps_ + k], &weight, sizeof weight);
      if (weight == 0) continue;
      ++used;
      if (weight == 1) only = static_cast<std::int32_t>(k);
    }
    tap[2 * taps_] = used == 1 ? only : -1;
  }

  std::size_t taps_, words_;
  std::vector<std::int32_t> table_;
};

ResizeArgs read_resize(const Attributes& attributes) {
  ResizeArgs args = {};
  args.maps = attributes.integer("maps", 0, std::int64_t{1} << 40);
  args.inner = attributes.integer("inner", 0, kLargestResize);
  const auto in = read_shape(attributes, "in", 2, 2), out = read_shape(attributes, "out", 2, 2);
  for (std::size_t d = 0; d < 2; ++d) {
    if (in[d] > kLargestResize || out[d] > kLargestResize) throw PlanError("a dimension is larger than 2^30");
    if (in[d] == 0 && out[d] > 0) {
      throw PlanError("an empty dimension is resized to " + std::to_string(out[d]));
    }
  }
  args.in_h = in[0];
  args.in_w = in[1];
  args.out_h = out[0];
  args.out_w = out[1];
  return args;
}

// The width of the widest part of the source that `chunk` columns need.
std::int64_t widest_part(const ResizeArgs& args, const TapTable& columns, std::int64_t chunk) {
  if (args.ascends == 0) return args.in_w;
  std::int64_t widest = 0;
  for (std::int64_t x = 0; x < args.out_w; ++x) {
    const std::int64_t last = std::min(x + chunk, args.out_w) - 1;
    // Before a column with the value outside, the part ends at the end of the source at the latest.
    const std::int64_t end = columns.last(last) < 0 ? args.in_w : columns.last(last) + 1;
    if (columns.first(x) >= 0) widest = std::max(widest, end - columns.first(x));
  }
  return widest;
}

PreparedStep prepare_resize(const StepRequest& request, const char* kernel, ResizeArgs args, bool has_weights) {
  const auto in_bytes = static_cast<std::size_t>(bytes_of({args.maps, args.in_h, args.in_w, args.inner}, args.element));
  const auto out_bytes =
      static_cast<std::size_t>(bytes_of({args.maps, args.out_h, args.out_w, args.inner}, args.element));
  request.expect_operands(1, 1);
  request.expect_input(0, in_bytes);
  request.expect_output(0, out_bytes);
  const TapTable rows(request.attributes, "row", args.in_h, args.out_h, args.taps, has_weights);
  const TapTable columns(request.attributes, "column", args.in_w, args.out_w, args.taps, has_weights);
  if (out_bytes == 0) args.maps = 0;
  args.ascends = columns.ascends() ? 1 : 0;
  args.has_single_columns = columns.has_single() ? 1 : 0;
  args.chunk = std::max<std::int64_t>(1, args.out_w);
  while (has_weights && args.ascends != 0 && args.chunk > 1 &&
         widest_part(args, columns, args.chunk) * args.inner > kScratchFloats) {
    args.chunk = (args.chunk + 1) / 2;
  }
  PreparedPhase phase = PreparedPhase::of(request.kernels.find(kernel), args);
  for (const TapTable* table : {&rows, &columns}) {
    const auto* const words = reinterpret_cast<const std::byte*>(table->words().data());
    phase.args.insert(phase.args.end(), words, words + table->words().size() * sizeof(std::int32_t));
  }
  if (has_weights) {
    phase.scratch_bytes = static_cast<std::size_t>(widest_part(args, columns, args.chunk) * args.inner) * sizeof(float);
  }
  phase.max_workers = workers_for_bytes(static_cast<double>(out_bytes) * args.taps);
  const std::size_t scratch = phase.scratch_bytes;
  return one_phase(std::move(phase), scratch, 0);
}

PreparedStep prepare_resize_nearest(const StepRequest& request) {
  ResizeArgs args = read_resize(request.attributes);
  args.taps = 1;
  args.element = read_element_bytes(request.attributes);
  args.pattern = read_pattern(request.attributes, args.element);
  return prepare_resize(request, "resize_nearest", args, false);
}

PreparedStep prepare_resize_f32(const StepRequest& request) {
  ResizeArgs args = read_resize(request.attributes);
  args.taps = static_cast<std::int32_t>(request.attributes.integer("taps", 1, kMaxTaps));
  args.outside = static_cast<float>(request.attributes.real_or("outside", 0));
  args.element = sizeof(float);
  return prepare_resize(request, "resize_f32", args, true);
}

}  // namespace

extern const OperationEntry resize_operations[] = {
    {"resize_nearest", prepare_resize_nearest}, {"resize_f32", prepare_resize_f32}, {}};

}  // namespace engine

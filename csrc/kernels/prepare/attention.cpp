// Plan building for attention.
#include "kernels/attention.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/attention_amx.hpp"
#include "kernels/prepare.hpp"
#include "kernels/prepare/codes.hpp"

namespace engine {
namespace {

// Attributes:
//   batch, heads, kv_heads (heads), queries, keys, size, value_size (size)
//   q, k, v, y (dense [B, H, S, D]): [batch, head, row], elements between batches, heads and rows
//   k_format, v_format (f32): how rows of K and V are kept (cache_rows.hpp)
//   mask (0): none, float or bool; mask_strides: elements between [batches, heads, queries, keys], 0 broadcasts;
//   mask_keys (keys): how many keys the mask covers
//   scale, softcap (0)
//   before, after (-1), offset (0): query i attends to keys i + offset - before to i + offset + after; -1: no bound
//   rows (0): the result of rows whose probabilities would be NaN (AttentionRows)
//   row_wise (by the number of queries), key_block (by the number of keys), query_blocks (by both), shared_heads (of
//   row_wise, by the number of heads), parts (of row_wise, by the number of keys): the algorithm
//   lengths (0): whether the number of keys of each batch is an operand
//   repeatable (0): a query's result has the same bits for any other queries and later keys: not row_wise, and blocks
//   of
//     keys of a constant size begin at its multiples
// Operands: Q, K, V, [mask], [lengths]; Y. attention_bf16 has the same attributes except query_blocks, multiplies in
// bf16, and needs tiles of AMX.
constexpr std::int64_t kLargestAttention = std::int64_t{1} << 30;
constexpr std::int64_t kLargestStride = std::int64_t{1} << 46;
// Scores of a block of keys for three vectors of queries then take 48 KB, the size of recent L1 caches.
constexpr std::int64_t kMaxKeys = 256;
// Copied keys and values, and scores, of a block, for heads of 64 elements, fit these caches together.
constexpr std::int64_t kMaxCopiedKeys = 64;
// The fewest keys that are copied, and the parts that the work has at least when blocks of queries share a copy.
constexpr std::int64_t kMinCopied = 128, kMinParts = 32;
// Workers share them; heads are computed together only if as many units are left.
constexpr std::int64_t kMinUnits = 4;
// The keys of a part: enough for a worker to read memory in order, and few enough to divide a long past evenly.
constexpr std::int64_t kPartKeys = 128;
// The fewest floats of parts for a worker that joins them.
constexpr std::size_t kJoinedFloats = 64 * 1024;
// The least work, in multiplications, for which waking a worker is worthwhile.
constexpr double kMinWork = 1.0e5;

AttentionView dense_view(std::int64_t heads, std::int64_t rows, std::int64_t size) {
  const auto head = static_cast<std::int64_t>(checked_product({rows, size}));
  return {static_cast<std::int64_t>(checked_product({heads, head})), head, size};
}

AttentionView read_view(const Attributes& attributes, const char* name, std::int64_t heads, std::int64_t rows,
                        std::int64_t size) {
  if (!attributes.has(name)) return dense_view(heads, rows, size);
  const auto& strides = attributes.integers(name, 3, 0, kLargestStride);
  return {strides[0], strides[1], strides[2]};
}

// The number of elements from the first to the last, inclusive.
std::size_t extent(const std::vector<std::pair<std::int64_t, std::int64_t>>& dims) {  // (count, stride)
  std::size_t elements = 1;
  for (const auto& [count, stride] : dims) {
    if (count == 0) return 0;
    elements = checked_add(elements, checked_product({count - 1, stride}));
  }
  return elements;
}

std::size_t view_bytes(const AttentionView& view, std::int64_t batch, std::int64_t heads, std::int64_t rows,
                       std::int64_t size, CacheFormat format = CacheFormat::kF32) {
  // Rows without elements may have a scale.
  const std::int64_t element = cache_element_bytes(format), elements = cache_row_bytes(format, size) / element;
  return checked_multiply(extent({{batch, view.batch}, {heads, view.head}, {rows, view.row}, {elements, 1}}),
                          static_cast<std::size_t>(element));
}

// Two workers must not write the same element: each stride must be at least the extent of the dimensions inside it.
void expect_apart(const AttentionArgs& args) {
  if (args.batch * args.heads * args.queries * args.value_size == 0) return;
  std::vector<std::pair<std::int64_t, std::int64_t>> dims{
      {args.y.batch, args.batch}, {args.y.head, args.heads}, {args.y.row, args.queries}};
  std::sort(dims.begin(), dims.end());
  std::int64_t inside = args.value_size;
  for (const auto& [stride, count] : dims) {
    if (count == 1) continue;
    if (stride < inside) {
      throw PlanError("rows of Y overlap: " + std::to_string(count) + " parts of " + std::to_string(inside) +
                      " floats are " + std::to_string(stride) + " apart");
    }
    inside =
        static_cast<std::int64_t>(checked_add(checked_product({count - 1, stride}), static_cast<std::size_t>(inside)));
  }
}

void read_sizes(const Attributes& attributes, AttentionArgs& args) {
  args.batch = attributes.integer("batch", 0, kLargestAttention);
  args.heads = attributes.integer("heads", 1, kLargestAttention);
  args.kv_heads = attributes.integer_or("kv_heads", 1, kLargestAttention, args.heads);
  args.queries = attributes.integer("queries", 0, kLargestAttention);
  args.keys = attributes.integer("keys", 0, kLargestAttention);
  args.size = attributes.integer("size", 0, kLargestAttention);
  args.value_size = attributes.integer_or("value_size", 0, kLargestAttention, args.size);
  if (args.heads % args.kv_heads != 0) {
    throw PlanError(std::to_string(args.kv_heads) + " heads of K and V do not divide " + std::to_string(args.heads) +
                    " heads of Q");
  }
  const std::int64_t rows = std::max(args.queries, args.keys);
  const std::int64_t row = std::max<std::int64_t>({args.size, args.value_size, 1});
  const std::size_t elements = checked_product({args.batch, args.heads, rows, row});
  if (elements > static_cast<std::size_t>(kLargestStride)) {
    throw PlanError("the operands have " + std::to_string(elements) + " elements; expected " +
                    std::to_string(kLargestStride) + " at most");
  }
}

void read_restraints(const Attributes& attributes, AttentionArgs& args) {
  args.mask = read_code_or(attributes, "mask", AttentionMask::kNone);
  args.mask_keys = args.keys;
  if (args.mask != AttentionMask::kNone) {
    const auto& strides = attributes.integers("mask_strides", 4, 0, kLargestStride);
    args.mask_view = {strides[0], strides[1], strides[2], strides[3]};
    args.mask_keys = attributes.integer_or("mask_keys", 0, args.keys, args.keys);
  }
  args.rows = read_code_or(attributes, "rows", AttentionRows::kAttention);
  args.before = attributes.integer_or("before", -1, kLargestAttention, -1);
  args.after = attributes.integer_or("after", -1, kLargestAttention, -1);
  args.offset = attributes.integer_or("offset", -kLargestAttention, kLargestAttention, 0);
  args.scale = static_cast<float>(attributes.real("scale"));
  args.softcap = static_cast<float>(attributes.real_or("softcap", 0.0));
  if (!std::isfinite(args.scale)) throw PlanError("attribute \"scale\" is not a finite number");
  if (!(args.softcap >= 0 && std::isfinite(args.softcap)))
    throw PlanError("attribute \"softcap\" is " + std::to_string(args.softcap) + "; expected 0 or more");
}

void expect_operands(const StepRequest& request, const AttentionArgs& args) {
  const bool has_mask = args.mask != AttentionMask::kNone;
  request.expect_operands(static_cast<std::size_t>(args.y_at), 1);
  request.expect_input(0, view_bytes(args.q, args.batch, args.heads, args.queries, args.size));
  request.expect_input(1, view_bytes(args.k, args.batch, args.kv_heads, args.keys, args.size, args.k_format));
  request.expect_input(2, view_bytes(args.v, args.batch, args.kv_heads, args.keys, args.value_size, args.v_format));
  if (has_mask) {
    const AttentionMaskView& mask = args.mask_view;
    const std::size_t elements = extent(
        {{args.batch, mask.batch}, {args.heads, mask.head}, {args.queries, mask.query}, {args.mask_keys, mask.key}});
    request.expect_input(3, checked_multiply(elements, args.mask == AttentionMask::kFloat ? sizeof(float) : 1));
  }
  if (args.lengths_at > 0) {
    request.expect_input(static_cast<std::size_t>(args.lengths_at), checked_product({args.batch, 8}));
  }
  request.expect_output(0, view_bytes(args.y, args.batch, args.heads, args.queries, args.value_size));
}

std::int64_t dense_row(CacheFormat format, std::int64_t size) {
  return cache_row_bytes(format, size) / cache_element_bytes(format);
}

// 0 if the kernel chooses.
void read_algorithm(const Attributes& attributes, AttentionArgs& args) {
  args.key_block = attributes.integer_or("key_block", 1, kLargestAttention, 0);
  args.query_blocks = attributes.integer_or("query_blocks", 1, kMaxQueryBlocks, 0);
  args.shared_heads = attributes.integer_or("shared_heads", 1, kMaxSharedHeads, 0);
  args.parts = attributes.integer_or("parts", 1, kMaxParts, 0);
}

AttentionArgs read_attention(const StepRequest& request) {
  const Attributes& attributes = request.attributes;
  AttentionArgs args = {};
  read_sizes(attributes, args);
  read_restraints(attributes, args);
  read_algorithm(attributes, args);
  args.is_repeatable = attributes.flag("repeatable");
  args.k_format = read_code_or(attributes, "k_format", CacheFormat::kF32);
  args.v_format = read_code_or(attributes, "v_format", CacheFormat::kF32);
  args.k_at = 1;
  args.v_at = 2;
  args.y_at = args.mask != AttentionMask::kNone ? 4 : 3;
  if (attributes.integer_or("lengths", 0, 1, 0) == 1) args.lengths_at = args.y_at++;
  args.q = read_view(attributes, "q", args.heads, args.queries, args.size);
  args.k = read_view(attributes, "k", args.kv_heads, args.keys, dense_row(args.k_format, args.size));
  args.v = read_view(attributes, "v", args.kv_heads, args.keys, dense_row(args.v_format, args.value_size));
  args.y = read_view(attributes, "y", args.heads, args.queries, args.value_size);
  expect_apart(args);
  expect_operands(request, args);
  return args;
}

double attention_work(const AttentionArgs& args) {
  const double work = 2.0 * args.batch * args.heads * args.queries * args.keys * (args.size + args.value_size);
  return args.after == 0 && args.keys == args.queries ? work / 2 : work;
}

const AttentionTraits& find_traits(const StepRequest& request) {
  return *static_cast<const AttentionTraits*>(request.kernels.find("attention_f32").traits);
}

// With fewer queries than a quarter of the lanes, most lanes of query vectors would be unused.
bool read_is_row_wise(const StepRequest& request, const AttentionArgs& args) {
  const bool is_best = args.queries <= std::max(1, find_traits(request).lanes / 4) && !args.is_repeatable;
  return request.attributes.integer_or("row_wise", 0, 1, is_best ? 1 : 0) == 1;
}

// How many blocks of queries, of `width` each, share a copy of the keys.
std::int64_t query_blocks(const AttentionArgs& args, std::int64_t width) {
  if (args.keys < kMinCopied) return 1;
  const std::int64_t in_head = std::max<std::int64_t>(1, divide_up(args.queries, width));
  const std::int64_t all = args.batch * args.heads * in_head;
  return std::clamp<std::int64_t>(all / kMinParts, 1, std::min(in_head, kMaxQueryBlocks));
}

// The number of the operand that the next temporary of a step becomes.
std::int32_t first_temporary(const AttentionArgs& args, const PreparedStep& step) {
  return args.y_at + 1 + static_cast<std::int32_t>(step.temporaries.size());
}

// Adds the phases that widen K and V for kernels that read f32 only, and lets these read the results.
void widen(const StepRequest& request, AttentionArgs& args, PreparedStep& step) {
  const auto add = [&](CacheFormat& format, AttentionView& view, std::int32_t& at, std::int64_t size) {
    if (format == CacheFormat::kF32) return;
    const AttentionWidenArgs widening = {args.batch, args.kv_heads, args.keys, size,
                                         view,       format,        at,        first_temporary(args, step)};
    step.temporaries.push_back(checked_multiply(
        checked_product({args.batch, args.kv_heads, args.keys, std::max<std::int64_t>(size, 1)}), sizeof(float)));
    step.phases.push_back(PreparedPhase::of(request.kernels.find("attention_widen_f32"), widening));
    format = CacheFormat::kF32;
    view = dense_view(args.kv_heads, args.keys, size);
    at = widening.to_at;
  };
  add(args.k_format, args.k, args.k_at, args.size);
  add(args.v_format, args.v, args.v_at, args.value_size);
}

int workers_for(const PreparedStep& step, double parts) {
  return static_cast<int>(std::min(1.0e6, std::max(1.0, std::min(parts, step.work / 2 / kMinWork))));
}

// The most keys that a query attends to.
std::int64_t visible_keys(const AttentionArgs& args) {
  if (args.before < 0 || args.after < 0) return args.keys;
  return std::min(args.keys, args.before + args.after + 1);
}

PreparedStep prepare_few(const StepRequest& request, AttentionArgs args) {
  const std::int64_t lanes = find_traits(request).lanes, queries = std::max<std::int64_t>(args.queries, 1);
  const std::int64_t keys = visible_keys(args);
  if (args.parts == 0) args.parts = std::clamp<std::int64_t>(keys / kPartKeys, 1, kMaxParts);
  args.row_scores = divide_up(std::max<std::int64_t>(divide_up(keys, lanes), 1), args.parts) * lanes;
  if (args.shared_heads == 0) {
    args.shared_heads = 1;
    for (std::int64_t count = 2; count <= kMaxSharedHeads; ++count) {
      const std::int64_t units = args.batch * args.heads / count * queries * args.parts;
      if (args.heads / args.kv_heads % count == 0 && units >= kMinUnits) args.shared_heads = count;
    }
  }
  if (args.heads / args.kv_heads % args.shared_heads != 0) {
    throw PlanError("attribute \"shared_heads\" is " + std::to_string(args.shared_heads) +
                    ", which does not divide the heads of Q for one of K");
  }
  args.units_together = kMaxRowsTogether / args.shared_heads;
  const std::size_t rows = checked_product({args.units_together * args.shared_heads, args.size + 16 + args.row_scores});
  const std::size_t widened = checked_product({kRowVectors * lanes, std::max(args.size, args.value_size)});
  PreparedStep step;
  step.work = attention_work(args);
  args.parts_at = first_temporary(args, step);
  const std::size_t parts = args.parts == 1 ? 0 : checked_product({args.batch, args.heads, args.queries, args.parts});
  step.temporaries.push_back(checked_multiply(parts + 1, sizeof(AttentionPart)));
  step.temporaries.push_back(
      checked_multiply(checked_multiply(parts + 1, static_cast<std::size_t>(args.value_size) + 1), sizeof(float)));
  step.phases.push_back(PreparedPhase::of(request.kernels.find("attention_few_f32"), args));
  step.phases[0].scratch_bytes = checked_multiply(checked_add(rows, widened), sizeof(float));
  const double units = static_cast<double>(args.batch * args.parts * (args.heads / args.shared_heads) * args.queries);
  step.phases[0].max_workers = workers_for(step, units);
  step.phases.push_back(PreparedPhase::of(request.kernels.find("attention_join_f32"), args));
  step.phases[1].max_workers =
      static_cast<int>(std::clamp<std::size_t>(parts * args.value_size / kJoinedFloats, 1, 1 << 20));
  return step;
}

PreparedStep prepare_attention_f32(const StepRequest& request) {
  const AttentionTraits& traits = find_traits(request);
  AttentionArgs args = read_attention(request);
  if (read_is_row_wise(request, args)) return prepare_few(request, args);
  PreparedStep step;
  const std::int64_t width = std::int64_t{traits.lanes} * traits.block_vectors;
  if (args.query_blocks == 0) args.query_blocks = query_blocks(args, width);
  const std::int64_t most = copies_keys(args) ? kMaxCopiedKeys : kMaxKeys;
  const std::int64_t blocks = std::max<std::int64_t>(1, divide_up(args.keys, most));
  if (args.is_repeatable) args.key_block = kMaxCopiedKeys;
  if (args.key_block == 0) args.key_block = std::max<std::int64_t>(1, divide_up(args.keys, blocks));
  if (!args.is_repeatable) args.key_block = std::min(args.key_block, std::max<std::int64_t>(args.keys, 1));
  const std::int64_t row = args.size + args.value_size;
  const std::size_t floats =
      checked_add(checked_product({args.query_blocks * row + traits.lanes + args.key_block, width}),
                  checked_product({copies_keys(args) ? args.key_block : 0, row}));
  step.phases.push_back(PreparedPhase::of(request.kernels.find("attention_f32"), args));
  step.phases.back().scratch_bytes = checked_multiply(floats, sizeof(float));
  step.work = attention_work(args);
  const double parts =
      static_cast<double>(args.batch) * args.heads * divide_up(args.queries, width * args.query_blocks);
  for (PreparedPhase& phase : step.phases) phase.max_workers = workers_for(step, parts);
  return step;
}

// Few queries, which would leave most of a tile empty, are computed in f32.
PreparedStep prepare_attention_bf16(const StepRequest& request) {
  AttentionAmxArgs args = {};
  args.attention = read_attention(request);
  AttentionArgs& a = args.attention;
  if (read_is_row_wise(request, a) || a.is_repeatable) return prepare_attention_f32(request);
  const auto up = [](std::int64_t value) { return (value + kAttentionTile - 1) / kAttentionTile * kAttentionTile; };
  args.steps = up(a.size) / kAttentionTile;
  args.keys = up(a.keys);
  args.value_size = up(a.value_size);
  const std::int64_t blocks = std::max<std::int64_t>(1, (a.keys + kMaxKeys - 1) / kMaxKeys);
  if (a.key_block == 0) a.key_block = std::max<std::int64_t>(1, (a.keys + blocks - 1) / blocks);
  a.key_block = up(std::min(a.key_block, kMaxKeys));
  PreparedStep step;
  widen(request, a, step);
  args.k_panel = first_temporary(a, step);
  args.v_panel = args.k_panel + 1;
  const std::int64_t heads = a.batch * a.kv_heads;
  step.temporaries.push_back(checked_product({heads, args.steps, args.keys, 64}));
  step.temporaries.push_back(checked_product({heads, args.keys / kAttentionTile, args.value_size, 64}));
  step.phases.push_back(PreparedPhase::of(request.kernels.find("attention_pack_amx_bf16"), args));
  step.phases.push_back(PreparedPhase::of(request.kernels.find("attention_amx_bf16"), args));
  step.phases.back().scratch_bytes = static_cast<std::size_t>(attention_scratch_bytes(args));
  step.work = attention_work(a);
  return step;
}

}  // namespace

extern const OperationEntry attention_operations[] = {
    {"attention_f32", prepare_attention_f32}, {"attention_bf16", prepare_attention_bf16}, {}};

}  // namespace engine

// tree_sums: rows -> partial sums of each part of the trees; tree_scores: partial sums -> scores, labels.
//
// Operands: x [rows, features], nodes, roots (uint32), weights (unless each leaf has one), base [targets] if given,
// labels (int64, one for each column) if given; scores [rows, columns], label (int64) of each row if labels are given;
// temporary: partial sums [parts, rows, targets]. Element alignment; none may overlap. tree_sums is split over parts
// and blocks of rows, tree_scores over rows.
//
// A step of a walk takes tens of cycles, mostly waiting for its loads, so a worker walks kLanes ways at once: several
// rows in one tree, or one of the last few rows in several trees. Every index in nodes, roots and weights is checked as
// it is used: a forged tree reads nothing outside, and since steps only go forward, the walk ends.
#include "kernels/trees.hpp"

#include <cmath>

#include "kernels/class_scores.hpp"
#include "simd/isa.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

constexpr int kLanes = 8;

template <class C, TreeCompare compare>
ENGINE_INLINE bool is_next(C x, const TreeNode<C>& node) {
  const bool nan = (x != x) & ((node.kind & kTreeNanIsNext) != 0);
  if (compare == TreeCompare::kLeq) return (x <= node.threshold) | nan;
  if (compare == TreeCompare::kLess) return (x < node.threshold) | nan;
  const bool less = x<node.threshold, equal = x == node.threshold, more = x> node.threshold;
  const std::uint32_t holds = static_cast<std::uint32_t>(less | equal) | static_cast<std::uint32_t>(less) << 1 |
                              static_cast<std::uint32_t>(equal) << 2 | static_cast<std::uint32_t>(less | more) << 3;
  return (((holds >> (node.kind & 3)) & 1) != 0) | nan;
}

// All bits if `condition`, otherwise none: the compiler must not branch on a condition that is practically random.
ENGINE_INLINE std::uint64_t mask_of(bool condition) {
  return ~std::uint64_t{0} * condition;
}

// Walks from the nodes `at` to leaves, whose numbers it leaves there. Nodes are below `count`, which is not zero. A
// call takes no time beside a walk, and a copy for each use twice as long to compile.
template <class In, class C, TreeCompare compare>
ENGINE_NOINLINE void walk(const TreeNode<C>* nodes, std::uint64_t count, std::uint64_t features, const In* const* x,
                          std::uint64_t* at) {
  if (features == 0) return;
  for (std::uint64_t moved = 1; moved != 0;) {
    moved = 0;
#pragma GCC unroll 8
    for (int lane = 0; lane < kLanes; ++lane) {
      const TreeNode<C>& node = nodes[at[lane]];
      const std::uint64_t feature = node.feature & mask_of(node.feature < features);  // a leaf's is not used
      const bool holds = is_next<C, compare>(static_cast<C>(x[lane][feature]), node);
      const std::uint64_t step = 1 + (node.skip & mask_of(!holds));
      const std::uint64_t taken = step & mask_of((node.feature < features) & (at[lane] + step < count));
      at[lane] += taken;
      moved |= taken;
    }
  }
}

template <class C>
ENGINE_INLINE C folded(TreeFold fold, C sum, C value) {
  if (fold == TreeFold::kSum) return sum + value;
  if (fold == TreeFold::kMin) return value < sum ? value : sum;
  return value > sum ? value : sum;
}

template <class C>
ENGINE_INLINE C neutral(TreeFold fold) {
  return fold == TreeFold::kSum ? C(0) : fold == TreeFold::kMin ? static_cast<C>(INFINITY) : static_cast<C>(-INFINITY);
}

template <class C>
ENGINE_INLINE void add_leaf(const TreeArgs& args, const TreeNode<C>& leaf, const TreeWeight<C>* weights, C* sums) {
  if (args.is_single) {
    sums[0] = folded(args.fold, sums[0], leaf.threshold);
    return;
  }
  const std::uint64_t first = leaf.skip, end = first + leaf.kind;
  if (end > static_cast<std::uint64_t>(args.weights)) return;
  for (std::uint64_t i = first; i < end; ++i) {
    const TreeWeight<C>& weight = weights[i];
    if (weight.target < static_cast<std::uint64_t>(args.targets))
      sums[weight.target] = folded(args.fold, sums[weight.target], weight.value);
  }
}

template <class In, class C, TreeCompare compare>
void sum_block(const TreeArgs& args, void* const* buffers, C* partial, std::int64_t part, std::int64_t begin,
               std::int64_t end) {
  const In* x = static_cast<const In*>(buffers[0]);
  const TreeNode<C>* nodes = static_cast<const TreeNode<C>*>(buffers[1]);
  const std::uint32_t* roots = static_cast<const std::uint32_t*>(buffers[2]);
  const TreeWeight<C>* weights = args.is_single ? nullptr : static_cast<const TreeWeight<C>*>(buffers[3]);
  C* sums = partial + part * args.rows * args.targets;
  for (std::int64_t i = begin * args.targets; i < end * args.targets; ++i) sums[i] = neutral<C>(args.fold);
  const WorkRange trees = split_work(args.trees, static_cast<int>(part), static_cast<int>(args.parts));
  const std::uint64_t count = static_cast<std::uint64_t>(args.nodes),
                      features = static_cast<std::uint64_t>(args.features);
  if (count == 0) return;
  const In* rows[kLanes];
  std::uint64_t at[kLanes];
  const std::int64_t whole = begin + (end - begin) / kLanes * kLanes;
  for (std::int64_t tree = trees.begin; tree < trees.end && begin < whole; ++tree) {
    const std::uint64_t root = roots[tree] < count ? roots[tree] : count - 1;
    for (std::int64_t row = begin; row < whole; row += kLanes) {
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        rows[lane] = x + (row + lane) * args.features;
        at[lane] = root;
      }
      walk<In, C, compare>(nodes, count, features, rows, at);
      for (std::int64_t lane = 0; lane < kLanes; ++lane)
        add_leaf(args, nodes[at[lane]], weights, sums + (row + lane) * args.targets);
    }
  }
  for (std::int64_t row = whole; row < end; ++row)
    for (std::int64_t tree = trees.begin; tree < trees.end; tree += kLanes) {
      const std::int64_t lanes = trees.end - tree < kLanes ? trees.end - tree : kLanes;
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        const std::uint32_t root = roots[tree + (lane < lanes ? lane : 0)];
        rows[lane] = x + row * args.features;
        at[lane] = root < count ? root : count - 1;
      }
      walk<In, C, compare>(nodes, count, features, rows, at);
      for (std::int64_t lane = 0; lane < lanes; ++lane)
        add_leaf(args, nodes[at[lane]], weights, sums + row * args.targets);
    }
}

// The place of the temporary among the operands.
std::int64_t temporary_of(const TreeArgs& args) {
  return 3 + !args.is_single + args.has_base + 2 * args.has_labels + 1;
}

template <class In, class C, TreeCompare compare>
void sum_all(const TreeArgs& args, void* const* buffers, const KernelContext& context) {
  C* partial = static_cast<C*>(buffers[temporary_of(args)]);
  const std::int64_t blocks = (args.rows + kTreeRows - 1) / kTreeRows;
  const WorkRange range = split_work(args.parts * blocks, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t begin = i % blocks * kTreeRows;
    const std::int64_t end = begin + kTreeRows < args.rows ? begin + kTreeRows : args.rows;
    sum_block<In, C, compare>(args, buffers, partial, i / blocks, begin, end);
  }
}

template <class In, class C>
void sum_compared(const TreeArgs& args, void* const* buffers, const KernelContext& context) {
  if (args.compare == TreeCompare::kLeq) return sum_all<In, C, TreeCompare::kLeq>(args, buffers, context);
  if (args.compare == TreeCompare::kLess) return sum_all<In, C, TreeCompare::kLess>(args, buffers, context);
  sum_all<In, C, TreeCompare::kAny>(args, buffers, context);
}

template <class C>
void sum_typed(const TreeArgs& args, void* const* buffers, const KernelContext& context) {
  if (args.type == ElementCode::kF32) return sum_compared<float, C>(args, buffers, context);
  if (args.type == ElementCode::kF64) return sum_compared<double, C>(args, buffers, context);
  if (args.type == ElementCode::kI32) return sum_compared<std::int32_t, C>(args, buffers, context);
  sum_compared<std::int64_t, C>(args, buffers, context);
}

void tree_sums(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const TreeArgs& args = *static_cast<const TreeArgs*>(raw_args);
  if (args.compute == ElementCode::kF64) return sum_typed<double>(args, buffers, context);
  sum_typed<float>(args, buffers, context);
}

// -- scores -------------------------------------------------------------------------------------------------------

template <class C>
void score_row(const TreeArgs& args, const C* partial, const C* base, std::int64_t row, C* scores) {
  for (std::int64_t target = 0; target < args.targets; ++target) {
    const std::int64_t at = row * args.targets + target;
    C sum = partial[at];
    for (std::int64_t part = 1; part < args.parts; ++part)
      sum = folded(args.fold, sum, partial[part * args.rows * args.targets + at]);
    if (args.fold != TreeFold::kSum && sum == neutral<C>(args.fold)) sum = 0;  // no leaf had a weight for this target
    if (args.is_average) sum /= static_cast<C>(args.trees > 1 ? args.trees : 1);
    scores[target] = args.has_base ? sum + base[target] : sum;
  }
  complement(args.complement, scores);
}

template <class C>
void score_all(const TreeArgs& args, void* const* buffers, const KernelContext& context) {
  std::int64_t next = 3 + !args.is_single;
  const C* base = args.has_base ? static_cast<const C*>(buffers[next++]) : nullptr;
  const std::int64_t* labels = args.has_labels ? static_cast<const std::int64_t*>(buffers[next++]) : nullptr;
  void* results = buffers[next++];
  std::int64_t* label = args.has_labels ? static_cast<std::int64_t*>(buffers[next++]) : nullptr;
  const C* partial = static_cast<const C*>(buffers[next]);
  C* scores = static_cast<C*>(context.scratch);
  const WorkRange range = split_work(args.rows, context.worker, context.workers);
  for (std::int64_t row = range.begin; row < range.end; ++row) {
    score_row(args, partial, base, row, scores);
    const bool is_second = args.is_share && scores[1] > C(0.5);
    transform(args.transform, args.columns, scores);
    if (labels != nullptr) label[row] = labels[args.is_share ? is_second : greatest(scores, args.columns)];
    for (std::int64_t i = 0; i < args.columns; ++i) {
      const std::int64_t at = row * args.columns + i;
      if (args.result == ElementCode::kF64) {
        static_cast<double*>(results)[at] = scores[i];
      } else {
        static_cast<float*>(results)[at] = static_cast<float>(scores[i]);
      }
    }
  }
}

void tree_scores(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const TreeArgs& args = *static_cast<const TreeArgs*>(raw_args);
  if (args.compute == ElementCode::kF64) return score_all<double>(args, buffers, context);
  score_all<float>(args, buffers, context);
}

}  // namespace

extern const KernelEntry trees_kernels[] = {
    {"tree_sums", tree_sums, nullptr}, {"tree_scores", tree_scores, nullptr}, {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

// linear_scores: rows -> scores and labels of a linear classifier, or the results of a linear regressor.
//
// Operands: x [rows, features]; vectors [blocks, features, 16]; base [blocks, 16]; labels (int64, one for each
// column) if given; scores [rows, columns], and the label (int64) of each row if labels are given. Element
// alignment; none may overlap. Split over rows.
#include "kernels/linear_scores.hpp"

#include "kernels/class_scores.hpp"
#include "kernels/row_products.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

template <class C, int kRows>
void multiply(const LinearScoreArgs& args, const C* vectors, const C* x, C* products) {
  for (std::int64_t block = 0; block < args.blocks; ++block, products += kRowGroup * kRowBlock)
    row_products<C, kRows, false>(vectors + block * args.features * kRowBlock, x, args.features, products);
}

// The scores of one row before they are transformed; whole vectors are written, behind which the next row follows.
template <class C>
ENGINE_INLINE void add_base(const LinearScoreArgs& args, const C* base, const C* products, C* scores) {
  using L = Lanes<C>;
  for (std::int64_t first = 0; first < args.targets; first += kRowBlock, products += kRowGroup * kRowBlock)
    for (std::int64_t i = 0; i < kRowBlock && first + i < args.targets; i += L::kCount)
      L::store(scores + first + i, L::load(products + i) + L::load(base + first + i));
  complement(args.complement, scores);
}

// Vectors reach behind the last score, at most by one block.
ENGINE_INLINE void transform_rows(ScoreTransform function, std::int64_t rows, std::int64_t columns, float* scores) {
  using namespace simd;
  const std::int64_t count = rows * columns;
  if (function == ScoreTransform::kLogistic) {
    for (std::int64_t i = 0; i < count; i += kLanes) store(scores + i, sigmoid(load(scores + i)));
  } else if (function == ScoreTransform::kSoftmax) {
    for (std::int64_t at = 0; at < count; at += columns) {
      float most = scores[at];
      for (std::int64_t i = 1; i < columns; ++i) most = scores[at + i] > most ? scores[at + i] : most;
      for (std::int64_t i = 0; i < columns; ++i) scores[at + i] -= most;
    }
    for (std::int64_t i = 0; i < count; i += kLanes) store(scores + i, exp(load(scores + i)));
    for (std::int64_t at = 0; at < count; at += columns) {
      float total = 0;
      for (std::int64_t i = 0; i < columns; ++i) total += scores[at + i];
      for (std::int64_t i = 0; i < columns; ++i) scores[at + i] /= total;
    }
  } else if (function != ScoreTransform::kNone) {
    for (std::int64_t at = 0; at < count; at += columns) transform(function, columns, scores + at);
  }
}
ENGINE_INLINE void transform_rows(ScoreTransform function, std::int64_t rows, std::int64_t columns, double* scores) {
  if (function == ScoreTransform::kNone) return;
  for (std::int64_t row = 0; row < rows; ++row) transform(function, columns, scores + row * columns);
}

template <class Out, class C>
ENGINE_INLINE void write_scores(const C* scores, std::int64_t count, void* results, std::int64_t at) {
  Out* to = static_cast<Out*>(results) + at;
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<Out>(scores[i]);
}

template <class C>
void score_rows(const LinearScoreArgs& args, void* const* buffers, const KernelContext& context) {
  const bool is_read = args.type != (sizeof(C) == 4 ? ElementCode::kF32 : ElementCode::kF64);
  const C* vectors = static_cast<const C*>(buffers[1]);
  const C* base = static_cast<const C*>(buffers[2]);
  std::int64_t next = 3;
  const std::int64_t* labels = args.has_labels ? static_cast<const std::int64_t*>(buffers[next++]) : nullptr;
  void* results = buffers[next++];
  std::int64_t* label = args.has_labels ? static_cast<std::int64_t*>(buffers[next]) : nullptr;
  C* products = static_cast<C*>(context.scratch);
  C* scores = products + args.blocks * kRowGroup * kRowBlock;
  C* converted = scores + args.chunk * args.columns + kRowBlock;
  const WorkRange range = split_work(args.rows, context.worker, context.workers);
  for (std::int64_t begin = range.begin; begin < range.end; begin += args.chunk) {
    const std::int64_t rows = min64(args.chunk, range.end - begin);
    for (std::int64_t row = 0; row < rows; row += kRowGroup) {
      const std::int64_t count = min64(kRowGroup, rows - row), at = (begin + row) * args.features;
      const C* x = is_read ? converted : static_cast<const C*>(buffers[0]) + at;
      if (is_read) read_rows(args.type, buffers[0], at, count * args.features, converted);
      if (count == kRowGroup) {
        multiply<C, kRowGroup>(args, vectors, x, products);
      } else {
        for (std::int64_t i = 0; i < count; ++i)
          multiply<C, 1>(args, vectors, x + i * args.features, products + i * kRowBlock);
      }
      for (std::int64_t i = 0; i < count; ++i)
        add_base(args, base, products + i * kRowBlock, scores + (row + i) * args.columns);
    }
    transform_rows(args.transform, rows, args.columns, scores);
    if (labels != nullptr)
      for (std::int64_t row = 0; row < rows; ++row)
        label[begin + row] = labels[greatest(scores + row * args.columns, args.columns)];
    if (args.result == ElementCode::kF64)
      write_scores<double>(scores, rows * args.columns, results, begin * args.columns);
    else
      write_scores<float>(scores, rows * args.columns, results, begin * args.columns);
  }
}

void linear_scores(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const LinearScoreArgs& args = *static_cast<const LinearScoreArgs*>(raw_args);
  if (args.compute == ElementCode::kF64) return score_rows<double>(args, buffers, context);
  score_rows<float>(args, buffers, context);
}

}  // namespace

extern const KernelEntry linear_scores_kernels[] = {{"linear_scores", linear_scores, nullptr},
                                                    {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

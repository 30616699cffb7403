// support_vectors: rows -> sums over support vectors, or votes of pairs of classes and their probabilities.
//
// Operands: x [rows, features]; vectors [blocks, features, 16]; coefficients [blocks, coefficients, 16]; spans (int32),
// the vectors of each class; rho [pairs]; for votes, labels (int64, one for each class); for probabilities, A and B of
// each pair (f64 [2, pairs]); scores (f32 [rows, columns]), and for votes, the label (int64) of each row. Element
// alignment; none may overlap. Split over rows. Spans are checked as they are used, so forged ones read nothing
// outside.
#include "kernels/support_vectors.hpp"

#include <cmath>

#include "kernels/row_products.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

template <class V>
ENGINE_INLINE V power(V base, std::int64_t degree) {
  V result = V{} + 1;
  for (; degree > 0; degree >>= 1) {
    if (degree & 1) result *= base;
    base *= base;
  }
  return result;
}

ENGINE_INLINE void exponential(float* values) {
  for (int i = 0; i < kRowBlock; i += simd::kLanes) simd::store(values + i, simd::exp(simd::load(values + i)));
}
ENGINE_INLINE void exponential(double* values) {
  for (int i = 0; i < kRowBlock; ++i) values[i] = exp(values[i]);
}
ENGINE_INLINE void hyperbolic(float* values) {
  for (int i = 0; i < kRowBlock; i += simd::kLanes) simd::store(values + i, simd::tanh(simd::load(values + i)));
}
ENGINE_INLINE void hyperbolic(double* values) {
  for (int i = 0; i < kRowBlock; ++i) values[i] = tanh(values[i]);
}

// The kernels of products or distances of one row, and 0 behind `count`: a padded vector may have an infinite one.
template <class C>
void apply(const SupportArgs& args, std::int64_t count, C* values) {
  const C gamma = static_cast<C>(args.gamma), coef0 = static_cast<C>(args.coef0);
  if (args.kernel == SupportKernel::kRbf) {
    for (int i = 0; i < kRowBlock; ++i) values[i] *= -gamma;
    exponential(values);
  } else if (args.kernel != SupportKernel::kLinear) {
    for (int i = 0; i < kRowBlock; ++i) values[i] = values[i] * gamma + coef0;
    if (args.kernel == SupportKernel::kSigmoid) {
      hyperbolic(values);
    } else {
      using L = Lanes<C>;
      for (int i = 0; i < kRowBlock; i += L::kCount) L::store(values + i, power(L::load(values + i), args.degree));
    }
  }
  for (std::int64_t i = count; i < kRowBlock; ++i) values[i] = 0;
}

// Adds the kernels of the rows and one block to their 16 partial sums for each coefficient.
template <class C, int kRows>
void add_block(const SupportArgs& args, const C* vectors, const C* coefficients, std::int64_t count, const C* x,
               C* partial) {
  using L = Lanes<C>;
  alignas(64) C found[kRows * kRowBlock];
  if (args.kernel == SupportKernel::kRbf)
    row_products<C, kRows, true>(vectors, x, args.features, found);
  else
    row_products<C, kRows, false>(vectors, x, args.features, found);
  for (int row = 0; row < kRows; ++row) {
    C* values = found + row * kRowBlock;
    apply(args, count, values);
    C* sums = partial + row * args.coefficients * kRowBlock;
    for (std::int64_t at = 0; at < args.coefficients * kRowBlock; at += kRowBlock)
      for (int i = 0; i < kRowBlock; i += L::kCount) {
        const auto sum = add_product(L::load(coefficients + at + i), L::load(values + i), L::load(sums + at + i));
        L::store(sums + at + i, sum);
      }
  }
}

template <class C>
struct Machine {
  const C *vectors, *coefficients;
  const std::int32_t* spans;
  const C* rho;
  const std::int64_t* labels;
  const double* curves;  // A and B of each pair
};

// sums [rows, classes, coefficients] of the rows x [rows, features].
template <class C>
void sum_rows(const SupportArgs& args, const Machine<C>& machine, std::int64_t rows, const C* x, C* partial, C* sums) {
  const std::int64_t each = args.coefficients * kRowBlock;
  std::int64_t block = 0;
  for (std::int64_t k = 0; k < args.classes; ++k) {
    for (std::int64_t i = 0; i < rows * each; ++i) partial[i] = 0;
    for (std::int64_t rest = machine.spans[k]; rest > 0 && block < args.blocks; rest -= kRowBlock, ++block) {
      const C* vectors = machine.vectors + block * args.features * kRowBlock;
      const C* coefficients = machine.coefficients + block * each;
      const std::int64_t count = min64(rest, kRowBlock);
      std::int64_t row = 0;
      for (; row + kRowGroup <= rows; row += kRowGroup)
        add_block<C, kRowGroup>(args, vectors, coefficients, count, x + row * args.features, partial + row * each);
      for (; row < rows; ++row)
        add_block<C, 1>(args, vectors, coefficients, count, x + row * args.features, partial + row * each);
    }
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t i = 0; i < args.coefficients; ++i) {
        const C* lanes = partial + (row * args.coefficients + i) * kRowBlock;
        C total = 0;
        for (int lane = 0; lane < kRowBlock; ++lane) total += lanes[lane];
        sums[(row * args.classes + k) * args.coefficients + i] = total;
      }
  }
}

// Probabilities of classes from those of pairs, pairs[i, j] of class i against j: the second method of Wu, Lin and
// Weng, "Probability estimates for multi-class classification by pairwise coupling" (JMLR 2004), with libsvm's limits.
void couple(std::int64_t classes, const double* pairs, double* quadratic, double* product, double* found) {
  for (std::int64_t i = 0; i < classes; ++i) {
    double total = 0;
    for (std::int64_t j = 0; j < classes; ++j) {
      if (j == i) continue;
      total += pairs[j * classes + i] * pairs[j * classes + i];
      quadratic[i * classes + j] = -pairs[j * classes + i] * pairs[i * classes + j];
    }
    quadratic[i * classes + i] = total;
    found[i] = 1.0 / static_cast<double>(classes);
  }
  for (std::int64_t round = max64(100, classes); round > 0; --round) {
    double total = 0, error = 0;
    for (std::int64_t i = 0; i < classes; ++i) {
      product[i] = 0;
      for (std::int64_t j = 0; j < classes; ++j) product[i] += quadratic[i * classes + j] * found[j];
      total += found[i] * product[i];
    }
    for (std::int64_t i = 0; i < classes; ++i) {
      const double difference = fabs(product[i] - total);
      if (!(difference <= error)) error = difference;  // a NaN is in all of them, and goes through all rounds
    }
    if (error < 0.005 / static_cast<double>(classes)) return;
    for (std::int64_t k = 0; k < classes; ++k) {
      const double* row = quadratic + k * classes;
      const double step = (total - product[k]) / row[k], scale = 1 / (1 + step);
      found[k] += step;
      total = (total + step * (step * row[k] + 2 * product[k])) * scale * scale;
      for (std::int64_t i = 0; i < classes; ++i) {
        product[i] = (product[i] + step * row[i]) * scale;
        found[i] *= scale;
      }
    }
  }
}

// The margins of pairs, in `margins`, and the class that most of them decide for: the first of equal ones.
template <class C>
std::int64_t vote(const SupportArgs& args, const Machine<C>& machine, const C* sums, C* margins, double* votes) {
  for (std::int64_t k = 0; k < args.classes; ++k) votes[k] = 0;
  std::int64_t pair = 0;
  for (std::int64_t i = 0; i < args.classes; ++i)
    for (std::int64_t j = i + 1; j < args.classes; ++j, ++pair) {
      const C margin = machine.rho[pair] + (sums[i * args.coefficients + j - 1] + sums[j * args.coefficients + i]);
      margins[pair] = margin;
      votes[margin > 0 ? i : j] += 1;
    }
  std::int64_t best = 0;
  for (std::int64_t k = 1; k < args.classes; ++k)
    if (votes[k] > votes[best]) best = k;
  return best;
}

template <class C>
void write_probabilities(const SupportArgs& args, const Machine<C>& machine, const C* margins, double* memory,
                         float* scores) {
  constexpr double kClosest = 1.0e-7;  // of a pair's probability to 0 and 1
  const std::int64_t classes = args.classes;
  double *pairs = memory, *quadratic = pairs + classes * classes;
  double *product = quadratic + classes * classes, *found = product + classes;
  std::int64_t pair = 0;
  for (std::int64_t i = 0; i < classes; ++i)
    for (std::int64_t j = i + 1; j < classes; ++j, ++pair) {
      const double argument = margins[pair] * machine.curves[pair] + machine.curves[args.pairs + pair];
      const double wins = 1 / (1 + exp(argument));
      const double kept = wins < kClosest ? kClosest : wins > 1 - kClosest ? 1 - kClosest : wins;
      pairs[i * classes + j] = kept;
      pairs[j * classes + i] = 1 - kept;
    }
  couple(classes, pairs, quadratic, product, found);
  for (std::int64_t k = 0; k < classes; ++k) scores[k] = static_cast<float>(found[k]);
}

template <class C>
void run_rows(const SupportArgs& args, void* const* buffers, const KernelContext& context) {
  const bool has_labels = args.mode == SupportMode::kVote || args.mode == SupportMode::kProbability;
  const bool has_curves = args.mode == SupportMode::kProbability;
  const Machine<C> machine = {static_cast<const C*>(buffers[1]),
                              static_cast<const C*>(buffers[2]),
                              static_cast<const std::int32_t*>(buffers[3]),
                              static_cast<const C*>(buffers[4]),
                              has_labels ? static_cast<const std::int64_t*>(buffers[5]) : nullptr,
                              has_curves ? static_cast<const double*>(buffers[6]) : nullptr};
  float* scores = static_cast<float*>(buffers[5 + has_labels + has_curves]);
  std::int64_t* label = has_labels ? static_cast<std::int64_t*>(buffers[6 + has_labels + has_curves]) : nullptr;
  const SupportScratch sizes = support_scratch(args);
  double* memory = static_cast<double*>(context.scratch);
  C* x = reinterpret_cast<C*>(memory + sizes.doubles);
  C* sums = x + sizes.rows;
  C* partial = sums + sizes.sums;
  C* margins = partial + sizes.partial;
  const WorkRange range = split_work(args.rows, context.worker, context.workers);
  for (std::int64_t begin = range.begin; begin < range.end; begin += args.chunk) {
    const std::int64_t rows = min64(args.chunk, range.end - begin), at = begin * args.features;
    read_rows(args.type, buffers[0], at, rows * args.features, x);
    sum_rows(args, machine, rows, x, partial, sums);
    for (std::int64_t row = 0; row < rows; ++row) {
      float* result = scores + (begin + row) * args.columns;
      const C* found = sums + row * args.classes * args.coefficients;
      if (!has_labels) {
        const C total = found[0] + machine.rho[0];
        result[0] = args.mode == SupportMode::kSum ? static_cast<float>(total) : total > 0 ? 1.0f : -1.0f;
        continue;
      }
      label[begin + row] = machine.labels[vote(args, machine, found, margins, memory)];
      if (has_curves) {
        write_probabilities(args, machine, margins, memory, result);
      } else if (args.classes == 2) {
        result[0] = static_cast<float>(-margins[0]);
        result[1] = static_cast<float>(margins[0]);
      } else {
        for (std::int64_t i = 0; i < args.pairs; ++i) result[i] = static_cast<float>(margins[i]);
      }
    }
  }
}

void support_vectors(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const SupportArgs& args = *static_cast<const SupportArgs*>(raw_args);
  if (args.compute == ElementCode::kF64) return run_rows<double>(args, buffers, context);
  run_rows<float>(args, buffers, context);
}

}  // namespace

extern const KernelEntry support_vectors_kernels[] = {{"support_vectors", support_vectors, nullptr},
                                                      {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

// cum_sum: cumulative sums or products; f32 accumulates in f64, integers wrap.
//
// Operands: x, y, which may be the same memory; element alignment. Split over tiles of columns.
#include "kernels/cum_sum.hpp"

#include "simd/isa.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

template <class T, class Sum>
void cum_sum(const CumSumArgs& args, void* const* buffers, const KernelContext& context) {
  const T* x = static_cast<const T*>(buffers[0]);
  T* y = static_cast<T*>(buffers[1]);
  const std::int64_t tiles = (args.inner + kCumSumTile - 1) / kCumSumTile;
  const WorkRange range = split_work(args.outer * tiles, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t column = i % tiles * kCumSumTile;
    const std::int64_t width = args.inner - column < kCumSumTile ? args.inner - column : kCumSumTile;
    const std::int64_t first = i / tiles * args.axis * args.inner + column;
    Sum sums[kCumSumTile];
    for (Sum& each : sums) each = args.is_product ? 1 : 0;
    for (std::int64_t k = 0; k < args.axis; ++k) {
      const std::int64_t at = first + (args.is_reversed ? args.axis - 1 - k : k) * args.inner;
      for (std::int64_t c = 0; c < width; ++c) {
        const Sum before = sums[c];
        const Sum value = static_cast<Sum>(x[at + c]);
        sums[c] = args.is_product ? before * value : before + value;
        y[at + c] = static_cast<T>(args.is_exclusive ? before : sums[c]);
      }
    }
  }
}

void cum_sum(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const CumSumArgs& args = *static_cast<const CumSumArgs*>(raw_args);
  switch (args.type) {
    case ElementCode::kF32:
      return cum_sum<float, double>(args, buffers, context);
    case ElementCode::kF64:
      return cum_sum<double, double>(args, buffers, context);
    case ElementCode::kI32:
    case ElementCode::kU32:
      return cum_sum<std::int32_t, std::uint32_t>(args, buffers, context);
    case ElementCode::kI64:
    case ElementCode::kU64:
      return cum_sum<std::int64_t, std::uint64_t>(args, buffers, context);
    default:  // prepare accepts no other
      break;
  }
}

}  // namespace

extern const KernelEntry cum_sum_kernels[] = {{"cum_sum", cum_sum, nullptr}, {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

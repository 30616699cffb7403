// iota: see iota.hpp. Operand: the destination, with the alignment of its elements. Split over elements. A real number
// is the product and sum in f64, rounded once.
#include "kernels/iota.hpp"

#include "simd/isa.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

template <class T>
void fill_integers(const IotaArgs& args, void* to, WorkRange range) {
  const auto start = static_cast<std::uint64_t>(args.start), step = static_cast<std::uint64_t>(args.step);
  for (std::int64_t i = range.begin; i < range.end; ++i)
    static_cast<T*>(to)[i] = static_cast<T>(start + static_cast<std::uint64_t>(i) * step);
}

template <class T>
void fill_reals(const IotaArgs& args, void* to, WorkRange range) {
  for (std::int64_t i = range.begin; i < range.end; ++i)
    static_cast<T*>(to)[i] = static_cast<T>(args.first + static_cast<double>(i) * args.delta);
}

void iota(const void* arguments, void* const* buffers, const KernelContext& context) {
  const IotaArgs& args = *static_cast<const IotaArgs*>(arguments);
  const WorkRange range = split_work(args.count, context.worker, context.workers);
  switch (args.type) {
    case ElementCode::kF32:
      return fill_reals<float>(args, buffers[0], range);
    case ElementCode::kF64:
      return fill_reals<double>(args, buffers[0], range);
    case ElementCode::kI16:
      return fill_integers<std::uint16_t>(args, buffers[0], range);
    case ElementCode::kI32:
      return fill_integers<std::uint32_t>(args, buffers[0], range);
    case ElementCode::kI64:
      return fill_integers<std::uint64_t>(args, buffers[0], range);
    default:  // prepare accepts no other
      break;
  }
}

}  // namespace

extern const KernelEntry iota_kernels[] = {{"iota", iota, nullptr}, {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

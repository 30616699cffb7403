// scatter_copy, scatter_elements, scatter_nd: see scatter.hpp.
//
// Operands: data, indices, updates, destination; any alignment. The destination may be the data, and must not overlap
// the others. A NaN makes a minimum or maximum NaN.
#include "kernels/scatter.hpp"

#include <cstring>

#include "kernels/index.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

// Elements of any type in unaligned memory.
template <class T>
ENGINE_INLINE T load_element(const char* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

struct Replace {
  template <class T>
  static T apply(T, T update) {
    return update;
  }
};
struct Add {
  static float apply(float a, float b) { return a + b; }
  static double apply(double a, double b) { return a + b; }
  // Wraps, as in numpy.
  static std::int32_t apply(std::int32_t a, std::int32_t b) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
  }
  static std::int64_t apply(std::int64_t a, std::int64_t b) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  }
};
struct Multiply {
  static float apply(float a, float b) { return a * b; }
  static double apply(double a, double b) { return a * b; }
  static std::int32_t apply(std::int32_t a, std::int32_t b) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) * static_cast<std::uint32_t>(b));
  }
  static std::int64_t apply(std::int64_t a, std::int64_t b) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  }
};
struct Minimum {
  template <class T>
  static T apply(T a, T b) {
    return b < a || b != b ? b : a;
  }
};
struct Maximum {
  template <class T>
  static T apply(T a, T b) {
    return b > a || b != b ? b : a;
  }
};

void scatter_copy(const void* arguments, void* const* buffers, const KernelContext& context) {
  constexpr std::int64_t kLine = 64;
  const std::int64_t bytes = static_cast<const ScatterCopyArgs*>(arguments)->bytes;
  if (buffers[0] == buffers[3]) return;
  const WorkRange lines = split_work((bytes + kLine - 1) / kLine, context.worker, context.workers);
  const std::int64_t begin = lines.begin * kLine, end = lines.end * kLine < bytes ? lines.end * kLine : bytes;
  if (begin < end) {
    std::memcpy(static_cast<char*>(buffers[3]) + begin, static_cast<const char*>(buffers[0]) + begin,
                static_cast<std::size_t>(end - begin));
  }
}

template <class T, class Op>
struct ScatterElements {
  static void run(const ScatterElementsArgs& args, void* const* buffers, const KernelContext& context) {
    const std::int64_t last = args.rank - 1;
    const bool is_shared = args.split != args.axis;
    if (!is_shared && context.worker > 0) return;
    const WorkRange share = is_shared ? split_work(args.shape[args.split], context.worker, context.workers)
                                      : WorkRange{0, args.shape[args.split]};
    std::int64_t rows = share.begin < share.end ? 1 : 0;
    for (std::int64_t d = 0; d < last; ++d) rows *= d == args.split ? share.end - share.begin : args.shape[d];
    const WorkRange columns = args.split == last ? share : WorkRange{0, args.shape[last]};
    const std::int64_t along_last = args.axis == last ? 0 : args.stride[last];
    for (std::int64_t row = 0; row < rows; ++row) {
      // The row's position in the indices, and in the data before the index is added.
      std::int64_t rest = row, at = 0, place = 0, step = args.shape[last];
      for (std::int64_t d = last - 1; d >= 0; --d) {
        const std::int64_t size = d == args.split ? share.end - share.begin : args.shape[d];
        const std::int64_t i = rest % size + (d == args.split ? share.begin : 0);
        rest /= size;
        at += i * step;
        step *= args.shape[d];
        if (d != args.axis) place += i * args.stride[d];
      }
      for (std::int64_t c = columns.begin; c < columns.end; ++c) {
        const std::int64_t index = load_index(buffers[1], at + c, args.index_bytes);
        const std::int64_t along = resolve_index(index, args.axis_size, context);
        if (along < 0) continue;
        char* const to = static_cast<char*>(buffers[3]) + (place + c * along_last + along * args.stride[args.axis]) *
                                                              static_cast<std::int64_t>(sizeof(T));
        const T update =
            load_element<T>(static_cast<const char*>(buffers[2]) + (at + c) * static_cast<std::int64_t>(sizeof(T)));
        const T value = Op::apply(load_element<T>(to), update);
        __builtin_memcpy(to, &value, sizeof value);
      }
    }
  }
};

template <class T, class Op>
struct ScatterNd {
  static void run(const ScatterNdArgs& args, void* const* buffers, const KernelContext& context) {
    const WorkRange share = split_work(args.slice, context.worker, context.workers);
    if (share.begin == share.end) return;
    for (std::int64_t i = 0; i < args.count; ++i) {
      std::int64_t place = 0;
      bool is_inside = true;
      for (std::int64_t d = 0; d < args.depth; ++d) {
        const std::int64_t index = load_index(buffers[1], i * args.depth + d, args.index_bytes);
        const std::int64_t at = resolve_index(index, args.size[d], context);
        is_inside = is_inside && at >= 0;
        place += at * args.stride[d];
      }
      if (!is_inside) continue;
      char* const to = static_cast<char*>(buffers[3]) + place * static_cast<std::int64_t>(sizeof(T));
      const char* const from =
          static_cast<const char*>(buffers[2]) + i * args.slice * static_cast<std::int64_t>(sizeof(T));
      for (std::int64_t e = share.begin; e < share.end; ++e) {
        const std::int64_t offset = e * static_cast<std::int64_t>(sizeof(T));
        const T value = Op::apply(load_element<T>(to + offset), load_element<T>(from + offset));
        __builtin_memcpy(to + offset, &value, sizeof value);
      }
    }
  }
};

template <template <class, class> class Scatter, class T, class Args>
void run_op(const Args& args, void* const* buffers, const KernelContext& context) {
  switch (args.op) {
    case ScatterOp::kAdd:
      return Scatter<T, Add>::run(args, buffers, context);
    case ScatterOp::kMultiply:
      return Scatter<T, Multiply>::run(args, buffers, context);
    case ScatterOp::kMinimum:
      return Scatter<T, Minimum>::run(args, buffers, context);
    case ScatterOp::kMaximum:
      return Scatter<T, Maximum>::run(args, buffers, context);
    default:
      return Scatter<T, Replace>::run(args, buffers, context);
  }
}

template <template <class, class> class Scatter, class Args>
void run_type(const void* arguments, void* const* buffers, const KernelContext& context) {
  const Args& args = *static_cast<const Args*>(arguments);
  switch (args.type) {
    case ScatterType::kBytes1:
      return Scatter<std::int8_t, Replace>::run(args, buffers, context);
    case ScatterType::kBytes2:
      return Scatter<std::int16_t, Replace>::run(args, buffers, context);
    case ScatterType::kBytes4:
      return Scatter<std::int32_t, Replace>::run(args, buffers, context);
    case ScatterType::kBytes8:
      return Scatter<std::int64_t, Replace>::run(args, buffers, context);
    case ScatterType::kF32:
      return run_op<Scatter, float>(args, buffers, context);
    case ScatterType::kF64:
      return run_op<Scatter, double>(args, buffers, context);
    case ScatterType::kI32:
      return run_op<Scatter, std::int32_t>(args, buffers, context);
    default:
      return run_op<Scatter, std::int64_t>(args, buffers, context);
  }
}

void scatter_elements(const void* arguments, void* const* buffers, const KernelContext& context) {
  run_type<ScatterElements, ScatterElementsArgs>(arguments, buffers, context);
}

void scatter_nd(const void* arguments, void* const* buffers, const KernelContext& context) {
  run_type<ScatterNd, ScatterNdArgs>(arguments, buffers, context);
}

}  // namespace

extern const KernelEntry scatter_kernels[] = {{"scatter_copy", scatter_copy, nullptr},
                                              {"scatter_elements", scatter_elements, nullptr},
                                              {"scatter_nd", scatter_nd, nullptr},
                                              {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

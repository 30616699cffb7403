// scale_shift_blocked_f32, scale_shift_blocked_bf16, scale_shift_plain_f32: y = activation(x * scale + shift) by
// channel, on NCHWc16 and on [batch, channels, pixels].
//
// Operands as in scale_shift.hpp; element alignment; y may be x. Lanes beyond the channels of a blocked map are
// undefined in x and y. Split over (image, channel or block, run of pixels); over images if there is only one pixel.
#include "kernels/scale_shift.hpp"

#include "kernels/activation.hpp"
#include "simd/partial.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

template <class Map>
struct Operands {
  const Map* x;
  const float *scale, *shift;
  Map* y;
};

// For a map whose rows [rows, count] have one scale each.
template <Activation kActivation>
void plain_rows(const ScaleShiftArgs& args, const Operands<float>& o, const KernelContext& context) {
  const float alpha = args.epilogue.alpha, beta = args.epilogue.beta;
  const std::int64_t runs = (args.pixels + kScaleShiftRun - 1) / kScaleShiftRun;
  const WorkRange range = split_work(args.batch * args.channels * runs, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t row = i / runs, begin = i % runs * kScaleShiftRun;
    const std::int64_t end = min64(begin + kScaleShiftRun, args.pixels);
    const Vec a = broadcast(o.scale[row % args.channels]), b = broadcast(o.shift[row % args.channels]);
    const float* x = o.x + row * args.pixels;
    float* y = o.y + row * args.pixels;
    std::int64_t p = begin;
    for (; p + kLanes <= end; p += kLanes) store(y + p, activate(kActivation, alpha, beta, fma(load(x + p), a, b)));
    if (p < end) {
      const Vec value = activate(kActivation, alpha, beta, fma(load_partial(x + p, end - p, zero()), a, b));
      store_partial(y + p, value, end - p);
    }
  }
}

// For a matrix whose columns have one scale each.
template <Activation kActivation>
void plain_columns(const ScaleShiftArgs& args, const Operands<float>& o, const KernelContext& context) {
  const float alpha = args.epilogue.alpha, beta = args.epilogue.beta;
  const WorkRange range = split_work(args.batch, context.worker, context.workers);
  for (std::int64_t n = range.begin; n < range.end; ++n) {
    const float* x = o.x + n * args.channels;
    float* y = o.y + n * args.channels;
    for (std::int64_t c = 0; c < args.channels; c += kLanes) {
      const std::int64_t count = min64(kLanes, args.channels - c);
      const Vec a = load_partial(o.scale + c, count, zero()), b = load_partial(o.shift + c, count, zero());
      store_partial(y + c, activate(kActivation, alpha, beta, fma(load_partial(x + c, count, zero()), a, b)), count);
    }
  }
}

template <Activation kActivation, class Map>
void blocked_rows(const ScaleShiftArgs& args, const Operands<Map>& o, const KernelContext& context) {
  const float alpha = args.epilogue.alpha, beta = args.epilogue.beta;
  const std::int64_t blocks = (args.channels + kBlock - 1) / kBlock, row = args.pixels * kBlock;
  const std::int64_t runs = (row + kScaleShiftRun - 1) / kScaleShiftRun;
  const WorkRange range = split_work(args.batch * blocks * runs, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t at = i / runs * row, begin = i % runs * kScaleShiftRun, end = min64(begin + kScaleShiftRun, row);
    Vec a[kVectorsPerBlock], b[kVectorsPerBlock];
    for (int l = 0; l < kVectorsPerBlock; ++l) {
      const std::int64_t channel = i / runs % blocks * kBlock + l * kLanes, left = args.channels - channel;
      const std::int64_t count = left < 0 ? 0 : min64(left, kLanes);
      a[l] = load_partial(o.scale + channel, count, zero());
      b[l] = load_partial(o.shift + channel, count, zero());
    }
    for (std::int64_t p = at + begin; p < at + end; p += kBlock)
      for (int l = 0; l < kVectorsPerBlock; ++l)
        store(o.y + p + l * kLanes, activate(kActivation, alpha, beta, fma(load(o.x + p + l * kLanes), a[l], b[l])));
  }
}

template <Activation kActivation, bool kBlocked, class Map>
void scale_shift(const ScaleShiftArgs& args, const Operands<Map>& o, const KernelContext& context) {
  if constexpr (kBlocked) {
    blocked_rows<kActivation>(args, o, context);
  } else {
    if (args.pixels == 1) return plain_columns<kActivation>(args, o, context);
    plain_rows<kActivation>(args, o, context);
  }
}

template <bool kBlocked, class Map>
void dispatch(const void* raw, void* const* buffers, const KernelContext& context) {
  const auto& args = *static_cast<const ScaleShiftArgs*>(raw);
  const Operands<Map> o = {static_cast<const Map*>(buffers[0]), static_cast<const float*>(buffers[1]),
                           static_cast<const float*>(buffers[2]), static_cast<Map*>(buffers[3])};
  switch (args.epilogue.activation) {
#define ENGINE_ACTIVATION(Name, name, sources, cost, ...) \
  case Activation::k##Name:                               \
    return scale_shift<Activation::k##Name, kBlocked>(args, o, context);
#include "pointwise.def"
    case Activation::kCount:
      break;
  }
}

}  // namespace

extern const KernelEntry scale_shift_kernels[] = {{"scale_shift_blocked_f32", dispatch<true, float>, nullptr},
                                                  {"scale_shift_blocked_bf16", dispatch<true, Bf16>, nullptr},
                                                  {"scale_shift_plain_f32", dispatch<false, float>, nullptr},
                                                  {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

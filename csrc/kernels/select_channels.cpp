// select_channels_f32: see select_channels.hpp.
//
// Operands: sources, then the destination; float alignment; they must not overlap. Lanes of nonexistent channels are
// set to zero. Split over (image, vector of channels, run of pixels).
#include "kernels/select_channels.hpp"

#include <cstring>

#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

constexpr std::int64_t kRun = 128;  // pixels: eight kilobytes of each source

ENGINE_INLINE VecInt load_lanes(const std::int32_t* from) {
  VecInt value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

// For a fixed number of sources, so that indices and masks stay in registers.
template <int kSources>
ENGINE_INLINE void select_fixed(const SelectSource* sources, const float* const* from, float* to, std::int64_t pixels) {
  VecInt index[kSources], mask[kSources];
  for (int s = 0; s < kSources; ++s) {
    index[s] = load_lanes(sources[s].index);
    mask[s] = load_lanes(sources[s].mask);
  }
  for (std::int64_t p = 0; p < pixels; ++p) {
    VecInt lanes = {};
    for (int s = 0; s < kSources; ++s)
      lanes = mask[s] ? ENGINE_SHUFFLE((VecInt)load(from[s] + p * 16), index[s]) : lanes;
    store(to + p * 16, (Vec)lanes);
  }
}

void select_any(const SelectSource* sources, int count, const float* const* from, float* to, std::int64_t pixels) {
  for (std::int64_t p = 0; p < pixels; ++p) {
    VecInt lanes = {};
    for (int s = 0; s < count; ++s) {
      const VecInt moved = ENGINE_SHUFFLE((VecInt)load(from[s] + p * 16), load_lanes(sources[s].index));
      lanes = load_lanes(sources[s].mask) ? moved : lanes;
    }
    store(to + p * 16, (Vec)lanes);
  }
}

void select_run(const SelectSource* sources, int count, const float* const* from, float* to, std::int64_t pixels) {
  switch (count) {
    case 1:
      return select_fixed<1>(sources, from, to, pixels);
    case 2:
      return select_fixed<2>(sources, from, to, pixels);
    case 3:
      return select_fixed<3>(sources, from, to, pixels);
    default:
      return select_any(sources, count, from, to, pixels);
  }
}

void select_channels_f32(const void* arguments, void* const* buffers, const KernelContext& context) {
  const SelectChannelsArgs& args = *static_cast<const SelectChannelsArgs*>(arguments);
  const SelectTarget* const targets = reinterpret_cast<const SelectTarget*>(&args + 1);
  const SelectSource* const all_sources =
      reinterpret_cast<const SelectSource*>(static_cast<const char*>(arguments) + args.sources_offset);
  float* const destination = static_cast<float*>(buffers[args.destination]);
  const std::int64_t runs = (args.pixels + kRun - 1) / kRun;
  const WorkRange range = split_work(args.batch * args.targets * runs, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t n = i / (args.targets * runs), first = i % runs * kRun;
    const std::int64_t pixels = first + kRun < args.pixels ? kRun : args.pixels - first;
    const SelectTarget& target = targets[i / runs % args.targets];
    const SelectSource* const sources = all_sources + target.first_source;
    float* const to = destination + n * args.destination_batch + target.offset + first * 16;
    const float* from[16];
    for (int s = 0; s < target.sources; ++s) {
      from[s] = static_cast<const float*>(buffers[sources[s].operand]) + n * sources[s].batch + sources[s].offset +
                first * 16;
    }
    if (target.is_block)
      std::memcpy(to, from[0], static_cast<std::size_t>(pixels) * 64);
    else
      select_run(sources, target.sources, from, to, pixels);
  }
}

constexpr SelectChannelsTraits kTraits = {kLanes};

}  // namespace

extern const KernelEntry select_channels_kernels[] = {{"select_channels_f32", select_channels_f32, &kTraits},
                                                      {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

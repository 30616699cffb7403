// group_norm_f32: y = (x - mean) / deviation * scale + bias over the pixels of each group of channels of each image;
// the deviation is sqrt(variance + epsilon) + deviation_epsilon.
//
// Operands as in group_norm.hpp; float alignment; y may be x. Lanes beyond the channels of a blocked map are undefined
// in x and y. Split over (image, unit of whole groups), so that a unit is read from memory once.
// group_norm_moments_f32, group_norm_combine_f32, group_norm_apply_f32: the same for few groups, in three phases, split
// over (image, channels, chunk of pixels), groups, and (image, channels, chunk of pixels).
//
// A group's moments are combined, in double, from the moments of the chunks of its channels.
#include "kernels/group_norm.hpp"

#include "kernels/moments.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

struct Operands {
  const float *x, *scale, *bias;
  float *y, *moments, *coefficients;
};

ENGINE_INLINE Operands take(const GroupNormArgs& args, void* const* buffers, bool in_phases) {
  Operands o = {};
  o.x = static_cast<const float*>(*buffers++);
  if (args.has_scale) o.scale = static_cast<const float*>(*buffers++);
  if (args.has_bias) o.bias = static_cast<const float*>(*buffers++);
  o.y = static_cast<float*>(*buffers++);
  if (in_phases) {
    o.moments = static_cast<float*>(*buffers++);
    o.coefficients = static_cast<float*>(*buffers);
  }
  return o;
}

// For each of the 16 channels of a block: the mean and, 16 floats later, the squares.
void block_moments(const float* x, std::int64_t pixels, float* to) {
  const float size = static_cast<float>(pixels);
  for (int l = 0; l < kBlock; l += kLanes) {
    Vec total[4] = {}, squares[4] = {};
    std::int64_t p = 0;
    for (; p + 4 <= pixels; p += 4)
      for (int u = 0; u < 4; ++u) total[u] += load(x + (p + u) * kBlock + l);
    for (; p < pixels; ++p) total[0] += load(x + p * kBlock + l);
    const Vec mean = ((total[0] + total[1]) + (total[2] + total[3])) / size;
    for (p = 0; p + 4 <= pixels; p += 4)
      for (int u = 0; u < 4; ++u) {
        const Vec d = load(x + (p + u) * kBlock + l) - mean;
        squares[u] = fma(d, d, squares[u]);
      }
    for (; p < pixels; ++p) {
      const Vec d = load(x + p * kBlock + l) - mean;
      squares[0] = fma(d, d, squares[0]);
    }
    store(to + l, mean);
    store(to + kBlock + l, (squares[0] + squares[1]) + (squares[2] + squares[3]));
  }
}

// The moments of one chunk of pixels of a channel, or of the block that starts with the channel. `moments` begins with
// channel `first`, a whole number of blocks, or less than one, before `channel`.
ENGINE_INLINE void find_moments(const GroupNormArgs& args, const float* image, std::int64_t channel, std::int64_t chunk,
                                std::int64_t first, float* moments) {
  const std::int64_t begin = chunk * args.chunk, count = min64(args.chunk, args.pixels - begin);
  const std::int64_t at = channel - first;
  float* to = moments + (at / kBlock * args.chunks + chunk) * 2 * kBlock + at % kBlock;
  if (args.is_blocked) return block_moments(image + channel * args.pixels + begin * kBlock, count, to);
  const float* x = image + channel * args.pixels + begin;
  to[0] = row_sum(x, count) / static_cast<float>(count);
  to[kBlock] = row_squares(x, to[0], count);
}

// The coefficients of the channels of a group, over `images` images, which are `moments_image` and `coefficients_image`
// floats apart. Both arrays begin with channel `first`.
void combine(const GroupNormArgs& args, const Operands& o, std::int64_t group, std::int64_t first, std::int64_t images,
             std::int64_t moments_image, std::int64_t coefficients_image) {
  const std::int64_t size = args.channels / args.groups, begin = group * size, end = begin + size;
  Moments all = {};
  for (std::int64_t n = 0; n < images; ++n)
    for (std::int64_t c = begin - first; c < end - first; ++c)
      for (std::int64_t k = 0; k < args.chunks; ++k) {
        const float* part = o.moments + n * moments_image + (c / kBlock * args.chunks + k) * 2 * kBlock + c % kBlock;
        const std::int64_t count = min64(args.chunk, args.pixels - k * args.chunk);
        merge(all, {static_cast<double>(count), part[0], part[kBlock]});
      }
  const float variance = static_cast<float>(all.squares / all.count);
  const float factor = 1.0f / (__builtin_sqrtf(variance + args.epsilon) + args.deviation_epsilon);
  for (std::int64_t n = 0; n < images; ++n)
    for (std::int64_t c = begin; c < end; ++c) {
      const std::int64_t at = c - first;
      float* to = o.coefficients + n * coefficients_image + at / kBlock * 3 * kBlock + at % kBlock;
      to[0] = static_cast<float>(all.mean);
      to[kBlock] = o.scale ? factor * o.scale[c] : factor;
      to[2 * kBlock] = o.bias ? o.bias[c] : 0.0f;
    }
}

// One chunk of pixels of a channel, or of the block that starts with the channel.
void apply(const GroupNormArgs& args, const float* image, float* y_image, std::int64_t channel, std::int64_t chunk,
           std::int64_t first, const float* coefficients) {
  const std::int64_t begin = chunk * args.chunk, count = min64(args.chunk, args.pixels - begin);
  const std::int64_t at = channel - first;
  const float* from = coefficients + at / kBlock * 3 * kBlock + at % kBlock;
  if (args.is_blocked) {
    const float* x = image + channel * args.pixels + begin * kBlock;
    float* y = y_image + channel * args.pixels + begin * kBlock;
    for (int l = 0; l < kBlock; l += kLanes) {
      const Vec mean = load(from + l), a = load(from + kBlock + l), b = load(from + 2 * kBlock + l);
      for (std::int64_t i = l; i < count * kBlock; i += kBlock) store(y + i, fma(load(x + i) - mean, a, b));
    }
    return;
  }
  const float* x = image + channel * args.pixels + begin;
  float* y = y_image + channel * args.pixels + begin;
  const Vec mean = broadcast(from[0]), a = broadcast(from[kBlock]), b = broadcast(from[2 * kBlock]);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(y + i, fma(load(x + i) - mean, a, b));
  if (i < count) store_partial(y + i, fma(load_partial(x + i, count - i, zero()) - mean, a, b), count - i);
}

ENGINE_INLINE std::int64_t image_floats(const GroupNormArgs& args) {
  return (args.is_blocked ? (args.channels + kBlock - 1) / kBlock * kBlock : args.channels) * args.pixels;
}

void group_norm_f32(const void* raw, void* const* buffers, const KernelContext& context) {
  const auto& args = *static_cast<const GroupNormArgs*>(raw);
  Operands o = take(args, buffers, false);
  o.moments = static_cast<float*>(context.scratch);
  o.coefficients = o.moments + group_norm_moments(args, args.unit);
  const std::int64_t units = (args.channels + args.unit - 1) / args.unit, size = args.channels / args.groups;
  const std::int64_t step = args.is_blocked ? kBlock : 1, image = image_floats(args);
  const WorkRange range = split_work(args.batch * units, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t n = i / units, begin = i % units * args.unit, end = min64(begin + args.unit, args.channels);
    const float* x = o.x + n * image;
    float* y = o.y + n * image;
    for (std::int64_t c = begin; c < end; c += step)
      for (std::int64_t k = 0; k < args.chunks; ++k) find_moments(args, x, c, k, begin, o.moments);
    for (std::int64_t g = begin / size; g * size < end; ++g) combine(args, o, g, begin, 1, 0, 0);
    for (std::int64_t c = begin; c < end; c += step)
      for (std::int64_t k = 0; k < args.chunks; ++k) apply(args, x, y, c, k, begin, o.coefficients);
  }
}

void group_norm_moments_f32(const void* raw, void* const* buffers, const KernelContext& context) {
  const auto& args = *static_cast<const GroupNormArgs*>(raw);
  const Operands o = take(args, buffers, true);
  const std::int64_t step = args.is_blocked ? kBlock : 1, rows = (args.channels + step - 1) / step;
  const std::int64_t image = image_floats(args), moments = group_norm_moments(args, args.channels);
  const WorkRange range = split_work(args.batch * rows * args.chunks, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t n = i / (rows * args.chunks), channel = i / args.chunks % rows * step;
    find_moments(args, o.x + n * image, channel, i % args.chunks, 0, o.moments + n * moments);
  }
}

void group_norm_combine_f32(const void* raw, void* const* buffers, const KernelContext& context) {
  const auto& args = *static_cast<const GroupNormArgs*>(raw);
  const Operands o = take(args, buffers, true);
  const std::int64_t moments = group_norm_moments(args, args.channels);
  const std::int64_t coefficients = group_norm_coefficients(args.channels);
  if (args.spans_batch) {
    const WorkRange range = split_work(args.groups, context.worker, context.workers);
    for (std::int64_t g = range.begin; g < range.end; ++g) combine(args, o, g, 0, args.batch, moments, coefficients);
    return;
  }
  const WorkRange range = split_work(args.batch * args.groups, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    Operands own = o;
    own.moments += i / args.groups * moments;
    own.coefficients += i / args.groups * coefficients;
    combine(args, own, i % args.groups, 0, 1, 0, 0);
  }
}

void group_norm_apply_f32(const void* raw, void* const* buffers, const KernelContext& context) {
  const auto& args = *static_cast<const GroupNormArgs*>(raw);
  const Operands o = take(args, buffers, true);
  const std::int64_t step = args.is_blocked ? kBlock : 1, rows = (args.channels + step - 1) / step;
  const std::int64_t image = image_floats(args), coefficients = group_norm_coefficients(args.channels);
  const WorkRange range = split_work(args.batch * rows * args.chunks, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t n = i / (rows * args.chunks), channel = i / args.chunks % rows * step;
    apply(args, o.x + n * image, o.y + n * image, channel, i % args.chunks, 0, o.coefficients + n * coefficients);
  }
}

}  // namespace

extern const KernelEntry group_norm_kernels[] = {{"group_norm_f32", group_norm_f32, nullptr},
                                                 {"group_norm_moments_f32", group_norm_moments_f32, nullptr},
                                                 {"group_norm_combine_f32", group_norm_combine_f32, nullptr},
                                                 {"group_norm_apply_f32", group_norm_apply_f32, nullptr},
                                                 {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

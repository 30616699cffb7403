// rotary_f32: see rotary.hpp. Operands: x, cos, sin, y; float alignment; y may be x itself. Split over rows.
#include "kernels/rotary.hpp"

#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

void turn_halves(const float* x, const float* cosine, const float* sine, std::int64_t half, float* y) {
  std::int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Vec a = load(x + i), b = load(x + half + i), c = load(cosine + i), s = load(sine + i);
    store(y + i, a * c - b * s);
    store(y + half + i, a * s + b * c);
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    y[i] = a * cosine[i] - b * sine[i];
    y[half + i] = a * sine[i] + b * cosine[i];
  }
}

void turn_neighbours(const float* x, const float* cosine, const float* sine, std::int64_t half, float* y) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    y[2 * i] = a * cosine[i] - b * sine[i];
    y[2 * i + 1] = a * sine[i] + b * cosine[i];
  }
}

void rotary_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const RotaryArgs& args = *static_cast<const RotaryArgs*>(raw_args);
  const std::int64_t half = args.rotated / 2;
  const WorkRange range = split_work(args.batch * args.rows * args.heads, context.worker, context.workers);
  for (std::int64_t at = range.begin; at < range.end; ++at) {
    const std::int64_t head = at % args.heads, row = at / args.heads % args.rows, batch = at / args.heads / args.rows;
    const float* x =
        static_cast<const float*>(buffers[0]) + batch * args.x.batch + head * args.x.head + row * args.x.row;
    const std::int64_t place = batch * args.table_batch + row * args.table_row;
    const float* cosine = static_cast<const float*>(buffers[1]) + place;
    const float* sine = static_cast<const float*>(buffers[2]) + place;
    float* y = static_cast<float*>(buffers[3]) + batch * args.y.batch + head * args.y.head + row * args.y.row;
    (args.interleaved ? turn_neighbours : turn_halves)(x, cosine, sine, half, y);
    for (std::int64_t i = args.rotated; i < args.size; ++i) y[i] = x[i];
  }
}

}  // namespace

extern const KernelEntry rotary_kernels[] = {{"rotary_f32", rotary_f32, nullptr}, {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

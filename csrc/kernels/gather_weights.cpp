// gather_weights: see gather_weights.hpp. Operands have the alignment of their elements and must not overlap. Split
// over indices.
#include "kernels/gather_weights.hpp"

#include <cstring>

#include "kernels/index.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

ENGINE_INLINE float to_f32(std::uint16_t half) {
  // As f32 bits, a magnitude is 2^-112 times its value, also if it is a denormal of f16. Scales are finite.
  const std::uint32_t bits = static_cast<std::uint32_t>(half & 0x7fff) << 13;
  float magnitude;
  std::memcpy(&magnitude, &bits, sizeof bits);
  magnitude *= 0x1p112f;
  return half & 0x8000 ? -magnitude : magnitude;
}

struct Table {
  const std::uint8_t* codes;
  const char* scales;
  const std::uint8_t* zero_points;
};

ENGINE_INLINE float scale_at(const GatherWeightsArgs& args, const Table& table, std::int64_t at) {
  if (args.scale_bytes == 2) {
    std::uint16_t half;
    std::memcpy(&half, table.scales + at * 2, sizeof half);
    return to_f32(half);
  }
  float scale;
  std::memcpy(&scale, table.scales + at * 4, sizeof scale);
  return scale;
}

// Columns [begin, end) of a row, which have one scale. With 16 codes, each product is computed only once.
void take_nibbles(const std::uint8_t* codes, std::int64_t begin, std::int64_t end, float zero_point, float scale,
                  float* to) {
  float values[16];
  for (int code = 0; code < 16; ++code) values[code] = (static_cast<float>(code) - zero_point) * scale;
  std::int64_t c = begin;
  if (c < end && c % 2 == 1) {
    to[c] = values[codes[c / 2] >> 4];
    ++c;
  }
  for (; c + 2 <= end; c += 2) {
    const std::uint8_t pair = codes[c / 2];
    to[c] = values[pair & 15];
    to[c + 1] = values[pair >> 4];
  }
  if (c < end) to[c] = values[codes[c / 2] & 15];
}

void take_bytes(const std::uint8_t* codes, std::int64_t begin, std::int64_t end, float zero_point, float scale,
                float* to) {
  for (std::int64_t c = begin; c < end; ++c) to[c] = (static_cast<float>(codes[c]) - zero_point) * scale;
}

void take_row(const GatherWeightsArgs& args, const Table& table, std::int64_t row, float* to) {
  const std::uint8_t* codes = table.codes + row * ((args.columns * args.bits + 7) / 8);
  for (std::int64_t b = 0; b < args.blocks; ++b) {
    const std::int64_t at = row * args.blocks + b, begin = b * args.block;
    const std::int64_t end = begin + args.block < args.columns ? begin + args.block : args.columns;
    const float zero_point = static_cast<float>(args.has_zero_points ? table.zero_points[at] : args.center);
    const float scale = scale_at(args, table, at);
    (args.bits == 4 ? take_nibbles : take_bytes)(codes, begin, end, zero_point, scale, to);
  }
}

void gather_weights(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const GatherWeightsArgs& args = *static_cast<const GatherWeightsArgs*>(raw_args);
  const Table table = {static_cast<const std::uint8_t*>(buffers[0]), static_cast<const char*>(buffers[1]),
                       args.has_zero_points ? static_cast<const std::uint8_t*>(buffers[2]) : nullptr};
  const void* indices = buffers[2 + args.has_zero_points];
  float* y = static_cast<float*>(buffers[3 + args.has_zero_points]);
  const WorkRange range = split_work(args.count, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    float* to = y + i * args.columns;
    const std::int64_t row = resolve_index(load_index(indices, i, args.index_bytes), args.rows, context);
    if (row >= 0)
      take_row(args, table, row, to);
    else
      std::memset(to, 0, static_cast<std::size_t>(args.columns) * sizeof(float));
  }
}

}  // namespace

extern const KernelEntry gather_weights_kernels[] = {{"gather_weights", gather_weights, nullptr},
                                                     {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

// pack_weights: see gemm_weights.hpp. Operands: codes, scales, [zero points], packed. Split over groups of columns.
#include <cstring>

#include "kernels/gemm_weights.hpp"
#include "simd/half.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

struct Source {
  const std::uint8_t* codes;
  const float* scales;
  const std::uint8_t* zero_points;
};

// The codes of 32 columns in the rows that share 32 bits: four rows of 8 bits, or eight of 4 bits, as `record` has
// them.
template <int kBits>
ENGINE_INLINE void pack_quads(const std::uint8_t* from, std::int64_t row, std::uint32_t flip, std::uint8_t* to) {
  std::uint32_t quads[kWeightColumns];
  for (std::int64_t i = 0; i < kWeightColumns; ++i) {
    const std::uint8_t* at = from + i;
    std::uint32_t quad = 0;
    for (int b = 0; b < 4; ++b) {
      std::uint32_t code = at[b * row];
      if (kBits == 4) code = (code & 15) | (at[(b + 4) * row] & 15u) << 4;
      quad |= code << 8 * b;
    }
    quads[i] = quad ^ flip;
  }
  std::memcpy(to, quads, sizeof quads);
}

// The same for one row of `count` columns, whose bits in `to` are zero.
template <int kBits>
ENGINE_INLINE void pack_row(const std::uint8_t* from, std::int64_t count, std::int64_t in_quad, std::int32_t flip,
                            std::uint8_t* to) {
  const int shift = kBits == 4 && in_quad >= 4 ? 4 : 0, mask = (1 << kBits) - 1;
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint8_t& byte = to[i * 4 + in_quad % 4];
    byte = static_cast<std::uint8_t>(byte | ((from[i] ^ flip) & mask) << shift);
  }
}

template <int kBits>
void pack_codes(const PackWeightsArgs& args, const Source& source, std::int64_t record, std::int64_t first,
                std::uint8_t* to) {
  constexpr int kRows = kBits == 4 ? 8 : 4;
  const WeightsFormat& f = args.format;
  const std::int64_t valid = f.n - first < kWeightColumns ? f.n - first : kWeightColumns;
  const WorkRange range = record_range(f, record);
  const std::uint32_t flip = static_cast<std::uint32_t>(args.flip) * (kBits == 4 ? 0x11111111u : 0x01010101u);
  for (std::int64_t at = 0; at < f.length; at += kRows, to += kWeightColumns * 4) {
    const std::uint8_t* from = source.codes + (range.begin + at) * f.n + first;
    if (valid == kWeightColumns && range.begin + at + kRows <= range.end) {
      pack_quads<kBits>(from, f.n, flip, to);
      continue;
    }
    std::memset(to, 0, kWeightColumns * 4);
    for (std::int64_t k = 0; k < kRows && range.begin + at + k < range.end; ++k)
      pack_row<kBits>(from + k * f.n, valid, k, args.flip, to);
  }
}

// Eight codes of 4 bits in the order of a record: byte b has the codes b and b + 4.
ENGINE_INLINE std::uint32_t in_quad_order(std::uint32_t codes) {
  const auto spread = [](std::uint32_t four) {
    four = (four | four << 8) & 0x00ff00ffu;
    return (four | four << 4) & 0x0f0f0f0fu;
  };
  return spread(codes & 0xffffu) | spread(codes >> 16) << 4;
}

// As pack_codes, of codes that are given by columns.
template <int kBits>
void pack_columns(const PackWeightsArgs& args, const Source& source, std::int64_t record, std::int64_t first,
                  std::uint8_t* to) {
  constexpr int kRows = kBits == 4 ? 8 : 4;
  const WeightsFormat& f = args.format;
  const std::int64_t valid = f.n - first < kWeightColumns ? f.n - first : kWeightColumns;
  const WorkRange range = record_range(f, record);
  const std::int64_t count = range.end - range.begin;
  const std::uint32_t flip = static_cast<std::uint32_t>(args.flip) * (kBits == 4 ? 0x11111111u : 0x01010101u);
  std::memset(to, 0, static_cast<std::size_t>(record_code_bytes(f)));
  for (std::int64_t i = 0; i < valid; ++i) {
    const std::uint8_t* from = source.codes + (first + i) * args.column_bytes + range.begin * kBits / 8;
    std::uint8_t* quads = to + i * 4;
    for (std::int64_t row = 0; row < count; row += kRows, from += 4, quads += kWeightColumns * 4) {
      const std::int64_t left = count - row;
      std::uint32_t codes = 0;
      if (left >= kRows) {
        std::memcpy(&codes, from, 4);
        codes ^= flip;
      } else {
        std::memcpy(&codes, from, static_cast<std::size_t>((left * kBits + 7) / 8));
        codes = (codes ^ flip) & ((1u << left * kBits) - 1);
      }
      if (kBits == 4) codes = in_quad_order(codes);
      std::memcpy(quads, &codes, 4);
    }
  }
}

void pack_record(const PackWeightsArgs& args, const Source& source, std::int64_t record, std::int64_t first,
                 std::uint8_t* to) {
  const WeightsFormat& f = args.format;
  if (args.column_bytes > 0)
    (f.bits == 4 ? pack_columns<4> : pack_columns<8>)(args, source, record, first, to);
  else
    (f.bits == 4 ? pack_codes<4> : pack_codes<8>)(args, source, record, first, to);
  to += record_code_bytes(f);
  const std::int64_t row = record / f.pieces * f.n + first;
  for (std::int64_t i = 0; i < kWeightColumns; ++i) {
    const float scale = first + i < f.n ? source.scales[row + i] : 0.0f;
    const F16 half = to_f16(scale);
    std::memcpy(to + i * f.scale_bytes, f.scale_bytes == 2 ? static_cast<const void*>(&half) : &scale,
                static_cast<std::size_t>(f.scale_bytes));
  }
  if (!f.has_zero_points) return;
  to += kWeightColumns * f.scale_bytes;
  const int mask = f.bits == 4 ? 15 : 255;
  for (std::int64_t i = 0; i < kWeightColumns; ++i)
    to[i] = static_cast<std::uint8_t>(first + i < f.n ? (source.zero_points[row + i] ^ args.flip) & mask : 0);
}

void pack_weights(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const PackWeightsArgs& args = *static_cast<const PackWeightsArgs*>(raw_args);
  const WeightsFormat& f = args.format;
  const Source source = {static_cast<const std::uint8_t*>(buffers[0]), static_cast<const float*>(buffers[1]),
                         f.has_zero_points ? static_cast<const std::uint8_t*>(buffers[2]) : nullptr};
  std::uint8_t* packed = static_cast<std::uint8_t*>(buffers[2 + f.has_zero_points]);
  const std::int64_t records = weight_records(f), bytes = record_bytes(f);
  const WorkRange range = split_work(weight_groups(f), context.worker, context.workers);
  for (std::int64_t group = range.begin; group < range.end; ++group)
    for (std::int64_t record = 0; record < records; ++record)
      pack_record(args, source, record, group * kWeightColumns, packed + (group * records + record) * bytes);
}

}  // namespace

extern const KernelEntry pack_weights_kernels[] = {{"pack_weights", pack_weights, nullptr},
                                                   {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

// Converts between plain and blocked maps, of f32, bf16 or bytes, and between f32 and bf16; see layout.hpp.
//
// Operands: source, destination, which must not overlap; element alignment. Lanes beyond the channels are set to zero.
// Split over (image, channel block, run of pixels). From bf16 to bf16, bits are copied except for NaN; f32 is rounded
// to nearest, including denormals: this family does not use the rounding instruction, which flushes them.
#include "kernels/layout.hpp"

#include <cstring>

#include "simd/transpose.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

constexpr std::int64_t kRun = 64;  // pixels: sixteen rows of 256 bytes, four kilobytes of blocks

// Reads `read` rows, the others are zero, and writes `written` rows: kLanes or more for all, 0 or less for none.
template <class From, class To>
ENGINE_INLINE void transpose(const From* from, std::int64_t from_row, std::int64_t read, To* to, std::int64_t to_row,
                             std::int64_t written) {
  Vec rows[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) rows[i] = i < read ? load(from + i * from_row) : zero();
  transpose_square(rows);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i)
    if (i < written) store(to + i * to_row, rows[i]);
}

ENGINE_INLINE void convert_element(float from, float* to) {
  *to = from;
}
ENGINE_INLINE void convert_element(Bf16 from, Bf16* to) {
  *to = from;
}
ENGINE_INLINE void convert_element(std::uint8_t from, std::uint8_t* to) {
  *to = from;
}
ENGINE_INLINE void convert_element(float from, Bf16* to) {
  *to = to_bf16(from);
}
ENGINE_INLINE void convert_element(Bf16 from, float* to) {
  *to = to_f32(from);
}

// Squares of 16 pixels and 16 channels of bytes. The last one of a run overlaps the one before it.
template <bool kToBlocked>
ENGINE_INLINE std::int64_t transpose_bytes(const std::uint8_t* from, std::uint8_t* to, std::int64_t row,
                                           std::int64_t valid, std::int64_t begin, std::int64_t end) {
  if (end - begin < 16) return begin;
  for (std::int64_t p = begin; p < end; p += 16) {
    if (p + 16 > end) p = end - 16;
    const char* const source = reinterpret_cast<const char*>(from + (kToBlocked ? p : p * 16));
    char* const target = reinterpret_cast<char*>(to + (kToBlocked ? p * 16 : p));
    if (valid == 16) {
      if constexpr (kToBlocked)
        transpose_elements<1, 16>(source, row, target, 16);
      else
        transpose_elements<1, 16>(source, 16, target, row);
      continue;
    }
    alignas(16) char square[16 * 16] = {};
    if constexpr (kToBlocked) {
      for (std::int64_t k = 0; k < valid; ++k) std::memcpy(square + k * 16, source + k * row, 16);
      transpose_elements<1, 16>(square, 16, target, 16);
    } else {
      transpose_elements<1, 16>(source, 16, square, 16);
      for (std::int64_t k = 0; k < valid; ++k) std::memcpy(target + k * row, square + k * 16, 16);
    }
  }
  return end;
}

// Pixels [begin, end) of `valid` channels, at least a vector of pixels: the last vector overlaps the one before.
template <class From, class To>
ENGINE_INLINE void block_vectors(const From* from, To* to, std::int64_t pixels, std::int64_t valid, std::int64_t begin,
                                 std::int64_t end) {
  for (std::int64_t p = begin; p < end; p += kLanes) {
    const std::int64_t at = min64(p, end - kLanes);
    for (int l = 0; l < 16; l += kLanes)
      transpose(from + l * pixels + at, pixels, valid - l, to + at * 16 + l, 16, kLanes);
  }
}

template <class From, class To>
ENGINE_INLINE void plain_vectors(const From* from, To* to, std::int64_t pixels, std::int64_t valid, std::int64_t begin,
                                 std::int64_t end) {
  for (std::int64_t p = begin; p < end; p += kLanes) {
    const std::int64_t at = min64(p, end - kLanes);
    for (int l = 0; l < 16; l += kLanes)
      transpose(from + at * 16 + l, 16, kLanes, to + l * pixels + at, pixels, valid - l);
  }
}

// Pixels [begin, end) of channels [channel, channel + 16) of one image.
template <class From, class To>
void block_run(const LayoutArgs& args, const From* plain, To* blocked, std::int64_t channel, std::int64_t begin,
               std::int64_t end) {
  const std::int64_t valid = min64(16, args.channels - channel);
  const From* from = plain + channel * args.pixels;
  To* to = blocked + channel * args.pixels;
  if constexpr (sizeof(From) > 1) {
    if (end - begin >= kLanes && valid == 16) return block_vectors(from, to, args.pixels, 16, begin, end);
    if (end - begin >= kLanes) return block_vectors(from, to, args.pixels, valid, begin, end);
  }
  std::int64_t p = begin;
  if constexpr (sizeof(From) == 1) p = transpose_bytes<true>(from, to, args.pixels, valid, begin, end);
  for (; p < end; ++p) {
    To pixel[16] = {};
    for (std::int64_t k = 0; k < valid; ++k) convert_element(from[k * args.pixels + p], pixel + k);
    std::memcpy(to + p * 16, pixel, sizeof pixel);
  }
}

template <class From, class To>
void plain_run(const LayoutArgs& args, const From* blocked, To* plain, std::int64_t channel, std::int64_t begin,
               std::int64_t end) {
  const std::int64_t valid = min64(16, args.channels - channel);
  const From* from = blocked + channel * args.pixels;
  To* to = plain + channel * args.pixels;
  if constexpr (sizeof(From) > 1) {
    if (end - begin >= kLanes && valid == 16) return plain_vectors(from, to, args.pixels, 16, begin, end);
    if (end - begin >= kLanes) return plain_vectors(from, to, args.pixels, valid, begin, end);
  }
  std::int64_t p = begin;
  if constexpr (sizeof(From) == 1) p = transpose_bytes<false>(from, to, args.pixels, valid, begin, end);
  for (; p < end; ++p)
    for (std::int64_t k = 0; k < valid; ++k) convert_element(from[p * 16 + k], to + k * args.pixels + p);
}

template <bool kToBlocked, class From, class To>
void convert(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const LayoutArgs& args = *static_cast<const LayoutArgs*>(raw_args);
  const From* source = static_cast<const From*>(buffers[0]);
  To* destination = static_cast<To*>(buffers[1]);
  const std::int64_t blocks = (args.channels + 15) / 16, runs = (args.pixels + kRun - 1) / kRun;
  const WorkRange range = split_work(args.batch * blocks * runs, context.worker, context.workers);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t n = i / (blocks * runs), channel = i / runs % blocks * 16;
    const std::int64_t begin = i % runs * kRun, end = min64(begin + kRun, args.pixels);
    if constexpr (kToBlocked)
      block_run(args, source + n * args.plain_batch, destination + n * args.blocked_batch, channel, begin, end);
    else
      plain_run(args, source + n * args.blocked_batch, destination + n * args.plain_batch, channel, begin, end);
  }
}

// Converts values in order. Split into runs of whole cache lines of both operands.
template <class From, class To>
void convert_all(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const std::int64_t count = static_cast<const ConvertArgs*>(raw_args)->count;
  const From* from = static_cast<const From*>(buffers[0]);
  To* to = static_cast<To*>(buffers[1]);
  const WorkRange range = split_work((count + 31) / 32, context.worker, context.workers);
  const std::int64_t end = min64(range.end * 32, count);
  std::int64_t i = range.begin * 32;
  for (; i + kLanes <= end; i += kLanes) store(to + i, load(from + i));
  for (; i < end; ++i) convert_element(from[i], to + i);
}

}  // namespace

extern const KernelEntry layout_kernels[] = {{"to_blocked_f32", convert<true, float, float>, nullptr},
                                             {"from_blocked_f32", convert<false, float, float>, nullptr},
                                             {"to_blocked_bf16", convert<true, Bf16, Bf16>, nullptr},
                                             {"from_blocked_bf16", convert<false, Bf16, Bf16>, nullptr},
                                             {"to_blocked_f32_bf16", convert<true, float, Bf16>, nullptr},
                                             {"from_blocked_bf16_f32", convert<false, Bf16, float>, nullptr},
                                             {"to_blocked_bf16_f32", convert<true, Bf16, float>, nullptr},
                                             {"from_blocked_f32_bf16", convert<false, float, Bf16>, nullptr},
                                             {"to_blocked_byte", convert<true, std::uint8_t, std::uint8_t>, nullptr},
                                             {"from_blocked_byte", convert<false, std::uint8_t, std::uint8_t>, nullptr},
                                             {"convert_f32_bf16", convert_all<float, Bf16>, nullptr},
                                             {"convert_bf16_f32", convert_all<Bf16, float>, nullptr},
                                             {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

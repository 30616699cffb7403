// unique: see unique.hpp. A NaN comes after all numbers; zeros are equal.
//
// Operands: x [outer, axis, inner]; the different slices ([outer, count, inner] at the front of room for all), then, if
// requested, the position of the first slice that is equal to each of them, for each slice of x the number of the
// different slice that it is equal to, and how often each one occurs (int64, room for `axis`); count (int64).
// Temporaries: positions, positions, group of each slice, number of each group (int64 [axis] each). Element alignment;
// none may overlap. Runs on one worker.
//
// Positions are sorted by the elements of slices, from the last to the first, a byte at a time, the lowest one first.
// Such a sort is stable, so that the first of equal slices comes first. Bytes that are equal everywhere are skipped.
#include "kernels/unique.hpp"

#include <cstring>

#include "simd/isa.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

constexpr int kBytes = 256;

// The conversion of an element's bits to an unsigned integer with the same order.
enum class Order { kUnsigned, kSigned, kReal };

struct Slices {
  const void* x;
  std::int64_t outer, axis, inner;
  std::uint64_t infinity;  // the bits of an infinite real

  // The place of an element of the first slice.
  ENGINE_ALWAYS_INLINE std::int64_t offset(std::int64_t outer_at, std::int64_t inner_at) const {
    return outer_at * axis * inner + inner_at;
  }
};

template <class T, Order order>
ENGINE_INLINE T key_at(const Slices& s, std::int64_t slice, std::int64_t offset) {
  constexpr T kSign = static_cast<T>(T{1} << (sizeof(T) * 8 - 1));
  const T bits = static_cast<const T*>(s.x)[offset + slice * s.inner];
  if (order == Order::kUnsigned) return bits;
  if (order == Order::kSigned) return bits ^ kSign;
  const T magnitude = bits & static_cast<T>(~kSign);
  if (magnitude > s.infinity) return static_cast<T>(~T{0});  // NaN
  if (magnitude == 0) return kSign;
  return (bits & kSign) != 0 ? static_cast<T>(~bits) : static_cast<T>(bits | kSign);
}

// Sorts `order` by the elements at `offset`; `spare` is as long. Returns whichever of them has the result.
template <class T, Order kind>
std::int64_t* sort_by(const Slices& s, std::int64_t offset, std::int64_t* order, std::int64_t* spare) {
  for (std::size_t shift = 0; shift < sizeof(T) * 8; shift += 8) {
    std::int64_t counts[kBytes] = {};
    for (std::int64_t i = 0; i < s.axis; ++i) ++counts[key_at<T, kind>(s, i, offset) >> shift & 0xFF];
    if (counts[key_at<T, kind>(s, 0, offset) >> shift & 0xFF] == s.axis) continue;
    std::int64_t sum = 0;
    for (int byte = 0; byte < kBytes; ++byte) {
      const std::int64_t count = counts[byte];
      counts[byte] = sum;
      sum += count;
    }
    for (std::int64_t i = 0; i < s.axis; ++i)
      spare[counts[key_at<T, kind>(s, order[i], offset) >> shift & 0xFF]++] = order[i];
    std::int64_t* const sorted = spare;
    spare = order;
    order = sorted;
  }
  return order;
}

template <class T, Order order>
bool are_equal(const Slices& s, std::int64_t a, std::int64_t b, bool joins_nans) {
  constexpr T kNan = static_cast<T>(~T{0});
  for (std::int64_t outer = 0; outer < s.outer; ++outer)
    for (std::int64_t inner = 0; inner < s.inner; ++inner) {
      const T key = key_at<T, order>(s, a, s.offset(outer, inner));
      if (key != key_at<T, order>(s, b, s.offset(outer, inner))) return false;
      if (order == Order::kReal && key == kNan && !joins_nans) return false;
    }
  return true;
}

template <class T, Order kind>
void unique_as(const UniqueArgs& args, void* const* buffers) {
  std::int64_t next = 2;
  const auto taken = [&](bool is_there) { return is_there ? static_cast<std::int64_t*>(buffers[next++]) : nullptr; };
  std::int64_t* const first = taken(args.has_first);
  std::int64_t* const inverse = taken(args.has_inverse);
  std::int64_t* const counts = taken(args.has_counts);
  std::int64_t* const total = taken(true);
  std::int64_t* order = taken(true);
  std::int64_t* spare = taken(true);
  std::int64_t* const group = taken(true);
  std::int64_t* const number = taken(true);
  const std::uint64_t infinity = args.type == ElementCode::kF64   ? 0x7FF0000000000000u
                                 : args.type == ElementCode::kF32 ? 0x7F800000u
                                 : args.type == ElementCode::kF16 ? 0x7C00u
                                                                  : 0x7F80u;
  const Slices s = {buffers[0], args.outer, args.axis, args.inner, infinity};
  *total = 0;
  if (args.axis == 0) return;
  for (std::int64_t i = 0; i < args.axis; ++i) order[i] = i;
  for (std::int64_t outer = args.outer - 1; outer >= 0; --outer)
    for (std::int64_t inner = args.inner - 1; inner >= 0; --inner) {
      std::int64_t* const sorted = sort_by<T, kind>(s, s.offset(outer, inner), order, spare);
      if (sorted == order) continue;
      spare = order;
      order = sorted;
    }
  std::int64_t groups = 0;
  for (std::int64_t i = 0; i < args.axis; ++i) {
    if (i > 0 && !are_equal<T, kind>(s, order[i - 1], order[i], args.joins_nans)) ++groups;
    group[order[i]] = groups;
  }
  ++groups;
  for (std::int64_t i = 0; i < groups; ++i) number[i] = -1;
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < args.axis; ++i) {
    const bool is_first = number[group[i]] < 0;
    if (is_first) number[group[i]] = args.is_sorted ? group[i] : found++;
    const std::int64_t at = number[group[i]];
    if (inverse != nullptr) inverse[i] = at;
    if (counts != nullptr) counts[at] = is_first ? 1 : counts[at] + 1;
    if (!is_first) continue;
    if (first != nullptr) first[at] = i;
    const std::size_t bytes = static_cast<std::size_t>(args.inner) * sizeof(T);
    for (std::int64_t outer = 0; outer < args.outer; ++outer)
      std::memcpy(static_cast<T*>(buffers[1]) + (outer * groups + at) * args.inner,
                  static_cast<const T*>(buffers[0]) + (outer * args.axis + i) * args.inner, bytes);
  }
  *total = groups;
}

void unique(const void* raw_args, void* const* buffers, const KernelContext&) {
  const UniqueArgs& args = *static_cast<const UniqueArgs*>(raw_args);
  switch (args.type) {
    case ElementCode::kF32:
      return unique_as<std::uint32_t, Order::kReal>(args, buffers);
    case ElementCode::kF64:
      return unique_as<std::uint64_t, Order::kReal>(args, buffers);
    case ElementCode::kF16:
    case ElementCode::kBF16:
      return unique_as<std::uint16_t, Order::kReal>(args, buffers);
    case ElementCode::kI8:
      return unique_as<std::uint8_t, Order::kSigned>(args, buffers);
    case ElementCode::kI16:
      return unique_as<std::uint16_t, Order::kSigned>(args, buffers);
    case ElementCode::kI32:
      return unique_as<std::uint32_t, Order::kSigned>(args, buffers);
    case ElementCode::kI64:
      return unique_as<std::uint64_t, Order::kSigned>(args, buffers);
    case ElementCode::kU16:
      return unique_as<std::uint16_t, Order::kUnsigned>(args, buffers);
    case ElementCode::kU32:
      return unique_as<std::uint32_t, Order::kUnsigned>(args, buffers);
    case ElementCode::kU64:
      return unique_as<std::uint64_t, Order::kUnsigned>(args, buffers);
    default:  // u8 and bool
      return unique_as<std::uint8_t, Order::kUnsigned>(args, buffers);
  }
}

}  // namespace

extern const KernelEntry unique_kernels[] = {{"unique", unique, nullptr}, {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

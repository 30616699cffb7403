// elementwise_cast: the casts of elementwise programs, for one strip.
#include <cstring>

#include "kernels/elementwise_strip.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

// Storage for types without C++ arithmetic.
struct Bool {
  std::uint8_t value;
};
struct Half {
  std::uint16_t bits;
};
struct BFloat {
  std::uint16_t bits;
};

// A number of 4 to 8 bits: [sign] exponent mantissa. kUnsignedZero: there is no -0, and its code is NaN.
enum class Specials { kNone, kNan, kInfinity, kUnsignedZero };
template <int kExponentBits, int kMantissaBits, int kExponentBias, Specials kWhich>
struct Small {
  static constexpr int kMantissa = kMantissaBits, kBias = kExponentBias, kBits = kExponentBits + kMantissaBits;
  static constexpr Specials kSpecials = kWhich;
  static constexpr std::int64_t kFormat = small_format(kExponentBits, kMantissaBits, kExponentBias);
  static constexpr std::uint32_t kMagnitude = (1u << kBits) - 1, kSign = 1u << kBits;
  static constexpr std::uint32_t kNan = kWhich == Specials::kUnsignedZero ? kSign : kMagnitude;
  static constexpr std::uint32_t kInfinity = ((1u << kExponentBits) - 1) << kMantissaBits;
  // The magnitude that follows the largest number, and what it becomes.
  static constexpr std::uint32_t kEnd = kWhich == Specials::kInfinity ? kInfinity
                                        : kWhich == Specials::kNan    ? kNan
                                                                      : kMagnitude + 1;
  static constexpr std::uint32_t kAbove = kWhich == Specials::kNone ? kMagnitude : kEnd;
  std::uint8_t bits;
};
using F8E4M3FN = Small<4, 3, 7, Specials::kNan>;
using F8E4M3FNUZ = Small<4, 3, 8, Specials::kUnsignedZero>;
using F8E5M2 = Small<5, 2, 15, Specials::kInfinity>;
using F8E5M2FNUZ = Small<5, 2, 16, Specials::kUnsignedZero>;
using F6E2M3 = Small<2, 3, 1, Specials::kNone>;
using F6E3M2 = Small<3, 2, 3, Specials::kNone>;
using F4E2M1 = Small<2, 1, 1, Specials::kNone>;
struct PowerOfTwo {
  std::uint8_t exponent;
};

#define ENGINE_CAST_INLINE static inline __attribute__((always_inline))

ENGINE_CAST_INLINE std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
ENGINE_CAST_INLINE float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Shifting the fields into place leaves the exponent too small by 112; a multiplication corrects this, including
// subnormals.
ENGINE_CAST_INLINE float widen(Half half) {
  const std::uint32_t magnitude = half.bits & 0x7fffu;
  const std::uint32_t finite = bits_of(float_of(magnitude << 13) * 0x1p112f);
  const std::uint32_t special = (magnitude << 13) | 0x7f800000u;
  return float_of((magnitude >= 0x7c00u ? special : finite) | (static_cast<std::uint32_t>(half.bits & 0x8000u) << 16));
}
ENGINE_CAST_INLINE float widen(BFloat value) {
  return float_of(static_cast<std::uint32_t>(value.bits) << 16);
}

// As for Half.
template <int kExponentBits, int kMantissaBits, int kExponentBias, Specials kWhich>
ENGINE_CAST_INLINE float widen(Small<kExponentBits, kMantissaBits, kExponentBias, kWhich> value) {
  using S = Small<kExponentBits, kMantissaBits, kExponentBias, kWhich>;
  const std::uint32_t magnitude = value.bits & S::kMagnitude;
  const float correction = float_of(static_cast<std::uint32_t>(254 - S::kBias) << 23);
  std::uint32_t result = bits_of(float_of(magnitude << (23 - S::kMantissa)) * correction);
  if constexpr (kWhich == Specials::kInfinity)
    result = magnitude >= S::kInfinity ? 0x7f800000u | (magnitude << (23 - S::kMantissa)) : result;
  if constexpr (kWhich == Specials::kNan) result = magnitude == S::kNan ? 0x7fc00000u : result;
  if constexpr (kWhich == Specials::kUnsignedZero) result = value.bits == S::kNan ? 0x7fc00000u : result;
  return float_of(result | (static_cast<std::uint32_t>(value.bits & S::kSign) << (31 - S::kBits)));
}
ENGINE_CAST_INLINE float widen(PowerOfTwo value) {
  const std::uint32_t normal = static_cast<std::uint32_t>(value.exponent) << 23;
  return float_of(value.exponent == 0 ? 0x00400000u : value.exponent == 255 ? 0x7fc00000u : normal);
}

template <class S>
ENGINE_CAST_INLINE S to_small(float value) {
  const std::uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffffu, sign = bits >> 31 << S::kBits;
  constexpr int kDropped = 23 - S::kMantissa;
  // The last place of subnormal numbers is 2^(1 - kBias - kMantissa): sums with 2^23 times that are multiples of it.
  constexpr std::uint32_t kRounder = static_cast<std::uint32_t>(127 + 1 - S::kBias - S::kMantissa + 23) << 23;
  constexpr std::uint32_t kMinNormal = static_cast<std::uint32_t>(127 + 1 - S::kBias) << 23;
  const std::uint32_t small = bits_of(float_of(magnitude) + float_of(kRounder)) - kRounder;
  const std::uint32_t half = (1u << (kDropped - 1)) - 1, odd = (magnitude >> kDropped) & 1u;
  const std::uint32_t normal =
      (magnitude + half + odd - (static_cast<std::uint32_t>(127 - S::kBias) << 23)) >> kDropped;
  std::uint32_t result = magnitude < kMinNormal ? small : normal;
  const bool is_above = result >= S::kEnd;
  if constexpr (S::kSpecials == Specials::kUnsignedZero)
    result = is_above ? S::kNan : (result == 0 ? 0 : result | sign);
  else
    result = (is_above ? S::kAbove : result) | sign;
  result = magnitude > 0x7f800000u ? (S::kSpecials == Specials::kNone ? S::kSign : S::kNan | sign) : result;
  return {static_cast<std::uint8_t>(result)};
}

// By the table of ONNX's Cast: magnitudes outside 2^-127 (which has the code 0) to 2^127 become the nearer end if the
// cast saturates, otherwise NaN. Ties round up. 2^-127 is subnormal in f32.
template <PowerRounding kRounding, bool kSaturates>
ENGINE_CAST_INLINE PowerOfTwo to_power(float value) {
  const std::uint32_t magnitude = bits_of(value) & 0x7fffffffu, exponent = magnitude >> 23;
  const std::uint32_t fraction = magnitude & 0x7fffffu;
  constexpr std::uint32_t kSmallest = 0x400000u, kLargest = 0x7f000000u;
  const std::uint32_t whole = exponent == 0 ? kSmallest : 0u, half = exponent == 0 ? 0x600000u : 0x400000u;
  std::uint32_t next = 0;
  if constexpr (kRounding == PowerRounding::kUp) next = fraction > whole ? 1 : 0;
  if constexpr (kRounding == PowerRounding::kNearest) next = fraction >= half ? 1 : 0;
  std::uint32_t code = exponent + next;
  code = magnitude < kSmallest ? (kSaturates ? 0u : 255u) : code;
  code = magnitude > kLargest ? (kSaturates ? 254u : 255u) : code;
  return {static_cast<std::uint8_t>(magnitude > 0x7f800000u ? 255u : code)};
}

ENGINE_CAST_INLINE Half to_half(float value) {
  const std::uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffffu;
  // Below 2^-14, the sum with 0.5 is rounded to multiples of 2^-24, the last place of a subnormal half.
  const std::uint32_t small = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  const std::uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  std::uint32_t result = magnitude < 0x38800000u ? small : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00u : result;  // 65520 and above round to infinity
  result = magnitude > 0x7f800000u ? 0x7e00u : result;
  return {static_cast<std::uint16_t>(result | ((bits >> 16) & 0x8000u))};
}
ENGINE_CAST_INLINE BFloat to_bfloat(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return {static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded)};
}

// To f32, rounded to odd: a second rounding to half the precision or less then gives the same result as a single one.
ENGINE_CAST_INLINE float round_to_odd(double value) {
  const float near = static_cast<float>(value);
  std::uint32_t bits = bits_of(near);
  const double back = static_cast<double>(near);
  const bool too_far = value < 0 ? back < value : back > value;
  if (too_far) bits -= 1;
  if (back != value && value == value) bits |= 1;
  return float_of(bits);
}

// The same for integers with more digits than f32. From 53 digits on, the lowest 12 bits are rounded to odd for f64.
ENGINE_CAST_INLINE float round_to_odd(std::uint64_t value) {
  const std::uint64_t high = (value & ~0xfffull) | ((value & 0xfffull) != 0 ? 0x1000ull : 0);
  return round_to_odd(static_cast<double>(value >> 53 != 0 ? high : value));
}
ENGINE_CAST_INLINE float round_to_odd(std::int64_t value) {
  const std::uint64_t bits = static_cast<std::uint64_t>(value);
  return value < 0 ? -round_to_odd(0 - bits) : round_to_odd(bits);
}
ENGINE_CAST_INLINE float round_to_odd(std::int32_t value) {
  return round_to_odd(static_cast<double>(value));
}
ENGINE_CAST_INLINE float round_to_odd(std::uint32_t value) {
  return round_to_odd(static_cast<double>(value));
}

// Limits of integers as floating point: the minimum, and the first value above the maximum.
template <class T>
struct Range;
template <>
struct Range<std::int8_t> {
  static constexpr double kLow = -128, kEnd = 128;
  static constexpr std::int8_t kLargest = 127;
};
template <>
struct Range<std::uint8_t> {
  static constexpr double kLow = 0, kEnd = 256;
  static constexpr std::uint8_t kLargest = 255;
};
template <>
struct Range<std::int32_t> {
  static constexpr double kLow = -0x1p31, kEnd = 0x1p31;
  static constexpr std::int32_t kLargest = INT32_MAX;
};
template <>
struct Range<std::int64_t> {
  static constexpr double kLow = -0x1p63, kEnd = 0x1p63;
  static constexpr std::int64_t kLargest = INT64_MAX;
};

template <>
struct Range<std::int16_t> {
  static constexpr double kLow = -0x1p15, kEnd = 0x1p15;
  static constexpr std::int16_t kLargest = INT16_MAX;
};
template <>
struct Range<std::uint16_t> {
  static constexpr double kLow = 0, kEnd = 0x1p16;
  static constexpr std::uint16_t kLargest = UINT16_MAX;
};
template <>
struct Range<std::uint32_t> {
  static constexpr double kLow = 0, kEnd = 0x1p32;
  static constexpr std::uint32_t kLargest = UINT32_MAX;
};
template <>
struct Range<std::uint64_t> {
  static constexpr double kLow = 0, kEnd = 0x1p64;
  static constexpr std::uint64_t kLargest = UINT64_MAX;
};

template <class T, class Real>
ENGINE_CAST_INLINE T saturate(Real value) {
  if constexpr (sizeof(T) == 1) {  // in the form that compilers vectorize
    constexpr Real kLow = static_cast<Real>(Range<T>::kLow), kHigh = static_cast<Real>(Range<T>::kLargest);
    const Real above = value > kLow ? value : kLow, clipped = above < kHigh ? above : kHigh;
    return static_cast<T>(static_cast<std::int32_t>(value == value ? clipped : Real(0)));
  }
  constexpr Real kLow = static_cast<Real>(Range<T>::kLow), kEnd = static_cast<Real>(Range<T>::kEnd);
  const bool inside = value > kLow && value < kEnd;
  const T whole = static_cast<T>(inside ? value : Real(0));
  return value <= kLow ? static_cast<T>(kLow) : (value >= kEnd ? Range<T>::kLargest : whole);
}

// cast(from, target type): via f32 for f16 and bf16.
template <class R>
struct Cast;

#define ENGINE_CAST_TO_INTEGER(type)                                             \
  template <>                                                                    \
  struct Cast<type> {                                                            \
    template <class Integer>                                                     \
    ENGINE_CAST_INLINE type apply(Integer v) {                                   \
      return static_cast<type>(v);                                               \
    }                                                                            \
    ENGINE_CAST_INLINE type apply(float v) { return saturate<type>(v); }         \
    ENGINE_CAST_INLINE type apply(double v) { return saturate<type>(v); }        \
    ENGINE_CAST_INLINE type apply(Half v) { return saturate<type>(widen(v)); }   \
    ENGINE_CAST_INLINE type apply(BFloat v) { return saturate<type>(widen(v)); } \
    ENGINE_CAST_INLINE type apply(Bool v) { return v.value != 0; }               \
  };
ENGINE_CAST_TO_INTEGER(std::int8_t)
ENGINE_CAST_TO_INTEGER(std::uint8_t)
ENGINE_CAST_TO_INTEGER(std::int32_t)
ENGINE_CAST_TO_INTEGER(std::int64_t)
ENGINE_CAST_TO_INTEGER(std::int16_t)
ENGINE_CAST_TO_INTEGER(std::uint16_t)
ENGINE_CAST_TO_INTEGER(std::uint32_t)
ENGINE_CAST_TO_INTEGER(std::uint64_t)

#define ENGINE_CAST_TO_REAL(type)                                                      \
  template <>                                                                          \
  struct Cast<type> {                                                                  \
    template <class T>                                                                 \
    ENGINE_CAST_INLINE type apply(T v) {                                               \
      return static_cast<type>(v);                                                     \
    }                                                                                  \
    ENGINE_CAST_INLINE type apply(Half v) { return widen(v); }                         \
    ENGINE_CAST_INLINE type apply(BFloat v) { return widen(v); }                       \
    ENGINE_CAST_INLINE type apply(Bool v) { return v.value != 0 ? type(1) : type(0); } \
  };
ENGINE_CAST_TO_REAL(float)
ENGINE_CAST_TO_REAL(double)

// All integers below 65520, the end of f16, are exact in f32; larger ones are infinite either way.
template <>
struct Cast<Half> {
  template <class T>
  ENGINE_CAST_INLINE Half apply(T v) {
    return to_half(Cast<float>::apply(v));
  }
  ENGINE_CAST_INLINE Half apply(double v) { return to_half(round_to_odd(v)); }
};
template <>
struct Cast<BFloat> {
  template <class T>
  ENGINE_CAST_INLINE BFloat apply(T v) {
    return to_bfloat(Cast<float>::apply(v));
  }
  ENGINE_CAST_INLINE BFloat apply(double v) { return to_bfloat(round_to_odd(v)); }
  ENGINE_CAST_INLINE BFloat apply(std::int32_t v) { return to_bfloat(round_to_odd(v)); }
  ENGINE_CAST_INLINE BFloat apply(std::uint32_t v) { return to_bfloat(round_to_odd(v)); }
  ENGINE_CAST_INLINE BFloat apply(std::int64_t v) { return to_bfloat(round_to_odd(v)); }
  ENGINE_CAST_INLINE BFloat apply(std::uint64_t v) { return to_bfloat(round_to_odd(v)); }
};

template <>
struct Cast<Bool> {
  template <class T>
  ENGINE_CAST_INLINE Bool apply(T v) {
    return {static_cast<std::uint8_t>(v != 0)};
  }
  ENGINE_CAST_INLINE Bool apply(Half v) { return {static_cast<std::uint8_t>((v.bits & 0x7fff) != 0)}; }
  ENGINE_CAST_INLINE Bool apply(BFloat v) { return {static_cast<std::uint8_t>((v.bits & 0x7fff) != 0)}; }
  ENGINE_CAST_INLINE Bool apply(Bool v) { return {static_cast<std::uint8_t>(v.value != 0)}; }
};

template <class S>
struct ToSmall {
  ENGINE_CAST_INLINE S apply(float v) { return to_small<S>(v); }
  ENGINE_CAST_INLINE S apply(double v) { return to_small<S>(round_to_odd(v)); }
};
struct FromSmall {
  template <class S>
  ENGINE_CAST_INLINE float apply(S v) {
    return widen(v);
  }
};

template <PowerRounding kRounding, bool kSaturates>
struct ToPower {
  ENGINE_CAST_INLINE PowerOfTwo apply(float v) { return to_power<kRounding, kSaturates>(v); }
};

template <PowerRounding kRounding, bool kSaturates>
constexpr SmallCasts power_cast() {
  return {power_format(kRounding, kSaturates), nullptr, strip1<PowerOfTwo, float, ToPower<kRounding, kSaturates>>,
          nullptr};
}

template <class S>
constexpr SmallCasts small_casts() {
  return {S::kFormat, strip1<float, S, FromSmall>, strip1<S, float, ToSmall<S>>, strip1<S, double, ToSmall<S>>};
}

// Only one of two integers of the same size is compiled: the bits of a result depend on the sign of the argument only
// if the result is longer.
template <class T>
struct Bits {
  static constexpr bool kIsInteger = false;
};
template <class U>
struct IntegerBits {
  static constexpr bool kIsInteger = true;
  using Unsigned = U;
};
template <>
struct Bits<std::int8_t> : IntegerBits<std::uint8_t> {};
template <>
struct Bits<std::uint8_t> : IntegerBits<std::uint8_t> {};
template <>
struct Bits<std::int16_t> : IntegerBits<std::uint16_t> {};
template <>
struct Bits<std::uint16_t> : IntegerBits<std::uint16_t> {};
template <>
struct Bits<std::int32_t> : IntegerBits<std::uint32_t> {};
template <>
struct Bits<std::uint32_t> : IntegerBits<std::uint32_t> {};
template <>
struct Bits<std::int64_t> : IntegerBits<std::uint64_t> {};
template <>
struct Bits<std::uint64_t> : IntegerBits<std::uint64_t> {};

template <class To, class From>
constexpr StripFn cast_strip() {
  if constexpr (Bits<To>::kIsInteger && Bits<From>::kIsInteger) {
    using T = typename Bits<To>::Unsigned;
    if constexpr (sizeof(To) <= sizeof(From))
      return strip1<T, typename Bits<From>::Unsigned, Cast<T>>;
    else
      return strip1<T, From, Cast<T>>;
  } else {
    return strip1<To, From, Cast<To>>;
  }
}

template <class From>
constexpr void add_row(CastTable& table, ElementCode from) {
  StripFn* const row = table.run[static_cast<int>(from)];
#define ENGINE_CAST(code, To) row[static_cast<int>(ElementCode::code)] = cast_strip<To, From>()
  ENGINE_CAST(kF32, float);
  ENGINE_CAST(kF64, double);
  ENGINE_CAST(kI8, std::int8_t);
  ENGINE_CAST(kU8, std::uint8_t);
  ENGINE_CAST(kI32, std::int32_t);
  ENGINE_CAST(kI64, std::int64_t);
  ENGINE_CAST(kI16, std::int16_t);
  ENGINE_CAST(kU16, std::uint16_t);
  ENGINE_CAST(kU32, std::uint32_t);
  ENGINE_CAST(kU64, std::uint64_t);
  ENGINE_CAST(kBool, Bool);
  ENGINE_CAST(kF16, Half);
  ENGINE_CAST(kBF16, BFloat);
}

constexpr CastTable make_table() {
  CastTable table = {};
  add_row<float>(table, ElementCode::kF32);
  add_row<double>(table, ElementCode::kF64);
  add_row<std::int8_t>(table, ElementCode::kI8);
  add_row<std::uint8_t>(table, ElementCode::kU8);
  add_row<std::int32_t>(table, ElementCode::kI32);
  add_row<std::int64_t>(table, ElementCode::kI64);
  add_row<std::int16_t>(table, ElementCode::kI16);
  add_row<std::uint16_t>(table, ElementCode::kU16);
  add_row<std::uint32_t>(table, ElementCode::kU32);
  add_row<std::uint64_t>(table, ElementCode::kU64);
  add_row<Bool>(table, ElementCode::kBool);
  add_row<Half>(table, ElementCode::kF16);
  add_row<BFloat>(table, ElementCode::kBF16);
  const SmallCasts all[kSmallFormats] = {
      small_casts<F8E4M3FN>(),
      small_casts<F8E4M3FNUZ>(),
      small_casts<F8E5M2>(),
      small_casts<F8E5M2FNUZ>(),
      small_casts<F6E2M3>(),
      small_casts<F6E3M2>(),
      small_casts<F4E2M1>(),
      {small_format(8, 0, 128), strip1<float, PowerOfTwo, FromSmall>, nullptr, nullptr},
      power_cast<PowerRounding::kDown, false>(),
      power_cast<PowerRounding::kDown, true>(),
      power_cast<PowerRounding::kUp, false>(),
      power_cast<PowerRounding::kUp, true>(),
      power_cast<PowerRounding::kNearest, false>(),
      power_cast<PowerRounding::kNearest, true>(),
  };
  for (int i = 0; i < kSmallFormats; ++i) table.small[i] = all[i];
  return table;
}

constexpr CastTable kTable = make_table();

}  // namespace

extern const KernelEntry elementwise_cast_kernels[] = {{"elementwise_cast", nullptr, &kTable},
                                                       {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

// Elementwise operations on integers and booleans, and casts between all types.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels_elementwise_common.hpp"

using namespace engine;
using namespace engine::test;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr auto kU8 = static_cast<std::int64_t>(ElementCode::kU8);
constexpr float kInf = std::numeric_limits<float>::infinity();

// Modulo 2^128: products of two numbers of u64 do not fit a signed one.
__int128 wrapped_product(__int128 a, __int128 b) {
  return static_cast<__int128>(static_cast<unsigned __int128>(a) * static_cast<unsigned __int128>(b));
}

// The result of an integer operation in 128 bits, before wrapping.
__int128 exact_integer(Opcode opcode, __int128 a, __int128 b, int bits) {
  const __int128 floor_rest = b == 0 ? 0 : ((a % b) + b) % b;
  switch (opcode) {
    case Opcode::kAdd:
      return a + b;
    case Opcode::kSub:
      return a - b;
    case Opcode::kMul:
      return wrapped_product(a, b);
    case Opcode::kDiv:
      return b == 0 ? 0 : a / b;
    case Opcode::kMod:
      return floor_rest;
    case Opcode::kFmod:
      return b == 0 ? 0 : a % b;
    case Opcode::kMin:
      return a < b ? a : b;
    case Opcode::kMax:
      return a > b ? a : b;
    case Opcode::kBitAnd:
      return a & b;
    case Opcode::kBitOr:
      return a | b;
    case Opcode::kBitXor:
      return a ^ b;
    case Opcode::kShiftLeft:
      return b < 0 || b >= bits ? 0 : wrapped_product(a, static_cast<__int128>(1) << static_cast<int>(b));
    case Opcode::kShiftRight:
      return b < 0 || b >= bits ? 0 : a >> static_cast<int>(b);
    case Opcode::kNeg:
      return -a;
    case Opcode::kAbs:
      return a < 0 ? -a : a;
    case Opcode::kSign:
      return a > 0 ? 1 : a < 0 ? -1 : 0;
    case Opcode::kRelu:
      return a < 0 ? 0 : a;
    case Opcode::kBitNot:
      return ~a;
    case Opcode::kEqual:
      return a == b;
    case Opcode::kLess:
      return a < b;
    case Opcode::kLessOrEqual:
      return a <= b;
    case Opcode::kPow: {
      if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
      __int128 y = 1;
      for (__int128 i = 0; i < b; ++i) y = static_cast<std::int64_t>(static_cast<std::uint64_t>(wrapped_product(y, a)));
      return y;
    }
    default:
      return 0;
  }
}

template <class T>
void check_integers(const Target& target, ElementCode type, const std::vector<T>& edge) {
  std::vector<T> a, b;
  for (const T x : edge)
    for (const T y : edge) {
      a.push_back(x);
      b.push_back(y);
    }
  constexpr Opcode kUnary[] = {Opcode::kNeg, Opcode::kAbs, Opcode::kSign, Opcode::kRelu, Opcode::kBitNot};
  constexpr Opcode kBinary[] = {Opcode::kAdd,    Opcode::kSub, Opcode::kMul,       Opcode::kDiv,       Opcode::kMod,
                                Opcode::kFmod,   Opcode::kMin, Opcode::kMax,       Opcode::kBitAnd,    Opcode::kBitOr,
                                Opcode::kBitXor, Opcode::kPow, Opcode::kShiftLeft, Opcode::kShiftRight};
  constexpr Opcode kCompare[] = {Opcode::kEqual, Opcode::kLess, Opcode::kLessOrEqual};
  const auto check = [&](Opcode opcode, int sources, bool compares) {
    const std::string what = "opcode " + std::to_string(code(opcode)) + " of type " + std::to_string(code(type));
    std::vector<std::vector<T>> values = {a, b};
    values.resize(static_cast<std::size_t>(sources));
    if (opcode == Opcode::kPow)
      for (T& y : values[1]) y = static_cast<T>(y % 100);
    const auto wrapped = [&](std::size_t i) {
      const T y = sources == 2 ? values[1][i] : T(0);
      return exact_integer(opcode, a[i], y, static_cast<int>(8 * sizeof(T)));
    };
    if (compares) {
      const auto actual = apply<std::uint8_t>(target, code(opcode), code(type), values, what);
      for (std::size_t i = 0; i < a.size(); ++i)
        if (!expect(actual[i] == wrapped(i), what)) return;
      return;
    }
    const auto actual = apply<T>(target, code(opcode), code(type), values, what);
    for (std::size_t i = 0; i < a.size(); ++i)
      if (!expect(actual[i] == static_cast<T>(wrapped(i)), what + " at " + std::to_string(i))) return;
  };
  for (const Opcode opcode : kUnary) check(opcode, 1, false);
  for (const Opcode opcode : kBinary) check(opcode, 2, false);
  for (const Opcode opcode : kCompare) check(opcode, 2, true);
}

template <class T>
std::vector<T> edges() {
  std::vector<T> values = {
      0, 1, 2, 3, 7, 8, 31, 32, 63, 64, 100, 127, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};
  for (const T v : {1, 2, 3, 7, 64}) values.push_back(static_cast<T>(-v));
  values.push_back(static_cast<T>(std::numeric_limits<T>::max() / 2 + 1));
  return values;
}

void integer_operations(const Target& target) {
  std::vector<std::int8_t> i8;
  std::vector<std::uint8_t> u8;
  for (int v = -128; v < 128; ++v) {
    i8.push_back(static_cast<std::int8_t>(v));
    u8.push_back(static_cast<std::uint8_t>(v + 128));
  }
  check_integers(target, ElementCode::kI8, i8);
  check_integers(target, ElementCode::kU8, u8);
  check_integers(target, ElementCode::kI32, edges<std::int32_t>());
  check_integers(target, ElementCode::kI64, edges<std::int64_t>());
  check_integers(target, ElementCode::kI16, edges<std::int16_t>());
  check_integers(target, ElementCode::kU16, edges<std::uint16_t>());
  check_integers(target, ElementCode::kU32, edges<std::uint32_t>());
  check_integers(target, ElementCode::kU64, edges<std::uint64_t>());
}

// The nearest f16 or bf16 of a value, ties to even, by search.
double widen(std::uint16_t bits, bool is_half) {
  if (!is_half) {
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double magnitude = exponent == 31  ? (mantissa ? NAN : HUGE_VAL)
                           : exponent == 0 ? std::ldexp(mantissa, -24)
                                           : std::ldexp(1024 + mantissa, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

std::uint16_t narrow(double value, bool is_half) {
  const std::uint16_t infinity = is_half ? 0x7c00 : 0x7f80, sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  std::uint16_t low = 0, high = infinity;  // widen(low) <= magnitude < widen(high)
  if (std::isinf(value)) return static_cast<std::uint16_t>(infinity | sign);
  while (high - low > 1) {
    const std::uint16_t middle = static_cast<std::uint16_t>((low + high) / 2);
    (widen(middle, is_half) <= magnitude ? low : high) = middle;
  }
  // Above the largest number, the next one would be the next power of two.
  const double above = high == infinity ? (is_half ? 65536.0 : 0x1p128) : widen(high, is_half);
  const double below_by = magnitude - widen(low, is_half), above_by = above - magnitude;
  const bool up = above_by < below_by || (above_by == below_by && (low & 1));
  return static_cast<std::uint16_t>((up ? high : low) | sign);
}

void narrow_reals(const Target& target) {
  for (const bool is_half : {true, false}) {
    const ElementCode type = is_half ? ElementCode::kF16 : ElementCode::kBF16;
    std::vector<std::uint16_t> all(65536);
    std::vector<float> expected;
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i] = static_cast<std::uint16_t>(i);
      expected.push_back(static_cast<float>(widen(all[i], is_half)));
    }
    const std::vector<std::vector<std::uint16_t>> source = {all};
    expect_close(expected, apply<float>(target, cast_to(ElementCode::kF32), code(type), source, "widen"), 0, "widen");
    // Every value and every midpoint between two, plus and minus one unit of f32 and of f64.
    std::vector<float> x;
    std::vector<double> wide;
    for (std::size_t i = 0; i + 1 < 0x7c00; i += 7) {
      const double low = widen(all[i], is_half), high = widen(all[i + 1], is_half);
      for (const double v : {low, (low + high) / 2}) {
        const float f = static_cast<float>(v);
        for (const float near : {f, std::nextafter(f, kInf), std::nextafter(f, -kInf)}) x.push_back(near);
        for (const double near : {v, std::nextafter(v, HUGE_VAL), -std::nextafter(v, -HUGE_VAL)}) wide.push_back(near);
      }
    }
    for (const float v : {65504.0f, 65519.0f, 65520.0f, 3e38f, 3.39e38f, kInf, -kInf, -0.0f, 1e-45f}) x.push_back(v);
    for (const double v : {1e300, -1e300, 1e-300, 0x1.fffffp127, HUGE_VAL}) wide.push_back(v);
    const auto from_f32 =
        apply<std::uint16_t>(target, cast_to(type), kF32, std::vector<std::vector<float>>{x}, "narrow");
    for (std::size_t i = 0; i < x.size(); ++i)
      if (!expect(from_f32[i] == narrow(x[i], is_half), "narrow " + std::to_string(x[i]))) break;
    const auto from_f64 = apply<std::uint16_t>(target, cast_to(type), code(ElementCode::kF64),
                                               std::vector<std::vector<double>>{wide}, "narrow f64");
    for (std::size_t i = 0; i < wide.size(); ++i)
      if (!expect(from_f64[i] == narrow(wide[i], is_half), "narrow f64 " + std::to_string(wide[i]))) break;
    const auto nan =
        apply<std::uint16_t>(target, cast_to(type), kF32, std::vector<std::vector<float>>{{kNan, -kNan}}, "nan");
    expect(std::isnan(widen(nan[0], is_half)) && std::isnan(widen(nan[1], is_half)), "narrow NaN");
  }
}

// A floating-point type of 4 to 8 bits, by its definition.
struct Format {
  int exponent_bits, mantissa_bits, bias;
  enum { kFinite, kNan, kInfinity, kUnsignedZero } specials;
  std::int64_t format() const { return small_format(exponent_bits, mantissa_bits, bias); }
  int magnitude() const { return (1 << (exponent_bits + mantissa_bits)) - 1; }
};

double widen(int bits, const Format& f) {
  const int exponent = (bits & f.magnitude()) >> f.mantissa_bits, mantissa = bits & ((1 << f.mantissa_bits) - 1);
  const bool is_negative = bits > f.magnitude(), is_last = exponent == (1 << f.exponent_bits) - 1;
  if (f.specials == Format::kUnsignedZero && bits == f.magnitude() + 1) return NAN;
  if (f.specials == Format::kNan && (bits & f.magnitude()) == f.magnitude()) return NAN;
  if (f.specials == Format::kInfinity && is_last) return mantissa ? NAN : is_negative ? -HUGE_VAL : HUGE_VAL;
  const int one = exponent == 0 ? 0 : 1 << f.mantissa_bits;
  const double value = std::ldexp(one + mantissa, std::max(exponent, 1) - f.bias - f.mantissa_bits);
  return is_negative ? -value : value;
}

// The nearest number, found by search; of two equally near, the even one. The number after the largest one overflows.
double nearest(double value, const Format& f) {
  int last = f.magnitude();
  while (!std::isfinite(widen(last, f))) --last;
  const double magnitude = std::fabs(value), largest = widen(last, f);
  const double end = largest + (largest - widen(last - 1, f));
  const bool is_above = magnitude > (largest + end) / 2 || (magnitude == (largest + end) / 2 && last % 2 == 1);
  double result = f.specials == Format::kFinite ? largest : f.specials == Format::kInfinity ? HUGE_VAL : NAN;
  if (!is_above) {
    int best = 0;
    for (int i = 1; i <= last; ++i) {
      const double now = std::fabs(widen(i, f) - magnitude), before = std::fabs(widen(best, f) - magnitude);
      if (now < before || (now == before && i % 2 == 0)) best = i;
    }
    result = widen(best, f);
  }
  return std::copysign(result, f.specials == Format::kUnsignedZero && result == 0 ? 0.0 : value);
}

// By search: the exponent of the largest power of two up to the magnitude, or of the next one.
int power(double value, PowerRounding rounding, bool saturates) {
  if (std::isnan(value)) return 255;
  const double magnitude = std::fabs(value);
  if (magnitude < std::ldexp(1.0, -127)) return saturates ? 0 : 255;
  if (magnitude > std::ldexp(1.0, 127)) return saturates ? 254 : 255;
  int below = 0;
  while (below < 254 && std::ldexp(1.0, below - 126) <= magnitude) ++below;
  const double low = std::ldexp(1.0, below - 127), high = std::ldexp(1.0, below - 126);
  const double middle = (low + high) / 2;
  bool is_next = rounding == PowerRounding::kUp && magnitude > low;
  if (rounding == PowerRounding::kNearest) is_next = magnitude >= middle;
  return below + (is_next ? 1 : 0);
}

void to_powers(const Target& target) {
  std::vector<float> x = {0.0f, -0.0f, kInf, -kInf, kNan, 1e-45f, -1e-45f, 3.4e38f, -3.4e38f, 1e-40f};
  for (int exponent = -149; exponent < 128; ++exponent) {
    for (const double factor : {1.0, 1.25, 1.5, 1.75}) {
      const float v = static_cast<float>(std::ldexp(factor, exponent));
      for (const float near : {v, std::nextafter(v, 0.0f), -std::nextafter(v, kInf)}) x.push_back(near);
    }
  }
  for (const PowerRounding rounding : {PowerRounding::kDown, PowerRounding::kUp, PowerRounding::kNearest}) {
    for (const bool saturates : {false, true}) {
      const auto actual = apply<std::uint8_t>(target, cast_to(ElementCode::kU8, power_format(rounding, saturates)),
                                              kF32, std::vector<std::vector<float>>{x}, "to powers of two");
      for (std::size_t i = 0; i < x.size(); ++i)
        expect(actual[i] == power(x[i], rounding, saturates), "to a power of two: " + std::to_string(x[i]));
    }
  }
}

void small_reals(const Target& target) {
  const Format formats[] = {
      {4, 3, 7, Format::kNan},           {4, 3, 8, Format::kUnsignedZero}, {5, 2, 15, Format::kInfinity},
      {5, 2, 16, Format::kUnsignedZero}, {2, 3, 1, Format::kFinite},       {3, 2, 3, Format::kFinite},
      {2, 1, 1, Format::kFinite},
  };
  const auto is_same = [](double a, double b) {
    return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
  };
  for (const Format& f : formats) {
    const std::string what = "format " + std::to_string(f.format());
    std::vector<std::uint8_t> all;
    for (int i = 0; i < 2 * (f.magnitude() + 1); ++i) all.push_back(static_cast<std::uint8_t>(i));
    const std::vector<std::vector<std::uint8_t>> source = {all};
    const auto as_f32 = apply<float>(target, cast_to(ElementCode::kF32, f.format()), kU8, source, what);
    for (std::size_t i = 0; i < all.size(); ++i) {
      expect(is_same(as_f32[i], widen(all[i], f)), what + " to f32: " + std::to_string(i));
    }
    std::vector<float> x = {0.0f, -0.0f, kInf, -kInf, 1e-45f, -1e-45f, 3e38f, -3e38f, 1e6f};
    std::vector<double> wide = {0.0, -0.0, 1e300, -1e300, 1e-300, -1e-300, HUGE_VAL};
    for (int i = 0; i < f.magnitude(); ++i) {
      const double low = widen(i, f), next = widen(i + 1, f), high = std::isfinite(next) ? next : 2 * low;
      if (!std::isfinite(low)) break;
      for (const double v : {low, (low + high) / 2}) {
        const float s = static_cast<float>(v);
        for (const float near : {s, std::nextafter(s, kInf), -std::nextafter(s, -kInf)}) x.push_back(near);
        for (const double near : {v, std::nextafter(v, HUGE_VAL), -std::nextafter(v, -HUGE_VAL)}) wide.push_back(near);
      }
    }
    const auto narrow = [&](const auto& values, ElementCode type) {
      const auto actual = apply<std::uint8_t>(target, cast_to(ElementCode::kU8, f.format()), code(type),
                                              std::vector<std::decay_t<decltype(values)>>(1, values), what);
      for (std::size_t i = 0; i < values.size(); ++i)
        if (!expect(is_same(widen(actual[i], f), nearest(values[i], f)), what + " of " + std::to_string(values[i])))
          return;
    };
    narrow(x, ElementCode::kF32);
    narrow(wide, ElementCode::kF64);
    const auto nan = apply<std::uint8_t>(target, cast_to(ElementCode::kU8, f.format()), kF32,
                                         std::vector<std::vector<float>>{{kNan}}, what);
    const double expected = f.specials == Format::kFinite ? 0.0 : NAN;
    expect(std::isnan(expected) ? std::isnan(widen(nan[0], f)) : widen(nan[0], f) == 0, what + " of NaN");
  }
  std::vector<std::uint8_t> exponents;
  for (int i = 0; i < 256; ++i) exponents.push_back(static_cast<std::uint8_t>(i));
  const auto powers = apply<float>(target, cast_to(ElementCode::kF32, small_format(8, 0, 128)), kU8,
                                   std::vector<std::vector<std::uint8_t>>{exponents}, "powers of two");
  for (int i = 0; i < 256; ++i)
    expect(is_same(powers[static_cast<std::size_t>(i)], i == 255 ? NAN : std::ldexp(1.0, i - 127)), "powers of two");
  to_powers(target);
}

template <class R>
void check_to_integer(const Target& target, ElementCode to, const std::string& what) {
  const double low = static_cast<double>(std::numeric_limits<R>::min());
  const double high = static_cast<double>(std::numeric_limits<R>::max());
  std::vector<double> x = {0,      -0.0, 0.9,     -0.9, 1.5,      -1.5,    100.7,
                           -100.7, low,  low - 1, high, high + 1, low * 2, high * 2};
  for (const double v : {1e10, -1e10, 1e300, -1e300, HUGE_VAL, -HUGE_VAL, double{NAN}}) x.push_back(v);
  std::vector<float> narrow_x(x.begin(), x.end());
  const auto exact = [&](double v) {
    if (std::isnan(v)) return R(0);
    const double whole = std::trunc(v);
    return whole <= low    ? std::numeric_limits<R>::min()
           : whole >= high ? std::numeric_limits<R>::max()
                           : static_cast<R>(whole);
  };
  const auto from_f64 =
      apply<R>(target, cast_to(to), code(ElementCode::kF64), std::vector<std::vector<double>>{x}, what);
  const auto from_f32 = apply<R>(target, cast_to(to), kF32, std::vector<std::vector<float>>{narrow_x}, what);
  for (std::size_t i = 0; i < x.size(); ++i) {
    expect(from_f64[i] == exact(x[i]), what + " from f64 " + std::to_string(x[i]));
    expect(from_f32[i] == exact(narrow_x[i]), what + " from f32 " + std::to_string(x[i]));
  }
  const std::vector<std::int64_t> wide = edges<std::int64_t>();
  const auto from_i64 =
      apply<R>(target, cast_to(to), code(ElementCode::kI64), std::vector<std::vector<std::int64_t>>{wide}, what);
  for (std::size_t i = 0; i < wide.size(); ++i) expect(from_i64[i] == static_cast<R>(wide[i]), what + " from i64");
}

void casts(const Target& target) {
  check_to_integer<std::int8_t>(target, ElementCode::kI8, "cast to i8");
  check_to_integer<std::uint8_t>(target, ElementCode::kU8, "cast to u8");
  check_to_integer<std::int32_t>(target, ElementCode::kI32, "cast to i32");
  check_to_integer<std::int64_t>(target, ElementCode::kI64, "cast to i64");
  check_to_integer<std::int16_t>(target, ElementCode::kI16, "cast to i16");
  check_to_integer<std::uint16_t>(target, ElementCode::kU16, "cast to u16");
  check_to_integer<std::uint32_t>(target, ElementCode::kU32, "cast to u32");
  const auto to_bool =
      apply<std::uint8_t>(target, cast_to(ElementCode::kBool), kF32,
                          std::vector<std::vector<float>>{{0.0f, -0.0f, 0.1f, kNan, -2.0f}}, "to bool");
  expect(to_bool == std::vector<std::uint8_t>{0, 0, 1, 1, 1}, "cast to bool");
  const auto from_bool = apply<float>(target, cast_to(ElementCode::kF32), code(ElementCode::kBool),
                                      std::vector<std::vector<std::uint8_t>>{{0, 1, 1}}, "from bool");
  expect(from_bool == std::vector<float>{0, 1, 1}, "cast from bool");
  const auto i64 = edges<std::int64_t>();
  const auto f32 = apply<float>(target, cast_to(ElementCode::kF32), code(ElementCode::kI64),
                                std::vector<std::vector<std::int64_t>>{i64}, "i64 to f32");
  const auto f64 = apply<double>(target, cast_to(ElementCode::kF64), code(ElementCode::kI64),
                                 std::vector<std::vector<std::int64_t>>{i64}, "i64 to f64");
  for (std::size_t i = 0; i < i64.size(); ++i)
    expect(f32[i] == static_cast<float>(i64[i]) && f64[i] == static_cast<double>(i64[i]), "cast from i64");
}

void booleans(const Target& target) {
  const std::vector<std::vector<std::uint8_t>> ab = {{0, 0, 1, 1}, {0, 1, 0, 1}};
  const auto check = [&](Opcode opcode, const std::vector<std::uint8_t>& expected) {
    auto sources = ab;
    if (opcode == Opcode::kNot) sources.resize(1);
    expect(apply<std::uint8_t>(target, code(opcode), code(ElementCode::kBool), sources, "logic") == expected,
           "logic " + std::to_string(code(opcode)));
  };
  check(Opcode::kAnd, {0, 0, 0, 1});
  check(Opcode::kOr, {0, 1, 1, 1});
  check(Opcode::kXor, {0, 1, 1, 0});
  check(Opcode::kEqual, {1, 0, 0, 1});
  check(Opcode::kNot, {1, 1, 0, 0});
}

}  // namespace

int main() {
  return run_cases({{"integer operations", integer_operations},
                    {"narrow reals", narrow_reals},
                    {"small reals", small_reals},
                    {"casts", casts},
                    {"booleans", booleans}});
}

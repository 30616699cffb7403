// elementwise_f32: the instructions of elementwise programs for one strip of f32.
//
// Uses the functions of simd/vec.hpp, with their accuracy; functions missing there use the C library, one element at a
// time.
#include <cmath>
#include <cstring>

#include "kernels/elementwise_strip.hpp"
#include "kernels/quantize_vector.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

typedef std::int8_t VecByte __attribute__((vector_size(kLanes), aligned(1), may_alias));

ENGINE_INLINE Vec load_some(const float* from, std::int64_t count) {
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), from);
#else
  float lanes[kLanes] = {};
  for (std::int64_t i = 0; i < count; ++i) lanes[i] = from[i];
  return load(lanes);
#endif
}

ENGINE_INLINE void store_some(float* to, Vec value, std::int64_t count) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), (__m512)value);
#else
  float lanes[kLanes];
  store(lanes, value);
  for (std::int64_t i = 0; i < count; ++i) to[i] = lanes[i];
#endif
}

// A source: consecutive vectors, or the same vector repeatedly. The remainder after the last whole vector is loaded
// separately, because a source may end where its memory does.
struct Source {
  const float* at;
  std::int64_t step;

  ENGINE_INLINE Source of(const void* from, std::int64_t step) {
    return {static_cast<const float*>(from), step * kLanes};
  }
  inline __attribute__((always_inline)) Vec next() {
    const Vec value = load(at);
    at += step;
    return value;
  }
  inline __attribute__((always_inline)) Vec rest(std::int64_t count) const {
    return step == 0 ? load(at) : load_some(at, count);
  }
};

// Results: f32, or booleans of the lanes of a comparison.
struct Reals {
  float* at;
  inline __attribute__((always_inline)) void put(Vec value) {
    store(at, value);
    at += kLanes;
  }
  inline __attribute__((always_inline)) void put_rest(Vec value, std::int64_t count) const {
    store_some(at, value, count);
  }
};

struct Booleans {
  std::uint8_t* at;
  inline __attribute__((always_inline)) void put(VecInt mask) {
    *reinterpret_cast<VecByte*>(at) = __builtin_convertvector(mask, VecByte) & 1;
    at += kLanes;
  }
  inline __attribute__((always_inline)) void put_rest(VecInt mask, std::int64_t count) const {
    for (std::int64_t i = 0; i < count; ++i) at[i] = static_cast<std::uint8_t>(mask[i] & 1);
  }
};

template <class Result, class Op, class Pointer = decltype(Result::at)>
void vectors1(const StripCall& call) {
  Result y = {static_cast<Pointer>(call.y)};
  Source a = Source::of(call.a, call.a_step);
  std::int64_t left = call.count;
  for (; left >= kLanes; left -= kLanes) y.put(Op::apply(a.next()));
  if (left > 0) y.put_rest(Op::apply(a.rest(left)), left);
}

template <class Result, class Op, class Pointer = decltype(Result::at)>
void vectors2(const StripCall& call) {
  Result y = {static_cast<Pointer>(call.y)};
  Source a = Source::of(call.a, call.a_step), b = Source::of(call.b, call.b_step);
  std::int64_t left = call.count;
  for (; left >= kLanes; left -= kLanes) y.put(Op::apply(a.next(), b.next()));
  if (left > 0) y.put_rest(Op::apply(a.rest(left), b.rest(left)), left);
}

template <class Op>
void vectors3(const StripCall& call) {
  Reals y = {static_cast<float*>(call.y)};
  Source a = Source::of(call.a, call.a_step), b = Source::of(call.b, call.b_step), c = Source::of(call.c, call.c_step);
  std::int64_t left = call.count;
  for (; left >= kLanes; left -= kLanes) y.put(Op::apply(a.next(), b.next(), c.next()));
  if (left > 0) y.put_rest(Op::apply(a.rest(left), b.rest(left), c.rest(left)), left);
}

void where(const StripCall& call) {
  Reals y = {static_cast<float*>(call.y)};
  const std::uint8_t* condition = static_cast<const std::uint8_t*>(call.a);
  Source b = Source::of(call.b, call.b_step), c = Source::of(call.c, call.c_step);
  std::int64_t left = call.count;
  for (; left >= kLanes; left -= kLanes, condition += kLanes) {
    const VecInt chosen = __builtin_convertvector(*reinterpret_cast<const VecByte*>(condition), VecInt);
    const Vec yes = b.next(), no = c.next();
    y.put(chosen != 0 ? yes : no);
  }
  if (left > 0) {
    VecInt chosen = {};
    for (std::int64_t i = 0; i < left; ++i) chosen[i] = condition[i];
    y.put_rest(chosen != 0 ? b.rest(left) : c.rest(left), left);
  }
}

// Quantizes a strip. Of Next, codes() returns those of the next vector, and codes_of_rest(count) those of the last
// elements; they are saturated here.
template <bool kIsSigned, class Next>
ENGINE_INLINE void store_strip(const StripCall& call, Next next) {
  constexpr std::int64_t kRun = 4 * kLanes;
  std::uint8_t* y = static_cast<std::uint8_t*>(call.y);
  std::int64_t left = call.count;
  for (; left >= kRun; left -= kRun, y += kRun) {
    const VecInt codes[4] = {next.codes(), next.codes(), next.codes(), next.codes()};
    store_saturated_codes<kIsSigned>(y, codes);
  }
  if (left == 0) return;
  VecInt codes[4] = {};
  for (int v = 0; v < 4 && left > v * kLanes; ++v)
    codes[v] = left >= (v + 1) * kLanes ? next.codes() : next.codes_of_rest(left - v * kLanes);
  std::uint8_t last[kRun];
  store_saturated_codes<kIsSigned>(last, codes);
  std::memcpy(y, last, static_cast<std::size_t>(left));
}

// A source of 8-bit integers, as f32.
template <class Byte>
struct ByteSource {
  const Byte* at;
  std::int64_t step;

  ENGINE_ALWAYS_INLINE ByteSource(const void* from, std::int64_t step)
      : at(static_cast<const Byte*>(from)), step(step * kLanes) {}
  ENGINE_ALWAYS_INLINE Vec next() {
    const Vec value = load_bytes(at);
    at += step;
    return value;
  }
  ENGINE_ALWAYS_INLINE Vec rest(std::int64_t count) const {
    Byte last[kLanes] = {};
    std::memcpy(last, at, static_cast<std::size_t>(count));
    return load_bytes(last);
  }
};

template <class Byte>
void quantize(const StripCall& call) {
  constexpr bool kIsSigned = std::int8_t(-1) == Byte(-1);
  const Source a = Source::of(call.a, call.a_step), b = Source::of(call.b, call.b_step);
  const ByteSource<Byte> c(call.c, call.c_step);
  if (call.b_step == 0 && call.c_step == 0 && Quantizer::fits(*b.at)) {
    struct Next {
      Source a;
      Quantizer to;
      ENGINE_ALWAYS_INLINE VecInt codes() { return to.codes(a.next()); }
      ENGINE_ALWAYS_INLINE VecInt codes_of_rest(std::int64_t count) { return to.codes(a.rest(count)); }
    };
    return store_strip<kIsSigned>(call, Next{a, Quantizer(*b.at, *c.at)});
  }
  struct Next {
    Source a, b;
    ByteSource<Byte> c;
    ENGINE_ALWAYS_INLINE VecInt codes() {
      const Vec x = a.next(), scale = b.next();
      return Quantizer::divided(x, scale, c.next());
    }
    ENGINE_ALWAYS_INLINE VecInt codes_of_rest(std::int64_t count) {
      return Quantizer::divided(a.rest(count), b.rest(count), c.rest(count));
    }
  };
  store_strip<kIsSigned>(call, Next{a, b, c});
}

template <class Byte>
void dequantize(const StripCall& call) {
  Reals y = {static_cast<float*>(call.y)};
  ByteSource<Byte> a(call.a, call.a_step), c(call.c, call.c_step);
  Source b = Source::of(call.b, call.b_step);
  std::int64_t left = call.count;
  for (; left >= kLanes; left -= kLanes) {
    const Vec difference = a.next() - c.next();
    y.put(difference * b.next());
  }
  if (left > 0) y.put_rest((a.rest(left) - c.rest(left)) * b.rest(left), left);
}

// Rounds to even by adding a number whose last place is 1; larger values are integers already. Keeps the sign of zero.
ENGINE_INLINE Vec round_even(Vec x) {
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_roundscale_ps((__mmask16)-1, (__m512)x, 8);
#elif defined(__aarch64__)
  return (Vec)vrndnq_f32((float32x4_t)x);
#else
  constexpr float kUnit = 8388608.0f;
  const Vec magnitude = abs(x);
  return magnitude < kUnit ? copy_sign((magnitude + kUnit) - kUnit, x) : x;
#endif
}

ENGINE_INLINE Vec square_root(Vec x) {
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_sqrt_ps((__mmask16)-1, (__m512)x);
#elif defined(__AVX__)
  return (Vec)_mm256_sqrt_ps((__m256)x);
#elif defined(__SSE__)
  return (Vec)_mm_sqrt_ps((__m128)x);
#elif defined(__aarch64__)
  return (Vec)vsqrtq_f32((float32x4_t)x);
#else
  for (int i = 0; i < kLanes; ++i) x[i] = sqrtf(x[i]);
  return x;
#endif
}

// x = 2^e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); a polynomial for log(1 + f). Subnormals are scaled first.
ENGINE_INLINE Vec logarithm(Vec x) {
  constexpr float kSmallest = 1.17549435e-38f;
  const Vec scaled = x < kSmallest ? x * 8388608.0f : x;
  const VecInt offset = ((VecInt)abs(scaled) - 0x3f3504f3) >> 23;
  const Vec exponent = __builtin_convertvector(offset, Vec) - (x < kSmallest ? broadcast(23.0f) : zero());
  const Vec f = (Vec)((VecInt)abs(scaled) - offset * (1 << 23)) - 1.0f;
  const Vec square = f * f;
  Vec p = broadcast(-0.0763449296f);
  p = fma(p, f, broadcast(0.12761575f));
  p = fma(p, f, broadcast(-0.131601825f));
  p = fma(p, f, broadcast(0.142017588f));
  p = fma(p, f, broadcast(-0.166233569f));
  p = fma(p, f, broadcast(0.200012267f));
  p = fma(p, f, broadcast(-0.250008196f));
  p = fma(p, f, broadcast(0.333333313f));
  // ln 2 as a sum of two constants; the product of the first and an exponent is exact.
  Vec low = fma(p * square, f, exponent * -2.12194440e-4f);
  low = fma(square, broadcast(-0.5f), low);
  const Vec finite = fma(exponent, broadcast(0.693359375f), low + f);
  const Vec infinity = broadcast(__builtin_inff());
  const Vec limit = x == 0.0f ? -infinity : (x < 0.0f ? broadcast(__builtin_nanf("")) : x);
  return ((x > 0.0f) & (x < infinity)) ? finite : limit;
}

// log(1 + u) for u in [0, 1], with small relative error down to zero.
ENGINE_INLINE Vec logarithm_of_one_plus(Vec u) {
  const Vec w = 1.0f + u;
  return w == 1.0f ? u : logarithm(w) * (u / (w - 1.0f));
}

ENGINE_INLINE Vec softplus(Vec x) {
  return max(zero(), x) + logarithm_of_one_plus(exp(-abs(x)));
}

// tanh(softplus(x)) is n / (n + 2) with n = e^x (e^x + 2); 1 in f32 from x = 12, where n is still finite.
ENGINE_INLINE Vec mish(Vec x) {
  const Vec e = exp(min(broadcast(12.0f), x));
  const Vec n = e * (e + 2.0f);
  return x * (n / (n + 2.0f));
}

ENGINE_INLINE Vec clip(Vec x, Vec low, Vec high) {
  return min(high, max(low, x));
}

// As max and min, but NaN if either argument is NaN.
ENGINE_INLINE Vec largest(Vec a, Vec b) {
  return a != a ? a : max(a, b);
}
ENGINE_INLINE Vec smallest(Vec a, Vec b) {
  return a != a ? a : min(a, b);
}

ENGINE_INLINE Vec sign(Vec x) {
  const Vec unit = copy_sign(broadcast(1.0f), x);
  return ((x < 0.0f) | (x > 0.0f)) ? unit : (x == 0.0f ? zero() : x);
}

#define ENGINE_UNARY(name, expression)                    \
  struct name {                                           \
    ENGINE_INLINE Vec apply(Vec x) { return expression; } \
  }
ENGINE_UNARY(Neg, -x);
ENGINE_UNARY(Abs, abs(x));
ENGINE_UNARY(Sign, sign(x));
ENGINE_UNARY(Relu, max(zero(), x));
ENGINE_UNARY(Sqrt, square_root(x));
ENGINE_UNARY(Reciprocal, 1.0f / x);
ENGINE_UNARY(Exp, exp(x));
ENGINE_UNARY(Log, logarithm(x));
ENGINE_UNARY(Erf, erf(x));
ENGINE_UNARY(Tanh, tanh(x));
ENGINE_UNARY(Sigmoid, sigmoid(x));
ENGINE_UNARY(Softplus, softplus(x));
ENGINE_UNARY(Softsign, x / (1.0f + abs(x)));
ENGINE_UNARY(Mish, mish(x));
ENGINE_UNARY(HardSwish, x* clip(fma(x, broadcast(1.0f / 6.0f), broadcast(0.5f)), zero(), broadcast(1.0f)));
ENGINE_UNARY(Gelu, gelu(x));
ENGINE_UNARY(GeluTanh, gelu_tanh(x));
ENGINE_UNARY(Round, round_even(x));

struct Floor {
  ENGINE_INLINE Vec apply(Vec x) {
    const Vec near = round_even(x);
    return near > x ? near - 1.0f : near;
  }
};
struct Ceil {
  ENGINE_INLINE Vec apply(Vec x) {
    const Vec near = round_even(x);
    return copy_sign(near < x ? near + 1.0f : near, x);
  }
};

#define ENGINE_PREDICATE(name, expression)                   \
  struct name {                                              \
    ENGINE_INLINE VecInt apply(Vec x) { return expression; } \
  }
ENGINE_PREDICATE(IsNan, x != x);
ENGINE_PREDICATE(IsPositiveInf, x == __builtin_inff());
ENGINE_PREDICATE(IsNegativeInf, x == -__builtin_inff());

#define ENGINE_BINARY(name, type, expression)                     \
  struct name {                                                   \
    ENGINE_INLINE type apply(Vec a, Vec b) { return expression; } \
  }
ENGINE_BINARY(Add, Vec, a + b);
ENGINE_BINARY(Sub, Vec, a - b);
ENGINE_BINARY(Mul, Vec, a* b);
ENGINE_BINARY(Div, Vec, a / b);
ENGINE_BINARY(Min, Vec, smallest(a, b));
ENGINE_BINARY(Max, Vec, largest(a, b));
ENGINE_BINARY(Prelu, Vec, a < 0.0f ? a * b : a);
ENGINE_BINARY(Elu, Vec, a < 0.0f ? b * exp_minus_one(a) : a);
ENGINE_BINARY(Celu, Vec, a < 0.0f ? b * exp_minus_one(a / b) : a);
ENGINE_BINARY(ThresholdedRelu, Vec, a > b ? a : zero());
ENGINE_BINARY(Swish, Vec, a / (1.0f + exp(-(a * b))));
ENGINE_BINARY(Equal, VecInt, a == b);
ENGINE_BINARY(Less, VecInt, a < b);
ENGINE_BINARY(LessOrEqual, VecInt, a <= b);

#define ENGINE_TERNARY(name, expression)                                \
  struct name {                                                         \
    ENGINE_INLINE Vec apply(Vec a, Vec b, Vec c) { return expression; } \
  }
ENGINE_TERNARY(Clip, clip(a, b, c));
ENGINE_INLINE Vec round_clip(Vec a, Vec b, Vec c) {
  const Vec rounded = clip(round_even(a), b, c);
  return a == a ? rounded : zero();
}
ENGINE_TERNARY(RoundClip, round_clip(a, b, c));
ENGINE_TERNARY(Selu, c*(a <= 0.0f ? b * exp_minus_one(a) : a));
ENGINE_TERNARY(HardSigmoid, clip(fma(b, a, c), zero(), broadcast(1.0f)));
ENGINE_TERNARY(Shrink, a < -b ? a + c : (a > b ? a - c : zero()));
ENGINE_TERNARY(MulAdd, fma(a, b, c));

#define ENGINE_LIBRARY_FUNCTION(name, function)                \
  struct name {                                                \
    ENGINE_INLINE float apply(float x) { return function(x); } \
  }
ENGINE_LIBRARY_FUNCTION(Sin, sinf);
ENGINE_LIBRARY_FUNCTION(Cos, cosf);
ENGINE_LIBRARY_FUNCTION(Tan, tanf);
ENGINE_LIBRARY_FUNCTION(Asin, asinf);
ENGINE_LIBRARY_FUNCTION(Acos, acosf);
ENGINE_LIBRARY_FUNCTION(Atan, atanf);
ENGINE_LIBRARY_FUNCTION(Sinh, sinhf);
ENGINE_LIBRARY_FUNCTION(Cosh, coshf);
ENGINE_LIBRARY_FUNCTION(Asinh, asinhf);
ENGINE_LIBRARY_FUNCTION(Acosh, acoshf);
ENGINE_LIBRARY_FUNCTION(Atanh, atanhf);

struct Pow {
  ENGINE_INLINE float apply(float a, float b) { return powf(a, b); }
};
struct Fmod {
  ENGINE_INLINE float apply(float a, float b) { return fmodf(a, b); }
};
struct Copy {
  ENGINE_INLINE Vec apply(Vec x) { return x; }
};

constexpr void set(StripTable& table, Opcode opcode, StripFn run, bool takes_step) {
  table.run[static_cast<int>(opcode)] = run;
  table.takes_step[static_cast<int>(opcode)] = takes_step;
}

constexpr StripTable make_table() {
  StripTable t = {};
#define ENGINE_ROW(name, function) set(t, Opcode::k##name, function, true)
#define ENGINE_ROW1(name) ENGINE_ROW(name, (vectors1<Reals, name>))
#define ENGINE_ROW2(name) ENGINE_ROW(name, (vectors2<Reals, name>))
#define ENGINE_ROW3(name) ENGINE_ROW(name, (vectors3<name>))
#define ENGINE_LIBRARY_ROW(name) set(t, Opcode::k##name, strip1<float, float, name>, false)
  ENGINE_ROW1(Copy);
  ENGINE_ROW1(Neg);
  ENGINE_ROW1(Abs);
  ENGINE_ROW1(Sign);
  ENGINE_ROW1(Relu);
  ENGINE_ROW1(Sqrt);
  ENGINE_ROW1(Reciprocal);
  ENGINE_ROW1(Exp);
  ENGINE_ROW1(Log);
  ENGINE_ROW1(Erf);
  ENGINE_ROW1(Tanh);
  ENGINE_ROW1(Sigmoid);
  ENGINE_ROW1(Softplus);
  ENGINE_ROW1(Softsign);
  ENGINE_ROW1(Mish);
  ENGINE_ROW1(HardSwish);
  ENGINE_ROW1(Gelu);
  ENGINE_ROW1(GeluTanh);
  ENGINE_ROW1(Floor);
  ENGINE_ROW1(Ceil);
  ENGINE_ROW1(Round);
  ENGINE_ROW(IsNan, (vectors1<Booleans, IsNan>));
  ENGINE_ROW(IsPositiveInf, (vectors1<Booleans, IsPositiveInf>));
  ENGINE_ROW(IsNegativeInf, (vectors1<Booleans, IsNegativeInf>));
  ENGINE_ROW2(Add);
  ENGINE_ROW2(Sub);
  ENGINE_ROW2(Mul);
  ENGINE_ROW2(Div);
  ENGINE_ROW2(Min);
  ENGINE_ROW2(Max);
  ENGINE_ROW2(Prelu);
  ENGINE_ROW2(Elu);
  ENGINE_ROW2(Celu);
  ENGINE_ROW2(ThresholdedRelu);
  ENGINE_ROW2(Swish);
  ENGINE_ROW(Equal, (vectors2<Booleans, Equal>));
  ENGINE_ROW(Less, (vectors2<Booleans, Less>));
  ENGINE_ROW(LessOrEqual, (vectors2<Booleans, LessOrEqual>));
  ENGINE_ROW(Where, where);
  ENGINE_ROW3(Clip);
  ENGINE_ROW3(RoundClip);
  ENGINE_ROW3(Selu);
  ENGINE_ROW3(HardSigmoid);
  ENGINE_ROW3(Shrink);
  ENGINE_ROW3(MulAdd);
  ENGINE_ROW(QuantizeU8, quantize<std::uint8_t>);
  ENGINE_ROW(QuantizeI8, quantize<std::int8_t>);
  ENGINE_ROW(DequantizeU8, dequantize<std::uint8_t>);
  ENGINE_ROW(DequantizeI8, dequantize<std::int8_t>);
  ENGINE_LIBRARY_ROW(Sin);
  ENGINE_LIBRARY_ROW(Cos);
  ENGINE_LIBRARY_ROW(Tan);
  ENGINE_LIBRARY_ROW(Asin);
  ENGINE_LIBRARY_ROW(Acos);
  ENGINE_LIBRARY_ROW(Atan);
  ENGINE_LIBRARY_ROW(Sinh);
  ENGINE_LIBRARY_ROW(Cosh);
  ENGINE_LIBRARY_ROW(Asinh);
  ENGINE_LIBRARY_ROW(Acosh);
  ENGINE_LIBRARY_ROW(Atanh);
  set(t, Opcode::kPow, strip2<float, float, Pow>, false);
  set(t, Opcode::kFmod, strip2<float, float, Fmod>, false);
  return t;
}

constexpr StripTable kTable = make_table();

}  // namespace

extern const KernelEntry elementwise_f32_kernels[] = {{"elementwise_f32", nullptr, &kTable},
                                                      {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

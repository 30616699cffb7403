// elementwise_f32: the instructions of elementwise programs for one strip of f32.
//
// Uses the functions of simd/vec.hpp, with their accuracy; functions missing there use the C library, one element at a
// time.
#include <cmath>
#include <cstring>

#include "kernels/elementwise_strip.hpp"
#include "kernels/quantize_vector.hpp"
#include "simd/pointwise.hpp"

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

template <class Result, class Op, class Pointer = decltype(Result::at)>
void vectors3(const StripCall& call) {
  Result y = {static_cast<Pointer>(call.y)};
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

// Quantizes a strip. Next::codes() returns the codes of the next vector, and codes_of_rest(count) the codes of the last
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

void quantize_dynamic(const StripCall& call) {
  const Source a = Source::of(call.a, call.a_step), b = Source::of(call.b, call.b_step),
               c = Source::of(call.c, call.c_step);
  const bool is_one = call.b_step == 0 && call.c_step == 0 && Quantizer::fits(*b.at);
  if (is_one && *c.at >= 0.0f && *c.at <= 255.0f && floorf(*c.at) == *c.at) {
    struct Next {
      Source a;
      Quantizer to;
      ENGINE_ALWAYS_INLINE VecInt codes() { return known(a.next()); }
      ENGINE_ALWAYS_INLINE VecInt codes_of_rest(std::int64_t count) { return known(a.rest(count)); }
      ENGINE_ALWAYS_INLINE VecInt known(Vec x) const { return x == x ? to.codes(x) : VecInt{}; }
    };
    return store_strip<false>(call, Next{a, Quantizer(*b.at, static_cast<std::int32_t>(*c.at))});
  }
  struct Next {
    Source a, b, c;
    ENGINE_ALWAYS_INLINE VecInt codes() {
      const Vec x = a.next(), scale = b.next();
      return truncated(rint(x / scale) + c.next());
    }
    ENGINE_ALWAYS_INLINE VecInt codes_of_rest(std::int64_t count) {
      return truncated(rint(a.rest(count) / b.rest(count)) + c.rest(count));
    }
    ENGINE_ALWAYS_INLINE static VecInt truncated(Vec sum) {
      const Vec number = sum == sum ? sum : zero();
      return __builtin_convertvector(min(broadcast(255.0f), max(zero(), number)), VecInt);
    }
  };
  store_strip<false>(call, Next{a, b, c});
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
ENGINE_BINARY(Equal, VecInt, a == b);
ENGINE_BINARY(Less, VecInt, a < b);
ENGINE_BINARY(LessOrEqual, VecInt, a <= b);

struct MulAdd {
  ENGINE_INLINE Vec apply(Vec a, Vec b, Vec c) { return fma(a, b, c); }
};

#define ENGINE_POINTWISE(Name, name, sources, cost, ...)                                               \
  struct Name {                                                                                        \
    ENGINE_INLINE Vec apply(Vec a, [[maybe_unused]] Vec b = zero(), [[maybe_unused]] Vec c = zero()) { \
      return __VA_ARGS__;                                                                              \
    }                                                                                                  \
  };
#define ENGINE_LIBRARY(Name, name, function)                      \
  struct Name {                                                   \
    ENGINE_INLINE float apply(float x) { return function##f(x); } \
  };
#include "pointwise.def"

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
#define ENGINE_ROW3(name) ENGINE_ROW(name, (vectors3<Reals, name>))
  ENGINE_ROW1(Copy);
  ENGINE_ROW1(Neg);
  ENGINE_ROW1(Abs);
  ENGINE_ROW1(Sign);
  ENGINE_ROW1(Relu);
  ENGINE_ROW(IsNan, (vectors1<Booleans, IsNan>));
  ENGINE_ROW(IsPositiveInf, (vectors1<Booleans, IsPositiveInf>));
  ENGINE_ROW(IsNegativeInf, (vectors1<Booleans, IsNegativeInf>));
  ENGINE_ROW2(Add);
  ENGINE_ROW2(Sub);
  ENGINE_ROW2(Mul);
  ENGINE_ROW2(Div);
  ENGINE_ROW2(Min);
  ENGINE_ROW2(Max);
  ENGINE_ROW(Equal, (vectors2<Booleans, Equal>));
  ENGINE_ROW(Less, (vectors2<Booleans, Less>));
  ENGINE_ROW(LessOrEqual, (vectors2<Booleans, LessOrEqual>));
  ENGINE_ROW(Where, where);
  ENGINE_ROW3(MulAdd);
  ENGINE_ROW(QuantizeU8, quantize<std::uint8_t>);
  ENGINE_ROW(QuantizeI8, quantize<std::int8_t>);
  ENGINE_ROW(QuantizeDynamic, quantize_dynamic);
  ENGINE_ROW(DequantizeU8, dequantize<std::uint8_t>);
  ENGINE_ROW(DequantizeI8, dequantize<std::int8_t>);
#define ENGINE_POINTWISE(Name, name, sources, cost, ...) ENGINE_ROW(Name, (vectors##sources<Reals, Name>));
#define ENGINE_LIBRARY(Name, name, function) set(t, Opcode::k##Name, strip1<float, float, Name>, false);
#include "pointwise.def"
  set(t, Opcode::kPow, strip2<float, float, Pow>, false);
  set(t, Opcode::kFmod, strip2<float, float, Fmod>, false);
  return t;
}

constexpr StripTable kTable = make_table();

}  // namespace

extern const KernelEntry elementwise_f32_kernels[] = {{"elementwise_f32", nullptr, &kTable},
                                                      {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

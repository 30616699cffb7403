// elementwise_f64, elementwise_i8, ...: the instructions of elementwise programs for one strip of any type but f32; for
// f16 and bf16, only those that move values. Written for one element; the compiler vectorises the loops.
//
// No source value causes undefined behaviour: integers wrap, and undefined results (division by zero) are zero.
#include <cmath>
#include <cstring>

#include "kernels/elementwise_strip.hpp"
#include "kernels/pointwise_scalar.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

// The unsigned type in which T is computed; narrow types would be promoted to int.
template <class T>
struct Unsigned {
  using Type = std::uint32_t;
};
template <>
struct Unsigned<std::int64_t> {
  using Type = std::uint64_t;
};
template <>
struct Unsigned<std::uint64_t> {
  using Type = std::uint64_t;
};
template <class T>
using UnsignedOf = typename Unsigned<T>::Type;

template <class T>
constexpr bool kIsReal = false;
template <>
constexpr bool kIsReal<double> = true;

#define ENGINE_OP1(name, expression)                            \
  struct name {                                                 \
    template <class T>                                          \
    static __attribute__((always_inline)) inline T apply(T a) { \
      return static_cast<T>(expression);                        \
    }                                                           \
  };
#define ENGINE_OP2(name, expression)                                 \
  struct name {                                                      \
    template <class T>                                               \
    static __attribute__((always_inline)) inline T apply(T a, T b) { \
      return static_cast<T>(expression);                             \
    }                                                                \
  };
#define ENGINE_OP3(name, expression)                                      \
  struct name {                                                           \
    template <class T>                                                    \
    static __attribute__((always_inline)) inline T apply(T a, T b, T c) { \
      return static_cast<T>(expression);                                  \
    }                                                                     \
  };
#define ENGINE_COMPARE(name, expression)                                        \
  struct name {                                                                 \
    template <class T>                                                          \
    static __attribute__((always_inline)) inline std::uint8_t apply(T a, T b) { \
      return (expression) ? 1 : 0;                                              \
    }                                                                           \
  };

// Arithmetic; integers wrap.
#define ENGINE_ARITHMETIC(name, operator)                                                            \
  struct name {                                                                                      \
    template <class T>                                                                               \
    static __attribute__((always_inline)) inline T apply(T a, T b) {                                 \
      if constexpr (kIsReal<T>)                                                                      \
        return a operator b;                                                                         \
      else                                                                                           \
        return static_cast<T>(static_cast<UnsignedOf<T>>(a) operator static_cast<UnsignedOf<T>>(b)); \
    }                                                                                                \
  };

ENGINE_ARITHMETIC(Add, +)
ENGINE_ARITHMETIC(Sub, -)
ENGINE_ARITHMETIC(Mul, *)
ENGINE_OP1(Abs, a < 0 ? Sub::apply(T(0), a) : a)
ENGINE_OP1(Sign, a > 0 ? T(1) : (a < 0 ? T(-1) : a))
ENGINE_OP1(Relu, a < 0 ? T(0) : a)
ENGINE_OP2(Min, a < b ? a : b)
ENGINE_OP2(Max, a > b ? a : b)
ENGINE_OP2(RealMin, a < b || a != a ? a : b)
ENGINE_OP2(RealMax, a > b || a != a ? a : b)
ENGINE_OP3(IntegerClip, scalar::clip(a, b, c))
ENGINE_OP3(MulAdd, Add::apply(Mul::apply(a, b), c))
ENGINE_COMPARE(Equal, a == b)
ENGINE_COMPARE(Less, a < b)
ENGINE_COMPARE(LessOrEqual, a <= b)

struct Neg {
  template <class T>
  static T apply(T a) {
    if constexpr (kIsReal<T>)
      return -a;
    else
      return Sub::apply(T(0), a);
  }
};

struct Div {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (kIsReal<T>) {
      return a / b;
    } else {
      if (b == 0) return 0;
      if (b == static_cast<T>(-1) && T(-1) < T(0)) return Neg::apply(a);
      return static_cast<T>(a / b);
    }
  }
};

struct Fmod {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (kIsReal<T>) {
      return fmod(a, b);
    } else {
      if (b == 0 || (b == static_cast<T>(-1) && T(-1) < T(0))) return 0;
      return static_cast<T>(a % b);
    }
  }
};

struct Mod {
  template <class T>
  static T apply(T a, T b) {
    const T rest = Fmod::apply(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? static_cast<T>(rest + b) : rest;
  }
};

struct Pow {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (kIsReal<T>) {
      return pow(a, b);
    } else {
      if (b < 0) return a == 1 || (a == static_cast<T>(-1) && b % 2 == 0) ? T(1) : (a == static_cast<T>(-1) ? a : T(0));
      T result = 1;
      for (; b > 0; b = static_cast<T>(b / 2), a = Mul::apply(a, a))
        if (b % 2 != 0) result = Mul::apply(result, a);
      return result;
    }
  }
};

// Functions of f64.
using namespace scalar;
#define ENGINE_POINTWISE(Name, name, sources, cost, ...)                                               \
  struct Name {                                                                                        \
    static __attribute__((always_inline)) inline double apply(double a, [[maybe_unused]] double b = 0, \
                                                              [[maybe_unused]] double c = 0) {         \
      return __VA_ARGS__;                                                                              \
    }                                                                                                  \
  };
#define ENGINE_LIBRARY(Name, name, function)              \
  struct Name {                                           \
    static double apply(double x) { return function(x); } \
  };
#include "pointwise.def"

struct IsNan {
  static std::uint8_t apply(double x) { return x != x; }
};
struct IsPositiveInf {
  static std::uint8_t apply(double x) { return x == __builtin_inf(); }
};
struct IsNegativeInf {
  static std::uint8_t apply(double x) { return x == -__builtin_inf(); }
};

// Bitwise and boolean operations.
ENGINE_OP1(BitNot, ~a)
ENGINE_OP2(BitAnd, a& b)
ENGINE_OP2(BitOr, a | b)
ENGINE_OP2(BitXor, a ^ b)
ENGINE_OP2(ShiftLeft, static_cast<std::uint64_t>(b) < 8 * sizeof(T)
                          ? static_cast<std::uint64_t>(a) << static_cast<std::uint64_t>(b)
                          : 0)
ENGINE_OP2(ShiftRight, static_cast<std::uint64_t>(b) < 8 * sizeof(T) ? a >> static_cast<int>(b) : 0)
ENGINE_OP1(Not, a == 0)
ENGINE_OP2(And, a != 0 && b != 0)
ENGINE_OP2(Or, a != 0 || b != 0)
ENGINE_OP2(Xor, (a != 0) != (b != 0))

// Moves values of a given size; their type is irrelevant.
template <class T>
void copy(const StripCall& call) {
  std::memmove(call.y, call.a, static_cast<std::size_t>(call.count) * sizeof(T));
}

template <class T>
void where(const StripCall& call) {
  typedef T Element __attribute__((may_alias));
  Element* const y = static_cast<Element*>(call.y);
  const std::uint8_t* const condition = static_cast<const std::uint8_t*>(call.a);
  const Element* const yes = static_cast<const Element*>(call.b);
  const Element* const no = static_cast<const Element*>(call.c);
  const std::int64_t count = call.count;
  ENGINE_STRIP_LOOP
  for (std::int64_t i = 0; i < count; ++i) y[i] = condition[i] != 0 ? yes[i] : no[i];
}

#define ENGINE_ROW(name, function) table.run[static_cast<int>(Opcode::k##name)] = function
#define ENGINE_ROW1(name) ENGINE_ROW(name, (strip1<T, T, name>))
#define ENGINE_ROW2(name) ENGINE_ROW(name, (strip2<T, T, name>))
#define ENGINE_ROW3(name) ENGINE_ROW(name, (strip3<T, T, name>))
#define ENGINE_ROW_BOOL(name) ENGINE_ROW(name, (strip2<std::uint8_t, T, name>))

template <class T>
constexpr void add_moves(StripTable& table) {
  ENGINE_ROW(Copy, copy<T>);
  ENGINE_ROW(Where, where<T>);
}

template <class T>
constexpr void add_numbers(StripTable& table) {
  ENGINE_ROW1(Neg);
  ENGINE_ROW1(Abs);
  ENGINE_ROW1(Sign);
  ENGINE_ROW1(Relu);
  ENGINE_ROW2(Add);
  ENGINE_ROW2(Sub);
  ENGINE_ROW2(Mul);
  ENGINE_ROW2(Div);
  ENGINE_ROW2(Pow);
  ENGINE_ROW2(Fmod);
  ENGINE_ROW3(MulAdd);
  ENGINE_ROW_BOOL(Equal);
  ENGINE_ROW_BOOL(Less);
  ENGINE_ROW_BOOL(LessOrEqual);
}

template <class T, class Bits>
constexpr StripTable integer_table() {
  StripTable table = {};
  add_moves<Bits>(table);
  add_numbers<T>(table);
  ENGINE_ROW2(Min);
  ENGINE_ROW2(Max);
  ENGINE_ROW2(Mod);
  ENGINE_ROW(Clip, (strip3<T, T, IntegerClip>));
  ENGINE_ROW1(BitNot);
  ENGINE_ROW2(BitAnd);
  ENGINE_ROW2(BitOr);
  ENGINE_ROW2(BitXor);
  ENGINE_ROW2(ShiftLeft);
  ENGINE_ROW2(ShiftRight);
  return table;
}

constexpr StripTable f64_table() {
  using T = double;
  StripTable table = {};
  add_moves<std::uint64_t>(table);
  add_numbers<double>(table);
  ENGINE_ROW(Min, (strip2<T, T, RealMin>));
  ENGINE_ROW(Max, (strip2<T, T, RealMax>));
#define ENGINE_POINTWISE(Name, name, sources, cost, ...) ENGINE_ROW##sources(Name);
#define ENGINE_LIBRARY(Name, name, function) ENGINE_ROW1(Name);
#include "pointwise.def"
  ENGINE_ROW(IsNan, (strip1<std::uint8_t, T, IsNan>));
  ENGINE_ROW(IsPositiveInf, (strip1<std::uint8_t, T, IsPositiveInf>));
  ENGINE_ROW(IsNegativeInf, (strip1<std::uint8_t, T, IsNegativeInf>));
  return table;
}

constexpr StripTable bool_table() {
  using T = std::uint8_t;
  StripTable table = {};
  add_moves<T>(table);
  ENGINE_ROW1(Not);
  ENGINE_ROW2(And);
  ENGINE_ROW2(Or);
  ENGINE_ROW2(Xor);
  ENGINE_ROW_BOOL(Equal);
  return table;
}

constexpr StripTable half_table() {
  StripTable table = {};
  add_moves<std::uint16_t>(table);
  return table;
}

constexpr StripTable kF64 = f64_table();
constexpr StripTable kI8 = integer_table<std::int8_t, std::uint8_t>();
constexpr StripTable kU8 = integer_table<std::uint8_t, std::uint8_t>();
constexpr StripTable kI32 = integer_table<std::int32_t, std::uint32_t>();
constexpr StripTable kI64 = integer_table<std::int64_t, std::uint64_t>();
constexpr StripTable kI16 = integer_table<std::int16_t, std::uint16_t>();
constexpr StripTable kU16 = integer_table<std::uint16_t, std::uint16_t>();
constexpr StripTable kU32 = integer_table<std::uint32_t, std::uint32_t>();
constexpr StripTable kU64 = integer_table<std::uint64_t, std::uint64_t>();
constexpr StripTable kBool = bool_table();
constexpr StripTable kHalf = half_table();

}  // namespace

extern const KernelEntry elementwise_scalar_kernels[] = {
    {"elementwise_f64", nullptr, &kF64}, {"elementwise_i8", nullptr, &kI8},    {"elementwise_u8", nullptr, &kU8},
    {"elementwise_i32", nullptr, &kI32}, {"elementwise_i64", nullptr, &kI64},  {"elementwise_bool", nullptr, &kBool},
    {"elementwise_i16", nullptr, &kI16}, {"elementwise_u16", nullptr, &kU16},  {"elementwise_u32", nullptr, &kU32},
    {"elementwise_u64", nullptr, &kU64}, {"elementwise_f16", nullptr, &kHalf}, {"elementwise_bf16", nullptr, &kHalf},
    {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

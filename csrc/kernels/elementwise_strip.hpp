// Loops over one strip, for operations defined on a single element. Included by kernel files only.
//
// A strip's result may have the same memory as one of its sources: element i is read before it is written, and nothing
// else overlaps. `ivdep` declares this to the compiler.
#pragma once

#include "kernels/elementwise.hpp"
#include "simd/isa.hpp"

#if defined(__clang__)
#define ENGINE_STRIP_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define ENGINE_STRIP_LOOP _Pragma("GCC ivdep")
#endif

namespace engine::ENGINE_ISA_NS {
namespace {

template <class R, class A, class Op>
void strip1(const StripCall& call) {
  R* const y = static_cast<R*>(call.y);
  const A* const a = static_cast<const A*>(call.a);
  const std::int64_t count = call.count;
  ENGINE_STRIP_LOOP
  for (std::int64_t i = 0; i < count; ++i) y[i] = Op::apply(a[i]);
}

template <class R, class A, class Op>
void strip2(const StripCall& call) {
  R* const y = static_cast<R*>(call.y);
  const A* const a = static_cast<const A*>(call.a);
  const A* const b = static_cast<const A*>(call.b);
  const std::int64_t count = call.count;
  ENGINE_STRIP_LOOP
  for (std::int64_t i = 0; i < count; ++i) y[i] = Op::apply(a[i], b[i]);
}

template <class R, class A, class Op>
void strip3(const StripCall& call) {
  R* const y = static_cast<R*>(call.y);
  const A* const a = static_cast<const A*>(call.a);
  const A* const b = static_cast<const A*>(call.b);
  const A* const c = static_cast<const A*>(call.c);
  const std::int64_t count = call.count;
  ENGINE_STRIP_LOOP
  for (std::int64_t i = 0; i < count; ++i) y[i] = Op::apply(a[i], b[i], c[i]);
}

}  // namespace
}  // namespace engine::ENGINE_ISA_NS

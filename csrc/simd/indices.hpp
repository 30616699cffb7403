// The numbers from 1 to a count as template arguments, for tables of instances: kernels use no std::integer_sequence.
#pragma once

#include "simd/isa.hpp"

namespace engine::ENGINE_ISA_NS {

template <int... kIndices>
struct Indices {};

// CountTo<3>::Type is Indices<1, 2, 3>.
template <int kCount, int... kIndices>
struct CountTo : CountTo<kCount - 1, kCount, kIndices...> {};
template <int... kIndices>
struct CountTo<0, kIndices...> {
  using Type = Indices<kIndices...>;
};

}  // namespace engine::ENGINE_ISA_NS

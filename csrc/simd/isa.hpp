// The instruction set that this translation unit is compiled for. The build compiles every kernel file once per
// instruction set and sets the namespace of its symbols with -DENGINE_ISA_NS=<name>.
#pragma once

#include <cstddef>
#include <cstdint>

// The generic build: any architecture, vector extensions only.
#ifndef ENGINE_ISA_NS
#define ENGINE_ISA_NS generic
#endif

// always_inline: an inline function that is not inlined is a weak symbol, which the linker may take from the object of
// another instruction set. All code shared between kernel files is therefore forced inline.
#define ENGINE_INLINE static inline __attribute__((always_inline))
// The same for members of structures.
#define ENGINE_ALWAYS_INLINE inline __attribute__((always_inline))
#define ENGINE_NOINLINE __attribute__((noinline))
// Hides from the compiler how a value in a register was computed. Otherwise it would carry loads to the next step of a
// loop, or keep an address for each row, and spill accumulators.
#define ENGINE_FORGET(value) __asm__ volatile("" : "+r"(value))

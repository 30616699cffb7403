// The same as real.cl for elements of bf16, in a file of its own so that other programs need no conversions of bf16.
#define real ushort
#define load_real(from, at) bfloat_value((from)[at])
#define store_real(to, at, value) ((to)[at] = bfloat_code(value))
#define load_real2(from, at) bfloat_value2(*(__global const ushort2*)((from) + (at)))
#define load_real4(from, at) bfloat_value4(*(__global const ushort4*)((from) + (at)))
#define store_real2(to, at, value) (*(__global ushort2*)((to) + (at)) = bfloat_code2(value))
#define store_real4(to, at, value) (*(__global ushort4*)((to) + (at)) = bfloat_code4(value))

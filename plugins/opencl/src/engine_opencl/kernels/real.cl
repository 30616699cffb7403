// Access to stored floating-point elements; registers and local memory hold float, or double for f64 (`wide`). Vectors are aligned to their
// size.
#if REAL_IS_HALF
#define real half
#define load_real(from, at) vload_half((at), (from))
#define store_real(to, at, value) vstore_half_rte((float)(value), (at), (to))
#define load_real2(from, at) vloada_half2(0, (from) + (at))
#define load_real4(from, at) vloada_half4(0, (from) + (at))
#define store_real2(to, at, value) vstorea_half2_rte((value), 0, (to) + (at))
#define store_real4(to, at, value) vstorea_half4_rte((value), 0, (to) + (at))
#elif REAL_IS_DOUBLE
#define real double
#define load_real(from, at) ((from)[at])
#define store_real(to, at, value) ((to)[at] = (value))
#elif REAL_IS_BFLOAT
#define real ushort
#define load_real(from, at) bfloat_value((from)[at])
#define store_real(to, at, value) ((to)[at] = bfloat_code(value))
#define load_real2(from, at) bfloat_value2(*(__global const ushort2*)((from) + (at)))
#define load_real4(from, at) bfloat_value4(*(__global const ushort4*)((from) + (at)))
#define store_real2(to, at, value) (*(__global ushort2*)((to) + (at)) = bfloat_code2(value))
#define store_real4(to, at, value) (*(__global ushort4*)((to) + (at)) = bfloat_code4(value))
#else
#define real float
#define load_real(from, at) ((from)[at])
#define store_real(to, at, value) ((to)[at] = (value))
#define load_real2(from, at) (*(__global const float2*)((from) + (at)))
#define load_real4(from, at) (*(__global const float4*)((from) + (at)))
#define store_real2(to, at, value) (*(__global float2*)((to) + (at)) = (value))
#define store_real4(to, at, value) (*(__global float4*)((to) + (at)) = (value))
#endif
#if REAL_IS_DOUBLE
#define wide double
#else
#define wide float
#endif

// The type of products, and of their sums for RUN_STEPS steps: half if HALF_PRODUCTS is defined before this. A sum of D
// steps then has an error of about 2^-11 sqrt(D / 2) of its spread, compared with 2^-11 sqrt(2) for operands of f16. D
// steps take at best half the time, plus a conversion and an addition: fewer than 8 steps are not worth the error.
#if HALF_PRODUCTS
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define factor_t half
#define factor2_t half2
#define factor4_t half4
#define to_factor(x) convert_half(x)
#define to_factor2(x) convert_half2(x)
#define to_factor4(x) convert_half4(x)
#define RUN_STEPS 8
#else
#define factor_t float
#define factor2_t float2
#define factor4_t float4
#define to_factor(x) (x)
#define to_factor2(x) (x)
#define to_factor4(x) (x)
#endif

// The type of registers and local memory.
#if REAL_IS_DOUBLE
#define wide_t double
#else
#define wide_t float
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

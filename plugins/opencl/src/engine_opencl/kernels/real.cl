// Access to stored floating-point elements; registers and local memory hold float, or double for f64 (`wide_t`). Vectors are
// aligned to their size.
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
#else
#define real float
#define load_real(from, at) ((from)[at])
#define store_real(to, at, value) ((to)[at] = (value))
#define load_real2(from, at) (*(__global const float2*)((from) + (at)))
#define load_real4(from, at) (*(__global const float4*)((from) + (at)))
#define store_real2(to, at, value) (*(__global float2*)((to) + (at)) = (value))
#define store_real4(to, at, value) (*(__global float4*)((to) + (at)) = (value))
#endif

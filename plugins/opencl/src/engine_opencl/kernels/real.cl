// How floating-point elements are stored; registers and local memory hold float, whatever that is.
#if REAL_IS_HALF
#define real half
#define load_real(from, at) vload_half((at), (from))
#define store_real(to, at, value) vstore_half_rte((float)(value), (at), (to))
#else
#define real float
#define load_real(from, at) ((from)[at])
#define store_real(to, at, value) ((to)[at] = (value))
#endif

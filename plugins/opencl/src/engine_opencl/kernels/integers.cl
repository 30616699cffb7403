// The epilogue of 8-bit integer products: the sum itself, or (QUANTIZED) the sum times `factor`, rounded, plus the zero
// point, saturated. Sums are exact modulo 2^32, and rounded to f32 before they are scaled.
#if QUANTIZED
#define STORE_SUM(at, sum, factor, point) y[at] = (int)clamp(rint((float)(sum) * (factor)) + (float)(point), LOW, HIGH)
#else
#define STORE_SUM(at, sum, factor, point) y[at] = (sum)
#endif

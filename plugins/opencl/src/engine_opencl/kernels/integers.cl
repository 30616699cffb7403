// What products of 8-bit integers end with: the sum itself, or (QUANTIZED) the nearest that the result's type has to
// the sum times `factor`, plus the zero point. Sums are exact modulo 2^32, and rounded to f32 before they are scaled.
#if QUANTIZED
#define STORE_SUM(at, sum, factor, point) y[at] = (int)clamp(rint((float)(sum) * (factor)) + (float)(point), LOW, HIGH)
#else
#define STORE_SUM(at, sum, factor, point) y[at] = (sum)
#endif

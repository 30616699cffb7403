// Functions of double for HELPERS, and conversions to narrower types. Rounding twice, to float first, may round up a number
// that is below the middle of two neighbours; rounding to odd first does not (Boldo and Melquiond, Emulation of a FMA and
// correctly rounded sums, IEEE Transactions on Computers 57, 2008).
inline long real_power_double(long x, double y) {
  const double value = pow((double)x, y), whole = rint(value);
  if (isnan(value)) return 0;
  if (fabs(value) >= 9.3e18) return convert_long_sat(value);
  if (rint(y) == y && fabs(y) < 1e9) {
    const long exact = power(x, (long)y);
    return (exact < 0) == (value < 0.0) || exact == 0 ? exact : convert_long_sat(copysign(1e19, value));
  }
  return convert_long_sat(fabs(value - whole) <= 4e-15 * fabs(whole) ? whole : value);
}
inline float to_odd(double x) {
  const float cut = convert_float_rtz(x);
  return (double)cut == x || isnan(x) ? cut : as_float(as_uint(cut) | 1u);
}

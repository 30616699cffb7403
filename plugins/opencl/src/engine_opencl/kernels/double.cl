// Functions of double for HELPERS, and conversions to narrower types. Rounding twice, to float first, may round up a number
// that is below the middle of two neighbours; rounding to odd first does not (Boldo and Melquiond, Emulation of a FMA and
// correctly rounded sums, IEEE Transactions on Computers 57, 2008).
inline long real_power_double(long x, double y) {
  if (rint(y) == y && fabs(y) < 1e9) return power(x, (long)y);
  const double value = pow((double)x, y), whole = rint(value);
  return (long)(fabs(value - whole) <= 4e-15 * fabs(whole) ? whole : value);
}
inline float to_odd(double x) {
  const float cut = convert_float_rtz(x);
  return (double)cut == x || isnan(x) ? cut : as_float(as_uint(cut) | 1u);
}

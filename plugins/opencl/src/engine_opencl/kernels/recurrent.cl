// A step of RNN (GATES 1), GRU (3: z, r, h) or LSTM (4: i, o, f, c). An item computes a unit of one sequence and
// direction. projection: rows [steps, batch], or the other way round; states, cell: [directions, batch, hidden];
// recurrent: [directions, hidden, GATES * hidden]. States, cell and scratch are f32 at all times. `before` and `after`
// are different buffers: units read all units.
#define PARAMETERS                                                                                                   \
  __global const float *restrict before, __global float *restrict after, __global const real *restrict projection, \
      __global const real *restrict recurrent CELL_PARAMETER BIAS_PARAMETER LENGTHS_PARAMETER PEEPHOLE_PARAMETER    \
          OUTPUT_PARAMETER SCRATCH_PARAMETER,                                                                        \
      const int step
#if GATES == 4
#define CELL_PARAMETER , __global float *restrict cell
#else
#define CELL_PARAMETER
#endif
#if BIAS
#define BIAS_PARAMETER , __global const real *restrict bias
#define INPUT_BIAS(gate) load_real(bias, (direction * 2 * GATES + (gate)) * HIDDEN + unit)
#define RECURRENT_BIAS(gate) load_real(bias, (direction * 2 * GATES + GATES + (gate)) * HIDDEN + unit)
#else
#define BIAS_PARAMETER
#define INPUT_BIAS(gate) 0.0f
#define RECURRENT_BIAS(gate) 0.0f
#endif
#if LENGTHS
#define LENGTHS_PARAMETER , __global const int *restrict lengths
#define IS_INSIDE (t < lengths[sequence])
#else
#define LENGTHS_PARAMETER
#define IS_INSIDE 1
#endif
#if PEEPHOLE
#define PEEPHOLE_PARAMETER , __global const real *restrict peephole
#define PEEP(k) load_real(peephole, (direction * 3 + (k)) * HIDDEN + unit)
#else
#define PEEPHOLE_PARAMETER
#define PEEP(k) 0.0f
#endif
#if OUTPUT
#define OUTPUT_PARAMETER , __global real *restrict y
#else
#define OUTPUT_PARAMETER
#endif
#if RESET_BEFORE
#define SCRATCH_PARAMETER , __global float *restrict scratch
#else
#define SCRATCH_PARAMETER
#endif
#define WHERE                                                                              \
  const int unit = get_global_id(0), sequence = get_global_id(1), direction = get_global_id(2); \
  const int t = REVERSED ? STEPS - 1 - step : step;                                        \
  const ulong state = ((ulong)direction * BATCH + sequence) * HIDDEN;                      \
  const ulong row = BATCH_FIRST ? (ulong)sequence * STEPS + t : (ulong)t * BATCH + sequence; \
  projection += (row * DIRECTIONS + direction) * (GATES * HIDDEN) + unit;                  \
  recurrent += (ulong)direction * HIDDEN * (GATES * HIDDEN) + unit;

float given(__global const real* projection, const int gate) { return load_real(projection, gate * HIDDEN); }

// The contribution of the states of all units to a gate of this unit.
float remembered(__global const float* states, __global const real* recurrent, const int gate) {
  float sum = 0.0f;
  for (int k = 0; k < HIDDEN; ++k) sum += states[k] * load_real(recurrent, (ulong)k * (GATES * HIDDEN) + gate * HIDDEN);
  return sum;
}

#define SUM(gate)                                                                                          \
  (given(projection, gate) + INPUT_BIAS(gate) + remembered(before + state, recurrent, gate) + RECURRENT_BIAS(gate))

#if RESET_BEFORE
// The first half of a GRU's step: z, and the reset states, which the candidates of all units read.
__kernel void recurrent_gates(PARAMETERS) {
  WHERE
  scratch[state + unit] = activation0(direction, SUM(0));
  scratch[DIRECTIONS * BATCH * HIDDEN + state + unit] = activation0(direction, SUM(1)) * before[state + unit];
}
#endif

__kernel void recurrent_step(PARAMETERS) {
  WHERE
  const float old = before[state + unit];
  float value;
#if GATES == 1
  value = activation0(direction, SUM(0));
#elif GATES == 3
#if RESET_BEFORE
  const float z = scratch[state + unit];
  const float candidate = activation1(
      direction, given(projection, 2) + INPUT_BIAS(2) + RECURRENT_BIAS(2) +
                     remembered(scratch + DIRECTIONS * BATCH * HIDDEN + state, recurrent, 2));
#else
  const float z = activation0(direction, SUM(0));
  const float reset = activation0(direction, SUM(1));
  const float candidate = activation1(
      direction, given(projection, 2) + INPUT_BIAS(2) +
                     reset * (remembered(before + state, recurrent, 2) + RECURRENT_BIAS(2)));
#endif
  value = (1.0f - z) * candidate + z * old;
#else
  const float c = cell[state + unit];
  const float i = activation0(direction, SUM(0) + PEEP(0) * c);
  const float forget = INPUT_FORGET ? 1.0f - i : activation0(direction, SUM(2) + PEEP(2) * c);
  const float fresh = forget * c + i * activation1(direction, SUM(3));
  value = activation0(direction, SUM(1) + PEEP(1) * fresh) * activation2(direction, fresh);
  if (IS_INSIDE) cell[state + unit] = fresh;
#endif
  after[state + unit] = IS_INSIDE ? value : old;
#if OUTPUT
  const ulong place = BATCH_FIRST ? row * DIRECTIONS + direction : ((ulong)t * DIRECTIONS + direction) * BATCH + sequence;
  store_real(y, place * HIDDEN + unit, IS_INSIDE ? value : 0.0f);
#endif
}

// RNN (GATES 1), GRU (3: z, r, h) or LSTM (4: i, o, f, c), step by step. An item computes LANES neighbouring units of up
// to SEQUENCES sequences. `recurrent_sequence` runs all steps in one work group of GROUP items per direction and
// SEQUENCES sequences; `recurrent_step` runs one step over the whole device.
// projection: rows [steps, batch], or the other way round; states, cell, scratch: [directions, batch, PADDED] in f32;
// recurrent: [directions, blocks of WIDTH units, HIDDEN, GATES, WIDTH]. `before` and `after` are different buffers,
// since units read all units; elements beyond HIDDEN are never used.
#if LANES == 1
typedef float lanes;
#define get_lanes(from) (*(from))
#define put_lanes(v, to) (*(to) = (v))
#define load_real_lanes load_real
#define get_real(from, at, step, count) load_real(from, at)
#define put_real(to, at, step, count, v) store_real(to, at, v)
#endif
#if GATES == 4
#define CELL_PARAMETER , __global float* cell
#define CELL , cell
#else
#define CELL_PARAMETER
#define CELL
#endif
#if BIAS
#define BIAS_PARAMETER , __global const real* bias
#define BIASES , bias
#define INPUT_BIAS(gate) get_real(bias, (direction * 2 * GATES + (gate)) * HIDDEN + unit, 1, count)
#define RECURRENT_BIAS(gate) get_real(bias, (direction * 2 * GATES + GATES + (gate)) * HIDDEN + unit, 1, count)
#else
#define BIAS_PARAMETER
#define BIASES
#define INPUT_BIAS(gate) 0.0f
#define RECURRENT_BIAS(gate) 0.0f
#endif
#if LENGTHS
#define LENGTHS_PARAMETER , __global const int* lengths
#define LENGTH_OF , lengths
#define IS_INSIDE (t < lengths[sequence])
#else
#define LENGTHS_PARAMETER
#define LENGTH_OF
#define IS_INSIDE 1
#endif
#if PEEPHOLE
#define PEEPHOLE_PARAMETER , __global const real* peephole
#define PEEPHOLES , peephole
#define PEEP(k) get_real(peephole, (direction * 3 + (k)) * HIDDEN + unit, 1, count)
#else
#define PEEPHOLE_PARAMETER
#define PEEPHOLES
#define PEEP(k) 0.0f
#endif
#if OUTPUT
#define OUTPUT_PARAMETER , __global real* y
#define OUTPUTS , y
#else
#define OUTPUT_PARAMETER
#define OUTPUTS
#endif
#if RESET_BEFORE
#define SCRATCH_PARAMETER , __global float* scratch
#define SCRATCH , scratch
#else
#define SCRATCH_PARAMETER
#define SCRATCH
#endif
#define PARAMETERS                                                                                              \
  __global float *before, __global float *after, __global const real *projection,                              \
      __global const real *restrict recurrent CELL_PARAMETER BIAS_PARAMETER LENGTHS_PARAMETER PEEPHOLE_PARAMETER \
          OUTPUT_PARAMETER SCRATCH_PARAMETER
#define SHARED projection, recurrent CELL BIASES LENGTH_OF PEEPHOLES OUTPUTS SCRATCH
#define PLACE const int block, const int first, const int direction, const int step
#define BLOCKS ((HIDDEN + LANES - 1) / LANES)
#define WHERE                                                                     \
  const int unit = block * LANES, count = min(LANES, HIDDEN - unit);              \
  const int last = min(SEQUENCES, BATCH - first) - 1;                             \
  const int t = REVERSED ? STEPS - 1 - step : step;                               \
  const ulong states = ((ulong)direction * BATCH + first) * PADDED;               \
  recurrent += ((ulong)direction * (PADDED / WIDTH) + unit / WIDTH) * (HIDDEN * GATES * WIDTH) + unit % WIDTH;
#define SEQUENCE                                                                             \
  const int sequence = first + s;                                                            \
  const ulong state = states + s * PADDED + unit;                                            \
  const ulong row = BATCH_FIRST ? (ulong)sequence * STEPS + t : (ulong)t * BATCH + sequence; \
  const ulong given = (row * DIRECTIONS + direction) * (GATES * HIDDEN) + unit;
#define GIVEN(gate) (get_real(projection, given + (gate) * HIDDEN, 1, count) + INPUT_BIAS(gate))
#define SUM(gate) (GIVEN(gate) + RECURRENT_BIAS(gate) + sums[s][gate])

// Adds the contribution of the sequences' units, `states`, to gates of the item's units.
inline void remember(lanes sums[SEQUENCES][GATES], const int from, const int to, __global const float* states,
                     const int last, __global const real* restrict recurrent) {
  for (int k = 0; k < HIDDEN; ++k)
    for (int gate = from; gate < to; ++gate) {
      const lanes weights = load_real_lanes(recurrent, ((ulong)k * GATES + gate) * WIDTH);
      for (int s = 0; s < SEQUENCES; ++s) sums[s][gate] += states[min(s, last) * PADDED + k] * weights;
    }
}

#define NO_SUMS                              \
  lanes sums[SEQUENCES][GATES];              \
  for (int s = 0; s < SEQUENCES; ++s)        \
    for (int gate = 0; gate < GATES; ++gate) sums[s][gate] = 0.0f;

#if RESET_BEFORE
// The first half of a GRU's step: z, and the reset states, which the candidates of all units read.
inline void reset(PARAMETERS, PLACE) {
  WHERE
  NO_SUMS
  remember(sums, 0, 2, before + states, last, recurrent);
  for (int s = 0; s <= last; ++s) {
    SEQUENCE
    put_lanes(activation0(direction, SUM(0)), scratch + state);
    put_lanes(activation0(direction, SUM(1)) * get_lanes(before + state), scratch + DIRECTIONS * BATCH * PADDED + state);
  }
}
#endif

inline void advance(PARAMETERS, PLACE) {
  WHERE
  NO_SUMS
#if RESET_BEFORE
  remember(sums, 2, 3, scratch + DIRECTIONS * BATCH * PADDED + states, last, recurrent);
#else
  remember(sums, 0, GATES, before + states, last, recurrent);
#endif
  for (int s = 0; s <= last; ++s) {
    SEQUENCE
    const lanes old = get_lanes(before + state);
    lanes value;
#if GATES == 1
    value = activation0(direction, SUM(0));
#elif GATES == 3
#if RESET_BEFORE
    const lanes z = get_lanes(scratch + state);
    const lanes candidate = activation1(direction, SUM(2));
#else
    const lanes z = activation0(direction, SUM(0));
    const lanes gate = activation0(direction, SUM(1));
    const lanes candidate = activation1(direction, GIVEN(2) + gate * (sums[s][2] + RECURRENT_BIAS(2)));
#endif
    value = (1.0f - z) * candidate + z * old;
#else
    const lanes c = get_lanes(cell + state);
    const lanes i = activation0(direction, SUM(0) + PEEP(0) * c);
#if INPUT_FORGET
    const lanes forget = 1.0f - i;
#else
    const lanes forget = activation0(direction, SUM(2) + PEEP(2) * c);
#endif
    const lanes fresh = forget * c + i * activation1(direction, SUM(3));
    value = activation0(direction, SUM(1) + PEEP(1) * fresh) * activation2(direction, fresh);
    if (IS_INSIDE) put_lanes(fresh, cell + state);
#endif
    put_lanes(IS_INSIDE ? value : old, after + state);
#if OUTPUT
    const ulong place =
        BATCH_FIRST ? row * DIRECTIONS + direction : ((ulong)t * DIRECTIONS + direction) * BATCH + sequence;
    put_real(y, place * HIDDEN + unit, 1, count, IS_INSIDE ? value : (lanes)(0.0f));
#endif
  }
}

#if GROUP
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void recurrent_sequence(PARAMETERS) {
  const int first = get_global_id(1) * SEQUENCES, direction = get_global_id(2);
  for (int step = 0; step < STEPS; ++step) {
    __global float *now = step % 2 ? after : before, *next = step % 2 ? before : after;
#if RESET_BEFORE
    for (int block = get_local_id(0); block < BLOCKS; block += GROUP) reset(now, next, SHARED, block, first, direction, step);
    barrier(CLK_GLOBAL_MEM_FENCE);
#endif
    for (int block = get_local_id(0); block < BLOCKS; block += GROUP) advance(now, next, SHARED, block, first, direction, step);
    barrier(CLK_GLOBAL_MEM_FENCE);
  }
}
#else
#if RESET_BEFORE
__kernel void recurrent_reset(PARAMETERS, const int step) {
  reset(before, after, SHARED, get_global_id(0), get_global_id(1) * SEQUENCES, get_global_id(2), step);
}
#endif

__kernel void recurrent_step(PARAMETERS, const int step) {
  advance(before, after, SHARED, get_global_id(0), get_global_id(1) * SEQUENCES, get_global_id(2), step);
}
#endif

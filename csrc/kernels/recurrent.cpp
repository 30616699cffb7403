// recurrent_sequence_f32: whole sequences, split over (direction, sequence of the batch).
// recurrent_begin_f32 and recurrent_step_f32: the same with a phase for each time step, split over chunks of 16 units.
//
// Operands, layouts and arguments: recurrent.hpp. Float alignment; outputs must not overlap inputs. Steps beyond a
// sequence's length are zero in y, and the final state is the state after the last valid step (the initial state if
// there is none). A length that is not in 0..steps is a fault. Lanes of a state beyond H are always zero. A NaN does
// not spread to other sequences or directions.
#include "kernels/recurrent.hpp"

#include "kernels/activation.hpp"
#include "simd/vec.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

constexpr int kMaxRows = 8;
alignas(64) const float kZeros[kBlock] = {};
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kAccumulators = 24;
#else
constexpr int kAccumulators = 12;
#endif

constexpr int max_rows(int gates) {
  return kAccumulators / gates < kMaxRows ? kAccumulators / gates : kMaxRows;
}
// A single row has too few accumulators to hide the latency, so it processes several steps of the reduction at a time.
constexpr int unroll(int accumulators) {
  return accumulators >= 8 ? 1 : 2 * unroll(2 * accumulators);
}

// sums[row][gate][16] = sum over k of h[row][k] * w[k][gate][16], for one chunk.
template <int kGates, int kRows, bool kInOrder>
ENGINE_NOINLINE void product(const float* w, const float* h, std::int64_t h_row, std::int64_t depth, float* sums) {
  constexpr int kVectors = kRows == 1 && kVectorsPerBlock > 1 ? 2 : 1;
  constexpr int kUnroll = kRows == 1 && !kInOrder ? unroll(kGates * kVectors) : 1;
  for (int lane = 0; lane < kBlock; lane += kVectors * kLanes) {
    Vec acc[kUnroll][kRows][kGates][kVectors] = {};
    const float* at = w + lane;
    for (std::int64_t k = 0; k < depth; k += kUnroll) {
#pragma GCC unroll 8
      for (int u = 0; u < kUnroll; ++u, at += kGates * kBlock) {
        Vec value[kRows];
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) value[r] = broadcast(h[r * h_row + k + u]);
#pragma GCC unroll 4
        for (int g = 0; g < kGates; ++g)
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v) {
            const Vec weight = load(at + g * kBlock + v * kLanes);
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) acc[u][r][g][v] = fma(value[r], weight, acc[u][r][g][v]);
          }
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int g = 0; g < kGates; ++g)
        for (int v = 0; v < kVectors; ++v) {
          Vec sum = acc[0][r][g][v];
          for (int u = 1; u < kUnroll; ++u) sum += acc[u][r][g][v];
          store(sums + (r * kGates + g) * kBlock + lane + v * kLanes, sum);
        }
  }
}

template <int kGates>
void product(int rows, bool is_in_order, const float* w, const float* h, std::int64_t h_row, std::int64_t depth,
             float* sums) {
#define ENGINE_ROWS(count)                                                                           \
  case count:                                                                                        \
    if constexpr (count <= max_rows(kGates)) product<kGates, count, true>(w, h, h_row, depth, sums); \
    break
  switch (rows) {
    case 1:
      (is_in_order ? product<kGates, 1, true> : product<kGates, 1, false>)(w, h, h_row, depth, sums);
      break;
      ENGINE_ROWS(2);
      ENGINE_ROWS(3);
      ENGINE_ROWS(4);
      ENGINE_ROWS(5);
      ENGINE_ROWS(6);
      ENGINE_ROWS(7);
      ENGINE_ROWS(8);
  }
#undef ENGINE_ROWS
}

// The memory of one direction at one time step.
struct Walk {
  const RecurrentArgs* args;
  std::int64_t direction;
  std::int64_t step;
  bool is_reversed;
  const float* projection;
  const float* weights;         // of the direction
  const float* recurrent_bias;  // of the direction, or null; also the following
  const float* peephole;
  const std::int32_t* lengths;
  const float* h;  // [batch][Hp]: the states of the direction
  float* next;
  float* cell;
  float* update;
  float* reset;
  float* y;  // of the direction, or null; also the following
  float* y_h;
  float* y_c;
};

ENGINE_INLINE float* operand(void* const* buffers, std::int32_t index, std::int64_t offset) {
  return index < 0 ? nullptr : static_cast<float*>(buffers[index]) + offset;
}

ENGINE_INLINE std::int64_t sequence_length(const Walk& walk, std::int64_t row) {
  const std::int64_t steps = walk.args->shape.steps;
  if (!walk.lengths) return steps;
  const std::int64_t length = walk.lengths[row];
  return length < 0 ? 0 : length > steps ? steps : length;
}

// The part of the gates whose weights a step needs.
template <int kGates>
const float* weights_of(const RecurrentArgs& args, void* const* buffers, std::int64_t direction, bool is_second) {
  const float* all = static_cast<const float*>(buffers[args.operands.weights]);
  const std::int64_t square = args.padded * args.padded;
  const std::int64_t first = is_second ? args.shape.directions * 2 * square : 0;
  return all + first + direction * kGates * square;
}

Walk make_walk(const RecurrentArgs& args, void* const* buffers, std::int64_t direction, std::int64_t step) {
  const RecurrentOperands& o = args.operands;
  const std::int64_t plane = args.shape.batch * args.padded, all = args.shape.directions * plane;
  Walk walk = {};
  walk.args = &args;
  walk.direction = direction;
  walk.step = step;
  walk.is_reversed = direction == 1 || args.shape.reversed;
  walk.projection = operand(buffers, o.projection, direction * args.projection_direction);
  walk.recurrent_bias = operand(buffers, o.recurrent_bias, direction * args.padded);
  walk.peephole = operand(buffers, o.peephole, direction * 3 * args.padded);
  walk.lengths = o.lengths < 0 ? nullptr : static_cast<const std::int32_t*>(buffers[o.lengths]);
  walk.h = operand(buffers, o.state_h, step % 2 * all + direction * plane);
  walk.next = operand(buffers, o.state_h, (step + 1) % 2 * all + direction * plane);
  walk.cell = operand(buffers, o.state_c, direction * plane);
  walk.update = operand(buffers, o.update, direction * plane);
  walk.reset = operand(buffers, o.reset, direction * plane);
  walk.y = operand(buffers, o.y, direction * args.y_direction);
  const bool is_last = step == args.shape.steps - 1;
  walk.y_h = is_last ? operand(buffers, o.y_h, direction * args.outer_direction) : nullptr;
  walk.y_c = is_last ? operand(buffers, o.y_c, direction * args.outer_direction) : nullptr;
  return walk;
}

ENGINE_INLINE void store_units(float* to, const float* from, std::int64_t valid) {
  if (!to) return;
  if (valid == kBlock)
    for (int l = 0; l < kBlock; l += kLanes) store(to + l, load(from + l));
  else
    for (std::int64_t i = 0; i < valid; ++i) to[i] = from[i];
}

// One row's values in one chunk, which the gates read and write.
struct Unit {
  const float* sums;  // [gate][16]
  const float* x;     // [gate][16] of the projection
  std::int64_t at;    // the offset of the row and chunk in a state
  std::int64_t lane;  // the chunk's first unit
};

ENGINE_INLINE Vec clipped(const Walk& walk, Vec x) {
  const float clip = walk.args->shape.clip;
  return min(broadcast(clip), max(broadcast(-clip), x));
}

ENGINE_INLINE void lstm_cell(const Walk& walk, const Unit& unit) {
  for (int l = 0; l < kBlock; l += kLanes) {
    Vec gate[4];
    for (int g = 0; g < 4; ++g) gate[g] = load(unit.sums + g * kBlock + l) + load(unit.x + g * kBlock + l);
    const Vec before = load(walk.cell + unit.at + l);
    const float* peephole = walk.peephole ? walk.peephole + unit.lane + l : nullptr;
    if (peephole) {
      gate[0] = fma(load(peephole), before, gate[0]);
      gate[2] = fma(load(peephole + 2 * walk.args->padded), before, gate[2]);
    }
    const Vec input = sigmoid(clipped(walk, gate[0]));
    const Vec forget = walk.args->shape.input_forget ? 1.0f - input : sigmoid(clipped(walk, gate[2]));
    const Vec cell = fma(forget, before, input * tanh(clipped(walk, gate[3])));
    if (peephole) gate[1] = fma(load(peephole + walk.args->padded), cell, gate[1]);
    store(walk.cell + unit.at + l, cell);
    store(walk.next + unit.at + l, sigmoid(clipped(walk, gate[1])) * tanh(cell));
  }
}

ENGINE_INLINE void rnn_cell(const Walk& walk, const Unit& unit) {
  const EpilogueArgs& f = walk.args->shape.activation;
  for (int l = 0; l < kBlock; l += kLanes) {
    const Vec x = clipped(walk, load(unit.sums + l) + load(unit.x + l));
    store(walk.next + unit.at + l, activate(f.activation, f.alpha, f.beta, x));
  }
}

ENGINE_INLINE Vec blend(Vec update, Vec candidate, Vec before) {
  return fma(update, before, (1.0f - update) * candidate);
}

ENGINE_INLINE void gru_linear_cell(const Walk& walk, const Unit& unit) {
  for (int l = 0; l < kBlock; l += kLanes) {
    const float* sums = unit.sums + l;
    const float* x = unit.x + l;
    const Vec update = sigmoid(clipped(walk, load(sums) + load(x)));
    const Vec reset = sigmoid(clipped(walk, load(sums + kBlock) + load(x + kBlock)));
    const Vec inner = load(sums + 2 * kBlock) + load(walk.recurrent_bias + unit.lane + l);
    const Vec candidate = tanh(clipped(walk, fma(reset, inner, load(x + 2 * kBlock))));
    store(walk.next + unit.at + l, blend(update, candidate, load(walk.h + unit.at + l)));
  }
}

ENGINE_INLINE void gru_gates(const Walk& walk, const Unit& unit) {
  for (int l = 0; l < kBlock; l += kLanes) {
    store(walk.update + unit.at + l, sigmoid(clipped(walk, load(unit.sums + l) + load(unit.x + l))));
    const Vec reset = sigmoid(clipped(walk, load(unit.sums + kBlock + l) + load(unit.x + kBlock + l)));
    store(walk.reset + unit.at + l, reset * load(walk.h + unit.at + l));
  }
}

ENGINE_INLINE void gru_candidate(const Walk& walk, const Unit& unit) {
  for (int l = 0; l < kBlock; l += kLanes) {
    const Vec candidate = tanh(clipped(walk, load(unit.sums + l) + load(unit.x + 2 * kBlock + l)));
    store(walk.next + unit.at + l, blend(load(walk.update + unit.at + l), candidate, load(walk.h + unit.at + l)));
  }
}

// Clears lanes beyond H: the projection's zero weights times an infinite input are NaN, which the next product would
// spread.
ENGINE_INLINE void clear_padding(const Walk& walk, float* state, const Unit& unit) {
  for (std::int64_t i = walk.args->shape.hidden - unit.lane; i < kBlock; ++i) state[unit.at + i] = 0.0f;
}

enum Part { kRnnPart, kLstmPart, kGruGatesPart, kGruCandidatePart, kGruLinearPart };

constexpr int gates_of(Part part) {
  return part == kLstmPart ? 4 : part == kGruLinearPart ? 3 : part == kGruGatesPart ? 2 : 1;
}

// Computes gates, states and outputs of one row and chunk after its product.
template <Part kPart>
ENGINE_NOINLINE void finish(const Walk& walk, std::int64_t row, std::int64_t chunk, const float* sums) {
  const RecurrentArgs& args = *walk.args;
  const std::int64_t length = sequence_length(walk, row);
  const bool is_inside = walk.step < length;
  const std::int64_t time = walk.is_reversed && is_inside ? length - 1 - walk.step : walk.step;
  const std::int64_t lane = chunk * kBlock;
  const int gates = recurrent_gates(args.shape.cell);
  const float* x = walk.projection + time * args.projection_step + row * args.projection_batch + lane * gates;
  const Unit unit = {sums, x, row * args.padded + lane, lane};
  const std::int64_t valid = args.shape.hidden - lane < kBlock ? args.shape.hidden - lane : kBlock;
  if (is_inside) {
    if constexpr (kPart == kRnnPart) rnn_cell(walk, unit);
    if constexpr (kPart == kLstmPart) lstm_cell(walk, unit);
    if constexpr (kPart == kGruGatesPart) gru_gates(walk, unit);
    if constexpr (kPart == kGruCandidatePart) gru_candidate(walk, unit);
    if constexpr (kPart == kGruLinearPart) gru_linear_cell(walk, unit);
  }
  if constexpr (kPart == kGruGatesPart) {
    if (is_inside && valid < kBlock) clear_padding(walk, walk.reset, unit);
  } else {
    if (!is_inside) store_units(walk.next + unit.at, walk.h + unit.at, kBlock);
    if (valid < kBlock) {
      clear_padding(walk, walk.next, unit);
      if (walk.cell) clear_padding(walk, walk.cell, unit);
    }
    float* y = walk.y ? walk.y + time * args.y_step + row * args.y_batch + lane : nullptr;
    const std::int64_t outer = row * args.outer_batch + lane;
    store_units(y, is_inside ? walk.next + unit.at : kZeros, valid);
    store_units(walk.y_h ? walk.y_h + outer : nullptr, walk.next + unit.at, valid);
    store_units(walk.y_c ? walk.y_c + outer : nullptr, walk.cell + unit.at, valid);
  }
}

// One time step of some rows of a direction and some chunks.
template <Part kPart>
void advance(const Walk& walk, const float* weights, WorkRange rows, WorkRange chunks) {
  constexpr int kGates = gates_of(kPart);
  constexpr int kRows = max_rows(kGates);
  alignas(64) float sums[kMaxRows * 4 * kBlock];
  const std::int64_t padded = walk.args->padded;
  const float* h = kPart == kGruCandidatePart ? walk.reset : walk.h;
  const std::int64_t tiles = (rows.end - rows.begin + kRows - 1) / kRows;
  for (std::int64_t i = 0; i < chunks.end - chunks.begin; ++i) {
    // Alternates the direction: the weights that the last step read last are still in the cache, even if all of them do
    // not fit.
    const std::int64_t chunk = walk.step % 2 == 0 ? chunks.begin + i : chunks.end - 1 - i;
    const float* w = weights + chunk * padded * kGates * kBlock;
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      const WorkRange part = split_work(rows.end - rows.begin, static_cast<int>(tile), static_cast<int>(tiles));
      const std::int64_t first = rows.begin + part.begin;
      const int count = static_cast<int>(part.end - part.begin);
      product<kGates>(count, walk.args->shape.repeatable, w, h + first * padded, padded, padded, sums);
      for (int r = 0; r < count; ++r) finish<kPart>(walk, first + r, chunk, sums + r * kGates * kBlock);
    }
  }
}

template <Part kPart>
void advance(const RecurrentArgs& args, void* const* buffers, std::int64_t direction, std::int64_t step, WorkRange rows,
             WorkRange chunks) {
  const float* weights = weights_of<gates_of(kPart)>(args, buffers, direction, kPart == kGruCandidatePart);
  advance<kPart>(make_walk(args, buffers, direction, step), weights, rows, chunks);
}

void advance(const RecurrentArgs& args, void* const* buffers, std::int64_t direction, std::int64_t step, int part,
             WorkRange rows, WorkRange chunks) {
  switch (args.shape.cell) {
    case RecurrentCell::kRnn:
      return advance<kRnnPart>(args, buffers, direction, step, rows, chunks);
    case RecurrentCell::kLstm:
      return advance<kLstmPart>(args, buffers, direction, step, rows, chunks);
    case RecurrentCell::kGruLinear:
      return advance<kGruLinearPart>(args, buffers, direction, step, rows, chunks);
    case RecurrentCell::kGru:
      if (part == 0) return advance<kGruGatesPart>(args, buffers, direction, step, rows, chunks);
      return advance<kGruCandidatePart>(args, buffers, direction, step, rows, chunks);
    case RecurrentCell::kCount:
      break;
  }
}

// Sets a row's initial state and, if there are no time steps, its final state.
void begin_state(const RecurrentArgs& args, void* const* buffers, std::int32_t initial, std::int32_t state,
                 std::int32_t final_state, std::int64_t direction, std::int64_t row) {
  const std::int64_t outer = direction * args.outer_direction + row * args.outer_batch;
  const float* from = operand(buffers, initial, outer);
  float* to = operand(buffers, state, (direction * args.shape.batch + row) * args.padded);
  for (std::int64_t i = 0; i < args.padded; ++i) to[i] = from && i < args.shape.hidden ? from[i] : 0.0f;
  float* last = operand(buffers, final_state, outer);
  if (last && args.shape.steps == 0)
    for (std::int64_t i = 0; i < args.shape.hidden; ++i) last[i] = to[i];
}

void begin(const RecurrentArgs& args, void* const* buffers, std::int64_t direction, WorkRange rows,
           const KernelContext& context) {
  const RecurrentOperands& o = args.operands;
  const auto* lengths = o.lengths < 0 ? nullptr : static_cast<const std::int32_t*>(buffers[o.lengths]);
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    if (lengths && (lengths[row] < 0 || lengths[row] > args.shape.steps)) {
      report_index(context, lengths[row], faulty_length_size(args.shape.steps));
    }
    begin_state(args, buffers, o.initial_h, o.state_h, o.y_h, direction, row);
    if (o.state_c >= 0) begin_state(args, buffers, o.initial_c, o.state_c, o.y_c, direction, row);
  }
}

// The part of a range over (direction, item) that lies in one direction.
WorkRange within(WorkRange range, std::int64_t direction, std::int64_t items) {
  const std::int64_t first = direction * items;
  const std::int64_t from = range.begin - first, to = range.end - first;
  return {from < 0 ? 0 : from, to > items ? items : to};
}

void recurrent_begin_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const RecurrentArgs& args = *static_cast<const RecurrentArgs*>(raw_args);
  const std::int64_t batch = args.shape.batch;
  const WorkRange range = split_work(args.shape.directions * batch, context.worker, context.workers);
  for (std::int64_t d = 0; d < args.shape.directions; ++d) begin(args, buffers, d, within(range, d, batch), context);
}

void recurrent_step_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const RecurrentArgs& args = *static_cast<const RecurrentArgs*>(raw_args);
  const std::int64_t chunks = args.padded / kBlock;
  const WorkRange range = split_work(args.shape.directions * chunks, context.worker, context.workers);
  for (std::int64_t d = 0; d < args.shape.directions; ++d)
    advance(args, buffers, d, args.step, args.part, {0, args.shape.batch}, within(range, d, chunks));
}

void recurrent_sequence_f32(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const RecurrentArgs& args = *static_cast<const RecurrentArgs*>(raw_args);
  const int parts = args.shape.cell == RecurrentCell::kGru ? 2 : 1;
  const WorkRange range = split_work(args.shape.directions * args.shape.batch, context.worker, context.workers);
  for (std::int64_t d = 0; d < args.shape.directions; ++d) {
    const WorkRange rows = within(range, d, args.shape.batch);
    if (rows.end <= rows.begin) continue;
    begin(args, buffers, d, rows, context);
    for (std::int64_t step = 0; step < args.shape.steps; ++step)
      for (int part = 0; part < parts; ++part) advance(args, buffers, d, step, part, rows, {0, args.padded / kBlock});
  }
}

}  // namespace

extern const KernelEntry recurrent_kernels[] = {{"recurrent_sequence_f32", recurrent_sequence_f32, nullptr},
                                                {"recurrent_begin_f32", recurrent_begin_f32, nullptr},
                                                {"recurrent_step_f32", recurrent_step_f32, nullptr},
                                                {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

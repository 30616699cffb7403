// Recurrent layers (ONNX RNN, GRU, LSTM) after the projection of their inputs, which one matrix product computes for
// all time steps.
//
// H is rounded up to Hp, a multiple of 16; units are divided into chunks of 16, and the gates of a chunk are adjacent:
//   projection [row][direction][chunk][gate][16]   X W^T + bias, row = t * batch + b, or b * steps + t (batch_first)
//   weights    [direction][chunk][k < Hp][gate][16]     R; zero where k or the unit is beyond H
//   peephole   [direction][3][Hp]                       i, o, f; zero beyond H
// Gates are in ONNX's order: LSTM i, o, f, c; GRU z, r, h. A GRU that resets before the product (kGru) has the weights
// of z and r as above, followed, for all directions, by the weights of h as a single gate.
#pragma once

#include "kernels/tile.hpp"

namespace engine {

static inline int recurrent_gates(RecurrentCell cell) {
  return cell == RecurrentCell::kRnn ? 1 : cell == RecurrentCell::kLstm ? 4 : 3;
}

// The size in the fault of a sequence length that is not in 0..steps, and the steps for that size.
static inline std::int64_t faulty_length_size(std::int64_t steps) {
  return -2 - steps;
}
static inline std::int64_t faulty_steps(std::int64_t size) {
  return -2 - size;
}

struct RecurrentShape {
  RecurrentCell cell = RecurrentCell::kLstm;
  std::int64_t steps = 0;
  std::int64_t batch = 0;
  std::int64_t hidden = 0;
  std::int64_t directions = 1;  // the second one is reversed
  bool reversed = false;        // the first one is reversed, too
  bool batch_first = false;     // ONNX's layout 1
  bool input_forget = false;    // LSTM: the forget gate is 1 - i
  bool repeatable = false;      // the order of sums does not depend on the number of rows
  float clip = __builtin_inff();
  EpilogueArgs activation = {};  // RNN; the others have sigmoid and tanh
};

// The indices of operands among the buffers of the step; -1: absent. In this order: inputs, outputs, temporaries.
struct RecurrentOperands {
  std::int32_t projection = 0;
  std::int32_t weights = 1;
  std::int32_t recurrent_bias = -1;  // kGruLinear: [direction][Hp], of the gate h, inside the reset; zero beyond H
  std::int32_t lengths = -1;         // int32 [batch]; one not in 0..steps is clamped, and a fault
  std::int32_t initial_h = -1;       // [direction][batch][H]; batch_first: [batch][direction][H]
  std::int32_t initial_c = -1;       // the same
  std::int32_t peephole = -1;
  std::int32_t y = -1;        // [steps][direction][batch][H]; batch_first: [batch][steps][direction][H]
  std::int32_t y_h = -1;      // as initial_h
  std::int32_t y_c = -1;      // the same
  std::int32_t state_h = -1;  // [2][direction][batch][Hp]: read at one step, written for the next
  std::int32_t state_c = -1;  // LSTM: [direction][batch][Hp]
  std::int32_t update = -1;   // kGru: z, the same
  std::int32_t reset = -1;    // kGru: r * h, the same
};

struct RecurrentArgs {
  RecurrentShape shape;
  RecurrentOperands operands;
  std::int64_t padded;                                                   // Hp
  std::int64_t projection_step, projection_batch, projection_direction;  // in floats, as all strides
  std::int64_t y_step, y_batch, y_direction;
  std::int64_t outer_batch, outer_direction;  // of initial and final states
  std::int64_t step;                          // recurrent_step_f32: the time step
  std::int32_t part;                          // for kGru, 0: z and r, 1: h
};

// How a step is parallelised: each worker processes whole sequences; or all workers share every time step, with a
// barrier after it, so that each reads only its share of the weights.
enum class RecurrentSplit : std::int32_t { kSequences, kUnits };

RecurrentArgs make_recurrent_args(const RecurrentShape& shape, const RecurrentOperands& operands);

// Chosen by size alone, for `workers` workers.
RecurrentSplit choose_recurrent_split(const RecurrentShape& shape, std::int64_t workers);

// The number of floats of the packed weights.
std::int64_t recurrent_weight_floats(const RecurrentShape& shape);

}  // namespace engine

// What convolutions on padded groups have in common: moving the groups in and out.
#pragma once

#include <functional>

#include "kernels/conv.hpp"
#include "kernels/prepare/conv_request.hpp"

namespace engine {

// What the phases between the moves work on. `operands` and `epilogue` are empty where the move out applies them.
struct GroupedPlaces {
  std::int32_t x_at, y_at;
  std::int64_t x_batch, y_batch, residual_batch;
  ConvOperands operands;
  EpilogueArgs epilogue;
};

void place(const GroupedPlaces& places, ConvArgs& args);

using MakeConvPhases = std::function<void(const GroupedPlaces& places, PreparedStep& step)>;

// Phases that move each group's channels into blocks of their own, those of `make_phases`, and the phase that moves
// the groups back; a move that would change nothing is left out. `steps` are those of the step's own x, y and residual.
PreparedStep with_padded_groups(const StepRequest& request, const ConvShape& shape, const ImageSteps& steps,
                                const ConvOperands& operands, const EpilogueArgs& epilogue,
                                const MakeConvPhases& make_phases);

}  // namespace engine

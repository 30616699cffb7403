// Shared by convolutions on padded groups: moving the groups in and out.
#pragma once

#include <functional>

#include "kernels/conv.hpp"
#include "kernels/prepare/conv_request.hpp"

namespace engine {

// The operands of the phases between the moves. `operands` and `epilogue` are empty if the move out applies them.
struct GroupedPlaces {
  std::int32_t x_at, y_at;
  std::int64_t x_batch, y_batch, residual_batch;
  ConvOperands operands;
  EpilogueArgs epilogue;
};

void place(const GroupedPlaces& places, ConvArgs& args);

using MakeConvPhases = std::function<void(const GroupedPlaces& places, PreparedStep& step)>;

// A phase that moves each group's channels to separate blocks, the phases of `make_phases`, and the phase that moves
// the groups back; a move that would change nothing is omitted. `steps` are the distances between images of x, y and
// the residual.
PreparedStep with_padded_groups(const StepRequest& request, const ConvShape& shape, const ImageSteps& steps,
                                const ConvOperands& operands, const EpilogueArgs& epilogue,
                                const MakeConvPhases& make_phases);

}  // namespace engine

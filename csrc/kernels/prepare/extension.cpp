// extension: the inputs that are not omitted -> the outputs. Attribute:
//
//   call   the token of an ExtensionCall, which the plan then keeps
#include <string>

#include "kernels/prepare/extension_call.hpp"

namespace engine {
namespace {

void check_bytes(const char* kind, const std::vector<std::size_t>& given, const std::vector<std::size_t>& expected) {
  if (given.size() != expected.size()) {
    throw PlanError("the step has " + std::to_string(given.size()) + " " + kind + "s; expected " +
                    std::to_string(expected.size()));
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (given[i] < expected[i]) {
      throw PlanError(std::string(kind) + " " + std::to_string(i) + " has " + std::to_string(given[i]) +
                      " bytes; expected " + std::to_string(expected[i]) + " at least");
    }
  }
}

PreparedStep prepare_extension(const StepRequest& request) {
  const std::string& token = request.attributes.text("call");
  const std::shared_ptr<const ExtensionCall> call = ExtensionCall::find(token);
  if (call == nullptr) throw PlanError("there is no call of an extension's kernel \"" + token + "\"");
  check_bytes("input", request.inputs, call->input_bytes());
  check_bytes("output", request.outputs, call->output_bytes());
  for (std::size_t i = 0; i < request.outputs.size(); ++i) request.expect_output(i, call->output_bytes()[i]);
  PreparedStep step;
  step.phases.push_back(call->phase(request.kernels.find("extension")));
  step.owner = call;
  return step;
}

}  // namespace

extern const OperationEntry extension_operations[] = {{"extension", prepare_extension}, {}};

}  // namespace engine

// extension: see extension.hpp. Operands: the inputs that are not omitted, then the outputs; each with the alignment of
// its elements. The worker's memory has the tensors with their data, then the workspace.
//
// A failure is a fault with a negative size, whose index is the number of the kept message.
#include "kernels/extension.hpp"

#include <cstring>

#include "simd/isa.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

void extension(const void* arguments, void* const* buffers, const KernelContext& context) {
  const ExtensionArgs& args = *static_cast<const ExtensionArgs*>(arguments);
  auto* tensors = static_cast<engine_tensor*>(context.scratch);
  const std::int64_t count = args.inputs + args.outputs;
  for (std::int64_t i = 0, next = 0; i < count; ++i) {
    tensors[i] = args.tensors[i];
    if (tensors[i].element_type != ENGINE_OMITTED) tensors[i].data = buffers[next++];
  }
  char message[kExtensionMessage];
  message[0] = 0;
  engine_call call;
  std::memset(&call, 0, sizeof(call));
  call.struct_size = sizeof(call);
  call.inputs = tensors;
  call.num_inputs = static_cast<std::size_t>(args.inputs);
  call.outputs = tensors + args.inputs;
  call.num_outputs = static_cast<std::size_t>(args.outputs);
  call.attributes = args.attributes;
  call.num_attributes = static_cast<std::size_t>(args.attribute_count);
  call.message = message;
  call.message_size = sizeof(message);
  call.workspace = args.workspace_bytes > 0 ? static_cast<char*>(context.scratch) + args.workspace_offset : nullptr;
  call.worker = context.worker;
  call.workers = context.workers;
  const int status = args.compute(&call, args.state);
  if (status == ENGINE_OK || context.fault == nullptr) return;
  *context.fault = {true, keep_extension_failure(args.title, status, said_by_extension(message)), -1};
}

}  // namespace

extern const KernelEntry extension_kernels[] = {{"extension", extension, nullptr}, {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

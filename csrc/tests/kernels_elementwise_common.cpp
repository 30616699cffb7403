#include "kernels_elementwise_common.hpp"

#include "executor/kernel_registry.hpp"

namespace engine::test {

Integers dense(const Integers& dims) {
  Integers strides(dims.size(), 1);
  for (std::size_t d = dims.size(); d-- > 1;) strides[d - 1] = strides[d] * dims[d];
  return strides;
}

PreparedStep prepare(const Target& target, const Step& step, const std::vector<std::size_t>& inputs,
                     const std::vector<std::size_t>& outputs) {
  Attributes attributes;
  attributes.set("dims", step.dims);
  attributes.set("input_types", step.input_types);
  attributes.set("input_strides", step.input_strides);
  attributes.set("constants", step.constants);
  attributes.set("program", step.program);
  attributes.set("results", step.outputs);
  const KernelRegistry& registry = KernelRegistry::built_in();
  const LimitedLookup lookup(registry, parse_isa(target.isa));
  return registry.operation("elementwise").prepare({inputs, outputs, attributes, lookup});
}

void run_step(const Target& target, const Step& step, const std::vector<GuardedBytes*>& inputs,
              const std::vector<std::size_t>& input_bytes, const std::vector<GuardedBytes*>& outputs,
              const std::vector<std::size_t>& output_bytes, int workers, const std::string& what) {
  const PreparedStep prepared = prepare(target, step, input_bytes, output_bytes);
  std::vector<void*> buffers;
  for (GuardedBytes* bytes : inputs) buffers.push_back(bytes->data());
  for (GuardedBytes* bytes : outputs) buffers.push_back(bytes->data());
  const PreparedPhase& phase = prepared.phases[0];
  GuardedBytes args(phase.args.size() + 1, 0);
  std::memcpy(args.data(), phase.args.data(), phase.args.size());
  run({"elementwise", phase.run, nullptr}, args.data(), buffers, workers, phase.scratch_bytes);
  for (GuardedBytes* bytes : inputs) expect(bytes->intact(), what + ": input overrun");
  for (GuardedBytes* bytes : outputs) expect(bytes->intact(), what + ": output overrun");
}

}  // namespace engine::test

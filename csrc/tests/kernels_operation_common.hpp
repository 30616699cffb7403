// Runs an operation as a plan does: prepare, then its phases on several workers.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/prepare.hpp"
#include "kernels_common.hpp"

namespace engine::test {

using AttributeMap = std::map<std::string, Attributes::Value>;

// Prepares the operation of a family's table for buffers of these sizes. Throws PlanError.
PreparedStep prepare(const Target& target, const OperationEntry* operations, const std::string& name,
                     const AttributeMap& attributes, const std::vector<std::size_t>& input_bytes,
                     const std::vector<std::size_t>& output_bytes);

struct Bytes {
  void* data;
  std::size_t size;
};

// Runs the operation. An overrun of a temporary or of scratch is a failure.
void run_operation(const Target& target, const OperationEntry* operations, const std::string& name,
                   const AttributeMap& attributes, const std::vector<Bytes>& inputs, const std::vector<Bytes>& outputs,
                   int workers);
// The same, with all floats of the buffers.
void run_operation(const Target& target, const OperationEntry* operations, const std::string& name,
                   const AttributeMap& attributes, const std::vector<Guarded*>& inputs,
                   const std::vector<Guarded*>& outputs, int workers);

// Records a failure unless prepare refuses the operation with an error that contains `message`.
void expect_refused(const Target& target, const OperationEntry* operations, const std::string& name,
                    const AttributeMap& attributes, const std::vector<std::size_t>& input_bytes,
                    const std::vector<std::size_t>& output_bytes, const std::string& message);

}  // namespace engine::test

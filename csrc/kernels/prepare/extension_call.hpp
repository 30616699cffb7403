// The computation of one node of an extension's operator for known shapes, by the state that its kernel has created.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/extension.hpp"
#include "kernels/prepare.hpp"

namespace engine {

// A function of an extension's kernel has failed; the message contains the kernel's.
class ExtensionFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The type of a value; without an element type, an omitted input. -1 is an unknown rank or length.
struct ExtensionType {
  std::int32_t element_type = 0;
  std::int32_t rank = -1;
  std::vector<std::int64_t> dims;
  const void* data = nullptr;  // of a constant
};

struct ExtensionAttribute {
  using Value = std::variant<std::int64_t, double, std::string, std::vector<std::int64_t>, std::vector<double>,
                             std::vector<std::string>>;
  std::string name;
  Value value;
};

// The types and attributes of a node in the form in which kernels read them. Not movable, since parts point to others.
class ExtensionNode {
 public:
  ExtensionNode(std::vector<ExtensionType> inputs, std::vector<ExtensionType> outputs,
                std::vector<ExtensionAttribute> attributes);
  ExtensionNode(const ExtensionNode&) = delete;
  ExtensionNode& operator=(const ExtensionNode&) = delete;

  // Calls a function of a kernel. Throws ExtensionFailure, with the message, unless it returns ENGINE_OK.
  template <class Function, class... More>
  void call(const std::string& what, Function function, bool has_outputs, More... more) const {
    char message[kExtensionMessage] = {};
    engine_call call = described(has_outputs, message);
    check(what, function(&call, more...), message);
  }

  std::size_t num_inputs() const { return inputs_.size(); }
  std::size_t num_outputs() const { return outputs_.size(); }
  std::size_t num_attributes() const { return attributes_.size(); }
  const engine_tensor* tensors() const { return tensors_.data(); }  // inputs, then outputs
  const engine_attribute* attributes() const { return described_.data(); }

 private:
  engine_call described(bool has_outputs, char* message) const;
  static void check(const std::string& what, int status, char* message);

  std::vector<ExtensionType> inputs_, outputs_;
  std::vector<ExtensionAttribute> attributes_;
  std::vector<std::vector<const char*>> texts_;
  std::vector<engine_tensor> tensors_;
  std::vector<engine_attribute> described_;
};

// A node for which its kernel has created a state, which is destroyed with it. Plans refer to it by its token, and keep
// it. Thread-safe.
class ExtensionCall {
 public:
  // `title` names the node and the kernel in messages. All lengths are known. Throws ExtensionFailure and PlanError.
  static std::shared_ptr<const ExtensionCall> make(const engine_kernel& kernel, std::string title,
                                                   std::vector<ExtensionType> inputs,
                                                   std::vector<ExtensionType> outputs,
                                                   std::vector<ExtensionAttribute> attributes);
  // The call with this token; null if there is none.
  static std::shared_ptr<const ExtensionCall> find(std::string_view token);
  ~ExtensionCall();

  const std::string& token() const { return token_; }
  // The bytes of the tensors that are not omitted.
  const std::vector<std::size_t>& input_bytes() const { return input_bytes_; }
  const std::vector<std::size_t>& output_bytes() const { return output_bytes_; }
  PreparedPhase phase(const KernelEntry& kernel) const;
  // Computes in this thread alone. Throws ExtensionFailure.
  void compute(const std::vector<const void*>& inputs, const std::vector<void*>& outputs,
               const KernelEntry& kernel) const;

 private:
  ExtensionCall(const engine_kernel& kernel, std::string title, std::vector<ExtensionType> inputs,
                std::vector<ExtensionType> outputs, std::vector<ExtensionAttribute> attributes);

  std::string token_, title_;
  const engine_kernel kernel_;
  std::vector<std::size_t> input_bytes_, output_bytes_;
  ExtensionNode node_;
  std::size_t workspace_bytes_ = 0;
  int max_workers_ = 1;
  void* state_ = nullptr;
};

// The message kept by keep_extension_failure.
std::string kept_extension_failure(std::int64_t number);

// A field of a structure that a library has made: `otherwise` if the library was compiled before the field was added.
template <class Structure, class Field>
Field field_or(const Structure& structure, Field Structure::* field, Field otherwise) {
  const auto offset = reinterpret_cast<const char*>(&(structure.*field)) - reinterpret_cast<const char*>(&structure);
  return structure.struct_size >= static_cast<std::size_t>(offset) + sizeof(Field) ? structure.*field : otherwise;
}

}  // namespace engine

// The names of the enumerations of codes.def, and functions that read attributes with such names.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "kernels/codes.hpp"
#include "kernels/prepare.hpp"

namespace engine {

struct CodeNames {
  const char* enumeration;
  std::vector<const char*> names;  // indexed by number
};

// All enumerations, in the order of codes.def.
const std::vector<CodeNames>& code_names();

// A row of pointwise.def.
struct PointwiseFunction {
  const char* operation;  // the ONNX operator's name, if there is one
  const char* opcode;
  int sources;
  const char* expression;
  bool is_activation;
};

const std::vector<PointwiseFunction>& pointwise_functions();

// The names of one enumeration of codes.def.
template <class Code>
const CodeNames& names_of();
#define ENGINE_CODES(enumeration) \
  template <>                     \
  const CodeNames& names_of<enumeration>();
#include "codes.def"

template <class Code>
const char* name_of(Code code) {
  return names_of<Code>().names[static_cast<std::size_t>(code)];
}

// The number of an attribute's name. Throws PlanError unless it is one of those allowed (empty: all).
int read_code(const Attributes& attributes, std::string_view attribute, const CodeNames& codes,
              const std::vector<int>& allowed);

template <class Code>
Code read_code(const Attributes& attributes, std::string_view attribute, std::initializer_list<Code> allowed = {}) {
  std::vector<int> numbers;
  for (const Code code : allowed) numbers.push_back(static_cast<int>(code));
  return static_cast<Code>(read_code(attributes, attribute, names_of<Code>(), numbers));
}

// The number of a text attribute in an enumeration with these names.
template <class Code>
Code read_name(const Attributes& attributes, const char* attribute, const std::vector<const char*>& names) {
  const std::string& name = attributes.text(attribute);
  for (std::size_t i = 0; i < names.size(); ++i)
    if (name == names[i]) return static_cast<Code>(i);
  throw PlanError("attribute \"" + std::string(attribute) + "\" is \"" + name + "\"");
}

template <class Code>
Code read_code_or(const Attributes& attributes, std::string_view attribute, Code otherwise) {
  return attributes.has(attribute) ? read_code<Code>(attributes, attribute) : otherwise;
}

}  // namespace engine

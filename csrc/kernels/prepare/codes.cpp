#include "kernels/prepare/codes.hpp"

#include <algorithm>

namespace engine {

const std::vector<CodeNames>& code_names() {
  static const auto& all = *new std::vector<CodeNames>{
#define ENGINE_CODES(enumeration) {#enumeration, {
#define ENGINE_CODE(enumerator, name) name,
#define ENGINE_END_CODES \
  }                      \
  }                      \
  ,
#include "codes.def"
  };
  return all;
}

// Numbers the enumerations.
enum class Enumeration : std::size_t {
#define ENGINE_CODES(enumeration) k##enumeration,
#include "codes.def"
};

#define ENGINE_CODES(enumeration)                                               \
  template <>                                                                   \
  const CodeNames& names_of<enumeration>() {                                    \
    return code_names()[static_cast<std::size_t>(Enumeration::k##enumeration)]; \
  }
#include "codes.def"

const std::vector<PointwiseFunction>& pointwise_functions() {
  static const auto& all = *new std::vector<PointwiseFunction>{
#define ENGINE_POINTWISE(Name, name, sources, cost, ...) {#Name, name, sources, #__VA_ARGS__, false},
#define ENGINE_ACTIVATION(Name, name, sources, cost, ...) {#Name, name, sources, #__VA_ARGS__, true},
#define ENGINE_LIBRARY(Name, name, function) {#Name, name, 1, #function "(a)", false},
#include "pointwise.def"
  };
  return all;
}

int read_code(const Attributes& attributes, std::string_view attribute, const CodeNames& codes,
              const std::vector<int>& allowed) {
  const std::string& given = attributes.text(attribute);
  const auto is_allowed = [&](int code) {
    return allowed.empty() || std::find(allowed.begin(), allowed.end(), code) != allowed.end();
  };
  std::string expected;
  for (std::size_t i = 0; i < codes.names.size(); ++i) {
    const int code = static_cast<int>(i);
    if (!is_allowed(code)) continue;
    if (given == codes.names[i]) return code;
    expected += (expected.empty() ? "" : ", ") + std::string(codes.names[i]);
  }
  throw PlanError("attribute \"" + std::string(attribute) + "\" is \"" + given + "\"; expected one of " + expected);
}

}  // namespace engine

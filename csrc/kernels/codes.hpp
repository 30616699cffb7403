// The enumerations of codes.def.
#pragma once

#include <cstdint>

namespace engine {

#define ENGINE_CODES(enumeration) enum class enumeration : std::int32_t {
#define ENGINE_CODE(enumerator, name) enumerator,
#define ENGINE_END_CODES \
  kCount                 \
  }                      \
  ;
#include "codes.def"

constexpr int kElementCodes = static_cast<int>(ElementCode::kCount);
constexpr int kOpcodes = static_cast<int>(Opcode::kCount);

static constexpr int element_bytes(ElementCode code) {
  constexpr int kBytes[kElementCodes] = {
#define ENGINE_ELEMENT(enumerator, name, bytes) bytes,
#include "codes.def"
  };
  return kBytes[static_cast<int>(code)];
}

}  // namespace engine

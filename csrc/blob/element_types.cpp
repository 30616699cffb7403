#include "blob/element_types.hpp"

namespace engine {

const ElementType* find_element_type(std::string_view name) {
  // As engine.ir has them; a test compares both.
  static constexpr ElementType kTypes[] = {
      {"f32", 1, 4, 32},        {"u8", 2, 1, 8},       {"i8", 3, 1, 8},          {"u16", 4, 2, 16},
      {"i16", 5, 2, 16},        {"i32", 6, 4, 32},     {"i64", 7, 8, 64},        {"bool", 9, 1, 8},
      {"f16", 10, 2, 16},       {"f64", 11, 8, 64},    {"u32", 12, 4, 32},       {"u64", 13, 8, 64},
      {"c64", 14, 8, 64},       {"c128", 15, 16, 128}, {"bf16", 16, 2, 16},      {"f8e4m3fn", 17, 1, 8},
      {"f8e4m3fnuz", 18, 1, 8}, {"f8e5m2", 19, 1, 8},  {"f8e5m2fnuz", 20, 1, 8}, {"u4", 21, 1, 4},
      {"i4", 22, 1, 4},         {"f4e2m1", 23, 1, 4},  {"f8e8m0", 24, 1, 8},     {"u2", 25, 1, 2},
      {"i2", 26, 1, 2},         {"f6e2m3", 27, 1, 6},  {"f6e3m2", 28, 1, 6},
  };
  for (const ElementType& type : kTypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

}  // namespace engine

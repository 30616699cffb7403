// The element types of ONNX, by the names that blobs have.
#pragma once

#include <cstddef>
#include <string_view>

namespace engine {

struct ElementType {
  const char* name;
  int onnx;           // the value of TensorProto.DataType
  std::size_t bytes;  // of one element in memory: types of fewer than 8 bits take a byte each
  int bits;           // in ONNX's packed storage
};

// Null for a name that is unknown, and for texts, whose elements are not bytes in memory.
const ElementType* find_element_type(std::string_view name);

}  // namespace engine

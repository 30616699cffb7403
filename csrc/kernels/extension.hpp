// A step that a kernel of an extension computes: a function of a shared library that the user has added.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../engine/include/engine_kernel.h"
#include "kernels/kernel.hpp"

namespace engine {

constexpr std::size_t kExtensionMessage = 512;  // bytes

// Points into the step's ExtensionCall, which the plan keeps.
struct ExtensionArgs {
  int (*compute)(const engine_call*, void*);
  void* state;
  const char* title;
  const engine_tensor* tensors;  // inputs, then outputs, without data
  const engine_attribute* attributes;
  std::int64_t inputs, outputs, attribute_count;
  std::int64_t workspace_bytes, workspace_offset;  // the offset in the worker's memory, after the tensors
};

constexpr std::int64_t kExtensionFault = -1;  // the size in the fault of a kernel that fails

// A library's message, in kExtensionMessage bytes, as one line; the library may have written none, or no end.
const char* said_by_extension(char* message) noexcept;

// Keeps a kernel's message about its failure until the run ends, and returns the number under which it is kept. Neither
// allocates nor throws.
std::int64_t keep_extension_failure(const char* title, int status, const char* message) noexcept;

}  // namespace engine

// An error with the status that the C interface returns.
#pragma once

#include <stdexcept>
#include <string>

#include "runtime/engine_runtime.h"

namespace engine {

class Failure : public std::runtime_error {
 public:
  Failure(engine_runtime_status status, const std::string& message) : std::runtime_error(message), status_(status) {}

  engine_runtime_status status() const { return status_; }

 private:
  engine_runtime_status status_;
};

}  // namespace engine

// How much memory the process can still allocate.
#pragma once

#include <cstddef>

namespace engine {

// Throws std::bad_alloc if a large allocation exceeds what the system and the process's control group have. The system
// would grant it, and kill the process when the memory is written.
void check_available(std::size_t bytes);

}  // namespace engine

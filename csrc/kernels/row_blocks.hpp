// The form of vectors that rows are multiplied with: blocks [features, 16], padded with zeros.
#pragma once

#include <cstdint>

namespace engine {

constexpr std::int64_t kRowBlock = 16;  // vectors that are stored side by side
constexpr std::int64_t kRowGroup = 8;   // rows that a block of vectors is read for at once

}  // namespace engine

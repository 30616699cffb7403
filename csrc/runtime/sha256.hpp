// SHA-256 (FIPS 180-4), by the CPU's instructions where it has them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace engine {

class Sha256 {
 public:
  Sha256() : Sha256(true) {}
  // `uses_instructions`: false for the portable code, as a test compares both.
  explicit Sha256(bool uses_instructions);

  void update(const void* data, std::size_t size);
  std::array<unsigned char, 32> digest();

  static std::array<unsigned char, 32> of(const void* data, std::size_t size);

 private:
  using Blocks = void (*)(std::uint32_t* state, const unsigned char* data, std::size_t count);

  Blocks blocks_;
  std::uint32_t state_[8];
  unsigned char pending_[64];
  std::uint64_t size_ = 0;
};

// In lower-case hexadecimal digits.
std::string hex(const std::array<unsigned char, 32>& digest);

}  // namespace engine

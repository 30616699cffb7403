#include "runtime/sha256.hpp"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace engine {
namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
alignas(16) constexpr std::uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t rotated(std::uint32_t value, int by) {
  return value >> by | value << (32 - by);
}

void portable_blocks(std::uint32_t* state, const unsigned char* data, std::size_t count) {
  for (; count != 0; --count, data += 64) {
    std::uint32_t w[64];
    for (int i = 0; i < 16; ++i) {
      const unsigned char* at = data + 4 * i;
      w[i] = std::uint32_t{at[0]} << 24 | std::uint32_t{at[1]} << 16 | std::uint32_t{at[2]} << 8 | at[3];
    }
    for (int i = 16; i < 64; ++i) {
      const std::uint32_t low = rotated(w[i - 15], 7) ^ rotated(w[i - 15], 18) ^ w[i - 15] >> 3;
      const std::uint32_t high = rotated(w[i - 2], 17) ^ rotated(w[i - 2], 19) ^ w[i - 2] >> 10;
      w[i] = w[i - 16] + low + w[i - 7] + high;
    }
    std::uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    std::uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int i = 0; i < 64; ++i) {
      const std::uint32_t sum = rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25);
      const std::uint32_t first = h + sum + ((e & f) ^ (~e & g)) + kRounds[i] + w[i];
      const std::uint32_t second = (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
    }
    const std::uint32_t made[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; ++i) state[i] += made[i];
  }
}

#if defined(__x86_64__)

// With the instructions SHA256RNDS2, SHA256MSG1 and SHA256MSG2, which take the state as (a, b, e, f) and (c, d, g, h).
// Four rounds need four words of the message schedule; each group of four is made from the four groups before it.
__attribute__((target("sha,sse4.1"))) void x86_blocks(std::uint32_t* state, const unsigned char* data,
                                                      std::size_t count) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  const __m128i dcba = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state));
  const __m128i hgfe = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state + 4));
  const __m128i cdab = _mm_shuffle_epi32(dcba, 0xB1), efgh = _mm_shuffle_epi32(hgfe, 0x1B);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);
  for (; count != 0; --count, data += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];
    for (int group = 0; group < 16; ++group) {
      __m128i& words = w[group % 4];
      if (group < 4) {
        words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 16 * group));
        words = _mm_shuffle_epi8(words, big_endian);
      } else {
        const __m128i before = w[(group + 3) % 4];  // the words 1 to 4 before these
        const __m128i seventh = _mm_alignr_epi8(before, w[(group + 2) % 4], 4);
        words = _mm_add_epi32(_mm_sha256msg1_epu32(words, w[(group + 1) % 4]), seventh);
        words = _mm_sha256msg2_epu32(words, before);
      }
      const __m128i constants = _mm_load_si128(reinterpret_cast<const __m128i*>(kRounds + 4 * group));
      const __m128i sum = _mm_add_epi32(words, constants);
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0E));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1B), dchg = _mm_shuffle_epi32(cdgh, 0xB1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(feba, dchg, 0xF0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

bool has_instructions() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (ebx >> 29 & 1) == 0) return false;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx >> 19 & 1) != 0 && (ecx >> 9 & 1) != 0;
}

#endif

}  // namespace

Sha256::Sha256([[maybe_unused]] bool uses_instructions)
    : blocks_(portable_blocks),
      state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19} {
#if defined(__x86_64__)
  if (uses_instructions && has_instructions()) blocks_ = x86_blocks;
#endif
}

void Sha256::update(const void* data, std::size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  const std::size_t filled = size_ % 64;
  size_ += size;
  if (filled != 0) {
    const std::size_t taken = std::min(size, 64 - filled);
    std::memcpy(pending_ + filled, bytes, taken);
    if (filled + taken < 64) return;
    blocks_(state_, pending_, 1);
    bytes += taken, size -= taken;
  }
  blocks_(state_, bytes, size / 64);
  if (size % 64 != 0) std::memcpy(pending_, bytes + size / 64 * 64, size % 64);
}

std::array<unsigned char, 32> Sha256::digest() {
  const std::uint64_t bits = size_ * 8;
  const std::size_t filled = size_ % 64;
  unsigned char padding[72] = {0x80};
  const std::size_t zeros = (filled < 56 ? 56 : 120) - filled;
  for (int i = 0; i < 8; ++i) padding[zeros + i] = static_cast<unsigned char>(bits >> (56 - 8 * i));
  update(padding, zeros + 8);
  std::array<unsigned char, 32> made;
  for (std::size_t i = 0; i < 32; ++i) made[i] = static_cast<unsigned char>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return made;
}

std::array<unsigned char, 32> Sha256::of(const void* data, std::size_t size) {
  Sha256 hash;
  hash.update(data, size);
  return hash.digest();
}

std::string hex(const std::array<unsigned char, 32>& digest) {
  std::string text;
  for (const unsigned char byte : digest) text += {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
  return text;
}

}  // namespace engine

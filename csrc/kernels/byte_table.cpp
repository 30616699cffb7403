// byte_table: see byte_table.hpp. Operands: x, the table of 256 bytes, y, which may be x. Split over blocks of bytes.
//
// With AVX2, shuffles look up 16 entries at a time: a byte's low nibble selects one of them; unless the byte's high
// nibble belongs to these entries, it is replaced by a nibble with the highest bit set, whose result is zero. With
// AVX-512, permutations of 64 words look up half of the table at once, for the even and for the odd bytes.
#include "kernels/byte_table.hpp"

#include <cstring>

#include "simd/isa.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace engine::ENGINE_ISA_NS {
namespace {

constexpr std::int64_t kBlockBytes = 1024;

#if defined(__AVX512BW__)
struct Shuffles {
  static constexpr std::int64_t kBytes = 64;
  __m512i words[4];
  explicit Shuffles(const std::uint8_t* table) {
    for (int i = 0; i < 4; ++i) words[i] = _mm512_loadu_si512(table + 64 * i);
  }
  inline __attribute__((always_inline)) void apply(const std::uint8_t* x, std::uint8_t* y) const {
    const __m512i value = _mm512_loadu_si512(x), one_byte = _mm512_set1_epi16(8);
    const __m512i even = find(_mm512_srli_epi16(value, 1), _mm512_test_epi16_mask(value, _mm512_set1_epi16(0x80)));
    const __m512i odd = find(_mm512_srli_epi16(value, 9), _mm512_movepi16_mask(value));
    // The wanted byte of a word, in its place.
    const __m512i down = _mm512_srlv_epi16(even, _mm512_and_si512(_mm512_slli_epi16(value, 3), one_byte));
    const __m512i up = _mm512_sllv_epi16(odd, one_byte - (_mm512_srli_epi16(value, 5) & one_byte));
    _mm512_storeu_si512(y, _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaau, down, up));
  }

 private:
  // The words that hold entries 2 * index and 2 * index + 1; bit 6 of the index is in the mask, others are ignored.
  inline __attribute__((always_inline)) __m512i find(__m512i index, __mmask32 is_upper) const {
    return _mm512_mask_blend_epi16(is_upper, _mm512_permutex2var_epi16(words[0], index, words[1]),
                                   _mm512_permutex2var_epi16(words[2], index, words[3]));
  }
};
#elif defined(__AVX2__)
struct Shuffles {
  static constexpr std::int64_t kBytes = 32;
  __m256i row[16];
  explicit Shuffles(const std::uint8_t* table) {
    for (int i = 0; i < 16; ++i)
      row[i] = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)(table + 16 * i)));
  }
  inline __attribute__((always_inline)) void apply(const std::uint8_t* x, std::uint8_t* y) const {
    const __m256i value = _mm256_loadu_si256((const __m256i*)x);
    __m256i found = _mm256_setzero_si256();
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const __m256i own = _mm256_xor_si256(value, _mm256_set1_epi8(static_cast<char>(i << 4)));
      found = _mm256_or_si256(found, _mm256_shuffle_epi8(row[i], _mm256_adds_epu8(own, _mm256_set1_epi8(0x70))));
    }
    _mm256_storeu_si256((__m256i*)y, found);
  }
};
#endif

void look_up(const std::uint8_t* table, const std::uint8_t* x, std::uint8_t* y, std::int64_t count) {
  std::int64_t i = 0;
#if defined(__AVX2__)
  const Shuffles shuffles(table);
  for (; i + Shuffles::kBytes <= count; i += Shuffles::kBytes) shuffles.apply(x + i, y + i);
#else
  for (; i + 8 <= count; i += 8) {
    std::uint64_t value, found = 0;
    std::memcpy(&value, x + i, 8);
#pragma GCC unroll 8
    for (int j = 0; j < 64; j += 8) found |= static_cast<std::uint64_t>(table[value >> j & 255]) << j;
    std::memcpy(y + i, &found, 8);
  }
#endif
  for (; i < count; ++i) y[i] = table[x[i]];
}

void byte_table(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const ByteTableArgs& args = *static_cast<const ByteTableArgs*>(raw_args);
  const std::int64_t blocks = (args.count + kBlockBytes - 1) / kBlockBytes;
  const WorkRange range = split_work(blocks, context.worker, context.workers);
  if (range.begin >= range.end) return;
  const std::int64_t first = range.begin * kBlockBytes, end = range.end * kBlockBytes;
  look_up(static_cast<const std::uint8_t*>(buffers[1]), static_cast<const std::uint8_t*>(buffers[0]) + first,
          static_cast<std::uint8_t*>(buffers[2]) + first, (end < args.count ? end : args.count) - first);
}

}  // namespace

extern const KernelEntry byte_table_kernels[] = {{"byte_table", byte_table, nullptr}, {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

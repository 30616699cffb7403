// Reads memory as fast as the machine can, in several threads, each with one stream and prefetches ahead of it.
//
//   double read_seconds(const char* data, size_t bytes, int threads, int passes)     the time of one of the passes
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

namespace {

typedef float Line __attribute__((vector_size(64), aligned(64)));

void read_all(const char* begin, const char* end, int passes) {
  for (int pass = 0; pass < passes; ++pass)
    for (const char* at = begin; at < end; at += 512) {
      for (int line = 0; line < 512; line += 64) __builtin_prefetch(at + 2048 + line);
      for (int line = 0; line < 512; line += 64) {
        const Line value = *reinterpret_cast<const Line*>(at + line);
        asm volatile("" ::"v"(value));
      }
    }
}

}  // namespace

extern "C" double read_seconds(const char* data, std::size_t bytes, int threads, int passes) {
  const std::size_t part = bytes / static_cast<std::size_t>(threads) / 4096 * 4096;
  std::vector<std::thread> others;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 1; i < threads; ++i) others.emplace_back(read_all, data + i * part, data + (i + 1) * part, passes);
  read_all(data, data + part, passes);
  for (std::thread& other : others) other.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / passes;
}

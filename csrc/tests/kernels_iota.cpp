// Numbers at equal distances: every type, tails, the ends of integers, refused counts.
#include <cstdint>
#include <limits>

#include "kernels_bytes_common.hpp"

namespace engine {
extern const OperationEntry iota_operations[];
}  // namespace engine

using namespace engine;
using namespace engine::test;

namespace {

template <class T>
std::vector<T> filled(const Target& target, const char* type, std::int64_t count, AttributeMap attributes) {
  attributes.insert({{"type", type}, {"count", count}});
  std::vector<ByteVector> result = {ByteVector(static_cast<std::size_t>(count) * sizeof(T))};
  run_bytes(target, iota_operations, "iota", attributes, {}, result, sizeof(T));
  return values_of_bytes<T>(result[0]);
}

template <class T>
void integers(const Target& target, const char* type) {
  constexpr std::int64_t kMaximum = std::numeric_limits<T>::max();
  for (const std::int64_t count : {0, 1, 7, 33, 40000}) {
    const auto values = filled<T>(target, type, count, {{"start", kMaximum}, {"step", std::int64_t{3}}});
    for (std::int64_t i = 0; i < count; ++i) {
      const auto wanted = static_cast<std::uint64_t>(kMaximum) + 3 * static_cast<std::uint64_t>(i);
      if (!expect(values[static_cast<std::size_t>(i)] == static_cast<T>(wanted), "integers wrap")) return;
    }
  }
}

template <class T>
void reals(const Target& target, const char* type) {
  const auto values = filled<T>(target, type, 1001, {{"first", -2.5}, {"delta", 0.1}});
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!expect(values[i] == static_cast<T>(-2.5 + static_cast<double>(i) * 0.1), "rounded once")) return;
}

void all(const Target& target) {
  integers<std::int16_t>(target, "i16");
  integers<std::int32_t>(target, "i32");
  integers<std::int64_t>(target, "i64");
  reals<float>(target, "f32");
  reals<double>(target, "f64");
}

void refused(const Target& target) {
  const AttributeMap good = {{"type", "i32"}, {"count", 4}, {"start", 0}, {"step", 1}};
  AttributeMap many = good, other = good;
  many["count"] = std::int64_t{1} << 50;
  other["type"] = "u8";
  expect_refused(target, iota_operations, "iota", good, {}, {15}, "bytes");
  expect_refused(target, iota_operations, "iota", many, {}, {16}, "count");
  expect_refused(target, iota_operations, "iota", other, {}, {16}, "type");
}

}  // namespace

int main() {
  return run_cases({{"all", all}, {"refused", refused}});
}

// Table look-ups, for every byte and every length around a vector's.
#include "kernels_bytes_common.hpp"

using namespace engine;
using namespace engine::test;

namespace engine {
extern const OperationEntry byte_table_operations[];
}

namespace {

void lengths(const Target& target) {
  for (std::int64_t count = 0; count < 5000; count = count < 300 ? count + 1 : count * 2 + 7) {
    const ByteVector table = random_bytes(256, static_cast<std::uint32_t>(count + 1));
    ByteVector x = random_bytes(static_cast<std::size_t>(count), 5);
    for (std::int64_t i = 0; i < count && i < 256; ++i) x[static_cast<std::size_t>(i)] = static_cast<char>(i);
    std::vector<ByteVector> results{ByteVector(x.size(), 7)};
    run_bytes(target, byte_table_operations, "byte_table", {{"count", count}}, {x, table}, results);
    for (std::size_t i = 0; i < x.size(); ++i)
      if (!expect(results[0][i] == table[static_cast<unsigned char>(x[i])],
                  "element " + std::to_string(i) + " of " + std::to_string(count)))
        return;
  }
}

void refusals(const Target& target) {
  const AttributeMap three{{"count", std::int64_t{3}}};
  expect_refused(target, byte_table_operations, "byte_table", three, {3, 255}, {3}, "255");
  expect_refused(target, byte_table_operations, "byte_table", three, {2, 256}, {3}, "2 bytes");
  expect_refused(target, byte_table_operations, "byte_table", {{"count", std::int64_t{-1}}}, {0, 256}, {0}, "count");
}

}  // namespace

int main() {
  return run_cases({{"lengths", lengths}, {"refusals", refusals}}, {"byte_table"});
}

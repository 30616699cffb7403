// Copies between strided arrays, pads, fills and triangles against loops over single elements.
#include <algorithm>
#include <numeric>

#include "kernels/prepare/codes.hpp"
#include "kernels_bytes_common.hpp"

namespace engine {
extern const OperationEntry strided_copy_operations[];
extern const OperationEntry pad_operations[];
}  // namespace engine

using namespace engine;
using namespace engine::test;

namespace {

using Ints = std::vector<std::int64_t>;

std::int64_t product(const Ints& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

Ints row_major(const Ints& shape) {
  Ints strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

// Calls `call` with each index of an array.
template <class Call>
void for_each_index(const Ints& shape, Call call) {
  Ints at(shape.size(), 0);
  for (std::int64_t i = 0; i < product(shape); ++i) {
    std::int64_t rest = i;
    for (std::size_t d = shape.size(); d-- > 0; rest /= shape[d]) at[d] = rest % shape[d];
    call(at);
  }
}

struct Copy {
  Ints shape, source_strides, destination_strides;
  std::int64_t source_offset = 0, destination_offset = 0;
};

void reference_copy(const Copy& copy, std::int64_t element, const ByteVector& from, ByteVector& to) {
  for_each_index(copy.shape, [&](const Ints& at) {
    std::int64_t in = copy.source_offset, out = copy.destination_offset;
    for (std::size_t d = 0; d < at.size(); ++d) {
      in += at[d] * copy.source_strides[d];
      out += at[d] * copy.destination_strides[d];
    }
    std::memcpy(to.data() + out * element, from.data() + in * element, static_cast<std::size_t>(element));
  });
}

void check(const Target& target, const Copy& copy, std::int64_t element, std::int64_t in_size, std::int64_t out_size,
           const std::string& what) {
  const ByteVector from = random_bytes(static_cast<std::size_t>(in_size * element), 1);
  ByteVector expected = random_bytes(static_cast<std::size_t>(out_size * element), 2);
  std::vector<ByteVector> actual = {expected};
  reference_copy(copy, element, from, expected);
  run_bytes(target, strided_copy_operations, "strided_copy",
            {{"element_bytes", element},
             {"shape", copy.shape},
             {"source_strides", copy.source_strides},
             {"destination_strides", copy.destination_strides},
             {"operands", Ints{0, 0, copy.source_offset, copy.destination_offset}}},
            {from}, actual);
  expect(actual[0] == expected, what + ", " + std::to_string(element) + " bytes");
}

// All permutations of shapes with every kind of tail.
void transposes(const Target& target) {
  for (const Ints& shape : {Ints{2, 3, 5},
                            {1, 17, 33},
                            {7, 16, 16},
                            {3, 64, 12},
                            {2, 4, 31},
                            {35, 1, 2},
                            {0, 3, 4},
                            {5, 2, 40},
                            {9, 70, 130}}) {
    Ints order = {0, 1, 2};
    do {
      for (const std::int64_t element : {1, 2, 4, 8}) {
        const Ints strides = row_major(shape);
        Copy copy;
        for (const std::int64_t d : order) {
          copy.shape.push_back(shape[static_cast<std::size_t>(d)]);
          copy.source_strides.push_back(strides[static_cast<std::size_t>(d)]);
        }
        copy.destination_strides = row_major(copy.shape);
        check(target, copy, element, product(shape), product(shape),
              "transpose " + std::to_string(shape[1]) + "x" + std::to_string(shape[2]));
      }
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

// Every mode at every number of columns around a vector.
void columns(const Target& target) {
  for (std::int64_t n = 1; n <= 150; n += n < 35 ? 1 : 7) {
    for (const std::int64_t element : {1, 2, 4, 8}) {
      check(target, {{3, n}, {n, 1}, {n + 2, 1}, 0, 1}, element, 3 * n, 3 * (n + 2) + 1, "runs");
      check(target, {{3, n}, {1, 0}, {n, 1}}, element, 3, 3 * n, "fill");
      check(target, {{3, n}, {2 * n, 2}, {n, 1}, 1}, element, 6 * n + 1, 3 * n, "step 2");
      // The last element of each row is the last one that exists.
      for (const std::int64_t step : {3, 4, 5})
        check(target, {{3, n}, {step * (n - 1) + 1, step}, {n, 1}}, element, 3 * (step * (n - 1) + 1), 3 * n, "step");
      check(target, {{3, n}, {n, -1}, {n, 1}, n - 1}, element, 3 * n, 3 * n, "flip");
      check(target, {{3, n}, {n, 1}, {n, -1}, 0, n - 1}, element, 3 * n, 3 * n, "flipped destination");
      check(target, {{5, n}, {n, 1}, {1, 5}}, element, 5 * n, 5 * n, "spaced destination");
      for (const std::int64_t c : {2, 3, 4, 5}) {
        check(target, {{n, c}, {1, n}, {c, 1}}, element, c * n, c * n, "interleave");
        check(target, {{c, n}, {1, c}, {n, 1}}, element, c * n, c * n, "deinterleave");
      }
    }
  }
  check(target, {{}, {}, {}, 3, 2}, 4, 4, 3, "one element");
  check(target, {{100, 1000}, {1000, 1}, {1000, 1}}, 4, 100000, 100000, "all of an array");
  check(target, {{3, 3000}, {0, 1}, {3000, 1}}, 4, 3000, 9000, "repeated rows");
}

// Random strides, with up to six dimensions.
void arbitrary(const Target& target) {
  Dice dice(5);
  for (int round = 0; round < 300; ++round) {
    const std::size_t rank = static_cast<std::size_t>(1 + dice.roll(6));
    Copy copy;
    std::int64_t reach = 1, in_low = 0, in_high = 0, out_low = 0, out_high = 0;
    for (std::size_t d = 0; d < rank; ++d) {
      const std::int64_t size = 1 + dice.roll(round % 3 == 0 ? 20 : 5), sign = dice.roll(4) == 0 ? -1 : 1;
      const std::int64_t stride = reach + (dice.roll(3) == 0 ? dice.roll(4) : 0);
      copy.shape.push_back(size);
      copy.destination_strides.push_back(sign * stride);
      copy.source_strides.push_back(dice.roll(3) == 0 ? stride : dice.roll(9) - 4);
      reach = stride * size;
      (sign < 0 ? out_low : out_high) += sign * stride * (size - 1);
      (copy.source_strides.back() < 0 ? in_low : in_high) += copy.source_strides.back() * (size - 1);
    }
    for (std::size_t d = rank; d-- > 1;) {
      const std::size_t other = static_cast<std::size_t>(dice.roll(static_cast<std::int64_t>(d + 1)));
      std::swap(copy.shape[d], copy.shape[other]);
      std::swap(copy.source_strides[d], copy.source_strides[other]);
      std::swap(copy.destination_strides[d], copy.destination_strides[other]);
    }
    copy.source_offset = -in_low;
    copy.destination_offset = -out_low;
    check(target, copy, std::int64_t{1} << dice.roll(4), in_high - in_low + 1, out_high - out_low + 1,
          "round " + std::to_string(round));
  }
}

// A Concat of three inputs and a Split, each as one step.
void several(const Target& target) {
  const Ints widths = {5, 16, 3};
  std::vector<ByteVector> parts;
  Ints shape, source, destination, operands, back_operands;
  std::int64_t at = 0;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    parts.push_back(random_bytes(static_cast<std::size_t>(7 * widths[i] * 4), static_cast<std::uint32_t>(i)));
    for (const std::int64_t value : {std::int64_t{7}, widths[i]}) shape.push_back(value);
    for (const std::int64_t value : {widths[i], std::int64_t{1}}) source.push_back(value);
    for (const std::int64_t value : {24, 1}) destination.push_back(value);
    for (const std::int64_t value : {static_cast<std::int64_t>(i), std::int64_t{0}, std::int64_t{0}, at})
      operands.push_back(value);
    for (const std::int64_t value : {std::int64_t{0}, static_cast<std::int64_t>(i), at, std::int64_t{0}})
      back_operands.push_back(value);
    at += widths[i];
  }
  AttributeMap attributes = {{"element_bytes", 4},
                             {"shape", shape},
                             {"source_strides", source},
                             {"destination_strides", destination},
                             {"operands", operands}};
  std::vector<ByteVector> whole = {ByteVector(7 * 24 * 4)};
  run_bytes(target, strided_copy_operations, "strided_copy", attributes, parts, whole);
  bool is_equal = true;
  at = 0;
  for (std::size_t i = 0; i < widths.size(); at += widths[i++])
    for (std::int64_t row = 0; row < 7; ++row)
      is_equal = is_equal && std::memcmp(whole[0].data() + (row * 24 + at) * 4, parts[i].data() + row * widths[i] * 4,
                                         static_cast<std::size_t>(widths[i]) * 4) == 0;
  expect(is_equal, "concat");
  attributes["source_strides"] = destination;
  attributes["destination_strides"] = source;
  attributes["operands"] = back_operands;
  std::vector<ByteVector> split;
  for (const ByteVector& part : parts) split.emplace_back(part.size());
  run_bytes(target, strided_copy_operations, "strided_copy", attributes, whole, split);
  expect(split == parts, "split");
}

void refusals(const Target& target) {
  const auto refused = [&](const Copy& copy, const std::string& message) {
    expect_refused(target, strided_copy_operations, "strided_copy",
                   {{"element_bytes", 4},
                    {"shape", copy.shape},
                    {"source_strides", copy.source_strides},
                    {"destination_strides", copy.destination_strides},
                    {"operands", Ints{0, 0, copy.source_offset, copy.destination_offset}}},
                   {48}, {48}, message);
  };
  constexpr std::int64_t kHuge = std::int64_t{1} << 61;
  refused({{13}, {1}, {1}}, "of its source");
  refused({{12}, {1}, {1}, 1}, "of its source");
  refused({{12}, {-1}, {1}}, "of its source");
  refused({{12}, {0}, {1}, 0, 1}, "of its destination");
  refused({{3, 4}, {4, 1}, {3, 1}}, "overlap");
  refused({{2}, {1}, {0}}, "overlap");
  refused({{-1}, {1}, {1}}, "negative");
  refused({{kHuge, kHuge}, {1, 1}, {1, 1}}, "overflow");
  refused({{3}, {kHuge}, {1}}, "overflows");
  refused({{3}, {1, 1}, {1}}, "do not fit");
}

std::int64_t padded_index(PadMode mode, std::int64_t at, std::int64_t size) {
  while (at < 0 || at >= size) {
    if (mode == PadMode::kConstant) return -1;
    if (mode == PadMode::kEdge) at = at < 0 ? 0 : size - 1;
    if (mode == PadMode::kReflect) at = size == 1 ? 0 : at < 0 ? -at : 2 * (size - 1) - at;
    if (mode == PadMode::kWrap) at += at < 0 ? size : -size;
  }
  return at;
}

void check_pad(const Target& target, const Ints& shape, const Ints& pads, PadMode mode, std::int64_t element) {
  const std::int64_t value = 0x1122334455667788;
  const std::size_t rank = shape.size();
  Ints out = shape;
  for (std::size_t d = 0; d < rank; ++d) out[d] += pads[d] + pads[rank + d];
  const ByteVector from = random_bytes(static_cast<std::size_t>(product(shape) * element), 3);
  ByteVector expected;
  for_each_index(out, [&](const Ints& at) {
    std::int64_t in = 0;
    for (std::size_t d = 0; d < rank && in >= 0; ++d) {
      // Padding repeats the elements that negative pads leave.
      const std::int64_t first = mode == PadMode::kConstant ? 0 : std::max<std::int64_t>(0, -pads[d]);
      const std::int64_t end =
          mode == PadMode::kConstant ? shape[d] : shape[d] + std::min<std::int64_t>(0, pads[rank + d]);
      const std::int64_t i = padded_index(mode, at[d] - pads[d] - first, end - first);
      in = i < 0 ? -1 : in * shape[d] + first + i;
    }
    const char* element_at = in < 0 ? reinterpret_cast<const char*>(&value) : from.data() + in * element;
    expected.insert(expected.end(), element_at, element_at + element);
  });
  std::vector<ByteVector> actual = {ByteVector(expected.size())};
  run_bytes(target, pad_operations, "pad",
            {{"element_bytes", element}, {"shape", shape}, {"pads", pads}, {"mode", name_of(mode)}, {"value", value}},
            {from}, actual);
  expect(actual[0] == expected,
         std::string("pad of mode ") + name_of(mode) + ", " + std::to_string(element) + " bytes");
}

void pads(const Target& target) {
  Dice dice(7);
  for (int round = 0; round < 200; ++round) {
    const std::size_t rank = static_cast<std::size_t>(dice.roll(5));
    const auto mode = static_cast<PadMode>(dice.roll(4));
    Ints shape, pads(2 * rank, 0);
    for (std::size_t d = 0; d < rank; ++d) {
      shape.push_back(1 + dice.roll(6));
      if (dice.roll(2) == 0) continue;
      // Only a constant can pad a dimension without remaining elements.
      pads[d] = std::max<std::int64_t>(dice.roll(9) - 1, mode == PadMode::kConstant ? -1 : 1 - shape[d]);
      const std::int64_t least =
          mode == PadMode::kConstant ? -pads[d] - shape[d] : 1 - shape[d] - std::min<std::int64_t>(0, pads[d]);
      pads[rank + d] = std::max<std::int64_t>(dice.roll(9) - 2, least);
    }
    check_pad(target, shape, pads, mode, std::int64_t{1} << dice.roll(4));
  }
  check_pad(target, {0, 3}, {1, 0, 1, 0}, PadMode::kConstant, 4);
  check_pad(target, {3, 0}, {1, 0, 1, 0}, PadMode::kConstant, 4);
  expect_refused(target, pad_operations, "pad",
                 {{"element_bytes", 4}, {"shape", Ints{0}}, {"pads", Ints{1, 1}}, {"mode", "edge"}}, {0}, {8},
                 "only mode \"constant\" can pad it");
  expect_refused(target, pad_operations, "pad",
                 {{"element_bytes", 4}, {"shape", Ints{3}}, {"pads", Ints{-2, -2}}, {"mode", "constant"}}, {12}, {0},
                 "leave nothing");
}

void fills(const Target& target) {
  for (const std::int64_t element : {1, 2, 4, 8})
    for (const std::int64_t count : {0, 1, 2, 3, 7, 64, 1000}) {
      const std::int64_t value = 0x0102030405060708;
      std::vector<ByteVector> actual = {ByteVector(static_cast<std::size_t>(count * element))};
      ByteVector expected;
      for (std::int64_t i = 0; i < count; ++i)
        expected.insert(expected.end(), reinterpret_cast<const char*>(&value),
                        reinterpret_cast<const char*>(&value) + element);
      run_bytes(target, pad_operations, "fill", {{"element_bytes", element}, {"value", value}}, {}, actual);
      expect(actual[0] == expected, "fill of " + std::to_string(element) + " bytes");
    }
}

void triangles(const Target& target) {
  for (const std::int64_t element : {1, 4, 8})
    for (const std::int64_t columns : {1, 4, 9})
      for (const std::int64_t diagonal : {-20, -3, -1, 0, 1, 2, 20})
        for (const std::int64_t upper : {0, 1}) {
          const ByteVector from = random_bytes(static_cast<std::size_t>(2 * 5 * columns * element), 4);
          ByteVector expected = from;
          for_each_index({2, 5, columns}, [&](const Ints& at) {
            if (upper ? at[2] >= at[1] + diagonal : at[2] <= at[1] + diagonal) return;
            std::memset(expected.data() + ((at[0] * 5 + at[1]) * columns + at[2]) * element, 0,
                        static_cast<std::size_t>(element));
          });
          std::vector<ByteVector> actual = {ByteVector(from.size())};
          run_bytes(target, pad_operations, "trilu",
                    {{"element_bytes", element},
                     {"matrices", 2},
                     {"rows", 5},
                     {"columns", columns},
                     {"diagonal", diagonal},
                     {"upper", upper}},
                    {from}, actual);
          expect(actual[0] == expected, "trilu, diagonal " + std::to_string(diagonal));
        }
}

}  // namespace

int main() {
  return run_cases({{"transposes", transposes},
                    {"columns", columns},
                    {"arbitrary strides", arbitrary},
                    {"several copies", several},
                    {"refusals", refusals},
                    {"pads", pads},
                    {"fills", fills},
                    {"triangles", triangles}});
}

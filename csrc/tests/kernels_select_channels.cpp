// Selection of channels of blocked maps, against a loop over floats.
#include <limits>

#include "kernels_bytes_common.hpp"
#include "kernels_reference_common.hpp"

namespace engine {
extern const OperationEntry select_channels_operations[];
}  // namespace engine

using namespace engine;
using namespace engine::test;

namespace {

using Ints = std::vector<std::int64_t>;

void check(const Target& target, std::int64_t batch, std::int64_t pixels, const Ints& channels, const Ints& ranges,
           const std::string& what) {
  // Lanes without a channel hold a NaN, which must not reach the output.
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::vector<float>> plain;
  std::vector<ByteVector> sources;
  for (std::size_t i = 0; i < channels.size(); ++i) {
    plain.push_back(
        random_floats(static_cast<std::size_t>(batch * channels[i] * pixels), static_cast<std::uint32_t>(i)));
    sources.push_back(bytes_of_values(reference::to_blocked(plain[i], batch, channels[i], pixels, kNan)));
  }
  std::int64_t count = 0;
  for (std::size_t r = 3; r < ranges.size(); r += 4) count += ranges[r];
  std::vector<float> expected;
  for (std::int64_t n = 0; n < batch; ++n)
    for (std::size_t r = 0; r < ranges.size(); r += 4)
      for (std::int64_t k = 0; k < ranges[r + 3]; ++k) {
        const auto source = static_cast<std::size_t>(ranges[r]);
        const std::int64_t channel = ranges[r + 1] + k * ranges[r + 2];
        const float* from = plain[source].data() + (n * channels[source] + channel) * pixels;
        expected.insert(expected.end(), from, from + pixels);
      }
  std::vector<ByteVector> actual = {
      ByteVector(static_cast<std::size_t>(batch * ((count + 15) / 16 * 16) * pixels * 4))};
  run_bytes(target, select_channels_operations, "select_channels_f32",
            {{"batch", batch}, {"pixels", pixels}, {"channels", channels}, {"ranges", ranges}}, sources, actual,
            sizeof(float));
  const auto values = values_of_bytes<float>(actual[0]);
  expect_close(expected, reference::from_blocked(values, batch, count, pixels), 0, what);
}

void concats(const Target& target) {
  for (const std::int64_t pixels : {1, 3, 49, 130, 300}) {
    check(target, 2, pixels, {24, 48, 208, 5}, {0, 0, 1, 24, 1, 0, 1, 48, 2, 0, 1, 208, 3, 0, 1, 5}, "concat");
    check(target, 1, pixels, {32, 16}, {0, 0, 1, 32, 1, 0, 1, 16}, "aligned concat");
    check(target, 2, pixels, {7, 7, 7}, {0, 0, 1, 7, 1, 0, 1, 7, 2, 0, 1, 7}, "concat in one block");
  }
}

void slices(const Target& target) {
  for (const std::int64_t first : {0, 1, 8, 15, 16, 17, 31})
    for (const std::int64_t count : {1, 4, 15, 16, 17, 40}) {
      check(target, 2, 10, {80}, {0, first, 1, count}, "slice");
      check(target, 1, 10, {80}, {0, first + count - 1, -1, count}, "flip");
    }
  check(target, 1, 10, {80}, {0, 3, 2, 35}, "step");
  check(target, 1, 10, {80}, {0, 3, 0, 35}, "one channel, repeated");
}

void shuffles(const Target& target) {
  for (const std::int64_t groups : {2, 3, 4, 8})
    for (const std::int64_t each : {4, 17, 20, 34}) {
      Ints ranges;
      for (std::int64_t i = 0; i < each; ++i)
        for (const std::int64_t value : {std::int64_t{0}, i, each, groups}) ranges.push_back(value);
      check(target, 2, 50, {groups * each}, ranges, std::to_string(groups) + " groups");
    }
}

void nothing(const Target& target) {
  check(target, 0, 10, {8}, {0, 0, 1, 8}, "no image");
  check(target, 1, 0, {8}, {0, 0, 1, 8}, "no pixel");
  check(target, 1, 10, {8}, {}, "no channel");
  check(target, 1, 10, {8, 0}, {0, 0, 1, 8, 1, 0, 1, 0}, "an empty source");
}

void refusals(const Target& target) {
  for (const Ints& ranges :
       {Ints{0, 0, 1, 9}, {0, -1, 1, 2}, {1, 0, 1, 1}, {0, 7, 1, 2}, {0, 2, -1, 4}, {-1, 0, 1, 1}, {0, 0, 1, -1}})
    expect_refused(target, select_channels_operations, "select_channels_f32",
                   {{"batch", 1}, {"pixels", 1}, {"channels", Ints{8}}, {"ranges", ranges}}, {64}, {64},
                   "are not within");
}

}  // namespace

int main() {
  return run_cases(
      {{"concats", concats}, {"slices", slices}, {"shuffles", shuffles}, {"nothing", nothing}, {"refusals", refusals}});
}

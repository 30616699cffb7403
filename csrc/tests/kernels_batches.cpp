// Networks of steps that run slice by slice have the same bits as step by step: every operation that is divided.
#include <cstring>
#include <limits>

#include "executor/context.hpp"
#include "executor/plan.hpp"
#include "kernels_common.hpp"

using namespace engine;
using namespace engine::test;

namespace {

using Attributes = engine::Attributes;
using Integers = std::vector<std::int64_t>;

constexpr std::int64_t kSide = 33, kPixels = kSide * kSide;  // no multiple of a tile

// An image's maps and all weights fit the L2 cache, and the maps of two images no cache.
BatchMachine small_caches(int workers) {
  return {workers, 450 << 10, 450 << 10};
}
constexpr BatchMachine kLargeCaches{1, std::size_t{1} << 40, std::size_t{1} << 40};

// The steps of a network on maps of one size.
class Network {
 public:
  Network(const Target& target, std::int64_t batch, const BatchMachine& machine)
      : batch_(batch), isa_(parse_isa(target.isa)), builder_(isa_, KernelRegistry::built_in(), machine) {}

  BufferId input(std::int64_t channels) { return builder_.add_input(bytes(channels), 4); }
  BufferId output(std::int64_t channels) { return builder_.add_output(bytes(channels), 4); }
  BufferId buffer(std::int64_t channels) { return builder_.add_buffer(bytes(channels)); }
  // Of a map with more channels, from channel `first` on.
  BufferId part(BufferId whole, std::int64_t all, std::int64_t first, std::int64_t channels) {
    const std::size_t image = bytes(all) / static_cast<std::size_t>(batch_);
    return builder_.add_view(
        whole, static_cast<std::size_t>(first * kPixels * 4),
        image * static_cast<std::size_t>(batch_ - 1) + static_cast<std::size_t>(channels * kPixels * 4));
  }
  BufferId constant(std::vector<float> values) {
    const auto kept = std::make_shared<const std::vector<float>>(std::move(values));
    return builder_.add_constant(kept->data(), kept->size() * 4, kept);
  }
  void step(const std::string& operation, const std::vector<BufferId>& inputs, BufferId output,
            const Attributes& attributes) {
    builder_.add_step(operation, inputs, {output}, attributes);
  }

  // A convolution of stride 1 that keeps the size of the map.
  Attributes window(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t groups = 1) const {
    Attributes a;
    a.set("batch", batch_);
    a.set("groups", groups);
    a.set("in_channels", in);
    a.set("out_channels", out);
    for (const char* size : {"in", "out"}) a.set(size, Integers{kSide, kSide});
    a.set("kernel", Integers{kernel, kernel});
    a.set("pads", Integers(4, kernel / 2));
    return a;
  }
  // Its packed weights.
  BufferId weights(const std::string& operation, const Attributes& attributes, std::int64_t count,
                   std::int64_t packed) {
    PlanBuilder packing(isa_);
    const BufferId from = packing.add_input(static_cast<std::size_t>(count * 4), 4);
    const BufferId to = packing.add_output(static_cast<std::size_t>(packed * 4), 4);
    packing.add_step("pack_" + operation, {from}, {to}, attributes);
    const std::vector<float> values = random_floats(static_cast<std::size_t>(count), ++seed_);
    std::vector<float> made(static_cast<std::size_t>(packed), 0.0f);
    Context(packing.build()).run({{values.data(), values.size() * 4}}, {{made.data(), made.size() * 4}});
    return constant(std::move(made));
  }

  std::shared_ptr<const Plan> build() { return builder_.build(); }
  std::int64_t batch() const { return batch_; }

 private:
  std::size_t bytes(std::int64_t channels) const {
    return static_cast<std::size_t>(batch_ * ((channels + 15) / 16 * 16) * kPixels * 4);
  }

  std::int64_t batch_;
  Isa isa_;
  PlanBuilder builder_;
  std::uint32_t seed_ = 0;
};

constexpr std::int64_t kChannels = 32;

// conv_planar -> depthwise -> concat(conv 1x1, winograd) -> scale_shift -> channel_norm -> product by channel -> conv
// 1x1
// + depthwise's -> copy -> max_pool -> average_pool
void add_network(Network& n) {
  const std::int64_t batch = n.batch();
  const BufferId x = n.input(16), a = n.buffer(kChannels), b = n.buffer(kChannels), joined = n.buffer(2 * kChannels);
  const BufferId shifted = n.buffer(2 * kChannels), scaled = n.buffer(2 * kChannels), c = n.buffer(kChannels);
  const BufferId copied = n.buffer(kChannels), pooled = n.buffer(kChannels);
  const BufferId out = n.output(kChannels);
  const std::int64_t image = 2 * kChannels * kPixels;

  Attributes first = n.window(16, kChannels, 3);
  n.step("conv_planar_f32", {x, n.weights("conv_planar_f32", first, 9 * 16 * kChannels, 9 * 16 * 64)}, a, first);
  Attributes depthwise = n.window(kChannels, kChannels, 3, kChannels);
  n.step("depthwise_f32", {a, n.weights("depthwise_f32", depthwise, 9 * kChannels, 9 * kChannels)}, b, depthwise);
  Attributes left = n.window(kChannels, kChannels, 1);
  const BufferId left_weights = n.weights("conv_blocked_f32", left, kChannels * kChannels, kChannels * 64);
  left.set("y_batch", image);
  n.step("conv_blocked_f32", {b, left_weights}, n.part(joined, 2 * kChannels, 0, kChannels), left);
  Attributes right = n.window(kChannels, kChannels, 3);
  right.set("output_tile", std::int64_t{4});
  const std::int64_t packed = (36 + 9) * kChannels * 64 + 1;
  const BufferId right_weights = n.weights("winograd_f32", right, 9 * kChannels * kChannels, packed);
  right.set("y_batch", image);
  n.step("winograd_f32", {b, right_weights}, n.part(joined, 2 * kChannels, kChannels, kChannels), right);
  Attributes shift;
  for (const auto& [name, value] :
       {std::pair("batch", batch), {"channels", 2 * kChannels}, {"pixels", kPixels}, {"blocked", std::int64_t{1}}})
    shift.set(name, value);
  n.step("scale_shift_f32", {joined, n.constant(random_floats(64, 71)), n.constant(random_floats(64, 72))}, shifted,
         shift);
  shift.set("epsilon", 1e-3);
  n.step("channel_norm_f32", {shifted}, shifted, shift);
  Attributes product;
  product.set("dims", Integers{batch, 4, kPixels, 16});
  product.set("input_strides", Integers{image, kPixels * 16, 16, 1, 0, 16, 0, 1});
  product.set("input_types", Integers{0, 0});
  product.set("constants", Integers{});
  product.set("program", Integers{12, 0, 0, 1, -1});
  product.set("results", Integers{2});
  n.step("elementwise", {shifted, n.constant(random_floats(64, 73))}, scaled, product);
  Attributes last = n.window(2 * kChannels, kChannels, 1);
  const BufferId last_weights = n.weights("conv_blocked_f32", last, 2 * kChannels * kChannels, 2 * kChannels * 64);
  last.set("residual", std::int64_t{1});
  n.step("conv_blocked_f32", {scaled, last_weights, b}, c, last);
  Attributes copy;
  copy.set("element_bytes", std::int64_t{4});
  // The blocks of channels change places.
  const Integers strides = {image / 2, kPixels * 16, 16, 1};
  Integers source = strides, destination = strides;
  copy.set("shape", Integers{batch, 1, kPixels, 16, batch, 1, kPixels, 16});
  source.insert(source.end(), strides.begin(), strides.end());
  destination.insert(destination.end(), strides.begin(), strides.end());
  copy.set("source_strides", source);
  copy.set("destination_strides", destination);
  copy.set("operands", Integers{0, 0, 0, kPixels * 16, 0, 0, kPixels * 16, 0});
  n.step("strided_copy", {c}, copied, copy);
  n.step("max_pool_f32", {copied}, pooled, n.window(kChannels, kChannels, 3));
  n.step("average_pool_f32", {pooled}, out, n.window(kChannels, kChannels, 3));
}

std::vector<float> run(const std::shared_ptr<const Plan>& plan, const std::vector<float>& x, int threads) {
  Guarded input(x), output(plan->outputs[0].bytes / 4);
  RunOptions options;
  options.threads = threads;
  Context context(plan);
  context.run({{input.data(), x.size() * 4}}, {{output.data(), plan->outputs[0].bytes}}, options);
  expect(output.intact() && input.intact(), "only the output is written");
  return output.values();
}

bool has_slices(const Plan& plan) {
  for (const PhaseGroup& group : *plan.groups)
    if (group.slices > 0) return true;
  return false;
}

void slices_have_the_same_bits(const Target& target) {
  for (const std::int64_t batch : {4, 6, 16}) {
    Network whole(target, batch, kLargeCaches);
    add_network(whole);
    const auto together = whole.build();
    expect(!has_slices(*together), "large caches: step by step");
    const std::size_t floats = together->inputs[0].bytes / 4;
    std::vector<float> x = random_floats(floats, 5);
    for (const bool is_finite : {true, false}) {
      if (!is_finite) {
        x[floats / 2] = std::numeric_limits<float>::quiet_NaN();
        x[floats / 3] = std::numeric_limits<float>::infinity();
        x[floats / 5] = 1e-40f;
      }
      const std::vector<float> expected = run(together, x, 1);
      for (const int workers : {1, 2}) {
        Network parts(target, batch, small_caches(workers));
        add_network(parts);
        const auto divided = parts.build();
        expect(has_slices(*divided), "small caches: slice by slice");
        expect(divided->arena.total_bytes < together->arena.total_bytes, "the arena shrinks");
        const std::vector<float> actual = run(divided, x, workers);
        expect(std::memcmp(expected.data(), actual.data(), expected.size() * 4) == 0, "the same bits");
      }
    }
  }
}

}  // namespace

int main() {
  return run_cases({{"slices have the same bits", slices_have_the_same_bits}},
                   {"conv_blocked_f32", "winograd_fused_f32"});
}

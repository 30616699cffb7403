// Speed of the native kernels by themselves, in GFLOP/s and as a share of this machine's measured multiply-add peak.
//
//   native_kernels [isa ...] [threads=N] [only=text]
//
// Each figure is the best of many runs in 0.2 s, with the operands as warm as the layer's size allows; peaks are
// measured in the same process, before each instruction set. A convolution is counted as the direct one, so Winograd
// may exceed 100 %.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "kernels/conv.hpp"
#include "kernels/conv_planar.hpp"
#include "kernels/depthwise.hpp"
#include "kernels/gemm.hpp"
#include "kernels/winograd.hpp"
#include "kernels_common.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

using namespace engine;
using namespace engine::test;

namespace {

using Clock = std::chrono::steady_clock;
double seconds() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

// Workers that spin between steps, as the executor's do.
class Workers {
 public:
  explicit Workers(int count) : count_(count) {
    for (int i = 1; i < count; ++i) threads_.emplace_back([this, i] { serve(i); });
  }
  ~Workers() {
    quit_ = true;
    epoch_.fetch_add(1);
    for (std::thread& thread : threads_) thread.join();
  }
  int count() const { return count_; }
  template <class Work>
  void run(const Work& work) {
    work_ = [](const void* context, int worker) { (*static_cast<const Work*>(context))(worker); };
    context_ = &work;
    done_ = 0;
    epoch_.fetch_add(1);
    work(0);
    for (int spins = 0; done_.load(std::memory_order_acquire) != count_ - 1; ++spins) pause(spins);
  }
  // For use inside run.
  void barrier() {
    const int generation = generation_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == count_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      generation_.store(generation + 1, std::memory_order_release);
    } else {
      for (int spins = 0; generation_.load(std::memory_order_acquire) == generation; ++spins) pause(spins);
    }
  }

 private:
  // Gives the core away after a while: this machine may be shared.
  static void pause(int spins) {
    if (spins > 20000) std::this_thread::yield();
#if defined(__x86_64__)
    _mm_pause();
#endif
  }
  void serve(int worker) {
    for (int seen = 0;;) {
      for (int spins = 0; epoch_.load(std::memory_order_acquire) == seen; ++spins) pause(spins);
      ++seen;
      if (quit_) return;
      work_(context_, worker);
      done_.fetch_add(1, std::memory_order_release);
    }
  }
  int count_;
  std::vector<std::thread> threads_;
  alignas(64) std::atomic<int> epoch_{0};
  alignas(64) std::atomic<int> done_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> generation_{0};
  std::atomic<bool> quit_{false};
  void (*work_)(const void*, int) = nullptr;
  const void* context_ = nullptr;
};

// 64-byte aligned floats.
class Array {
 public:
  explicit Array(std::size_t count)
      : data_(static_cast<float*>(std::aligned_alloc(4096, (count * 4 + 8191) / 4096 * 4096))) {
    for (std::size_t i = 0; i < count; ++i) data_[i] = static_cast<float>(i % 7) * 0.1f - 0.3f;
  }
  Array(Array&& other) noexcept : data_(other.data_) { other.data_ = nullptr; }
  ~Array() { std::free(data_); }
  float* get() { return data_; }

 private:
  float* data_;
};

struct Step {
  const KernelEntry* kernel;
  std::vector<std::byte> args;
  std::vector<void*> buffers;
  std::size_t scratch;
};

template <class Args>
Step make_step(const KernelEntry& kernel, const Args& args, std::vector<void*> buffers, std::size_t scratch) {
  Step step{&kernel, std::vector<std::byte>(sizeof(Args)), std::move(buffers), scratch};
  std::memcpy(step.args.data(), &args, sizeof(Args));
  return step;
}

// Best seconds of one pass over the steps.
double time_steps(Workers& workers, const std::vector<Step>& steps, double budget = 0.2) {
  std::size_t scratch = 64;
  for (const Step& step : steps) scratch = std::max(scratch, step.scratch);
  std::vector<Array> memory;
  for (int i = 0; i < workers.count(); ++i) memory.emplace_back(scratch / 4 + 16);
  double best = 1e9;
  const double until = seconds() + budget;
  for (int i = 0; i < 3 || seconds() < until; ++i) {
    const double start = seconds();
    workers.run([&](int worker) {
      for (std::size_t s = 0; s < steps.size(); ++s) {
        if (s > 0) workers.barrier();
        const KernelContext context{worker, workers.count(), memory[worker].get()};
        steps[s].kernel->run(steps[s].args.data(), steps[s].buffers.data(), context);
      }
    });
    best = std::min(best, seconds() - start);
  }
  return best;
}

#if defined(__x86_64__)
#define ENGINE_PEAK(name, features, type, broadcast, fma, lanes, chains)         \
  __attribute__((target(features), noinline)) double name(long count) {          \
    type sums[chains];                                                           \
    for (int i = 0; i < chains; ++i) sums[i] = broadcast(static_cast<float>(i)); \
    type a = broadcast(1.0f), b = broadcast(1e-9f);                              \
    for (long k = 0; k < count; ++k) {                                           \
      _Pragma("GCC unroll 24") for (int i = 0; i < chains; ++i) sums[i] = fma;   \
      __asm__ volatile("" : "+x"(a), "+x"(b));                                   \
    }                                                                            \
    for (int i = 1; i < chains; ++i) sums[0] += sums[i];                         \
    volatile float keep = sums[0][0];                                            \
    (void)keep;                                                                  \
    return 2.0 * lanes * chains * count;                                         \
  }
ENGINE_PEAK(peak_avx512, "avx512f", __m512, _mm512_set1_ps, _mm512_fmadd_ps(sums[i], a, b), 16, 24)
ENGINE_PEAK(peak_avx2, "avx2,fma", __m256, _mm256_set1_ps, _mm256_fmadd_ps(sums[i], a, b), 8, 12)
ENGINE_PEAK(peak_v2, "sse4.2", __m128, _mm_set1_ps, sums[i] * a + b, 4, 12)
#else
double peak_v2(long count) {
  return 0.0 * count;
}
#endif

double measure_peak(Workers& workers, const std::string& isa) {
#if defined(__x86_64__)
  const auto peak = isa == "avx512" ? peak_avx512 : isa == "avx2" ? peak_avx2 : peak_v2;
#else
  const auto peak = peak_v2;
#endif
  constexpr long kCount = 100000;
  double best = 0;
  const double until = seconds() + 0.5;
  while (seconds() < until) {
    const double start = seconds();
    double operations = 0;
    workers.run([&](int worker) {
      const double mine = peak(kCount);
      if (worker == 0) operations = mine * workers.count();
    });
    best = std::max(best, operations / (seconds() - start));
  }
  return best;
}

struct Layer {
  const char* name;
  std::int64_t in_c, out_c, size, kernel, stride, groups;
};

ConvShape shape_of(const Layer& layer) {
  ConvShape s;
  s.in_channels = layer.in_c;
  s.out_channels = layer.out_c;
  s.groups = layer.groups;
  s.in_h = s.in_w = layer.size;
  s.kernel_h = s.kernel_w = layer.kernel;
  s.stride_h = s.stride_w = layer.stride;
  s.pad_top = s.pad_left = layer.kernel / 2;
  s.out_h = s.out_w = (layer.size + 2 * (layer.kernel / 2) - layer.kernel) / layer.stride + 1;
  return s;
}

double flops(const ConvShape& s) {
  return 2.0 * s.batch * s.out_channels * s.out_h * s.out_w * (s.in_channels / s.groups) * s.kernel_h * s.kernel_w;
}

struct Bench {
  const Target& target;
  Workers& workers;
  double peak;
  std::string only;

  bool wants(const std::string& name) const { return name.find(only) != std::string::npos; }
  void report(const std::string& name, double operations, double time, const std::string& choice) const {
    std::printf("%-7s %d  %-34s %8.1f us %7.1f GFLOP/s %5.1f %%  %s\n", target.isa.c_str(), workers.count(),
                name.c_str(), time * 1e6, operations / time / 1e9, 100 * operations / time / peak, choice.c_str());
    std::fflush(stdout);
  }
};

void bench_conv(const Bench& bench, const Layer& layer) {
  if (!bench.wants(layer.name)) return;
  const KernelEntry& kernel = bench.target.find("conv_blocked_f32");
  const TileTraits& traits = *static_cast<const TileTraits*>(kernel.traits);
  const ConvShape s = shape_of(layer);
  Array x(s.in_channels * s.in_h * s.in_w + 64), w(s.out_channels * s.in_channels * s.kernel_h * s.kernel_w + 4096);
  Array y((s.out_channels + 15) * s.out_h * s.out_w + 64), bias(s.out_channels + 64);
  const ConvOperands operands{true, false, false};
  const EpilogueArgs relu{Activation::kClip, 0.0f, __builtin_inff(), false};
  double best = 1e9, chosen = 0;
  std::string choice;
  const auto consider = [&](const ConvTiling& tiling, double budget) {
    const ConvArgs args = make_conv_args(s, operands, relu, tiling, traits);
    const Step step = make_step(kernel, args, {x.get(), w.get(), bias.get(), y.get()}, conv_scratch_bytes(args));
    const double time = time_steps(bench.workers, {step}, budget);
    if (tiling.vectors == 0) chosen = time;
    if (time < best) {
      best = time;
      const ConvTiling& t = args.tiling;
      choice = std::to_string(t.vectors) + "x" + std::to_string(t.pixels) + " block" + std::to_string(t.tile_block) +
               " split" + std::to_string(std::min(t.channel_split, bench.workers.count())) + (t.flat ? " flat" : "");
    }
  };
  consider({}, 0.2);
  for (int vectors = 1; vectors <= traits.max_vectors; ++vectors)
    for (const int block : {0, 1, 8})
      for (const int split : {1, 2})
        for (const bool flat : {false, true}) {
          if ((split > bench.workers.count()) || (vectors > 1 && vectors * traits.lanes > s.out_channels)) continue;
          consider({vectors, traits.max_pixels[vectors], block, split, flat}, 0.03);
        }
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, " (default %.1f us)", chosen * 1e6);
  bench.report(layer.name, flops(s), best, choice + buffer);
}

const Layer kConvLayers[] = {
    {"conv 3x3 64 56x56", 64, 64, 56, 3, 1, 1},        {"conv 3x3 128 28x28", 128, 128, 28, 3, 1, 1},
    {"conv 3x3 256 14x14", 256, 256, 14, 3, 1, 1},     {"conv 3x3 512 7x7", 512, 512, 7, 3, 1, 1},
    {"conv 3x3 s2 128 56x56", 128, 128, 56, 3, 2, 1},  {"conv 3x3 s2 512 14x14", 512, 512, 14, 3, 2, 1},
    {"conv 1x1 64>256 56x56", 64, 256, 56, 1, 1, 1},   {"conv 1x1 256>64 56x56", 256, 64, 56, 1, 1, 1},
    {"conv 1x1 512>128 28x28", 512, 128, 28, 1, 1, 1}, {"conv 1x1 256>1024 14x14", 256, 1024, 14, 1, 1, 1},
    {"conv 1x1 2048>512 7x7", 2048, 512, 7, 1, 1, 1},  {"conv 1x1 s2 256>512 56x56", 256, 512, 56, 1, 2, 1},
    {"conv 1x1 24>144 56x56", 24, 144, 56, 1, 1, 1},   {"conv 1x1 144>24 56x56", 144, 24, 56, 1, 1, 1},
};

void bench_winograd(const Bench& bench, const Layer& layer) {
  const std::string name = std::string("winograd") + (layer.name + 4);
  if (!bench.wants(name)) return;
  const Target& target = bench.target;
  const KernelEntry& fused = target.find("winograd_fused_f32");
  const TileTraits& traits = *static_cast<const TileTraits*>(fused.traits);
  const ConvShape s = shape_of(layer);
  const ConvOperands operands{true, false, false};
  const EpilogueArgs relu{Activation::kClip, 0.0f, __builtin_inff(), false};
  Array x(s.in_channels * s.in_h * s.in_w + 64), y((s.out_channels + 15) * s.out_h * s.out_w + 64);
  Array bias(s.out_channels + 64), u((s.out_channels + 64) * s.in_channels * 36);
  double best = 1e9;
  std::string choice;
  for (const int output_tile : {2, 4})
    for (int vectors = 1; vectors <= traits.max_vectors; ++vectors) {
      if (vectors > 1 && vectors * traits.lanes > s.out_channels) continue;
      for (const int parts : {0, 1, 2, 4}) {  // 0: in phases
        const WinogradArgs args =
            make_winograd_args(s, operands, relu, output_tile, vectors, parts * traits.max_pixels[vectors], traits);
        std::vector<Step> steps;
        Array v(winograd_input_floats(args)), m(winograd_product_floats(args));
        if (parts > 0) {
          steps.push_back(
              make_step(fused, args, {x.get(), u.get(), bias.get(), y.get()}, winograd_scratch_bytes(args)));
        } else {
          const std::vector<void*> buffers{x.get(), u.get(), bias.get(), y.get(), v.get(), m.get()};
          for (const char* phase : {"winograd_input_f32", "winograd_gemm_f32", "winograd_output_f32"})
            steps.push_back(make_step(target.find(phase), args, buffers, 0));
        }
        const double time = time_steps(bench.workers, steps, 0.05);
        if (time >= best) continue;
        best = time;
        choice = "F" + std::to_string(output_tile) + " " + std::to_string(vectors) + " vectors " +
                 (parts > 0 ? "block" + std::to_string(args.block_tiles) : "phases");
      }
    }
  bench.report(name, flops(s), best, choice);
}

void bench_planar(const Bench& bench, const Layer& layer) {
  if (!bench.wants(layer.name)) return;
  const KernelEntry& kernel = bench.target.find("conv_planar_f32");
  const TileTraits& traits = *static_cast<const TileTraits*>(kernel.traits);
  const ConvShape s = shape_of(layer);
  Array x(s.in_channels * s.in_h * s.in_w), w(s.out_channels * s.in_channels * 64 + 64), bias(s.out_channels + 64);
  Array y((s.out_channels + 15) * s.out_h * s.out_w);
  double best = 1e9;
  std::string choice;
  for (int vectors = 1; vectors <= traits.max_vectors; ++vectors) {
    const PlanarConvArgs args = make_planar_conv_args(s, {true, false, false}, {}, vectors, traits);
    const double time =
        time_steps(bench.workers,
                   {make_step(kernel, args, {x.get(), w.get(), bias.get(), y.get()}, planar_conv_scratch_bytes(args))});
    if (time < best) choice = std::to_string(vectors) + " vectors";
    best = std::min(best, time);
  }
  bench.report(layer.name, flops(s), best, choice);
}

void bench_depthwise(const Bench& bench, const Layer& layer) {
  if (!bench.wants(layer.name)) return;
  const ConvShape s = shape_of(layer);
  Array x(s.in_channels * s.in_h * s.in_w), w(s.in_channels * 49), bias(s.out_channels + 64);
  Array y(s.out_channels * s.out_h * s.out_w);
  const DepthwiseArgs args = make_depthwise_args(s, {true, false, false}, {Activation::kClip, 0.0f, 6.0f, false});
  const double time = time_steps(
      bench.workers, {make_step(bench.target.find("depthwise_f32"), args, {x.get(), w.get(), bias.get(), y.get()}, 0)});
  const double bytes = 4.0 * s.in_channels * (s.in_h * s.in_w + s.out_h * s.out_w);
  bench.report(layer.name, flops(s), time, std::to_string(static_cast<int>(bytes / time / 1e9)) + " GB/s");
}

void bench_gemm(const Bench& bench, std::int64_t m, std::int64_t n, std::int64_t k) {
  const std::string name = "gemm " + std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
  if (!bench.wants(name)) return;
  const KernelEntry& kernel = bench.target.find("gemm_f32");
  const TileTraits& traits = *static_cast<const TileTraits*>(kernel.traits);
  Array a(m * (k + 16)), b((n + 64) * k), c(m * (n + 64)), bias(n + 64);
  for (const MatrixLayout layout : {MatrixLayout::kRows, MatrixLayout::kBlocked}) {
    double best = 1e9, chosen = 0;
    std::string choice;
    const auto consider = [&](const GemmTiling& tiling, double budget) {
      const GemmArgs args = make_gemm_args({1, m, n, k}, {true, false, false}, {}, tiling, false, n, {layout, 0, 0}, {},
                                           {layout, 0, 0}, true, traits);
      const double time = time_steps(
          bench.workers, {make_step(kernel, args, {a.get(), b.get(), bias.get(), c.get()}, gemm_scratch_bytes(args))},
          budget);
      if (tiling.vectors == 0) chosen = time;
      if (time >= best) return;
      best = time;
      choice = std::to_string(args.tiling.vectors) + "x" + std::to_string(args.tiling.pixels) + " block" +
               std::to_string(args.tiling.tile_block) + " split" +
               std::to_string(std::min(args.tiling.channel_split, bench.workers.count()));
    };
    consider({}, 0.2);
    for (int vectors = 1; vectors <= traits.max_vectors; ++vectors)
      for (const int block : {0, 1, 4})
        for (int split = 1; split <= bench.workers.count(); ++split)
          consider({vectors, traits.max_pixels[vectors], block, split}, 0.03);
    char buffer[64];
    std::snprintf(buffer, sizeof buffer, " (default %.1f us)", chosen * 1e6);
    bench.report(name + (layout == MatrixLayout::kRows ? " rows" : " blocked"), 2.0 * m * n * k, best, choice + buffer);
  }
}

const Layer kPlanarLayers[] = {{"first 7x7 s2 3>64 224", 3, 64, 224, 7, 2, 1},
                               {"first 3x3 s2 3>32 224", 3, 32, 224, 3, 2, 1},
                               {"first 3x3 3>64 224", 3, 64, 224, 3, 1, 1}};

const Layer kDepthwiseLayers[] = {
    {"depthwise 3x3 32 112", 32, 32, 112, 3, 1, 32},   {"depthwise 3x3 s2 96 112", 96, 96, 112, 3, 2, 96},
    {"depthwise 3x3 144 56", 144, 144, 56, 3, 1, 144}, {"depthwise 3x3 192 28", 192, 192, 28, 3, 1, 192},
    {"depthwise 3x3 576 14", 576, 576, 14, 3, 1, 576}, {"depthwise 3x3 960 7", 960, 960, 7, 3, 1, 960},
    {"depthwise 5x5 240 28", 240, 240, 28, 5, 1, 240}, {"depthwise 7x7 96 56", 96, 96, 56, 7, 1, 96}};

void bench_all(const Bench& bench) {
  for (const Layer& layer : kConvLayers) bench_conv(bench, layer);
  for (int i = 0; i < 4; ++i) bench_winograd(bench, kConvLayers[i]);
  for (const Layer& layer : kPlanarLayers) bench_planar(bench, layer);
  for (const Layer& layer : kDepthwiseLayers) bench_depthwise(bench, layer);
  bench_gemm(bench, 128, 768, 768);
  bench_gemm(bench, 128, 3072, 768);
  bench_gemm(bench, 128, 768, 3072);
  bench_gemm(bench, 197, 768, 768);
  bench_gemm(bench, 1, 1000, 2048);
  bench_gemm(bench, 1, 768, 768);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> isas;
  std::string only;
  int most = 2;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.rfind("threads=", 0) == 0)
      most = std::stoi(word.substr(8));
    else if (word.rfind("only=", 0) == 0)
      only = word.substr(5);
    else
      isas.push_back(word);
  }
  for (const Target& target : targets()) {
    if (!isas.empty() && std::find(isas.begin(), isas.end(), target.isa) == isas.end()) continue;
    for (int threads = 1; threads <= most; ++threads) {
      Workers workers(threads);
      const double peak = measure_peak(workers, target.isa);
      std::printf("%s, %d threads: peak %.1f GFLOP/s\n", target.isa.c_str(), threads, peak / 1e9);
      bench_all({target, workers, peak, only});
    }
  }
  return 0;
}

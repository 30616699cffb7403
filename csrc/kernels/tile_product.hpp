// Products of matrices on the tiles of AMX (simd/tiles.hpp). Included by kernel files only.
//
// B is packed in groups of 32 columns (pack_amx.hpp). Two by two tiles of C stay in tiles through the whole reduction.
// A step of depth takes 72 cycles at best, if both operands are in L1, and loads 4 KiB. The other work is done
// meanwhile: vector instructions finish the rows of the previous block, and the weights of the next group are
// prefetched, evenly spread.
#pragma once

#include "kernels/kernel.hpp"
#include "kernels/tile_writer.hpp"
#include "simd/bf16.hpp"
#include "simd/tiles.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

constexpr int kGroupColumns = 32;
constexpr int kStepBytes = 2 * tiles::kTileBytes;  // of a group's weights

struct Bf16Tiles {
  using Value = Bf16;
  using Sum = float;
  template <int kC, int kA, int kB>
  static ENGINE_ALWAYS_INLINE void multiply() {
    tiles::multiply_bf16<kC, kA, kB>();
  }
};
struct Int8Tiles {
  using Value = std::uint8_t;
  using Sum = std::int32_t;
  template <int kC, int kA, int kB>
  static ENGINE_ALWAYS_INLINE void multiply() {
    tiles::multiply_u8s8<kC, kA, kB>();
  }
};

// A row of A is 64 bytes at each step: at `a + row * a_row`, plus the offset of the step.
struct TileProduct {
  const char* a;
  std::int64_t a_row;
  const char* b;
  std::int64_t rows;     // A is readable up to a multiple of 16
  std::int64_t groups;   // of columns
  std::int64_t steps;    // of depth
  std::int64_t a_bytes;  // of A, each counted once
  std::int64_t block;    // pairs of tiles of A that stay in cache while the groups pass; 0: all
};

// Offsets of steps.
struct EvenSteps {
  std::int64_t step;
  ENGINE_ALWAYS_INLINE std::int64_t operator()(std::int64_t k) const { return k * step; }
};
struct ListedSteps {
  const std::int64_t* offsets;
  ENGINE_ALWAYS_INLINE std::int64_t operator()(std::int64_t k) const { return offsets[k]; }
};

// Weights to prefetch: `step` bytes at each step, 0 for none.
struct Ahead {
  const char* at;
  std::int64_t step;
  ENGINE_ALWAYS_INLINE void ask(std::int64_t k) const {
    for (std::int64_t i = 0; i < step; i += 64) __builtin_prefetch(at + k * step + i, 0, 2);
  }
};

// The part of tile block `pass` of `passes` in prefetching `bytes` at `next`.
ENGINE_INLINE Ahead ahead_of(const char* next, std::int64_t bytes, std::int64_t steps, std::int64_t pass,
                             std::int64_t passes) {
  const std::int64_t step = (bytes / passes + steps * 64 - 1) / (steps * 64) * 64;
  const std::int64_t first = pass * step * steps;
  return {next + first, first < bytes ? step : 0};
}

// Finishes some rows of the previous block, in step `k` of `steps`: few, since only the products of about one step are
// under way meanwhile; and in the last steps, since the sums are in the cache by then. (A load that waits for their
// stores would hold up the products after it.)
template <class Writer>
ENGINE_ALWAYS_INLINE void finish_rows(const Writer& writer, const typename Writer::Block& pending, std::int64_t k,
                                      std::int64_t steps) {
  const std::int64_t rows_of_step = steps >= 16 ? 4 : steps >= 8 ? 8 : kBlockRows;
  const std::int64_t first = (k - steps) * rows_of_step + kBlockRows;
  if (first < 0 || first >= pending.rows) return;
  const std::int64_t left = pending.rows - first;
  writer.finish(pending, first, left < rows_of_step ? left : rows_of_step);
}

// The values with which the sums of a group of columns start.
struct Starts {
  alignas(64) std::int32_t values[kGroupColumns];  // of f32, or integers

  Starts(const BlockWriter& writer, std::int64_t column) {
    const std::int64_t count = (writer.columns + 15) / 16 * 16 - column;
    const std::int64_t present = !writer.starts ? 0 : count < kGroupColumns ? count : kGroupColumns;
    std::memset(values, 0, sizeof values);
    if (present > 0)
      std::memcpy(values, static_cast<const char*>(writer.starts) + column * 4, static_cast<std::size_t>(present * 4));
  }
};

// All rows of two adjacent tiles of C.
template <int kFirst, int kSecond>
ENGINE_ALWAYS_INLINE void load_starts(const Starts& starts) {
  tiles::load<kFirst>(starts.values, 0);
  tiles::load<kSecond>(starts.values + 16, 0);
}

// Tiles: 0 to 3 are C, 4 and 5 A, 6 and 7 B. kIsStreamed: A is not kept in L1, where no other step needs it.
template <class Type, bool kIsStreamed, bool kHasSecond, class Steps, class Writer>
ENGINE_INLINE void multiply_block(const TileProduct& p, const Steps& steps, const char* a, const char* b,
                                  const Starts& starts, const Ahead& ahead, const Writer& writer,
                                  const typename Writer::Block& pending) {
  using namespace tiles;
  load_starts<0, 1>(starts);
  if constexpr (kHasSecond) load_starts<2, 3>(starts);
  const std::int64_t second = kRows * p.a_row;
  for (std::int64_t k = 0; k < p.steps; ++k, b += kStepBytes) {
    const char* at = a + steps(k);
    load_streamed<6>(b, kRowBytes);
    if constexpr (kIsStreamed)
      load_streamed<4>(at, p.a_row);
    else
      load<4>(at, p.a_row);
    load_streamed<7>(b + kTileBytes, kRowBytes);
    Type::template multiply<0, 4, 6>();
    Type::template multiply<1, 4, 7>();
    if constexpr (kHasSecond) {
      if constexpr (kIsStreamed)
        load_streamed<5>(at + second, p.a_row);
      else
        load<5>(at + second, p.a_row);
    }
    ahead.ask(k);
    if constexpr (kHasSecond) {
      Type::template multiply<2, 5, 6>();
      Type::template multiply<3, 5, 7>();
    }
    finish_rows(writer, pending, k, p.steps);
  }
}

template <bool kHasSecond, class Sum>
ENGINE_INLINE void store_block(Sum* to) {
  constexpr std::int64_t kRow = kGroupColumns * sizeof(Sum);
  tiles::store<0>(to, kRow);
  tiles::store<1>(to + 16, kRow);
  if constexpr (kHasSecond) {
    tiles::store<2>(to + 16 * kGroupColumns, kRow);
    tiles::store<3>(to + 16 * kGroupColumns + 16, kRow);
  }
}

// Some pairs of tiles of A, times some groups. Tiles must be configured.
template <class Type, bool kIsStreamed, class Steps, class Writer>
void multiply_pairs(const TileProduct& p, const Steps& steps, const Writer& writer, const WorkRange& pairs,
                    const WorkRange& groups) {
  using Sum = typename Type::Sum;
  alignas(64) Sum sums[2][kBlockRows * kGroupColumns];
  int flip = 0;
  typename Writer::Block pending = {};
  const std::int64_t group_bytes = p.steps * kStepBytes;
  const std::int64_t block = p.block > 0 ? p.block : pairs.end - pairs.begin;
  for (std::int64_t first = pairs.begin; first < pairs.end; first += block) {
    const std::int64_t end = first + block < pairs.end ? first + block : pairs.end;
    for (std::int64_t g = groups.begin; g < groups.end; ++g) {
      // The first blocks prefetch the weights, which stay in cache for the others, or are not needed again.
      const char* b = p.b + g * group_bytes;
      const Starts starts(writer, g * kGroupColumns);
      for (std::int64_t pair = first; pair < end; ++pair) {
        const std::int64_t row = pair * kBlockRows, rest = p.rows - row;
        const char* a = p.a + row * p.a_row;
        const Ahead ahead = ahead_of(b + group_bytes, first == pairs.begin && g + 1 < groups.end ? group_bytes : 0,
                                     p.steps, pair - first, end - first);
        Sum* to = sums[flip];
        if (rest > tiles::kRows) {
          multiply_block<Type, kIsStreamed, true>(p, steps, a, b, starts, ahead, writer, pending);
          store_block<true>(to);
        } else {
          multiply_block<Type, kIsStreamed, false>(p, steps, a, b, starts, ahead, writer, pending);
          store_block<false>(to);
        }
        pending = writer.begin(to, row, g * kGroupColumns, rest < kBlockRows ? rest : kBlockRows);
        flip ^= 1;
      }
    }
  }
  if (pending.rows > 0) writer.finish(pending, 0, pending.rows);
}

// One tile of A, for up to 16 rows: two groups at once, so that four products are under way. All weights are read once,
// in order, which the CPU prefetches by itself; asking for the next groups would evict them again before they are used.
template <class Type, class Steps, class Writer>
void multiply_row(const TileProduct& p, const Steps& steps, const Writer& writer, const WorkRange& groups) {
  using namespace tiles;
  using Sum = typename Type::Sum;
  alignas(64) Sum sums[2][kRows * kGroupColumns];
  const std::int64_t group_bytes = p.steps * kStepBytes;
  for (std::int64_t g = groups.begin; g < groups.end; g += 2) {
    const char* b = p.b + g * group_bytes;
    const std::int64_t left = groups.end - g;
    const Starts starts(writer, g * kGroupColumns);
    if (left == 1) {
      multiply_block<Type, true, false>(p, steps, p.a, b, starts, {nullptr, 0}, writer, typename Writer::Block{});
      store_block<false>(sums[0]);
    } else {
      load_starts<0, 1>(starts);
      load_starts<2, 3>(Starts(writer, (g + 1) * kGroupColumns));
      const char* second = b + group_bytes;
      for (std::int64_t k = 0; k < p.steps; ++k, b += kStepBytes, second += kStepBytes) {
        load<4>(p.a + steps(k), p.a_row);
        load_streamed<5>(b, kRowBytes);
        load_streamed<6>(b + kTileBytes, kRowBytes);
        Type::template multiply<0, 4, 5>();
        load_streamed<7>(second, kRowBytes);
        Type::template multiply<1, 4, 6>();
        load_streamed<5>(second + kTileBytes, kRowBytes);
        Type::template multiply<2, 4, 7>();
        Type::template multiply<3, 4, 5>();
      }
      constexpr std::int64_t kRow = kGroupColumns * sizeof(Sum);
      store<0>(sums[0], kRow);
      store<1>(sums[0] + 16, kRow);
      store<2>(sums[1], kRow);
      store<3>(sums[1] + 16, kRow);
    }
    for (int i = 0; i < (left > 1 ? 2 : 1); ++i)
      writer.finish(writer.begin(static_cast<const Sum*>(sums[i]), 0, (g + i) * kGroupColumns, p.rows), 0, p.rows);
  }
}

// A worker's part of a product.
struct TileShare {
  WorkRange pairs;   // of tiles of A
  WorkRange groups;  // of columns
};

// Workers share the rows, so that each reads all weights, or the groups, so that each reads all of A: whichever takes
// less time, by an estimate of products and of bytes that come from further away than the L2 cache.
ENGINE_INLINE TileShare share_of(const TileProduct& p, const KernelContext& context) {
  constexpr std::int64_t kPairCycles = 72, kBytesPerCycle = 8;
  const std::int64_t pairs = (p.rows + kBlockRows - 1) / kBlockRows, workers = context.workers;
  const std::int64_t weights = p.groups * p.steps * kStepBytes;
  const std::int64_t row_share = (pairs + workers - 1) / workers, group_share = (p.groups + workers - 1) / workers;
  const std::int64_t by_rows =
      row_share * p.groups * p.steps * kPairCycles + (weights + p.a_bytes * row_share / pairs) / kBytesPerCycle;
  const std::int64_t by_groups =
      group_share * pairs * p.steps * kPairCycles + (weights * group_share / p.groups + p.a_bytes) / kBytesPerCycle;
  if (p.rows > tiles::kRows && by_rows < by_groups)
    return {split_work(pairs, context.worker, context.workers), {0, p.groups}};
  return {{0, pairs}, split_work(p.groups, context.worker, context.workers)};
}

// The weights that a worker multiplies with first, which it prefetches while it prepares A.
struct FirstWeights {
  const char* at;
  std::int64_t bytes;

  FirstWeights(const TileProduct& p, const KernelContext& context) : at(nullptr), bytes(0) {
    constexpr std::int64_t kMaxBytes = 256 * 1024;
    if (p.rows <= 0 || p.groups == 0) return;
    const WorkRange groups = share_of(p, context).groups;
    const std::int64_t group_bytes = p.steps * kStepBytes, own = (groups.end - groups.begin) * group_bytes;
    at = p.b + groups.begin * group_bytes;
    bytes = own < kMaxBytes ? own : kMaxBytes;
  }
  // Part `part` of `parts`.
  void ask(std::int64_t part, std::int64_t parts) const {
    const std::int64_t first = bytes / 64 * part / parts, last = bytes / 64 * (part + 1) / parts;
    for (std::int64_t line = first; line < last; ++line) __builtin_prefetch(at + line * 64, 0, 2);
  }
};

// One worker's share of a product.
template <class Type, bool kIsStreamed, class Steps, class Writer>
void multiply_tiles(const TileProduct& p, const Steps& steps, const Writer& writer, const KernelContext& context) {
  const TileShare share = share_of(p, context);
  if (share.pairs.begin == share.pairs.end || share.groups.begin == share.groups.end) return;
  tiles::configure();
  if (p.rows <= tiles::kRows)
    multiply_row<Type>(p, steps, writer, share.groups);
  else
    multiply_pairs<Type, kIsStreamed>(p, steps, writer, share.pairs, share.groups);
  tiles::release();
}

}  // namespace
}  // namespace engine::ENGINE_ISA_NS

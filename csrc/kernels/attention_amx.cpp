// attention_amx_bf16, and the phase before it, attention_pack_amx_bf16: see attention_amx.hpp. Y must not overlap the
// other operands. Up to 31 of the keys that a bound excludes are read, beside the keys that it allows.
//
// As in attention_f32, the queries of a block are in the lanes of vectors: both products have 32 queries as columns, so
// that scores, [key][32 queries], are what softmax reads, and probabilities become a packed operand by joining rows in
// pairs.
#include "kernels/attention_amx.hpp"

#include "kernels/attention_rows.hpp"
#include "simd/tiles.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

constexpr std::int64_t kTile = kAttentionTile;
constexpr int kVectors = kTile / kLanes;
constexpr std::int64_t kPanelRow = 64;        // bytes
constexpr std::int64_t kStepBytes = 2048;     // of a packed operand with 32 columns
constexpr std::int64_t kSumsRow = kTile * 4;  // bytes

// kLanes floats; only the first `valid` exist, and the others are zero.
ENGINE_INLINE Vec load_valid(const float* from, std::int64_t valid) {
  if (valid >= kLanes) return load(from);
  float lanes[kLanes] = {};
  for (std::int64_t i = 0; i < valid; ++i) lanes[i] = from[i];
  return load(lanes);
}

// 32 values times a factor; only the first `valid` exist.
ENGINE_INLINE void convert_row(const float* from, std::int64_t valid, Vec factor, Bf16* to) {
  for (int i = 0; i < kTile; i += kLanes) store(to + i, factor * load_valid(from + i, valid - i));
}

// Keys `first` to `first` + 31 of V, transposed.
void transpose_values(const AttentionAmxArgs& args, const float* v, std::int64_t first, Bf16* to) {
  const AttentionArgs& a = args.attention;
  for (std::int64_t d = 0; d < args.value_size; d += kLanes)
    for (std::int64_t key = 0; key < kTile; key += kLanes) {
      Vec rows[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const std::int64_t at = first + key + i;
        rows[i] = at < a.keys ? load_valid(v + at * a.v.row + d, a.value_size - d) : zero();
      }
      transpose_square(rows);
      for (int i = 0; i < kLanes; ++i) store(to + (d + i) * kTile + key, rows[i]);
    }
}

// Split over blocks of 32 keys.
void attention_pack_amx_bf16(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const AttentionAmxArgs& args = *static_cast<const AttentionAmxArgs*>(raw_args);
  const AttentionArgs& a = args.attention;
  const std::int64_t blocks = args.keys / kTile;
  const WorkRange range = split_work(a.batch * a.kv_heads * blocks, context.worker, context.workers);
  for (std::int64_t at = range.begin; at < range.end; ++at) {
    const std::int64_t index = at / blocks, first = at % blocks * kTile;
    const std::int64_t batch = index / a.kv_heads, head = index % a.kv_heads;
    const float* k = static_cast<const float*>(buffers[a.k_at]) + batch * a.k.batch + head * a.k.head;
    const float* v = static_cast<const float*>(buffers[a.v_at]) + batch * a.v.batch + head * a.v.head;
    char* k_panel = static_cast<char*>(buffers[args.k_panel]) + index * attention_k_bytes(args);
    for (std::int64_t step = 0; step < args.steps; ++step)
      for (std::int64_t key = first; key < first + kTile; ++key) {
        const std::int64_t valid = key < a.keys ? a.size - step * kTile : 0;
        convert_row(valid > 0 ? k + key * a.k.row + step * kTile : k, valid, broadcast(1.0f),
                    reinterpret_cast<Bf16*>(k_panel + (step * args.keys + key) * kPanelRow));
      }
    char* v_panel = static_cast<char*>(buffers[args.v_panel]) + index * attention_v_bytes(args);
    transpose_values(args, v, first, reinterpret_cast<Bf16*>(v_panel + first / kTile * args.value_size * kPanelRow));
  }
}

// The memory that a block of queries reads and writes, beside its task.
struct TileTask {
  const AttentionAmxArgs* args;
  Task task;
  const char *k, *v;    // panels of its head
  char* queries;        // [steps][2][16 pairs][16 queries]
  char* probabilities;  // [key_block / 32][2][16 pairs][16 queries]
};

void pack_tile_queries(const TileTask& tile) {
  const AttentionArgs& args = tile.task.args[0];
  const Task& task = tile.task;
  for (std::int64_t step = 0; step < tile.args->steps; ++step)
    for (int half = 0; half < 2; ++half) {
      alignas(64) Bf16 values[16][kTile];
      for (int i = 0; i < 16; ++i) {
        const std::int64_t query = half * 16 + i;
        const std::int64_t valid = query < task.count ? args.size - step * kTile : 0;
        convert_row(valid > 0 ? task.q + (task.first + query) * args.q.row + step * kTile : task.q, valid,
                    broadcast(args.scale), values[i]);
      }
      // Pairs of depths are elements of 32 bits.
      float* to = reinterpret_cast<float*>(tile.queries + step * kStepBytes + half * tiles::kTileBytes);
      for (int pair = 0; pair < 16; pair += kLanes)
        for (int query = 0; query < 16; query += kLanes) {
          Vec rows[kLanes];
          for (int i = 0; i < kLanes; ++i) rows[i] = load(reinterpret_cast<const float*>(values[query + i]) + pair);
          transpose_square(rows);
          for (int i = 0; i < kLanes; ++i) store(to + (pair + i) * 16 + query, rows[i]);
        }
    }
}

// The bits of values rounded to bf16, in the upper halves of the lanes.
ENGINE_INLINE VecBits round_to_upper(Vec value) {
  const VecBits bits = (VecBits)value, rounded = bits + 0x7fff + ((bits >> 16) & 1);
  return value != value ? bits | 0x400000 : rounded;
}

// The numerators of `count` keys as pairs of keys; further ones are zero.
void pack_probabilities(const TileTask& tile, std::int64_t count) {
  const float* scores = tile.task.scores;
  for (std::int64_t pair = 0; pair < (count + kTile - 1) / kTile * 16; ++pair) {
    const float *first = scores + 2 * pair * kTile, *second = first + kTile;
    char* to = tile.probabilities + pair / 16 * kStepBytes + pair % 16 * kPanelRow;
    for (int i = 0; i < kTile; i += kLanes) {
      const VecBits even = 2 * pair < count ? round_to_upper(load(first + i)) : VecBits{};
      const VecBits odd = 2 * pair + 1 < count ? round_to_upper(load(second + i)) : VecBits{};
      store(reinterpret_cast<float*>(to + i / 16 * tiles::kTileBytes) + i % 16,
            (Vec)((even >> 16) | (odd & 0xffff0000u)));
    }
  }
}

// Multiplies 32 rows of A, which are 64 bytes for each step, with a packed operand, and adds the sums in tiles 0 to 3.
ENGINE_INLINE void multiply_tiles(const char* a, std::int64_t a_step, const char* b, std::int64_t steps) {
  using namespace tiles;
  for (std::int64_t step = 0; step < steps; ++step, a += a_step, b += kStepBytes) {
    tiles::load<6>(b, kRowBytes);
    tiles::load<4>(a, kRowBytes);
    tiles::load<7>(b + kTileBytes, kRowBytes);
    multiply_bf16<0, 4, 6>();
    multiply_bf16<1, 4, 7>();
    tiles::load<5>(a + kTileBytes, kRowBytes);
    multiply_bf16<2, 5, 6>();
    multiply_bf16<3, 5, 7>();
  }
}
ENGINE_INLINE void clear_sums() {
  tiles::clear<0>();
  tiles::clear<1>();
  tiles::clear<2>();
  tiles::clear<3>();
}
ENGINE_INLINE void load_sums(const float* from) {
  tiles::load<0>(from, kSumsRow);
  tiles::load<1>(from + 16, kSumsRow);
  tiles::load<2>(from + 16 * kTile, kSumsRow);
  tiles::load<3>(from + 16 * kTile + 16, kSumsRow);
}
ENGINE_INLINE void store_sums(float* to) {
  tiles::store<0>(to, kSumsRow);
  tiles::store<1>(to + 16, kSumsRow);
  tiles::store<2>(to + 16 * kTile, kSumsRow);
  tiles::store<3>(to + 16 * kTile + 16, kSumsRow);
}

void attend_tile(const TileTask& tile) {
  const AttentionAmxArgs& args = *tile.args;
  const Task& task = tile.task;
  pack_tile_queries(tile);
  Progress<kVectors> progress;
  const AttentionArgs& a = args.attention;
  const bool may_be_blind = task.mask || a.before >= 0 || a.after >= 0 || task.keys == 0;
  for (int v = 0; v < kVectors; ++v) {
    progress.maximum[v] = broadcast(-kInf);
    progress.sum[v] = zero();
    progress.seen[v] = VecInt{} - (may_be_blind ? 0 : 1);
  }
  for (std::int64_t i = 0; i < args.value_size * kTile; i += kLanes) store(task.result + i, zero());
  for (std::int64_t key = task.key_begin; key < task.key_end; key += a.key_block) {
    const std::int64_t count = min64(a.key_block, task.key_end - key);
    for (std::int64_t at = 0; at < count; at += kTile) {
      clear_sums();
      multiply_tiles(tile.k + (key + at) * kPanelRow, args.keys * kPanelRow, tile.queries, args.steps);
      store_sums(task.scores + at * kTile);
    }
    restrain<kVectors>(task, key, count, progress);
    Vec correction[kVectors];
    const bool has_risen = exponentiate<kVectors>(task, count, progress, correction);
    if (has_risen && key != task.key_begin)
      for (std::int64_t d = 0; d < a.value_size; ++d)
        for (int v = 0; v < kVectors; ++v) {
          float* result = task.result + d * kTile + v * kLanes;
          store(result, load(result) * correction[v]);
        }
    pack_probabilities(tile, count);
    for (std::int64_t d = 0; d < args.value_size; d += kTile) {
      load_sums(task.result + d * kTile);
      multiply_tiles(tile.v + (key / kTile * args.value_size + d) * kPanelRow, args.value_size * kPanelRow,
                     tile.probabilities, (count + kTile - 1) / kTile);
      store_sums(task.result + d * kTile);
    }
  }
  write_rows<kVectors>(task, progress);
}

void attention_amx_bf16(const void* raw_args, void* const* buffers, const KernelContext& context) {
  const AttentionAmxArgs& args = *static_cast<const AttentionAmxArgs*>(raw_args);
  const AttentionArgs& a = args.attention;
  const std::int64_t all = a.batch * a.heads;
  if (all * a.queries * a.value_size == 0) return;
  const std::int64_t blocks = (a.queries + kTile - 1) / kTile;
  const WorkRange range = split_work(all * blocks, context.worker, context.workers);
  if (range.begin == range.end) return;
  tiles::configure();
  for (std::int64_t at = range.begin; at < range.end; ++at) {
    const std::int64_t index = at / blocks, batch = index / a.heads, head = index % a.heads;
    const std::int64_t kv_head = batch * a.kv_heads + head / (a.heads / a.kv_heads);
    TileTask tile = {};
    tile.args = &args;
    tile.task = head_task(a, buffers, index);
    Task& task = tile.task;
    // Alternates between both ends: in causal attention, later blocks have more keys.
    const std::int64_t turn = at % blocks, block = turn % 2 == 0 ? turn / 2 : blocks - 1 - turn / 2;
    set_queries(task, block * kTile, min64(kTile, a.queries - block * kTile));
    task.key_begin = task.key_begin / kTile * kTile;
    tile.k = static_cast<const char*>(buffers[args.k_panel]) + kv_head * attention_k_bytes(args);
    tile.v = static_cast<const char*>(buffers[args.v_panel]) + kv_head * attention_v_bytes(args);
    tile.queries = static_cast<char*>(context.scratch);
    tile.probabilities = tile.queries + args.steps * kStepBytes;
    task.scores = reinterpret_cast<float*>(tile.probabilities + a.key_block / kTile * kStepBytes);
    task.result = task.scores + a.key_block * kTile;
    task.bias = task.result + args.value_size * kTile;
    attend_tile(tile);
  }
  tiles::release();
}

}  // namespace

extern const KernelEntry attention_amx_kernels[] = {{"attention_amx_bf16", attention_amx_bf16, nullptr},
                                                    {"attention_pack_amx_bf16", attention_pack_amx_bf16, nullptr},
                                                    {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

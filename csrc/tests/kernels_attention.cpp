// Attention against a scalar reference: every tail, layout, mask and bound, on every instruction set.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/attention.hpp"
#include "kernels/prepare/codes.hpp"
#include "kernels_operation_common.hpp"
#include "simd/half.hpp"

namespace engine {
extern const OperationEntry attention_operations[];
}

using namespace engine;
using namespace engine::test;

namespace {

using Ints = std::vector<std::int64_t>;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

bool is_in_bf16 = false;  // whether the cases run attention_bf16

enum class Order { kHeadsFirst, kRowsFirst };  // [B, H, S, D] and [B, S, H * D]

struct Mask {
  AttentionMask kind = AttentionMask::kNone;
  bool batch = true, head = true, query = true;                  // false: broadcast
  std::int64_t missing = 0;                                      // keys that the mask does not cover
  std::vector<std::pair<std::int64_t, std::int64_t>> seen = {};  // ranges of keys outside of which all are excluded
  float excluded = -kInf;
};

struct Problem {
  std::int64_t batch = 1, heads = 1, kv_heads = 1, queries = 1, keys = 1, size = 1, value_size = 1;
  Order order = Order::kHeadsFirst;
  Mask mask = {};
  std::int64_t before = -1, after = -1, offset = 0;
  float scale = 0.3f, softcap = 0.0f;
  AttentionRows rows = AttentionRows::kAttention;
  std::int64_t key_block = 0;
  std::int64_t query_blocks = 0;
  int row_wise = -1;
  std::int64_t shared_heads = 0, parts = 0;
  std::vector<std::int64_t> lengths = {};  // of each batch
  CacheFormat k_format = CacheFormat::kF32, v_format = CacheFormat::kF32;
};

struct Tensor {
  std::vector<float> values;
  Ints strides;  // batch, head, row
};

Tensor make(const Problem& c, std::int64_t heads, std::int64_t rows, std::int64_t size, std::uint32_t seed) {
  Tensor tensor{random_floats(c.batch * heads * rows * size, seed), {heads * rows * size, rows * size, size}};
  if (c.order == Order::kRowsFirst) tensor.strides = {rows * heads * size, size, heads * size};
  return tensor;
}

float element(const Tensor& t, std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t i) {
  return t.values[batch * t.strides[0] + head * t.strides[1] + row * t.strides[2] + i];
}

// Rows of K or V in a format, with gaps between them, and the values that they stand for, in the order of heads.
struct Kept {
  Guarded buffer;
  Ints strides;
  Tensor values;
};

Kept keep(const Problem& c, const Tensor& t, std::int64_t size, CacheFormat format) {
  if (format == CacheFormat::kF32) return {Guarded(t.values), t.strides, t};
  const std::int64_t row = cache_row_bytes(format, size) / cache_element_bytes(format), step = row + 4;
  Kept kept{Guarded(0), {c.kv_heads * c.keys * step, c.keys * step, step}, {}};
  kept.values.strides = {c.kv_heads * c.keys * size, c.keys * size, size};
  std::vector<char> bytes;
  for (std::int64_t at = 0; at < c.batch * c.kv_heads * c.keys; ++at) {
    const std::int64_t head = at / c.keys % c.kv_heads;
    std::vector<float> values;
    for (std::int64_t d = 0; d < size; ++d)
      values.push_back(element(t, at / c.keys / c.kv_heads, head, at % c.keys, d));
    const float scale = 0.01f * static_cast<float>(1 + at % 3);
    std::vector<char> codes(step * cache_element_bytes(format));
    for (std::int64_t d = 0; d < size; ++d) {
      if (format == CacheFormat::kBf16) {
        const Bf16 code = to_bf16(values[d]);
        std::memcpy(&codes[d * 2], &code, 2);
        values[d] = to_f32(code);
      } else if (format == CacheFormat::kF16) {
        const F16 code = round_to_f16(values[d]);
        std::memcpy(&codes[d * 2], &code, 2);
        values[d] = to_f32(code);
      } else {
        codes[d] = static_cast<char>(std::lround(values[d] * 100));
        values[d] = static_cast<float>(static_cast<std::int8_t>(codes[d])) * scale;
      }
    }
    if (format == CacheFormat::kInt8) std::memcpy(&codes[size], &scale, 4);
    bytes.insert(bytes.end(), codes.begin(), codes.end());
    kept.values.values.insert(kept.values.values.end(), values.begin(), values.end());
  }
  std::vector<float> words((bytes.size() + 3) / 4);
  if (!bytes.empty()) std::memcpy(words.data(), bytes.data(), bytes.size());
  kept.buffer = Guarded(words);
  return kept;
}

struct Masked {
  std::vector<float> values;  // as biases
  std::vector<unsigned char> flags;
  Ints strides = {0, 0, 0, 1};
  std::int64_t keys = 0;
};

Masked make_mask(const Problem& c) {
  Masked mask;
  mask.keys = c.keys - c.mask.missing;
  std::int64_t stride = mask.keys;
  if (c.mask.query) mask.strides[2] = stride, stride *= c.queries;
  if (c.mask.head) mask.strides[1] = stride, stride *= c.heads;
  if (c.mask.batch) mask.strides[0] = stride, stride *= c.batch;
  const auto values = random_floats(stride, 77);
  for (const float value : values) {
    const bool is_bool = c.mask.kind == AttentionMask::kBool;
    const std::int64_t key = static_cast<std::int64_t>(mask.values.size()) % std::max<std::int64_t>(mask.keys, 1);
    bool is_seen = c.mask.seen.empty();
    for (const auto& [first, last] : c.mask.seen) is_seen = is_seen || (first <= key && key <= last);
    if (!is_seen) {
      mask.values.push_back(is_bool ? -kInf : c.mask.excluded);
      mask.flags.push_back(0);
      continue;
    }
    mask.values.push_back(is_bool ? (value > -0.5f ? 0.0f : -kInf) : value > 0.8f ? -kInf : 3 * value);
    mask.flags.push_back(value > -0.5f ? 3 : 0);
  }
  return mask;
}

// The definition, in doubles.
std::vector<float> attend(const Problem& c, const Tensor& q, const Tensor& k, const Tensor& v, const Masked& mask,
                          const Ints& y) {
  std::vector<float> result(c.batch * c.heads * c.queries * c.value_size);
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t h = 0; h < c.heads; ++h)
      for (std::int64_t i = 0; i < c.queries; ++i) {
        const std::int64_t kv = h / (c.heads / c.kv_heads);
        const std::int64_t length = c.lengths.empty() ? c.keys : c.lengths[b];
        const std::int64_t place = i + (c.lengths.empty() ? c.offset : length - c.queries);
        std::vector<double> p(c.keys);
        double largest = -kInf, sum = 0;
        bool is_seen = false;
        for (std::int64_t j = 0; j < c.keys; ++j) {
          for (std::int64_t d = 0; d < c.size; ++d) p[j] += double{element(q, b, h, i, d)} * element(k, b, kv, j, d);
          p[j] *= c.scale;
          if (c.softcap > 0) p[j] = c.softcap * std::tanh(p[j] / c.softcap);
          double bias = 0;
          if (j >= length || (c.before >= 0 && j < place - c.before) || (c.after >= 0 && j > place + c.after)) {
            p[j] = bias = -kInf;
          } else if (c.mask.kind != AttentionMask::kNone) {
            bias = j >= mask.keys ? -kInf
                                  : mask.values[b * mask.strides[0] + h * mask.strides[1] + i * mask.strides[2] + j];
            p[j] += bias;
          }
          is_seen = is_seen || bias != -kInf;
          largest = p[j] > largest || std::isnan(p[j]) ? p[j] : largest;
        }
        for (double& value : p) sum += value = std::exp(value - largest);
        const bool is_zero = c.rows == AttentionRows::kAttention ? !is_seen
                             : c.rows == AttentionRows::kGuarded ? std::isnan(sum)
                                                                 : false;
        for (std::int64_t d = 0; d < c.value_size; ++d) {
          double value = 0;
          for (std::int64_t j = 0; j < c.keys; ++j) value += (is_zero ? 0 : p[j] / sum) * element(v, b, kv, j, d);
          result[b * y[0] + h * y[1] + i * y[2] + d] = static_cast<float>(value);
        }
      }
  return result;
}

std::string describe(const Problem& c) {
  return "b" + std::to_string(c.batch) + " h" + std::to_string(c.heads) + "/" + std::to_string(c.kv_heads) + " q" +
         std::to_string(c.queries) + " k" + std::to_string(c.keys) + " d" + std::to_string(c.size) + "/" +
         std::to_string(c.value_size) + " mask" + std::to_string(static_cast<int>(c.mask.kind)) + " bounds" +
         std::to_string(c.before) + "," + std::to_string(c.after) + "+" + std::to_string(c.offset) + " block" +
         std::to_string(c.key_block) + " query blocks " + std::to_string(c.query_blocks) + " rows" +
         std::to_string(c.row_wise);
}

AttributeMap attributes_of(const Problem& c, const Tensor& q, const Tensor& k, const Tensor& v, const Masked& mask,
                           const Ints& y) {
  AttributeMap map{{"batch", c.batch},
                   {"heads", c.heads},
                   {"kv_heads", c.kv_heads},
                   {"queries", c.queries},
                   {"keys", c.keys},
                   {"size", c.size},
                   {"value_size", c.value_size},
                   {"q", q.strides},
                   {"k", k.strides},
                   {"v", v.strides},
                   {"y", y},
                   {"before", c.before},
                   {"after", c.after},
                   {"offset", c.offset},
                   {"scale", double{c.scale}},
                   {"softcap", double{c.softcap}},
                   {"rows", name_of(c.rows)},
                   {"k_format", name_of(c.k_format)},
                   {"v_format", name_of(c.v_format)},
                   {"mask", name_of(c.mask.kind)}};
  if (c.mask.kind != AttentionMask::kNone) {
    map["mask_strides"] = mask.strides;
    map["mask_keys"] = mask.keys;
  }
  if (c.key_block > 0) map["key_block"] = c.key_block;
  if (c.query_blocks > 0 && !is_in_bf16) map["query_blocks"] = c.query_blocks;
  if (c.row_wise >= 0) map["row_wise"] = std::int64_t{c.row_wise};
  if (c.shared_heads > 0) map["shared_heads"] = c.shared_heads;
  if (c.parts > 0) map["parts"] = c.parts;
  if (!c.lengths.empty()) map["lengths"] = std::int64_t{1};
  return map;
}

struct Inputs {
  Tensor q, k, v;
};

Inputs inputs_of(const Problem& c) {
  return {make(c, c.heads, c.queries, c.size, 1), make(c, c.kv_heads, c.keys, c.size, 2),
          make(c, c.kv_heads, c.keys, c.value_size, 3)};
}

void check(const Target& target, const Problem& c, const Inputs& given, int workers = 3) {
  const Tensor& q = given.q;
  Kept k_kept = keep(c, given.k, c.size, c.k_format), v_kept = keep(c, given.v, c.value_size, c.v_format);
  const Tensor &k = k_kept.values, &v = v_kept.values;
  const Masked mask = c.mask.kind == AttentionMask::kNone ? Masked{} : make_mask(c);
  const Ints y = make(c, c.heads, c.queries, c.value_size, 4).strides;
  Guarded q_buffer(q.values);
  Guarded output(c.batch * c.heads * c.queries * c.value_size, kNan);
  std::vector<Guarded*> inputs{&q_buffer, &k_kept.buffer, &v_kept.buffer};
  Guarded floats(mask.values), flags((mask.flags.size() + 3) / 4);
  if (!mask.flags.empty()) std::memcpy(flags.data(), mask.flags.data(), mask.flags.size());
  if (c.mask.kind == AttentionMask::kFloat) inputs.push_back(&floats);
  if (c.mask.kind == AttentionMask::kBool) inputs.push_back(&flags);
  Guarded lengths(2 * c.lengths.size());
  if (!c.lengths.empty()) {
    std::memcpy(lengths.data(), c.lengths.data(), 8 * c.lengths.size());
    inputs.push_back(&lengths);
  }
  run_operation(target, attention_operations, is_in_bf16 ? "attention_bf16" : "attention_f32",
                attributes_of(c, q, {{}, k_kept.strides}, {{}, v_kept.strides}, mask, y), inputs, {&output}, workers);
  expect(output.intact(), describe(c) + ": overrun");
  // A score has the error of a sum of `size` products, which becomes a relative error of the probability. In bf16, both
  // operands of each product are rounded to 8 bits.
  const double tolerance = is_in_bf16 ? std::ldexp(3 + 0.6 * std::sqrt(static_cast<double>(c.size)), -8)
                                      : 3 * sum_tolerance(c.size) + sum_tolerance(c.keys);
  expect_close(attend(c, q, k, v, mask, y), output.values(), tolerance, describe(c));
}

void check(const Target& target, const Problem& c, int workers = 3) {
  check(target, c, inputs_of(c), workers);
}

void tails(const Target& target) {
  for (const std::int64_t queries : {1, 2, 4, 5, 15, 16, 17, 33, 49, 70})
    for (const std::int64_t keys : {1, 2, 13, 16, 29, 40})
      for (const std::int64_t size : {1, 15, 16, 36, 64})
        for (const std::int64_t value_size : {1, 16, 21, 70}) check(target, {1, 2, 2, queries, keys, size, value_size});
}

// Blocks of queries that share copies of the keys: groups of each size, with a rest, with and without bounds.
void copies(const Target& target) {
  for (const std::int64_t queries : {40, 97, 310})
    for (const std::int64_t query_blocks : {1, 2, 3, 8})
      for (const std::int64_t key_block : {16, 21, 0})
        for (const std::int64_t before : {-1, 30})
          for (const std::int64_t after : {-1, 0}) {
            Problem c{1, 4, 2, queries, queries, 20, 36, Order::kRowsFirst};
            c.query_blocks = query_blocks;
            c.key_block = key_block;
            c.before = before;
            c.after = after;
            c.row_wise = 0;
            check(target, c);
          }
}

void layouts(const Target& target) {
  for (const Order order : {Order::kHeadsFirst, Order::kRowsFirst})
    for (const std::int64_t kv_heads : {1, 2, 6})
      for (const std::int64_t queries : {1, 3, 20})
        for (const int row_wise : {0, 1}) {
          Problem c{2, 6, kv_heads, queries, 19, 24, 20, order};
          c.row_wise = row_wise;
          check(target, c);
        }
}

void masks(const Target& target) {
  for (const AttentionMask kind : {AttentionMask::kFloat, AttentionMask::kBool})
    for (int bits = 0; bits < 8; ++bits)
      for (const std::int64_t missing : {0, 5})
        for (const std::int64_t queries : {2, 21, 50})
          for (const int row_wise : {0, 1}) {
            Problem c{2, 3, 3, queries, 37, 18, 16};
            c.mask = {kind, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, missing};
            c.row_wise = row_wise;
            c.key_block = bits % 2 ? 20 : 0;
            check(target, c);
          }
}

// Keys in several blocks: a later block may have the largest score, or a query may attend to no key of a block.
void bounds(const Target& target) {
  for (const std::int64_t before : {-1, 0, 7})
    for (const std::int64_t after : {-1, 0, 3})
      for (const std::int64_t offset : {-5, 0, 6})
        for (const std::int64_t block : {1, 8, 100})
          for (const int row_wise : {0, 1})
            for (const bool is_masked : {false, true}) {
              Problem c{1, 2, 1, 40, 46, 16, 32};
              c.before = before;
              c.after = after;
              c.offset = offset;
              c.key_block = block;
              c.query_blocks = block == 8 ? 2 : 0;
              c.row_wise = row_wise;
              if (is_masked) c.mask.kind = AttentionMask::kFloat;
              check(target, c);
            }
}

// More keys than have their scores in scratch at a time.
void long_rows(const Target& target) {
  for (const std::int64_t keys : {256, 257, 600})
    for (const std::int64_t before : {-1, 300}) {
      Problem c{1, 2, 2, 40, keys, 64, 64};
      c.before = before;
      c.offset = keys - 40;
      check(target, c);
    }
}

void large_scores(const Target& target) {
  for (const float scale : {0.0f, 5.0f, 60.0f})
    for (const float softcap : {0.0f, 2.0f})
      for (const int row_wise : {0, 1})
        for (const std::int64_t block : {4, 100}) {
          Problem c{1, 1, 1, 30, 30, 8, 8};
          c.scale = scale;
          c.softcap = softcap;
          c.row_wise = row_wise;
          c.key_block = block;
          // Integers: even large scores are exact, so that only the softmax is tested.
          Inputs inputs = inputs_of(c);
          for (Tensor* tensor : {&inputs.q, &inputs.k})
            for (float& value : tensor->values) value = std::round(2 * value);
          check(target, c, inputs);
        }
}

// Sums of small probabilities times small values may be zero below the normal range; arithmetic after it must not.
void denormals(const Target& target) {
  for (const int row_wise : {0, 1}) {
    Problem c{1, 1, 1, 20, 30, 8, 8};
    c.row_wise = row_wise;
    Inputs inputs = inputs_of(c);
    for (float& value : inputs.v.values) value *= 1e-38f;
    check(target, c, inputs);
    volatile float tiny = 1e-39f;
    const float half = tiny * 0.5f;
    expect(half > 0, "denormals are zero after a step");
  }
}

// Rows without an allowed key, and NaN, under each rule for such rows.
void not_finite(const Target& target) {
  for (const AttentionRows rows : {AttentionRows::kAttention, AttentionRows::kSoftmax, AttentionRows::kGuarded})
    for (const float wrong : {kNan, kInf, -kInf, 0.0f})
      for (const int row_wise : {0, 1})
        for (const std::int64_t block : {5, 100})
          for (const bool is_bool : {false, true})
            for (const bool in_values : {false, true}) {
              Problem c{1, 1, 1, 20, 12, 16, 18};
              c.rows = rows;
              c.row_wise = row_wise;
              c.key_block = block;
              c.offset = -3;  // queries 0 to 2 attend to no key
              c.after = 0;
              c.mask.kind = is_bool ? AttentionMask::kBool : AttentionMask::kNone;
              Inputs inputs = inputs_of(c);
              // A value in the first key, to which every query with any key attends.
              if (in_values && wrong != 0)
                inputs.v.values[3] = wrong;
              else if (wrong != 0)
                inputs.q.values[8 * c.size + 1] = wrong;
              if (is_bool && wrong != 0) continue;
              check(target, c, inputs);
            }
}

void workers(const Target& target) {
  for (int count = 1; count <= 6; ++count)
    for (const std::int64_t after : {-1, 0}) {
      Problem c{2, 3, 3, 100, 100, 32, 32};
      c.after = after;
      check(target, c, count);
      c.row_wise = 1;
      check(target, c, count);
    }
}

// Heads that read K and V together, with masks and windows, and rows that see no key.
void shared_heads(const Target& target) {
  for (const std::int64_t shared : {1, 2, 4, 8})
    for (const std::int64_t keys : {1, 15, 16, 33, 70})
      for (const std::int64_t size : {3, 16, 64, 80})
        for (const Order order : {Order::kHeadsFirst, Order::kRowsFirst}) {
          Problem c{2, 16, 2, 2, keys, size, size + 1};
          c.order = order;
          c.row_wise = 1;
          c.shared_heads = shared;
          check(target, c, 3);
          c.before = 4;
          c.after = 0;
          c.offset = keys / 2;
          c.softcap = 5.0f;
          check(target, c, 3);
          c.offset = keys + 10;
          c.rows = AttentionRows::kSoftmax;
          check(target, c, 1);
        }
  Problem c{1, 8, 2, 1, 40, 16, 16};
  c.mask.kind = AttentionMask::kBool;
  c.row_wise = 1;
  c.shared_heads = 4;
  check(target, c, 2);
}

// Keys that are divided into parts; some parts see no key, or have no finite score.
void parts(const Target& target) {
  for (const std::int64_t count : {1, 2, 3, 7})
    for (const std::int64_t keys : {0, 1, 20, 64, 130, 300})
      for (const AttentionMask kind : {AttentionMask::kNone, AttentionMask::kBool, AttentionMask::kFloat})
        for (const AttentionRows rows : {AttentionRows::kAttention, AttentionRows::kSoftmax, AttentionRows::kGuarded}) {
          Problem c{2, 8, 2, 2, keys, 20, 18};
          c.row_wise = 1;
          c.parts = count;
          c.mask.kind = kind;
          c.mask.missing = keys / 2;
          c.rows = rows;
          check(target, c, 5);
          c.before = 5;
          c.after = 3;
          c.offset = keys / 3;
          check(target, c, 3);
        }
  // By default, long rows have several, with scores and values that are not finite in one of them.
  Problem c{1, 4, 2, 1, 1000, 16, 16};
  check(target, c, 4);
  Inputs given = inputs_of(c);
  given.k.values[700 * 16] = kInf;
  check(target, c, given, 4);
  given = inputs_of(c);
  given.v.values[300 * 16 + 3] = kNan;
  check(target, c, given, 4);
}

// Masks that exclude most keys, which are not read: windows, first tokens and a window, and none at all.
void sparse_masks(const Target& target) {
  using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;
  for (const AttentionMask kind : {AttentionMask::kBool, AttentionMask::kFloat})
    for (const float excluded : {-kInf, -std::numeric_limits<float>::max()})
      for (const Ranges& seen : {Ranges{{250, 299}}, Ranges{{0, 3}, {200, 270}}, Ranges{{77, 77}}, Ranges{{-1, -1}}})
        for (const std::int64_t count : {1, 4, 7})
          for (const std::int64_t size : {16, 18})
            for (const bool has_heads : {false, true})
              for (const AttentionRows rows :
                   {AttentionRows::kAttention, AttentionRows::kSoftmax, AttentionRows::kGuarded}) {
                Problem c{2, 4, 2, 2, 300, size, size};
                c.row_wise = 1;
                c.parts = count;
                c.mask = {kind, true, has_heads, true, 0, seen, excluded};
                c.rows = rows;
                check(target, c, 3);
              }
}

// Each batch has its own number of keys: none, more than exist, and fewer than queries.
void lengths(const Target& target) {
  for (const std::int64_t queries : {1, 3, 40})
    for (const std::int64_t after : {-1, 0})
      for (const AttentionMask kind : {AttentionMask::kNone, AttentionMask::kFloat})
        for (const AttentionRows rows : {AttentionRows::kAttention, AttentionRows::kSoftmax}) {
          Problem c{5, 4, 2, queries, 300, 24, 20};
          c.lengths = {0, 1, 150, 299, 400};
          c.after = after;
          c.mask.kind = kind;
          c.rows = rows;
          check(target, c, 3);
          c.before = after == 0 ? 7 : -1;
          check(target, c, 2);
        }
}

// K and V in formats of fewer bits: the results are the same as for the values that the codes stand for.
void formats(const Target& target) {
  const CacheFormat all[] = {CacheFormat::kF32, CacheFormat::kBf16, CacheFormat::kF16, CacheFormat::kInt8};
  for (const CacheFormat k_format : all)
    for (const CacheFormat v_format : all)
      for (const std::int64_t queries : {1, 3, 20})
        for (const std::int64_t keys : {1, 17, 33, 130})
          for (const std::int64_t size : {3, 16, 40}) {
            Problem c{2, 4, 2, queries, keys, size, size + 2};
            c.k_format = k_format;
            c.v_format = v_format;
            check(target, c, 3);
            c.mask.kind = AttentionMask::kBool;
            c.rows = AttentionRows::kGuarded;
            check(target, c, 2);
            c.before = 4;
            c.after = 0;
            c.offset = keys - queries;
            check(target, c, 3);
          }
}

void empty(const Target& target) {
  for (const int row_wise : {0, 1})
    for (Problem c : {Problem{0, 2, 2, 3, 4, 5, 6}, Problem{2, 2, 2, 0, 4, 5, 6}, Problem{2, 2, 2, 3, 4, 0, 6},
                      Problem{2, 2, 2, 3, 4, 5, 0}, Problem{2, 2, 2, 3, 0, 5, 6}}) {
      c.row_wise = row_wise;
      check(target, c);
    }
}

void refused(const Target& target) {
  const Problem c{1, 2, 2, 3, 4, 5, 6};
  const auto [q, k, v] = inputs_of(c);
  const AttributeMap good = attributes_of(c, q, k, v, {}, make(c, 2, 3, 6, 4).strides);
  const std::vector<std::size_t> inputs{2 * 3 * 5 * 4, 2 * 4 * 5 * 4, 2 * 4 * 6 * 4}, outputs{2 * 3 * 6 * 4};
  const auto refuse = [&](const std::string& name, const Attributes::Value& value, const std::string& message) {
    AttributeMap changed = good;
    changed[name] = value;
    expect_refused(target, attention_operations, "attention_f32", changed, inputs, outputs, message);
  };
  prepare(target, attention_operations, "attention_f32", good, inputs, outputs);
  refuse("batch", std::int64_t{-1}, "\"batch\" is -1");
  refuse("batch", std::int64_t{2}, "bytes");
  refuse("heads", std::int64_t{0}, "\"heads\" is 0");
  refuse("heads", std::int64_t{3}, "do not divide");
  refuse("keys", std::int64_t{5}, "input 1");
  refuse("keys", std::int64_t{1} << 40, "\"keys\"");
  refuse("size", std::int64_t{1} << 30, "bytes");
  refuse("q", Ints{1, 2}, "2 values; expected 3");
  refuse("q", Ints{0, 0, -1}, "value -1");
  refuse("y", Ints{36, 0, 6}, "overlap");
  refuse("y", Ints{36, 18, 5}, "overlap");
  refuse("scale", double{kInf}, "finite");
  refuse("softcap", -1.0, "softcap");
  refuse("mask", "f32", "mask_strides");
  refuse("mask", "i8", "\"mask\" is \"i8\"; expected one of none, f32, bool");
  refuse("rows", std::int64_t{1}, "\"rows\" is not a name");
  refuse("key_block", std::int64_t{0}, "key_block");
  refuse("k_format", "f64", "expected one of f32, bf16, f16, i8");
  refuse("misspelt", std::int64_t{0}, "misspelt");
  // Rows of no elements have their scale.
  AttributeMap scales = {{"batch", 1}, {"heads", 1},      {"queries", 1}, {"keys", 4},
                         {"size", 0},  {"value_size", 1}, {"scale", 1.0}, {"k_format", "i8"}};
  expect_refused(target, attention_operations, "attention_f32", scales, {0, 15, 16}, {4}, "input 1");
  prepare(target, attention_operations, "attention_f32", scales, {0, 16, 16}, {4});
}

}  // namespace

int main() {
  std::vector<Case> cases = {{"tails", tails},
                             {"copies", copies},
                             {"layouts", layouts},
                             {"masks", masks},
                             {"bounds", bounds},
                             {"long", long_rows},
                             {"large scores", large_scores},
                             {"not finite", not_finite},
                             {"workers", workers},
                             {"shared heads", shared_heads},
                             {"parts", parts},
                             {"sparse masks", sparse_masks},
                             {"lengths", lengths},
                             {"formats", formats},
                             {"empty", empty},
                             {"denormals", denormals}};
  is_in_bf16 = true;
  const int failed = run_cases(cases, {"attention_amx_bf16"});
  is_in_bf16 = false;
  cases.push_back({"refused", refused});
  return failed + run_cases(cases);
}

// strided_copy: see strided_copy.hpp.
//
// Operands: sources, destinations; any alignment; a destination must not overlap a source. Split over blocks of rows
// and columns of all parts.
#include "kernels/strided_copy.hpp"

#include <cstring>

#include "simd/transpose.hpp"

namespace engine::ENGINE_ISA_NS {
namespace {

using namespace simd;

// An element as wide as two of the widest integers.
struct Wide {
  std::int64_t low, high;
};

template <class Element>
ENGINE_INLINE void move(const char* from, char* to) {
  Element value;
  __builtin_memcpy(&value, from, sizeof value);
  __builtin_memcpy(to, &value, sizeof value);
}

// Rows and columns of one block, with the strides of its part.
struct Block {
  const char* from;
  char* to;
  std::int64_t rows, columns;
};

typedef char Bytes __attribute__((vector_size(kVectorBytes), aligned(1), may_alias));

// Copies a few vectors, the last of which overlaps the previous one, without a call or a loop over bytes.
ENGINE_INLINE void copy_short(const char* from, char* to, std::int64_t bytes) {
  if (bytes >= kVectorBytes) {
    for (std::int64_t i = 0; i + kVectorBytes < bytes; i += kVectorBytes)
      *reinterpret_cast<Bytes*>(to + i) = *reinterpret_cast<const Bytes*>(from + i);
    const std::int64_t last = bytes - kVectorBytes;
    *reinterpret_cast<Bytes*>(to + last) = *reinterpret_cast<const Bytes*>(from + last);
    return;
  }
  std::int64_t done = 0;
  for (; bytes - done >= 16; done += 16) move<Wide>(from + done, to + done);
  if (bytes - done >= 8) {
    move<std::int64_t>(from + done, to + done);
    done += 8;
  }
  if (bytes - done >= 4) {
    move<std::int32_t>(from + done, to + done);
    done += 4;
  }
  for (; done < bytes; ++done) to[done] = from[done];
}

void copy_runs(const CopyPart& part, const Block& block) {
  constexpr std::int64_t kShort = 1024;
  const char* from = block.from;
  char* to = block.to;
  for (std::int64_t r = 0; r < block.rows; ++r, from += part.source_row, to += part.destination_row) {
    if (block.columns <= kShort)
      copy_short(from, to, block.columns);
    else
      std::memcpy(to, from, static_cast<std::size_t>(block.columns));
  }
}

template <class Element>
ENGINE_INLINE void fill_rows(const CopyPart& part, const Block& block) {
  for (std::int64_t r = 0; r < block.rows; ++r) {
    Element value;
    __builtin_memcpy(&value, block.from + r * part.source_row, sizeof value);
    char* to = block.to + r * part.destination_row;
    for (std::int64_t c = 0; c < block.columns; ++c)
      __builtin_memcpy(to + c * static_cast<std::int64_t>(sizeof value), &value, sizeof value);
  }
}

// Copies every kStride-th element, by shuffling vectors. The last elements are copied one by one, to avoid reading
// beyond the source.
template <class Element, int kStride>
ENGINE_INLINE void copy_spaced(const char* from, char* to, std::int64_t columns) {
  constexpr int kBytes = sizeof(Element), kCount = kVectorBytes / kBytes;
  std::int64_t c = 0;
  if constexpr (kBytes <= 8) {
    typedef Element Vector __attribute__((vector_size(kVectorBytes)));
    for (; c + kCount < columns; c += kCount) {
      Vector lanes;
      __builtin_memcpy(&lanes, from + c * kStride * kBytes, sizeof lanes);
#pragma GCC unroll 4
      for (int k = 0; k < kStride; ++k) {
        Vector next, order{};
        __builtin_memcpy(&next, from + (c * kStride + k * kCount) * kBytes, sizeof next);
#pragma GCC unroll 64
        for (int i = 0; i < kCount; ++i) {
          const int at = i * kStride - k * kCount;
          order[i] = static_cast<Element>(at >= 0 && at < kCount ? kCount + at : i);
        }
        lanes = ENGINE_SHUFFLE(lanes, next, order);
      }
      __builtin_memcpy(to + c * kBytes, &lanes, sizeof lanes);
    }
  }
  for (; c < columns; ++c) move<Element>(from + c * kStride * kBytes, to + c * kBytes);
}

template <class Element>
ENGINE_INLINE void copy_elements(const CopyPart& part, const Block& block) {
  constexpr std::int64_t kBytes = sizeof(Element);
  const std::int64_t in = part.source_column, out = part.destination_column;
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const char* from = block.from + r * part.source_row;
    char* to = block.to + r * part.destination_row;
    if (out == kBytes && in == 2 * kBytes)
      copy_spaced<Element, 2>(from, to, block.columns);
    else if (out == kBytes && in == 3 * kBytes)
      copy_spaced<Element, 3>(from, to, block.columns);
    else if (out == kBytes && in == 4 * kBytes)
      copy_spaced<Element, 4>(from, to, block.columns);
    else
      for (std::int64_t c = 0; c < block.columns; ++c) move<Element>(from + c * in, to + c * out);
  }
}

// The reverse: interleaves the lanes of kColumns vectors.
template <class Element, int kColumns>
ENGINE_INLINE void interleave_columns(const CopyPart& part, const Block& block) {
  constexpr int kBytes = sizeof(Element), kCount = kVectorBytes / kBytes;
  const char* const from = block.from;
  char* const to = block.to;
  const std::int64_t column = part.source_column;
  std::int64_t r = 0;
  if constexpr (kBytes <= 8) {
    typedef Element Vector __attribute__((vector_size(kVectorBytes)));
    for (; r + kCount <= block.rows; r += kCount) {
      Vector source[kColumns];
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) __builtin_memcpy(&source[c], from + c * column + r * kBytes, sizeof(Vector));
#pragma GCC unroll 4
      for (int k = 0; k < kColumns; ++k) {
        Vector lanes = source[0];
#pragma GCC unroll 4
        for (int c = 0; c < kColumns; ++c) {
          Vector order{};
#pragma GCC unroll 64
          for (int i = 0; i < kCount; ++i) {
            const int at = k * kCount + i;
            order[i] = static_cast<Element>(at % kColumns == c ? kCount + at / kColumns : i);
          }
          lanes = ENGINE_SHUFFLE(lanes, source[c], order);
        }
        __builtin_memcpy(to + (r * kColumns + k * kCount) * kBytes, &lanes, sizeof lanes);
      }
    }
  }
  for (; r < block.rows; ++r)
    for (int c = 0; c < kColumns; ++c) move<Element>(from + c * column + r * kBytes, to + (r * kColumns + c) * kBytes);
}

template <class Element>
ENGINE_INLINE void interleave(const CopyPart& part, const Block& block) {
  if (block.columns == 2)
    interleave_columns<Element, 2>(part, block);
  else if (block.columns == 3)
    interleave_columns<Element, 3>(part, block);
  else
    interleave_columns<Element, 4>(part, block);
}

// Uses the largest squares first; the last square of a row or column overlaps the previous one, and a block smaller
// than a square is left to the next smaller size.
template <int kBytes, int kSize>
ENGINE_INLINE void transpose_squares(const CopyPart& part, const Block& block) {
  for (std::int64_t r = 0;;) {
    for (std::int64_t c = 0;;) {
      transpose_elements<kBytes, kSize>(block.from + r * kBytes + c * part.source_column, part.source_column,
                                        block.to + r * part.destination_row + c * kBytes, part.destination_row);
      if (c + kSize >= block.columns) break;
      c = min64(c + kSize, block.columns - kSize);
    }
    if (r + kSize >= block.rows) break;
    r = min64(r + kSize, block.rows - kSize);
  }
}

template <int kBytes, int kSize>
ENGINE_INLINE void transpose_block(const CopyPart& part, const Block& block) {
  if constexpr (kSize < 4) {
    copy_elements<typename ElementOf<kBytes>::type>(part, block);
  } else if (block.rows >= kSize && block.columns >= kSize) {
    transpose_squares<kBytes, kSize>(part, block);
  } else {
    transpose_block<kBytes, kSize / 2>(part, block);
  }
}

constexpr int kSmallSquare = 16;  // bytes in a row of a square of narrow elements

template <class Element>
ENGINE_INLINE void copy_typed(const CopyPart& part, const Block& block) {
  constexpr int kBytes = sizeof(Element);
  if (part.mode == CopyMode::fill) {
    fill_rows<Element>(part, block);
  } else if (part.mode == CopyMode::interleave) {
    interleave<Element>(part, block);
  } else if (part.mode == CopyMode::element) {
    copy_elements<Element>(part, block);
  } else if constexpr (kBytes <= 8) {
    transpose_block<kBytes, (kBytes < 4 ? kSmallSquare : kVectorBytes) / kBytes>(part, block);
  }
}

void copy_block(const CopyPart& part, const Block& block) {
  if (part.mode == CopyMode::run) return copy_runs(part, block);
  switch (part.element) {
    case 1:
      return copy_typed<std::int8_t>(part, block);
    case 2:
      return copy_typed<std::int16_t>(part, block);
    case 4:
      return copy_typed<std::int32_t>(part, block);
    case 8:
      return copy_typed<std::int64_t>(part, block);
    default:
      return copy_typed<Wide>(part, block);
  }
}

// Item `index` of a part: a block of the matrix at one index of the outer dimensions.
void copy_item(const CopyPart& part, std::int64_t index, void* const* buffers) {
  const std::int64_t column = index % part.column_blocks * part.column_block;
  index /= part.column_blocks;
  const std::int64_t row = index % part.row_blocks * part.row_block;
  index /= part.row_blocks;
  std::int64_t in = part.source_offset + row * part.source_row + column * part.source_column;
  std::int64_t out = part.destination_offset + row * part.destination_row + column * part.destination_column;
  for (int d = part.outer_rank - 1; d >= 0; --d) {
    const std::int64_t at = index % part.outer_size[d];
    index /= part.outer_size[d];
    in += at * part.outer_source[d];
    out += at * part.outer_destination[d];
  }
  copy_block(part,
             {static_cast<const char*>(buffers[part.source]) + in, static_cast<char*>(buffers[part.destination]) + out,
              min64(part.row_block, part.rows - row), min64(part.column_block, part.columns - column)});
}

void strided_copy(const void* args, void* const* buffers, const KernelContext& context) {
  const StridedCopyArgs& all = *static_cast<const StridedCopyArgs*>(args);
  const CopyPart* part = reinterpret_cast<const CopyPart*>(&all + 1);
  const WorkRange range = split_work(all.items, context.worker, context.workers);
  std::int64_t first = 0;
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    for (; i >= part->end_item; ++part) first = part->end_item;
    copy_item(*part, i - first, buffers);
  }
}

}  // namespace

extern const KernelEntry strided_copy_kernels[] = {{"strided_copy", strided_copy, nullptr},
                                                   {nullptr, nullptr, nullptr}};

}  // namespace engine::ENGINE_ISA_NS

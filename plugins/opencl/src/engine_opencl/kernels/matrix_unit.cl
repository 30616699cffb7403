// Matrix units: products of 16 x 16 by 16 x 8 elements of f16 or bf16 that the 32 lanes of a warp compute together, with sums in
// f32, and asynchronous copies from global to local memory. PTX ISA, version 7.0 and later, sections on `mma.sync`,
// `ldmatrix` and `cp.async`; compute capability 8.0 and later. With EMULATED, the same in OpenCL C, which shows on any
// device that kernels distribute elements correctly. An operand is stored as lines of neighbouring elements.
#define LANES_OF_A_WARP 32
// Sums that a function receives leave the registers unless it is inlined.
#define INLINED __attribute__((always_inline)) inline
#if EMULATED
#define UNROLLED
// Memory in which lanes exchange what instructions would.
#define UNIT_MEMORY(items) __local ulong unit_memory[3 * (items)];
#define UNIT_PARAMETER , __local ulong* unit
#define UNIT , unit_memory
#define ON_UNIT , unit

INLINED void copy_bytes(__local ushort* to, __global const ushort* from, int count, int valid) {
  for (int i = 0; i < count; ++i) to[i] = i < valid ? from[i] : 0;
}
#define copy_elements(width, to, from, valid) copy_bytes(to, from, width, valid)
#define end_of_copies()
#define wait_for_copies(open)

// Each lane gives the address of one line; lane l gets two elements of line l / 4 of each of the four matrices.
INLINED void load_four(uint* four, __local const ushort* line, int is_transposed UNIT_PARAMETER) {
  const int item = get_local_id(0), lane = item % 32, first = item - lane;
  barrier(CLK_LOCAL_MEM_FENCE);
  unit[item] = (ulong)(size_t)line;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int n = 0; n < 4; ++n) {
    uint both = 0;
    for (int i = 0; i < 2; ++i) {
      const int row = is_transposed ? lane % 4 * 2 + i : lane / 4, at = is_transposed ? lane / 4 : lane % 4 * 2 + i;
      both |= (uint)((__local const ushort*)(size_t)unit[first + 8 * n + row])[at] << 16 * i;
    }
    four[n] = both;
  }
}
#define load_matrices(four, line) load_four(four, line, 0 ON_UNIT)
#define load_transposed(four, line) load_four(four, line, 1 ON_UNIT)

INLINED float element_of(uint both, int which) {
  const ushort bits = both >> 16 * which;
  return load_real((const real*)&bits, 0);
}

INLINED void add_product(float* sum, const uint* a, const uint* b UNIT_PARAMETER) {
  const int item = get_local_id(0), lane = item % 32, first = item - lane;
  __local uint* shared = (__local uint*)unit;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = 0; i < 4; ++i) shared[6 * item + i] = a[i];
  for (int i = 0; i < 2; ++i) shared[6 * item + 4 + i] = b[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + 8 * (i / 2), col = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      const uint left = shared[6 * (first + row % 8 * 4 + k % 8 / 2) + row / 8 + k / 8 * 2];
      const uint right = shared[6 * (first + col * 4 + k % 8 / 2) + 4 + k / 8];
      sum[i] += element_of(left, k % 2) * element_of(right, k % 2);
    }
  }
}
#else
#define UNROLLED _Pragma("unroll")
#define UNIT_MEMORY(items)
#define UNIT_PARAMETER
#define UNIT
#define ON_UNIT

INLINED uint local_address(__local const void* at) { return (uint)(size_t)at; }

// The first `valid` of 8, 4 or 2 elements; the others become zero.
INLINED void copy_8(__local ushort* to, __global const ushort* from, int valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               : : "r"(local_address(to)), "l"((ulong)from), "r"(2 * valid) : "memory");
}
INLINED void copy_4(__local ushort* to, __global const ushort* from, int valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
               : : "r"(local_address(to)), "l"((ulong)from), "r"(2 * valid) : "memory");
}
INLINED void copy_2(__local ushort* to, __global const ushort* from, int valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               : : "r"(local_address(to)), "l"((ulong)from), "r"(2 * valid) : "memory");
}
INLINED void copy_1(__local ushort* to, __global const ushort* from, int valid) { *to = valid ? *from : 0; }
#define COPY_(width) copy_##width
#define COPY(width) COPY_(width)
#define copy_elements(width, to, from, valid) COPY(width)(to, from, valid)
#define end_of_copies() asm volatile("cp.async.commit_group;" : : : "memory")
// Waits until at most `open` groups of copies, a literal, are incomplete.
#define wait_for_copies(open) asm volatile("cp.async.wait_group %0;" : : "n"(open) : "memory")

INLINED void load_matrices(uint* four, __local const ushort* line) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(four[0]), "=r"(four[1]), "=r"(four[2]), "=r"(four[3]) : "r"(local_address(line)) : "memory");
}
INLINED void load_transposed(uint* four, __local const ushort* line) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(four[0]), "=r"(four[1]), "=r"(four[2]), "=r"(four[3]) : "r"(local_address(line)) : "memory");
}

#if REAL_IS_BFLOAT
#define FACTORS "bf16.bf16"
#else
#define FACTORS "f16.f16"
#endif
INLINED void add_product(float* sum, const uint* a, const uint* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32." FACTORS ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

// The place of element `at` of a line: chunks of 8 elements are permuted so that 8 lines are read without bank
// conflicts.
#define SWIZZLE(line, length) \
  ((length) >= 64 ? (line) & 7 : (length) == 32 ? (line) >> 1 & 3 : (length) == 16 ? (line) >> 2 & 1 : 0)
#define PLACE(line, at, length) \
  ((line) * (length) + (((at) >> 3 ^ SWIZZLE(line, length)) << 3) + ((at) & 7))

// A warp's operands of 16 steps from `k` on: 16 rows of A from `row` on, 16 columns of B from `col` on, of which
// four[0] and four[1] are the first 8.
INLINED void load_left(uint* four, __local const ushort* left, int row, int k, int lane UNIT_PARAMETER) {
#if A_ALONG_K
  load_matrices(four, left + PLACE(row + (lane & 15), k + (lane >> 4) * 8, TK));
#else
  load_transposed(four, left + PLACE(k + (lane >> 4) * 8 + (lane & 7), row + (lane >> 3 & 1) * 8, TM));
#endif
}
INLINED void load_right(uint* four, __local const ushort* right, int col, int k, int lane UNIT_PARAMETER) {
#if B_ALONG_K
  load_matrices(four, right + PLACE(col + (lane >> 4) * 8 + (lane & 7), k + (lane >> 3 & 1) * 8, TK));
#else
  load_transposed(four, right + PLACE(k + (lane & 15), col + (lane >> 4) * 8, TN));
#endif
}

#define ITEMS (LANES_OF_A_WARP * WARPS_M * WARPS_N)
#define BLOCKS_M (TM / (16 * WARPS_M))
#define BLOCKS_N (TN / (8 * WARPS_N))
#define WARP_COLS (TN / WARPS_N)
// The memory in which a warp's sums of 16 rows are exchanged after the last tile: rows start 4 banks apart.
#define KEPT_LINE (WARP_COLS + 4)
#define KEPT_ELEMENTS (WARPS_M * WARPS_N * 16 * KEPT_LINE)
#define max_of(x, y) ((x) > (y) ? (x) : (y))

INLINED void clear(float sum[BLOCKS_M][BLOCKS_N][4]) {
  UNROLLED
  for (int i = 0; i < BLOCKS_M; ++i) {
    UNROLLED
    for (int j = 0; j < BLOCKS_N; ++j) {
      UNROLLED
      for (int n = 0; n < 4; ++n) sum[i][j][n] = 0.0f;
    }
  }
}

// Store 16 rows of sums: a lane has two columns of each block, in rows lane / 4 and 8 + lane / 4.
INLINED void keep_rows(__local float* kept, float sum[BLOCKS_N][4], int lane) {
  UNROLLED
  for (int j = 0; j < BLOCKS_N; ++j) {
    __local float* to = kept + lane / 4 * KEPT_LINE + 8 * j + lane % 4 * 2;
    to[0] = sum[j][0], to[1] = sum[j][1];
    to[8 * KEPT_LINE] = sum[j][2], to[8 * KEPT_LINE + 1] = sum[j][3];
  }
}

// Add the products of one tile of TK steps; `row`, `col`: the warp's first. Block [i][j] has rows 16 i and columns 8 j.
INLINED void add_tile(float sum[BLOCKS_M][BLOCKS_N][4], __local const ushort* left, __local const ushort* right, int row,
                     int col, int lane UNIT_PARAMETER) {
  // Unrolling this as well would exceed the limits of some compilers, and the sums would then leave the registers.
  for (int k = 0; k < TK; k += 16) {
    uint a[BLOCKS_M][4], b[BLOCKS_N][2];
    UNROLLED
    for (int i = 0; i < BLOCKS_M; ++i) load_left(a[i], left, row + 16 * i, k, lane ON_UNIT);
    UNROLLED
    for (int j = 0; j < BLOCKS_N; j += 2) {
      uint four[4];
      load_right(four, right, col + 8 * j, k, lane ON_UNIT);
      b[j][0] = four[0], b[j][1] = four[1], b[j + 1][0] = four[2], b[j + 1][1] = four[3];
    }
    UNROLLED
    for (int i = 0; i < BLOCKS_M; ++i) {
      UNROLLED
      for (int j = 0; j < BLOCKS_N; ++j) add_product(sum[i][j], a[i], b[j] ON_UNIT);
    }
  }
}

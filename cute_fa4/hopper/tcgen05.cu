// Software for what Hopper lacks: tensor memory, tcgen05, cluster launch control. Called by the PTX of rewrite.py.
//
//     tensor memory of a CTA     512 columns of 128 lanes, 32-bit words, in global memory, column by column
//     tcgen05.mma                float32 products and sums in ascending k, by the thread or warp that issues it
//     tcgen05.commit             an arrival: all MMAs issued before are complete already
//     clusterlaunchcontrol       a table with one word per cluster: free, begun, or its claimer
//
// runtime.c fills `cute_fa4_control` before each launch. Numbers, layouts and descriptors: PTX ISA, "tcgen05".
#include <cstdint>
#include <cstdio>

#define EXPORT extern "C" __device__ __noinline__

struct Control {
  uint32_t *tensor_memory;  // kWords for each CTA
  uint32_t *columns;        // a word for each CTA: a bit for every 32 columns that are allocated
  uint32_t *clusters;       // a word for each cluster, and behind them the number of those that were looked at
  uint32_t refused_of_256;  // how many claims of 256 are refused by chance
  uint32_t seed;
  uint32_t greedy;  // so many clusters claim before the others begin; 0: all begin as they come
  uint32_t wrong;   // 1: every grant names the cluster before the one that was claimed, to see that a check notices
};
extern "C" __device__ Control cute_fa4_control;
__device__ Control cute_fa4_control;

enum : uint32_t { kFree = 0, kBegun = 1, kClaimed = 2 };  // kClaimed + number of the cluster that claimed it
enum : uint32_t { kRefused = 0, kGranted = 1 };
constexpr uint32_t kPoison = 0x7fffffff;  // the ctaid of a refusal, which PTX leaves undefined
constexpr uint32_t kLanes = 128, kColumns = 512, kWords = kLanes * kColumns;
constexpr uint64_t kPatience = 20ull * 1000 * 1000 * 1000;  // ns that a CTA waits for greedy ones

#define SPECIAL(name)                              \
  __device__ __forceinline__ uint32_t name() {     \
    uint32_t value;                                \
    asm volatile("mov.u32 %0, %%" #name ";" : "=r"(value)); \
    return value;                                  \
  }
SPECIAL(laneid)
SPECIAL(cluster_ctarank)
SPECIAL(cluster_nctarank)
#define SPECIAL3(axis)                                                                        \
  __device__ __forceinline__ uint32_t clusterid_##axis() {                                    \
    uint32_t value;                                                                           \
    asm volatile("mov.u32 %0, %%clusterid." #axis ";" : "=r"(value));                         \
    return value;                                                                             \
  }                                                                                           \
  __device__ __forceinline__ uint32_t nclusterid_##axis() {                                   \
    uint32_t value;                                                                           \
    asm volatile("mov.u32 %0, %%nclusterid." #axis ";" : "=r"(value));                        \
    return value;                                                                             \
  }                                                                                           \
  __device__ __forceinline__ uint32_t cluster_nctaid_##axis() {                               \
    uint32_t value;                                                                           \
    asm volatile("mov.u32 %0, %%cluster_nctaid." #axis ";" : "=r"(value));                    \
    return value;                                                                             \
  }
SPECIAL3(x)
SPECIAL3(y)
SPECIAL3(z)

__device__ __forceinline__ void fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

__device__ __noinline__ void fail(const char *what, uint32_t a, uint32_t b) {
  printf("cute_fa4 hopper: CTA (%u, %u, %u) thread %u: %s (%u, %u)\n", blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x,
         what, a, b);
  asm volatile("trap;");
}

__device__ __forceinline__ uint32_t linear_cta() {
  return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
}
__device__ __forceinline__ uint32_t linear_cluster() {
  return clusterid_x() + nclusterid_x() * (clusterid_y() + nclusterid_y() * clusterid_z());
}

// --- tensor memory ----------------------------------------------------------------------------------------------

// Of this CTA (pair_rank -1) or of CTA 0 or 1 of its pair; a pair is two neighbours along x.
__device__ __forceinline__ volatile uint32_t *tensor_memory(int pair_rank) {
  uint32_t cta = linear_cta();
  if (pair_rank >= 0) cta = cta - (cluster_ctarank() & 1) + pair_rank;
  return cute_fa4_control.tensor_memory + (uint64_t)kWords * cta;
}

// Allocate columns for a warp: the first that are free, aligned to their number, as address 0:column in *shared.
EXPORT void cute_fa4_alloc(uint32_t shared, uint32_t columns) {
  if (columns < 32 || columns > kColumns || (columns & (columns - 1))) fail("tcgen05.alloc of columns", columns, 0);
  if (laneid() == 0) {
    uint32_t *used = cute_fa4_control.columns + linear_cta(), count = columns / 32;
    uint32_t bits = count == 16 ? 0xffff : (1u << count) - 1, first = 0;
    for (; first < 16; first += count) {
      uint32_t old = atomicOr(used, bits << first);
      if (!(old & bits << first)) break;
      atomicAnd(used, ~(bits << first & ~old));
    }
    if (first >= 16) fail("tcgen05.alloc without free columns; real hardware waits", columns, *used);
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(shared), "r"(first * 32) : "memory");
  }
  __syncwarp();
}

EXPORT void cute_fa4_dealloc(uint32_t taddr, uint32_t columns) {
  if (laneid() == 0) {
    uint32_t count = columns / 32, bits = (count >= 16 ? 0xffff : (1u << count) - 1) << (taddr & 0xffff) / 32;
    uint32_t old = atomicAnd(cute_fa4_control.columns + linear_cta(), ~bits);
    if ((old & bits) != bits) fail("tcgen05.dealloc of columns that are not allocated", taddr, columns);
  }
  __syncwarp();
}

// Address of register 0 in lane t of this warp; the last register is `last` columns after it. Shapes are numbered
// as in SHAPES of in_software.py.
EXPORT uint64_t cute_fa4_lane(uint32_t taddr, uint32_t last, uint32_t shape) {
  uint32_t row = taddr >> 16, column = taddr & 0xffff, t = laneid();
  if ((shape ? row & ~16u : row) != threadIdx.x / 32 % 4 * 32) fail("tcgen05.ld or .st of another warp's lanes", row, threadIdx.x / 32);
  switch (shape) {
    case 0: row += t; break;
    case 1: row += t / 4 + 8 * (t % 2), column += t / 2 % 2; break;
    case 2: row += t / 4, column += t % 4; break;
    default: row += t / 4, column += 2 * (t % 4);
  }
  if (column + last >= kColumns) fail("tcgen05.ld or .st beyond column 512", column, last);
  return (uint64_t)(tensor_memory(-1) + column * kLanes + row);
}

// --- tcgen05.mma ------------------------------------------------------------------------------------------------

enum Kind { F16, F8F6F4, TF32 };
struct alignas(16) Chunk { uint32_t word[4]; };

// Element i of 16 bytes as float32.
template <int BYTES>
__device__ __forceinline__ float element(const Chunk &chunk, int i, uint32_t format) {
  float value;
  if constexpr (BYTES == 4) return __uint_as_float(chunk.word[i] & 0xffffe000);
  if constexpr (BYTES == 2) {
    uint32_t pair = chunk.word[i / 2];
    if (format == 1) return __uint_as_float(i & 1 ? pair & 0xffff0000 : pair << 16);  // bf16
    uint16_t half = (uint16_t)(i & 1 ? pair >> 16 : pair);
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
  }
  uint16_t pair = (uint16_t)(chunk.word[i / 4] >> (i & 2 ? 16 : 0));
  uint32_t halves;
  if (format == 0) asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(pair));
  else asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(pair));
  uint16_t half = (uint16_t)(i & 1 ? halves >> 16 : halves);
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
}

// A or B in shared memory, as its descriptor says ("Shared memory descriptor", "Canonical layouts").
template <int BYTES>
struct Operand {
  static constexpr int kPer = 16 / BYTES;  // elements of a chunk
  uint64_t window;                         // generic address of offset 0 of the CTA's shared memory
  uint32_t start, leading, stride, span, mask;
  bool mn_major;

  __device__ Operand(uint64_t descriptor, bool mn_major, int pair_rank) : mn_major(mn_major) {
    start = (uint32_t)(descriptor & 0x3fff) << 4;
    leading = (uint32_t)(descriptor >> 16 & 0x3fff) << 4;
    stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4;
    uint32_t swizzle = (uint32_t)(descriptor >> 61);
    if (swizzle & 1 || descriptor >> 49 & 7) fail("matrix descriptor with this swizzle, base offset", swizzle, 0);
    span = swizzle == 2 ? 128 : swizzle == 4 ? 64 : swizzle == 6 ? 32 : 16;
    mask = swizzle == 2 ? 7 : swizzle == 4 ? 3 : swizzle == 6 ? 1 : 0;
    // Address 0 belongs to CTA 0 of the cluster, whoever uses it: the rank says whose memory is meant.
    uint32_t rank = cluster_ctarank();
    if (pair_rank >= 0) rank = (rank & ~1u) | pair_rank;
    window = (uint64_t)__cvta_shared_to_generic(0);
    asm("mapa.u64 %0, %1, %2;" : "=l"(window) : "l"(window), "r"(rank));
  }
  // K-major: elements k.. of a row. MN-major: rows row.. of one k. Both start at a multiple of kPer.
  __device__ __forceinline__ Chunk chunk(int row, int k) const {
    uint32_t offset;
    if (!mn_major) {
      uint32_t bytes = k * BYTES;
      offset = row / 8 * stride + row % 8 * span + (span == 16 ? bytes / 16 * leading : bytes);
    } else {
      uint32_t rows = span / BYTES, block = row / rows, in = row % rows * BYTES;
      offset = span == 16 ? block * stride + k / 8 * leading + k % 8 * 16 + in
                          : block * leading + k / 8 * stride + k % 8 * span + in;
    }
    uint32_t address = start + offset;
    address ^= (address >> 7 & mask) << 4;
    Chunk c;
    asm volatile("ld.volatile.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(c.word[0]), "=r"(c.word[1]), "=r"(c.word[2]), "=r"(c.word[3]) : "l"(window + address));
    return c;
  }
};

// Row of D in a CTA -> lane. 64 rows lie in the first halves of the four warps' lanes, or from lane 16 on in the others;
// those of a pair, of which each
// CTA has 64, lie in lanes 0 to 63 with the left half of N and in lanes 64 to 127 with the right one.
__device__ __forceinline__ int lane_of(int row, int rows, int group, int half, uint32_t first) {
  return rows == 128 ? row : group == 2 ? row + 64 * half : row / 16 * 32 + row % 16 + first;
}

// First columns of the scales (e8m0) of A and B: row r has its byte in lane r % 32, column r / 32.
struct Scales {
  uint32_t a, b;
};

// 2^(byte - 127), exact also where float32 has no normal number; byte 255 is NaN.
__device__ __forceinline__ float scale_of(volatile uint32_t *T, uint32_t first, int row, uint32_t byte) {
  const uint32_t code = T[(first + row / 32) * kLanes + row % 32] >> 8 * byte & 255;
  return code == 255 ? __uint_as_float(0x7fffffff) : __uint_as_float(code ? code << 23 : 1u << 22);
}

// D (rows x N) (+)= A (rows x 32 bytes) B (N x 32 bytes), two rows at a time, eight columns at a time.
template <int BYTES, bool SCALED = false>
__device__ __noinline__ void product(uint32_t d, uint64_t a, uint64_t b, uint32_t idesc, bool accumulate, uint32_t mode,
                                     Scales scales = {}) {
  constexpr int K = 32 / BYTES, PER = 16 / BYTES, R = BYTES == 1 ? 1 : 2;
  const int group = mode & 15, N = (idesc >> 17 & 63) * 8, M = (idesc >> 24 & 31) * 16, rows = M / group;
  const uint32_t a_format = idesc >> 7 & 7, b_format = idesc >> 10 & 7, column = d & 0xffff;
  const float sign = (idesc >> 13 & 1) ^ (idesc >> 14 & 1) ? -1.f : 1.f;
  const bool a_mn = idesc >> 15 & 1, b_mn = idesc >> 16 & 1, a_in_tmem = mode >> 9 & 1, wide = mode >> 8 & 1;
  const uint32_t a_byte = idesc >> 29 & 3, b_byte = idesc >> 4 & 3;  // of scales
  if (SCALED && (idesc & 7 || !(idesc >> 23 & 1) || b_mn || rows != 128)) fail("tcgen05.mma with scales: not supported; idesc", idesc, group);
  if (SCALED && (scales.a + rows / 32 > kColumns || scales.b + (N + 31) / 32 > kColumns)) fail("tcgen05.mma: scales beyond tensor memory", scales.a, scales.b);
  if (!SCALED && ((idesc >> 4 & 3) != 1 || idesc & 4)) fail("tcgen05.mma: D is not float32, or A is sparse; idesc", idesc, 0);
  if (rows != 128 && (rows != 64 || a_in_tmem)) fail("tcgen05.mma: M is not supported", M, group);
  const bool stacked = rows == 64 && group == 2;  // both halves of N in the same columns
  if ((d >> 16 && !(rows == 64 && group == 1 && d >> 16 == 16)) || column + (stacked ? N / 2 : N) > kColumns || N == 0) fail("tcgen05.mma: D beyond tensor memory", d, N);
  if (BYTES == 1 && (a_format > 1 || b_format > 1)) fail("tcgen05.mma: formats of A, B", a_format, b_format);
  const int lanes = wide ? 32 : 1, me = wide ? laneid() : 0, half_n = N / group;

  for (int cta = 0; cta < group; cta++) {
    volatile uint32_t *T = tensor_memory(group == 2 ? cta : -1);
    Operand<BYTES> A(a_in_tmem ? 0 : a, a_mn, group == 2 ? cta : -1);
    for (int row = me; row < rows / R; row += lanes) {
      float x[R][K];
#pragma unroll
      for (int r = 0; r < R; r++) {
        const int own = row + r * (rows / R);
        if (a_in_tmem) {
#pragma unroll
          for (int j = 0; j < 2; j++) {
            Chunk c;
            for (int w = 0; w < 4; w++) c.word[w] = T[((a & 0xffff) + 4 * j + w) * kLanes + own];
#pragma unroll
            for (int i = 0; i < PER; i++) x[r][j * PER + i] = sign * element<BYTES>(c, i, a_format);
          }
        } else if (!a_mn) {
#pragma unroll
          for (int j = 0; j < 2; j++) {
            Chunk c = A.chunk(own, j * PER);
#pragma unroll
            for (int i = 0; i < PER; i++) x[r][j * PER + i] = sign * element<BYTES>(c, i, a_format);
          }
        } else {
#pragma unroll
          for (int k = 0; k < K; k++) {
            Chunk c = A.chunk(own / PER * PER, k);
            Chunk one;
            one.word[0] = c.word[own % PER * BYTES / 4] >> own % PER * BYTES % 4 * 8;
            x[r][k] = sign * element<BYTES>(one, 0, a_format);
          }
        }
      }
      if constexpr (SCALED)
        for (int r = 0; r < R; r++) {
          const float scale = scale_of(T, scales.a, row + r * (rows / R), a_byte);
          for (int k = 0; k < K; k++) x[r][k] *= scale;
        }
      for (int half = 0; half < group; half++) {
        Operand<BYTES> B(b, b_mn, group == 2 ? half : -1);
        for (int n = 0; n < half_n; n += 8) {
          volatile uint32_t *D = T + (column + (stacked ? 0 : half * half_n) + n) * kLanes;
          float sum[R][8];
#pragma unroll
          for (int r = 0; r < R; r++)
#pragma unroll
            for (int u = 0; u < 8; u++)
              sum[r][u] = accumulate ? __uint_as_float(D[u * kLanes + lane_of(row + r * (rows / R), rows, group, half, d >> 16)]) : 0.f;
          if (!b_mn) {
#pragma unroll
            for (int u = 0; u < 8; u++) {
              float scale = 1.f;
              if constexpr (SCALED) scale = scale_of(T, scales.b, half * half_n + n + u, b_byte);
#pragma unroll
              for (int j = 0; j < 2; j++) {
                Chunk c = B.chunk(n + u, j * PER);
#pragma unroll
                for (int i = 0; i < PER; i++) {
                  float y = element<BYTES>(c, i, b_format);
                  if constexpr (SCALED) y *= scale;
#pragma unroll
                  for (int r = 0; r < R; r++) sum[r][u] = __fmaf_rn(x[r][j * PER + i], y, sum[r][u]);
                }
              }
            }
          } else {
#pragma unroll
            for (int k = 0; k < K; k++)
#pragma unroll
              for (int part = 0; part < (PER < 8 ? 2 : 1); part++) {
                Chunk c = B.chunk((n + part * PER) / PER * PER, k);
#pragma unroll
                for (int i = 0; i < (PER < 8 ? PER : 8); i++) {
                  float y;
                  if constexpr (BYTES == 1) {  // a chunk has 16 rows: take the half that n begins
                    Chunk of8 = {n % 16 ? c.word[2] : c.word[0], n % 16 ? c.word[3] : c.word[1], 0, 0};
                    y = element<BYTES>(of8, i, b_format);
                  } else y = element<BYTES>(c, i, b_format);
#pragma unroll
                  for (int r = 0; r < R; r++) sum[r][part * PER % 8 + i] = __fmaf_rn(x[r][k], y, sum[r][part * PER % 8 + i]);
                }
              }
          }
#pragma unroll
          for (int r = 0; r < R; r++)
#pragma unroll
            for (int u = 0; u < 8; u++)
              D[u * kLanes + lane_of(row + r * (rows / R), rows, group, half, d >> 16)] = __float_as_uint(sum[r][u]);
        }
      }
    }
  }
}

EXPORT void cute_fa4_mma(uint32_t d, uint64_t a, uint64_t b, uint32_t idesc, uint32_t accumulate, uint32_t mode) {
  const bool wide = mode >> 8 & 1;
  if (wide) __syncwarp();
  fence();
  switch (mode >> 4 & 15) {
    case F16: product<2>(d, a, b, idesc, accumulate, mode); break;
    case F8F6F4: product<1>(d, a, b, idesc, accumulate, mode); break;
    default: product<4>(d, a, b, idesc, accumulate, mode);
  }
  fence();
  if (wide) __syncwarp();
}

// The same for operands with a scale per 32 values (mxf8f6f4).
EXPORT void cute_fa4_scaled_mma(uint32_t d, uint64_t a, uint64_t b, uint32_t idesc, uint32_t accumulate, uint32_t mode,
                                uint32_t a_scales, uint32_t b_scales) {
  const bool wide = mode >> 8 & 1;
  if (wide) __syncwarp();
  fence();
  product<1, true>(d, a, b, idesc, accumulate, mode, {a_scales & 0x3fffffff, b_scales & 0x3fffffff});
  fence();
  if (wide) __syncwarp();
}

// tcgen05.cp.32x128b.warpx4: 32 lines of 16 bytes to four columns, the same in each quarter of the lanes.
EXPORT void cute_fa4_copy_scales(uint32_t taddr, uint64_t source) {
  volatile uint32_t *T = tensor_memory(-1);
  if (taddr >> 16 || taddr + 4 > kColumns) fail("tcgen05.cp beyond tensor memory", taddr, 4);
  const Operand<1> lines(source, false, -1);
  for (int line = 0; line < 32; line++) {
    const Chunk c = lines.chunk(line, 0);
    for (int quarter = 0; quarter < 4; quarter++)
      for (int w = 0; w < 4; w++) T[(taddr + w) * kLanes + 32 * quarter + line] = c.word[w];
  }
  fence();
}

// The disabled output lanes of an MMA: must be none.
EXPORT void cute_fa4_all_lanes(uint32_t disabled) {
  if (disabled) fail("tcgen05.mma with lanes of D disabled", disabled, 0);
}

// Arrive on a barrier of this CTA, or on the one at its offset in each CTA of a mask.
EXPORT void cute_fa4_commit(uint32_t barrier, uint32_t ctas) {
  fence();
  if (ctas == 0) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
    return;
  }
  for (uint32_t rank = 0; rank < 16; rank++)
    if (ctas >> rank & 1) {
      uint32_t remote;
      asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(barrier), "r"(rank));
      asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
    }
}

// --- loads for a pair of CTAs -----------------------------------------------------------------------------------

// Bytes of a box of a tensor map (its format: emulator/machine/tensor_map.py).
__device__ uint32_t box_bytes(const uint32_t *map) {
  const uint64_t sizes = 0x4424842884421ull;  // bytes of each dtype, 4 bits each, of 0 to 12
  uint32_t rank = (map[2] >> 4 & 7) + 1;
  uint32_t bytes = (uint32_t)(sizes >> 4 * (map[2] >> 7 & 15) & 15) * ((map[13] >> 24) + 1);
  for (uint32_t i = 1; i < rank; i++) bytes *= (map[14] >> 8 * (i - 1) & 255) + 1;
  return bytes;
}

// For gathered rows: TMA writes boxes to multiples of 128 bytes.
EXPORT uint32_t cute_fa4_box_bytes(uint64_t map) {
  const uint32_t bytes = box_bytes((const uint32_t *)map);
  if (bytes % 128) fail("gather4 of rows that are no multiple of 128 bytes", bytes, 0);
  return bytes;
}

EXPORT uint32_t cute_fa4_load_begin(uint32_t scratch, uint64_t map, uint32_t ctas) {
  if (ctas && !(ctas >> cluster_ctarank() & 1)) fail("a multicast load for a pair that leaves out its own CTA", ctas, 0);
  uint32_t bytes = box_bytes((const uint32_t *)map);
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(scratch) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async;" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(scratch), "r"(bytes) : "memory");
  return bytes;
}

__device__ __forceinline__ uint32_t in_cta(uint32_t shared, uint32_t rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
  return address;
}
__device__ __forceinline__ uint32_t rank_of(uint32_t shared) {
  uint32_t rank;
  asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(rank) : "r"(shared));
  return rank;
}

// The box is in this CTA's memory when the scratch barrier says so. It is copied to the other CTAs of a mask, and its
// bytes are credited to the barrier that is named, in a multicast to the one of each CTA's pair on the same side.
EXPORT void cute_fa4_load_end(uint32_t scratch, uint32_t destination, uint32_t barrier, uint32_t bytes, uint32_t ctas) {
  uint32_t done = 0, own = cluster_ctarank(), side = rank_of(barrier) & 1;
  while (!done)
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.b32 %0, 1, 0, p;}"
                 : "=r"(done) : "r"(scratch) : "memory");
  asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(scratch) : "memory");
  for (uint32_t rank = 0; rank < 16; rank++)
    if (ctas & ~(1u << own) & 1u << rank) {
      uint32_t to = in_cta(destination, rank);
      for (uint32_t at = 0; at < bytes; at += 16) {
        Chunk c;
        asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(c.word[0]), "=r"(c.word[1]), "=r"(c.word[2]), "=r"(c.word[3]) : "r"(destination + at));
        asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};"
                     ::"r"(to + at), "r"(c.word[0]), "r"(c.word[1]), "r"(c.word[2]), "r"(c.word[3]) : "memory");
      }
    }
  asm volatile("fence.proxy.async; fence.acq_rel.cluster;" ::: "memory");
  for (uint32_t rank = 0; rank < 16; rank++)
    if ((ctas ? ctas : 1u << own) >> rank & 1) {
      uint32_t credited = ctas ? in_cta(barrier, (rank & ~1u) | side) : barrier;
      asm volatile("mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%0], %1;"
                   ::"r"(credited), "r"(bytes) : "memory");
    }
}

// --- cluster launch control -------------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t number_of_clusters() { return nclusterid_x() * nclusterid_y() * nclusterid_z(); }

// Called by every thread at the start: does this CTA run? All threads of all CTAs of a cluster get one answer,
// because a cluster that one of them has seen begun is never claimed.
EXPORT uint32_t cute_fa4_begin() {
  const Control &control = cute_fa4_control;
  uint32_t own = linear_cluster(), all = number_of_clusters();
  if (control.greedy && own >= control.greedy) {
    uint64_t begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
      __nanosleep(1000);
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (*(volatile uint32_t *)(control.clusters + all) < all && now - begin < kPatience);
  }
  return atomicCAS(control.clusters + own, kFree, kBegun) < kClaimed;
}

// A claim takes the next cluster that has not begun; the answer is x, y, z of its first CTA and kGranted.
EXPORT void cute_fa4_try_cancel(uint32_t answer, uint32_t barrier, uint32_t multicast) {
  const Control &control = cute_fa4_control;
  uint32_t own = linear_cluster(), all = number_of_clusters(), found = all;
  uint32_t *cursor = control.clusters + all;
  uint32_t chance = (own * 2654435761u ^ *(volatile uint32_t *)cursor * 40503u ^ control.seed) * 2246822519u >> 24;
  if (chance >= control.refused_of_256)
    while (*(volatile uint32_t *)cursor < all) {
      uint32_t next = atomicAdd(cursor, 1);
      if (next < all && atomicCAS(control.clusters + next, kFree, kClaimed + own) == kFree) {
        found = next;
        break;
      }
    }
  uint32_t word[4] = {kPoison, kPoison, kPoison, kRefused};
  if (control.wrong && found < all && found) found--;
  if (found < all) {
    word[0] = found % nclusterid_x() * cluster_nctaid_x();
    word[1] = found / nclusterid_x() % nclusterid_y() * cluster_nctaid_y();
    word[2] = found / nclusterid_x() / nclusterid_y() * cluster_nctaid_z();
    word[3] = kGranted;
  }
  uint32_t first = multicast ? 0 : cluster_ctarank(), last = multicast ? cluster_nctarank() : first + 1;
  for (uint32_t rank = first; rank < last; rank++) {
    uint32_t to, signal;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(answer), "r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(signal) : "r"(barrier), "r"(rank));
    asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(word[0]), "r"(word[1]), "r"(word[2]),
                 "r"(word[3]) : "memory");
    asm volatile("fence.acq_rel.cluster;" ::: "memory");
    asm volatile("mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%0], 16;" ::"r"(signal) : "memory");
  }
}

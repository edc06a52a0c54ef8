// What decoding asks of memory and of launches, measured: a plain TMA stream, and a decode with split keys.
//
//     nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -o hopper_decode hopper_decode.cu
//     ./hopper_decode > measured.json
//
//     first      the first copies of a launch: 16 parts of a key tile each, whose CTAs look up where their keys are
//                (two loads from global memory, side by side) or not, and fetch their descriptors before that or not
//     latency    one SM, one copy in flight at a time, from memory that L2 does not hold
//     stream     every SM keeps so many bytes in flight and does nothing else
//     boxes      the same with copies of a few rows: how many of them the copy engine takes
//     launches   kernels that do nothing, and pairs of them in stream order or with dependent launch
//     decode     one query a sequence, 64 query heads on 8 key heads, d = 128, bf16; parts of the keys of a sequence in CTAs of
//                their own, merged by: "kernel" a second launch, "dependent" a second launch that may begin early,
//                "last" the CTA of a row that ends last, "cluster" the CTAs of a cluster through their shared memory;
//                "none" leaves them unmerged, "only" is the second launch alone; keys 0: launch, set-up and merging alone
//                In a cluster, in other ways: "pull" as "cluster", with all loads from other CTAs under way at once;
//                "push" each CTA stores its rows into the CTA that merges them, by st.async, whose mbarrier counts
//                bytes; "push_free" without a cluster barrier at the end; "push_bulk" by bulk copies of rows;
//                "push_store" by plain stores and a cluster barrier; "apart" a cluster that leaves its parts unmerged
//
// Times are of launches one behind another in a graph, each with other keys than the launches before it, so that L2 holds none of them.
// cycle_model/decode/check.py reads the result; docs/performance/decode_method.md says what it is worth.

#include <cooperative_groups.h>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                             \
  do {                                                                                          \
    int error = (int)(call);                                                                    \
    if (error) {                                                                                \
      std::fprintf(stderr, "%s: %d\n", #call, error);                                           \
      std::exit(1);                                                                             \
    }                                                                                           \
  } while (0)

namespace cg = cooperative_groups;

constexpr int HEADS_KV = 8, GROUP = 8, DEPTH = 128;
constexpr int KEYS = 64;                       // of a tile
constexpr int HALF_BYTES = KEYS * 128;         // 64 columns of a tile: one box
constexpr int TILE_BYTES = 2 * HALF_BYTES;
constexpr int STAGES = 8;                      // tiles of K or V in flight
constexpr int WARPS = 4, THREADS = 32 * (WARPS + 1);
constexpr float SCALE_LOG2 = 0.08838835f * 1.4426950f;
constexpr double LARGEST_ERROR = 0.01;         // results are below 1 and rounded to bf16
constexpr size_t POOL_BYTES = size_t(24) << 30;
constexpr size_t ROW_BYTES = HEADS_KV * DEPTH * 2;
constexpr size_t ROWS = POOL_BYTES / 2 / ROW_BYTES;  // of K, and of V

__device__ __forceinline__ uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void init(uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count));
}
__device__ __forceinline__ void expect(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void wait(uint64_t* barrier, int parity) {
  asm volatile(
      "{.reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @p bra done; bra again; done:}" ::"r"(
          shared_address(barrier)),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void load_2d(void* to, const CUtensorMap* map, int x, int y, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared_address(to)),
      "l"(map), "r"(x), "r"(y), "r"(shared_address(barrier))
      : "memory");
}
__device__ __forceinline__ void load_3d(void* to, const CUtensorMap* map, int x, int y, int z, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
          shared_address(to)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier))
      : "memory");
}

extern __shared__ __align__(1024) unsigned char dynamic_shared[];

// --- stream ---------------------------------------------------------------------------------------------------------

// rows of 128 bytes, `box` of them a copy, `group` copies a stage; a CTA copies stages CTA, CTA + CTAs, ...
__device__ __forceinline__ void load_stage(const CUtensorMap& map, int stage, int box, int group, int row, uint64_t* full) {
  expect(full, box * 128 * group);
  for (int i = 0; i < group; ++i)
    load_2d(dynamic_shared + (stage * group + i) * box * 128, &map, 0, row + i * box, full);
}
__global__ void stream(const __grid_constant__ CUtensorMap map, int box, int group, int stages, int pieces, int first) {
  __shared__ uint64_t full[64];
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) init(&full[i], 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    const int rows = box * group, step = gridDim.x * rows;
    int row = (first + blockIdx.x) * rows, left = (pieces - blockIdx.x + gridDim.x - 1) / gridDim.x, running = 0;
    for (; running < stages && left; ++running, --left, row += step) load_stage(map, running, box, group, row, &full[running]);
    for (int stage = 0, parity = 0; running; ++stage) {
      if (stage == stages) stage = 0, parity ^= 1;
      wait(&full[stage], parity);
      if (left) {
        load_stage(map, stage, box, group, row, &full[stage]);
        --left, row += step;
      } else {
        --running;
      }
    }
  }
}

__global__ void nothing() {}
__global__ void nothing_dependent() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// --- decode ---------------------------------------------------------------------------------------------------------

enum Merge { KERNEL, DEPENDENT, LAST, CLUSTER, NONE, ONLY, PULL, PUSH, PUSH_FREE, PUSH_BULK, PUSH_STORE, APART, HOWS };
__host__ __device__ constexpr bool in_cluster(int how) { return how == CLUSTER || how >= PULL; }
__host__ __device__ constexpr bool pushes(int how) { return how >= PUSH && how <= PUSH_STORE; }

struct Problem {
  int batch, keys, parts, tiles;  // tiles: of a part; keys are a multiple of parts * KEYS
  int first_row;                  // of the pool
  const int* looked_up = nullptr;  // zeros that no cache holds, which a CTA adds to what it has been told
  int slot = 0;                    // where in them
  bool prefetches = false;         // the descriptors, while the CTA sets up
};

struct Results {
  float *partial_o, *partial_l;  // (parts, batch, heads_kv, GROUP, DEPTH), (parts, batch, heads_kv, GROUP): base 2
  int* counters;                 // (batch, heads_kv)
  __nv_bfloat16* out;            // (batch, heads_kv, GROUP, DEPTH)
};

__device__ __forceinline__ void ldmatrix(uint32_t (&r)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
__device__ __forceinline__ void ldmatrix_transposed(uint32_t (&r)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ uint32_t packed(float low, float high) {
  __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<uint32_t*>(&both);
}

// Address of 16 bytes, `piece` of 8 of a row of 64 columns, in a box with the 128-byte swizzle.
__device__ __forceinline__ uint32_t swizzled(uint32_t box, int row, int piece) {
  return box + row * 128 + ((piece ^ (row & 7)) << 4);
}

__device__ __forceinline__ void merge(const Results& r, int parts, int rows, int row, int lane) {
  float largest = -INFINITY, total = 0;
  for (int p = lane; p < parts; p += 32) largest = fmaxf(largest, __ldcg(&r.partial_l[p * rows + row]));
  for (int i = 16; i; i /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, i));
  float sums[4] = {};
  for (int first = 0; first < parts; first += 32) {
    const bool held = first + lane < parts && largest > -INFINITY;
    const float own = held ? exp2f(__ldcg(&r.partial_l[(first + lane) * rows + row]) - largest) : 0;
#pragma unroll 8
    for (int p = 0; p < min(32, parts - first); ++p) {
      const float weight = __shfl_sync(~0u, own, p);
      const float4 o = __ldcg(reinterpret_cast<const float4*>(&r.partial_o[(size_t(first + p) * rows + row) * DEPTH + 4 * lane]));
      total += weight;
      sums[0] += weight * o.x, sums[1] += weight * o.y, sums[2] += weight * o.z, sums[3] += weight * o.w;
    }
  }
  const float inverse = total > 0 ? 1 / total : 0;
  uint2 words = {packed(sums[0] * inverse, sums[1] * inverse), packed(sums[2] * inverse, sums[3] * inverse)};
  *reinterpret_cast<uint2*>(&r.out[size_t(row) * DEPTH + 4 * lane]) = words;
}

// What a CTA of a cluster merges, when others have stored it here: part by part, its rows rank, rank + parts, ...
struct Landing {
  float o[GROUP * DEPTH];  // [part][own row][depth]
  float l[GROUP];          // [part][own row]
};
constexpr int LANDING_BYTES = sizeof(Landing);

__device__ __forceinline__ uint32_t there(uint32_t address, int rank) {
  uint32_t found;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(found) : "r"(address), "r"(rank));
  return found;
}
__device__ __forceinline__ float load_there(uint32_t address) {
  float found;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(found) : "r"(address) : "memory");
  return found;
}
__device__ __forceinline__ void store_there(uint32_t address, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
__device__ __forceinline__ void store_async(uint32_t address, float value, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(address), "f"(value), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void wait_for_cluster(uint64_t* barrier) {
  asm volatile(
      "{.reg .pred p; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0; @p bra done; bra again; done:}" ::"r"(
          shared_address(barrier))
      : "memory");
}
__device__ __forceinline__ void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// 128 threads, each a depth: the rows of this CTA, of which `o` and `l` say what each part has.
template <int PARTS, class O, class L>
__device__ __forceinline__ void merge_rows(const Results& r, int row, int rank, O o, L l) {
#pragma unroll
  for (int i = 0; i < GROUP / PARTS; ++i) {
    float value[PARTS], state[PARTS], most = -INFINITY, sum = 0, total = 0;
#pragma unroll
    for (int p = 0; p < PARTS; ++p) value[p] = o(p, i), state[p] = l(p, i);
#pragma unroll
    for (int p = 0; p < PARTS; ++p) most = fmaxf(most, state[p]);
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
      const float weight = most > -INFINITY ? exp2f(state[p] - most) : 0;
      sum += weight, total += weight * value[p];
    }
    r.out[size_t(row + rank + i * PARTS) * DEPTH + threadIdx.x] = __float2bfloat16(sum > 0 ? total / sum : 0);
  }
}

// Every thread of the CTA; the results of this part are in shared_o and merged_l. Behind the start barrier's arrival.
template <Merge HOW, int PARTS>
__device__ __forceinline__ void merge_in_cluster(const Results& r, int row, int rank, const float* shared_o, const float* merged_l,
                                                 Landing* landing, uint64_t* landed) {
  const int t = threadIdx.x;
  const bool merges = t < 32 * WARPS;
  constexpr int OWN = GROUP / PARTS;
  const uint32_t to_o = shared_address(landing->o), to_l = shared_address(landing->l), own_o = shared_address(shared_o);
  if (HOW == PULL) {
    cluster_arrive();
    cluster_wait();
    if (merges)
      merge_rows<PARTS>(
          r, row, rank, [&](int p, int i) { return load_there(there(own_o + ((rank + i * PARTS) * DEPTH + t) * 4, p)); },
          [&](int p, int i) { return load_there(there(shared_address(merged_l) + (rank + i * PARTS) * 4, p)); });
    cluster_arrive();
    cluster_wait();
    return;
  }
  cluster_wait();  // of the start: every CTA runs, and its mbarrier is there
  if (merges) {
    if (HOW == PUSH_BULK) {
      if (t < GROUP) {
        const int to = t % PARTS, slot = rank * OWN + t / PARTS;
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         there(to_o + slot * DEPTH * 4, to)),
                     "r"(own_o + t * DEPTH * 4), "n"(DEPTH * 4), "r"(there(shared_address(landed), to))
                     : "memory");
      }
    } else {
#pragma unroll
      for (int g = 0; g < GROUP; ++g) {
        const int to = g % PARTS, slot = rank * OWN + g / PARTS;
        const uint32_t at = there(to_o + (slot * DEPTH + t) * 4, to);
        const float value = shared_o[g * DEPTH + t];
        if (HOW == PUSH_STORE)
          store_there(at, value);
        else
          store_async(at, value, there(shared_address(landed), to));
      }
    }
    if (t < GROUP) {
      const int to = t % PARTS, slot = rank * OWN + t / PARTS;
      if (HOW == PUSH_STORE)
        store_there(there(to_l + slot * 4, to), merged_l[t]);
      else
        store_async(there(to_l + slot * 4, to), merged_l[t], there(shared_address(landed), to));
    }
  }
  __syncwarp();
  if (HOW == PUSH_STORE) {
    cluster_arrive();
    cluster_wait();
  } else if (HOW != PUSH_FREE) {
    cluster_arrive_relaxed();
  }
  if (merges) {
    if (HOW != PUSH_STORE) wait_for_cluster(landed);
    merge_rows<PARTS>(
        r, row, rank, [&](int p, int i) { return landing->o[(p * OWN + i) * DEPTH + t]; },
        [&](int p, int i) { return landing->l[p * OWN + i]; });
  }
  if (HOW == PUSH || HOW == PUSH_BULK) {
    __syncwarp();
    cluster_wait();
  }
}

template <bool EARLY>
__global__ void merge_kernel(Results r, int parts, int rows) {
  if (EARLY) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (EARLY) asm volatile("griddepcontrol.wait;" ::: "memory");
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (row < rows) merge(r, parts, rows, row, threadIdx.x % 32);
}

// grid: (parts, heads_kv, batch); 4 warps of 16 keys of a tile each, and one that loads
template <Merge HOW>
__global__ void __launch_bounds__(THREADS, 1)
    decode(const __grid_constant__ CUtensorMap k_map, const __grid_constant__ CUtensorMap v_map, const __nv_bfloat16* q,
           Problem p, Results r, float scale_log2) {
  __shared__ uint64_t full[STAGES], empty[STAGES], landed;
  __shared__ float merged_l[GROUP], warp_m[WARPS][GROUP], warp_s[WARPS][GROUP];
  __shared__ int last;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int part = blockIdx.x, head = blockIdx.y, sequence = blockIdx.z;
  const int rows = p.batch * HEADS_KV * GROUP, row = (sequence * HEADS_KV + head) * GROUP;
  float* shared_o = reinterpret_cast<float*>(dynamic_shared);  // [GROUP][DEPTH], when the ring is done with
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) init(&full[i], 1), init(&empty[i], WARPS);
    if (pushes(HOW)) init(&landed, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    if (pushes(HOW)) expect(&landed, LANDING_BYTES);
  }
  if (pushes(HOW)) __syncwarp(), cluster_arrive_relaxed();
  __syncthreads();
  if (HOW == DEPENDENT) asm volatile("griddepcontrol.wait;" ::: "memory");
  if (warp == WARPS) {
    if (lane == 0) {
      if (p.prefetches)
        for (const CUtensorMap* map : {&k_map, &v_map}) asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
      int begin = p.first_row + sequence * p.keys + part * p.tiles * KEYS, tiles = p.tiles;
      if (p.looked_up) {
        const int *length = p.looked_up + p.slot, *page = length + (1 << 20);
        begin += __ldcg(page + 32 * part), tiles += __ldcg(length);
      }
      for (int n = 0; n < 2 * tiles; ++n) {
        const int stage = n % STAGES;
        wait(&empty[stage], (n / STAGES & 1) ^ 1);
        expect(&full[stage], TILE_BYTES);
        unsigned char* to = dynamic_shared + stage * TILE_BYTES;
        const CUtensorMap* map = n & 1 ? &v_map : &k_map;
        load_3d(to, map, 0, head, begin + n / 2 * KEYS, &full[stage]);
        load_3d(to + HALF_BYTES, map, 64, head, begin + n / 2 * KEYS, &full[stage]);
      }
      if (HOW == DEPENDENT) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    }
  } else {
    // Rows 0..7 are the heads of the group, rows 8..15 zeros.
    uint32_t q_frag[8][4];
    for (int k = 0; k < 8; ++k) {
      const uint32_t* from = reinterpret_cast<const uint32_t*>(q + size_t(row + lane / 4) * DEPTH + 16 * k + lane % 4 * 2);
      q_frag[k][0] = from[0], q_frag[k][2] = from[4], q_frag[k][1] = q_frag[k][3] = 0;
    }
    float o[16][4] = {}, largest = -INFINITY, total = 0;
    const uint32_t base = shared_address(dynamic_shared);
    for (int n = 0; n < p.tiles; ++n) {
      const int k_stage = 2 * n % STAGES, v_stage = (2 * n + 1) % STAGES;
      wait(&full[k_stage], 2 * n / STAGES & 1);
      float s[2][4] = {};
      const int key = 16 * warp + lane % 16;
      for (int k = 0; k < 8; ++k) {
        uint32_t b[4];
        const uint32_t box = base + k_stage * TILE_BYTES + (k / 4) * HALF_BYTES;
        ldmatrix(b, swizzled(box, key, k % 4 * 2 + lane / 16));
        mma(s[0], q_frag[k], b[0], b[2]);
        mma(s[1], q_frag[k], b[1], b[3]);
      }
      __syncwarp();
      if (lane == 0) arrive(&empty[k_stage]);
      float most = fmaxf(fmaxf(s[0][0], s[0][1]), fmaxf(s[1][0], s[1][1])) * scale_log2;
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      if (most > largest) {
        const float factor = exp2f(largest - most);
        largest = most;
        total *= factor;
        for (int c = 0; c < 16; ++c) o[c][0] *= factor, o[c][1] *= factor;
      }
      float e[2][2];
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j) total += e[i][j] = exp2f(s[i][j] * scale_log2 - largest);
      const uint32_t a[4] = {packed(e[0][0], e[0][1]), 0, packed(e[1][0], e[1][1]), 0};
      wait(&full[v_stage], (2 * n + 1) / STAGES & 1);
      for (int c = 0; c < 8; ++c) {
        uint32_t b[4];
        const uint32_t box = base + v_stage * TILE_BYTES + (c / 4) * HALF_BYTES;
        ldmatrix_transposed(b, swizzled(box, key, c % 4 * 2 + lane / 16));
        mma(o[2 * c], a, b[0], b[1]);
        mma(o[2 * c + 1], a, b[2], b[3]);
      }
      __syncwarp();
      if (lane == 0) arrive(&empty[v_stage]);
    }
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    if (lane % 4 == 0) warp_m[warp][lane / 4] = largest, warp_s[warp][lane / 4] = total;
    asm volatile("bar.sync 1, 128;" ::: "memory");
    // The four warps add their sums, weighted, one after the other.
    float of_row = -INFINITY, whole = 0;
    for (int w = 0; w < WARPS; ++w) of_row = fmaxf(of_row, warp_m[w][lane / 4]);
    const float reference = of_row == -INFINITY ? 0 : of_row;
    for (int w = 0; w < WARPS; ++w) whole += warp_s[w][lane / 4] * exp2f(warp_m[w][lane / 4] - reference);
    const float factor = whole > 0 ? exp2f(largest - reference) / whole : 0;
    for (int w = 0; w < WARPS; ++w) {
      if (w == warp)
        for (int c = 0; c < 16; ++c)
          for (int j = 0; j < 2; ++j) {
            float& place = shared_o[lane / 4 * DEPTH + 8 * c + lane % 4 * 2 + j];
            place = (w ? place : 0) + o[c][j] * factor;
          }
      asm volatile("bar.sync 1, 128;" ::: "memory");
    }
    if (warp == 0 && lane % 4 == 0) merged_l[lane / 4] = whole > 0 ? reference + log2f(whole) : -INFINITY;
  }
  __syncthreads();
  if (HOW == PULL || pushes(HOW)) {
    Landing* landing = reinterpret_cast<Landing*>(dynamic_shared + STAGES * TILE_BYTES);
    if (p.parts == 2) merge_in_cluster<HOW, 2>(r, row, part, shared_o, merged_l, landing, &landed);
    if (p.parts == 4) merge_in_cluster<HOW, 4>(r, row, part, shared_o, merged_l, landing, &landed);
    if (p.parts == 8) merge_in_cluster<HOW, 8>(r, row, part, shared_o, merged_l, landing, &landed);
    return;
  }
  if (HOW == CLUSTER) {
    cg::cluster_group cluster = cg::this_cluster();
    cluster.sync();
    const int mine = cluster.block_rank(), parts = p.parts;
    for (int g = mine * WARPS + warp; warp < WARPS && g < GROUP; g += parts * WARPS) {
      float most = -INFINITY, sum = 0, sums[4] = {};
      for (int i = 0; i < parts; ++i) most = fmaxf(most, *cluster.map_shared_rank(&merged_l[g], i));
      for (int i = 0; i < parts; ++i) {
        const float weight = most > -INFINITY ? exp2f(*cluster.map_shared_rank(&merged_l[g], i) - most) : 0;
        const float4 x = *cluster.map_shared_rank(reinterpret_cast<float4*>(shared_o + g * DEPTH + 4 * lane), i);
        sum += weight;
        sums[0] += weight * x.x, sums[1] += weight * x.y, sums[2] += weight * x.z, sums[3] += weight * x.w;
      }
      const float inverse = sum > 0 ? 1 / sum : 0;
      uint2 words = {packed(sums[0] * inverse, sums[1] * inverse), packed(sums[2] * inverse, sums[3] * inverse)};
      *reinterpret_cast<uint2*>(&r.out[size_t(row + g) * DEPTH + 4 * lane]) = words;
    }
    cluster.sync();
    return;
  }
  if (p.parts == 1) {
    for (int i = threadIdx.x; i < GROUP * DEPTH; i += THREADS) r.out[size_t(row) * DEPTH + i] = __float2bfloat16(shared_o[i]);
    return;
  }
  for (int i = threadIdx.x; i < GROUP * DEPTH / 4; i += THREADS)
    reinterpret_cast<float4*>(&r.partial_o[(size_t(part) * rows + row) * DEPTH])[i] = reinterpret_cast<float4*>(shared_o)[i];
  if (threadIdx.x < GROUP) r.partial_l[part * rows + row + threadIdx.x] = merged_l[threadIdx.x];
  if (HOW == LAST) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&r.counters[sequence * HEADS_KV + head], 1) == p.parts - 1;
    __syncthreads();
    if (last) {
      __threadfence();
      if (threadIdx.x == 0) r.counters[sequence * HEADS_KV + head] = 0;
      for (int g = warp; g < GROUP; g += WARPS + 1) merge(r, p.parts, rows, row + g, lane);
    }
  }
}

// --- what is right ----------------------------------------------------------------------------------------------------

// Values of -1 to 1, by their place.
__global__ void fill(__nv_bfloat16* to, size_t number) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < number; i += size_t(gridDim.x) * blockDim.x) {
    uint64_t x = (i + 1) * 0x9E3779B97F4A7C15ull;
    x ^= x >> 29, x *= 0xBF58476D1CE4E5B9ull, x ^= x >> 32;
    to[i] = __float2bfloat16(float(x & 0xffff) / 32768 - 1);
  }
}

// A block for each row of a few sequences: attention by its definition in float32, from row 0 of the pool.
__global__ void by_definition(const __nv_bfloat16* k, const __nv_bfloat16* v, const __nv_bfloat16* q, float* scores, float* out, int keys,
                              float scale_log2) {
  __shared__ float most, sum;
  const int row = blockIdx.x, head = row / GROUP % HEADS_KV, sequence = row / (GROUP * HEADS_KV);
  float* mine = scores + size_t(row) * keys;
  const size_t first = (size_t(sequence) * keys * HEADS_KV + head) * DEPTH;
  for (int i = threadIdx.x; i < keys; i += blockDim.x) {
    float s = 0;
    for (int d = 0; d < DEPTH; ++d)
      s += __bfloat162float(q[size_t(row) * DEPTH + d]) * __bfloat162float(k[first + size_t(i) * HEADS_KV * DEPTH + d]);
    mine[i] = s * scale_log2;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    most = -INFINITY, sum = 0;
    for (int i = 0; i < keys; ++i) most = fmaxf(most, mine[i]);
    for (int i = 0; i < keys; ++i) sum += exp2f(mine[i] - most);
  }
  __syncthreads();
  float o = 0;
  for (int i = 0; i < keys; ++i)
    o += exp2f(mine[i] - most) / sum * __bfloat162float(v[first + size_t(i) * HEADS_KV * DEPTH + threadIdx.x]);
  out[size_t(row) * DEPTH + threadIdx.x] = o;
}

// --- host -------------------------------------------------------------------------------------------------------------

static cudaStream_t stream_;
static int sms;

static CUtensorMap tensor_map(void* base, int rank, std::vector<cuuint64_t> sizes, std::vector<cuuint64_t> strides,
                              std::vector<cuuint32_t> box) {
  static decltype(&cuTensorMapEncodeTiled) encode = nullptr;
  cudaDriverEntryPointQueryResult result;
  if (!encode) CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void**)&encode, 12000, cudaEnableDefault, &result));
  CUtensorMap map;
  std::vector<cuuint32_t> steps(rank, 1);
  CHECK(encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, base, sizes.data(), strides.data(), box.data(),
                               steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                               CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  return map;
}

// Microseconds of launch(i), i = 0, 1, ...: many of them in a graph, the median of five replays.
template <class F>
static double timed(F launch, int launches) {
  cudaGraph_t graph;
  cudaGraphExec_t ready;
  CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < launches; ++i) launch(i);
  CHECK(cudaStreamEndCapture(stream_, &graph));
  CHECK(cudaGraphInstantiate(&ready, graph, 0));
  cudaEvent_t from, to;
  CHECK(cudaEventCreate(&from));
  CHECK(cudaEventCreate(&to));
  std::vector<double> found;
  for (int round = 0; round < 6; ++round) {
    CHECK(cudaEventRecord(from, stream_));
    CHECK(cudaGraphLaunch(ready, stream_));
    CHECK(cudaEventRecord(to, stream_));
    CHECK(cudaEventSynchronize(to));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, from, to));
    if (round) found.push_back(1e3 * ms / launches);  // the first warms up
  }
  CHECK(cudaGetLastError());
  CHECK(cudaGraphExecDestroy(ready));
  CHECK(cudaGraphDestroy(graph));
  std::sort(found.begin(), found.end());
  return found[found.size() / 2];
}

template <class... P, class... A>
static void launch(void (*kernel)(P...), dim3 grid, int threads, int shared, bool early, int cluster, A... args) {
  cudaLaunchAttribute attributes[2];
  int n = 0;
  if (early) {
    attributes[n].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[n++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[n].id = cudaLaunchAttributeClusterDimension;
    attributes[n].val.clusterDim.x = cluster, attributes[n].val.clusterDim.y = attributes[n].val.clusterDim.z = 1;
    ++n;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid, config.blockDim = dim3(threads), config.dynamicSmemBytes = shared, config.stream = stream_;
  config.attrs = attributes, config.numAttrs = n;
  CHECK(cudaLaunchKernelEx(&config, kernel, P(args)...));
}

template <class K>
static K* with_shared(K* kernel, int bytes) {
  CHECK(cudaFuncSetAttribute((const void*)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  cudaFuncSetAttribute((const void*)kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  return kernel;
}

static bool first_row_ = true;
static void row(const char* text) {
  std::printf("%s\n  %s", first_row_ ? "" : ",", text);
  first_row_ = false;
}

int main() {
  CHECK(cudaSetDevice(0));
  cudaDeviceProp device;
  CHECK(cudaGetDeviceProperties(&device, 0));
  sms = device.multiProcessorCount;
  CHECK(cudaFree(nullptr));
  CHECK(cudaStreamCreate(&stream_));
  unsigned char* pool;
  CHECK(cudaMalloc(&pool, POOL_BYTES));
  fill<<<4096, 256, 0, stream_>>>((__nv_bfloat16*)pool, POOL_BYTES / 2);
  const int most_rows = 64 * HEADS_KV * GROUP, most_parts = 64;
  Results r;
  CHECK(cudaMalloc(&r.partial_o, sizeof(float) * most_parts * most_rows * DEPTH));
  CHECK(cudaMalloc(&r.partial_l, sizeof(float) * most_parts * most_rows));
  CHECK(cudaMalloc(&r.counters, sizeof(int) * most_rows));
  CHECK(cudaMemset(r.counters, 0, sizeof(int) * most_rows));
  CHECK(cudaMalloc(&r.out, 2 * most_rows * DEPTH));
  __nv_bfloat16* q;
  CHECK(cudaMalloc(&q, 2 * most_rows * DEPTH));
  fill<<<64, 256, 0, stream_>>>(q, most_rows * DEPTH);
  float *scores, *right;
  CHECK(cudaMalloc(&scores, sizeof(float) * size_t(most_rows) * 16384));
  CHECK(cudaMalloc(&right, sizeof(float) * most_rows * DEPTH));
  std::printf("{\n \"device\": \"%s\", \"sms\": %d, \"rows\": [", device.name, sms);
  char text[400];

  // latency and stream
  const long rows_128 = POOL_BYTES / 128;
  with_shared(stream, 200 << 10);
  for (int box : {16, 32, 64, 128}) {
    CUtensorMap map = tensor_map(pool, 2, {64, cuuint64_t(rows_128)}, {128}, {64, cuuint32_t(box)});
    const int bytes = box * 128;
    const long boxes_of_pool = rows_128 / box;
    if (box <= 64) {
      const int boxes = 2000;
      auto one = [&](int i) { launch(stream, 1, 32, bytes, false, 1, map, box, 1, 1, boxes, int(long(i) * boxes % (boxes_of_pool - boxes))); };
      const double many = timed(one, 10);
      std::snprintf(text, sizeof text, "{\"what\": \"latency\", \"box_bytes\": %d, \"ns\": %.2f}", bytes, many * 1e3 / boxes);
      row(text);
    }
    for (int kib : {8, 16, 32, 64, 128, 192}) {
      const int stages = (kib << 10) / bytes;
      if (stages < 1 || stages > 64) continue;
      const int boxes = int((long(2) << 30) / bytes);
      auto all = [&](int i) {
        launch(stream, sms, 32, kib << 10, false, 1, map, box, 1, stages, boxes, int(long(i) * boxes % (boxes_of_pool - boxes)));
      };
      const double us = timed(all, 4);
      std::snprintf(text, sizeof text, "{\"what\": \"stream\", \"box_bytes\": %d, \"in_flight\": %d, \"us\": %.2f, \"tb_s\": %.3f}",
                    bytes, kib << 10, us, boxes * double(bytes) / us * 1e-6);
      row(text);
    }
  }

  // copies of a few rows, 16 KiB a barrier, 128 KiB in flight: what the copy engine needs for each of them
  for (int box : {4, 8, 16, 32, 64}) {
    CUtensorMap map = tensor_map(pool, 2, {64, cuuint64_t(rows_128)}, {128}, {64, cuuint32_t(box)});
    const int piece = 16 << 10, pieces = (1 << 30) / piece, pieces_of_pool = int(POOL_BYTES / piece);
    auto all = [&](int i) {
      launch(stream, sms, 32, 8 * piece, false, 1, map, box, piece / 128 / box, 8, pieces, int(long(i) * pieces % (pieces_of_pool - pieces)));
    };
    const double us = timed(all, 4);
    std::snprintf(text, sizeof text, "{\"what\": \"boxes\", \"box_bytes\": %d, \"us\": %.2f, \"tb_s\": %.3f}", box * 128, us,
                  double(pieces) * piece / us * 1e-6);
    row(text);
  }

  // launches
  const int ring = STAGES * TILE_BYTES + LANDING_BYTES;
  for (int early = 0; early < 2; ++early) {
    auto nothings = [&](int) { launch(early ? nothing_dependent : nothing, sms, 128, 0, early, 1); };
    std::snprintf(text, sizeof text, "{\"what\": \"nothing\", \"dependent\": %d, \"us\": %.3f}", early, timed(nothings, 1000));
    row(text);
  }

  // first, decode
  CUtensorMap k_map = tensor_map(pool, 3, {DEPTH, HEADS_KV, ROWS}, {2 * DEPTH, ROW_BYTES}, {64, 1, KEYS});
  CUtensorMap v_map = tensor_map(pool + POOL_BYTES / 2, 3, {DEPTH, HEADS_KV, ROWS}, {2 * DEPTH, ROW_BYTES}, {64, 1, KEYS});
  auto by_kernel = with_shared(decode<KERNEL>, ring);
  const decltype(by_kernel) kernels[HOWS] = {by_kernel,
                                             with_shared(decode<DEPENDENT>, ring),
                                             with_shared(decode<LAST>, ring),
                                             with_shared(decode<CLUSTER>, ring),
                                             by_kernel,
                                             by_kernel,
                                             with_shared(decode<PULL>, ring),
                                             with_shared(decode<PUSH>, ring),
                                             with_shared(decode<PUSH_FREE>, ring),
                                             with_shared(decode<PUSH_BULK>, ring),
                                             with_shared(decode<PUSH_STORE>, ring),
                                             by_kernel};
  const char* names[HOWS] = {"kernel", "dependent", "last", "cluster",   "none",      "only",
                             "pull",   "push",      "push_free", "push_bulk", "push_store", "apart"};
  int* zeros;
  CHECK(cudaMalloc(&zeros, 8 << 20));
  CHECK(cudaMemset(zeros, 0, 8 << 20));
  for (int looks_up = 0; looks_up < 2; ++looks_up)
    for (int prefetches = 0; prefetches < 2; ++prefetches)
      for (int tiles = 0; tiles < 2; ++tiles) {
        const int parts = 16;
        auto one = [&](int i) {
          Problem p = {1, parts * KEYS, parts, tiles, int(long(i) * parts * KEYS % long(ROWS - parts * KEYS))};
          p.looked_up = looks_up ? zeros : nullptr, p.slot = i % 500 * 2048, p.prefetches = prefetches;
          launch(by_kernel, dim3(parts, HEADS_KV, 1), THREADS, ring, false, 1, k_map, v_map, q, p, r, SCALE_LOG2);
        };
        std::snprintf(text, sizeof text, "{\"what\": \"first\", \"looks_up\": %d, \"prefetches\": %d, \"tiles\": %d, \"us\": %.3f}",
                      looks_up, prefetches, tiles, timed(one, 400));
        row(text);
      }
  double largest_error = 0;
  for (int batch : {1, 8, 64})
    for (int keys : {1024, 4096, 16384, 65536}) {
      if (batch == 64 && keys == 65536) continue;
      const int rows = batch * HEADS_KV * GROUP, used = batch * keys;
      by_definition<<<rows, DEPTH, 0, stream_>>>((__nv_bfloat16*)pool, (__nv_bfloat16*)(pool + POOL_BYTES / 2), q, scores, right, keys,
                                                 SCALE_LOG2);
      std::vector<float> expected(rows * DEPTH);
      CHECK(cudaMemcpyAsync(expected.data(), right, 4 * rows * DEPTH, cudaMemcpyDeviceToHost, stream_));
      for (int parts : {1, 2, 4, 8, 16, 32})
        for (int how = 0; how < HOWS; ++how)
          for (int empty = 0; empty < 2; ++empty) {
            const int ctas = batch * HEADS_KV * parts, tiles = keys / parts / KEYS;
            if (tiles < 1 || (parts > 1 && ctas > sms) || (parts > 8 && in_cluster(how)) || (parts == 1 && how)) continue;
            if (empty && keys != 4096) continue;
            Problem p = {batch, keys, parts, empty ? 0 : tiles, 0};
            const dim3 grid(parts, HEADS_KV, batch);
            auto both = [&](int i) {
              p.first_row = i < 0 ? 0 : int(long(i) * used % long(ROWS - used));
              const int cluster = in_cluster(how) ? parts : 1;
              const bool unmerged = how == NONE || how == APART;
              if (how != ONLY || i < 0)
                launch(kernels[how], grid, THREADS, ring, how == DEPENDENT, cluster, k_map, v_map, q, p, r, SCALE_LOG2);
              if (parts == 1 || (unmerged && i >= 0)) return;
              if (how == KERNEL || how == ONLY || unmerged) launch(merge_kernel<false>, (rows + 3) / 4, 128, 0, false, 1, r, parts, rows);
              if (how == DEPENDENT) launch(merge_kernel<true>, (rows + 3) / 4, 128, 0, true, 1, r, parts, rows);
            };
            const double us = timed(both, used > 1 << 18 ? 20 : 200);
            CHECK(cudaMemsetAsync(r.partial_o, 0xff, sizeof(float) * parts * rows * DEPTH, stream_));
            CHECK(cudaMemsetAsync(r.out, 0xff, 2 * rows * DEPTH, stream_));
            both(-1);
            std::vector<__nv_bfloat16> out(rows * DEPTH);
            CHECK(cudaMemcpyAsync(out.data(), r.out, 2 * rows * DEPTH, cudaMemcpyDeviceToHost, stream_));
            CHECK(cudaStreamSynchronize(stream_));
            double error = 0;
            for (int i = 0; i < rows * DEPTH; ++i) {
              const double off = std::fabs(__bfloat162float(out[i]) - (empty ? 0 : expected[i]));
              error = off <= error ? error : off;  // a NaN stays
            }
            largest_error = error <= largest_error ? largest_error : error;
            std::snprintf(text, sizeof text,
                          "{\"what\": \"decode\", \"batch\": %d, \"keys\": %d, \"parts\": %d, \"merge\": \"%s\", \"us\": %.3f, "
                          "\"error\": %.5f}",
                          batch, empty ? 0 : keys, parts, names[how], us, error);
            row(text);
          }
    }
  std::printf("\n ], \"largest_error\": %.5f\n}\n", largest_error);
  return !(largest_error < LARGEST_ERROR);
}

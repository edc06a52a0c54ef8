// Power of a Hopper GPU while all of its SMs do one thing, and how often they do it: one line of JSON for each.
//
//     nvcc -std=c++17 -gencode=arch=compute_90a,code=sm_90a -o hopper_energy hopper_energy.cu -ldl
//     ./hopper_energy [SECONDS [PART OF A NAME]]
//
// A launch runs for SECONDS (default 3). The driver's energy counter (NVML) is read after a quarter of that time and
// just before the end. What a kernel's threads do is counted from begin to end. cycle_model/hopper_energy.py subtracts
// the power of threads that sleep, and divides.

#include "hopper_wgmma.h"

#include <chrono>
#include <cstring>
#include <dlfcn.h>
#include <thread>

extern __shared__ __align__(1024) unsigned char shared[];

constexpr int SHARED_BYTES = 200 * 1024;
constexpr int REPEATS = 64;  // of an operation, unrolled
constexpr int LOOKS = 16;    // such repeats between two looks at the clock

struct Work {
  unsigned long long nanoseconds;
  unsigned long long *rounds;  // of all warps of a CTA together
  uint4 *memory;
  size_t window;  // bytes of memory that a warp reads, a power of two
  float *sink;
};

__device__ __forceinline__ unsigned long long now() {
  unsigned long long t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}

// body(round) until the time is over. Warps look at the clock for themselves, or (TOGETHER) all warps of a CTA stop after
// the same round: a wgmma that one warp of its warpgroup does not reach is an illegal instruction.
template <bool TOGETHER = false, class Body>
__device__ __forceinline__ void repeat(const Work &work, Body body) {
  unsigned long long end = now() + work.nanoseconds, rounds = 0;
  while (TOGETHER ? __syncthreads_or(now() < end) : now() < end) body(rounds++);
  if (threadIdx.x % 32 == 0) atomicAdd(&work.rounds[blockIdx.x], rounds);
}

__global__ void asleep(Work work) {
  repeat(work, [](unsigned long long) { __nanosleep(20000); });
}

// Numbers that look random: sums of four parts of a hash are nearly normal.
__device__ __forceinline__ uint32_t two_normals(uint32_t i) {
  uint32_t word = 0;
  for (int half = 0; half < 2; half++) {
    uint32_t h = (2 * i + half) * 2654435761u;
    h = (h ^ h >> 15) * 2246822519u;
    h = (h ^ h >> 13) * 3266489917u;
    int sum = (int)(h & 255) + (int)(h >> 8 & 255) + (int)(h >> 16 & 255) + (int)(h >> 24) - 510;
    word |= (__float_as_uint(sum / 147.8f) >> 16) << (16 * half);
  }
  return word;
}

enum Operation { FFMA, LOP3, EX2 };

// Eight chains of operations, whose inputs change from one to the next: equal ones would cost less, or be removed.
template <Operation OPERATION>
__global__ void arithmetic(Work work) {
  float in[8], sum = 0;
  uint32_t out[8] = {};
  for (int i = 0; i < 8; i++) in[i] = __uint_as_float(two_normals(threadIdx.x * 8 + i) << 16);
  repeat(work, [&](unsigned long long round) {
    for (int look = 0; look < LOOKS; look++) {
      uint32_t step = ((uint32_t)round * LOOKS + look) * 2654435761u >> 9;  // 23 bits, of a fraction
#pragma unroll
      for (int i = 0; i < REPEATS; i++) {
        float x = in[(i + i / 8) % 8], y = in[(i + i / 8 + 3) % 8] * 0.2f;
        uint32_t &z = out[i % 8];
        if (OPERATION == FFMA) asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"((float &)z) : "f"(y), "f"(x));
        if (OPERATION == LOP3)
          asm volatile("lop3.b32 %0, %0, %1, %2, 0x6a;" : "+r"(z) : "r"(__float_as_uint(x)), "r"(step + i % 8));
        if (OPERATION == EX2) {  // with two LOP3
          float e;
          asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(__uint_as_float(__float_as_uint(x) ^ (z & 0x7fffff))));
          z ^= __float_as_uint(e);
        }
      }
    }
  });
  for (int i = 0; i < 8; i++) sum += __uint_as_float(out[i]);
  if (sum == 12345.f) *work.sink = sum;
}

enum Data { ZEROS, ONES, NORMAL };

template <Data DATA>
__device__ void fill() {
  uint32_t *words = (uint32_t *)shared;
  for (int i = threadIdx.x; i < 160 * 1024 / 4; i += blockDim.x)
    words[i] = DATA == ZEROS ? 0u : DATA == ONES ? 0x3f803f80u : two_normals(i);
  __syncthreads();
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
}

__global__ void shared_reads(Work work) {
  fill<NORMAL>();
  uint32_t base = (uint32_t)__cvta_generic_to_shared(shared), x = 0;
  repeat(work, [&](unsigned long long round) {
#pragma unroll
    for (int i = 0; i < REPEATS; i++) {
      uint32_t at = base + ((threadIdx.x + (i + (uint32_t)round * 7) * blockDim.x) * 16) % (128 * 1024), a, b, c, d;
      asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(at));
      x ^= a ^ b ^ c ^ d;
    }
  });
  if (x == 12345u) *work.sink = x;
}

// A fill of one value would be read at 10 TB/s.
__global__ void write_normals(uint4 *memory, size_t count) {
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
    uint32_t n = 4 * (uint32_t)i;
    memory[i] = {two_normals(n), two_normals(n + 1), two_normals(n + 2), two_normals(n + 3)};
  }
}

// Each warp reads a window of its own, again and again: small ones stay in the L2 cache together. With one window for
// all, warps that run behind find in the L2 what others read, catch up, and the rate is no longer that of the HBM.
__global__ void global_reads(Work work) {
  uint32_t x = 0, warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  char *window = (char *)work.memory + warp * work.window + threadIdx.x % 32 * 16;
  repeat(work, [&](unsigned long long round) {
#pragma unroll
    for (int i = 0; i < REPEATS; i++) {
      size_t at = ((round * REPEATS + i) * 512) & (work.window - 1);
      uint32_t a, b, c, d;
      asm volatile("ld.global.cg.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(window + at));
      x ^= a ^ b ^ c ^ d;
    }
  });
  if (x == 12345u) *work.sink = x;
}

enum Wait { TEST, TRY, SUSPENDED };

// Warps that wait for an mbarrier which nobody arrives at.
template <Wait WAIT>
__global__ void waits(Work work) {
  uint32_t barrier = (uint32_t)__cvta_generic_to_shared(shared), done = 0;
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barrier));
  __syncthreads();
  repeat(work, [&](unsigned long long) {
    uint32_t p;
    for (int i = 0; WAIT == TEST && i < REPEATS; i++) {
      asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], 0; selp.b32 %0, 1, 0, p;}"
                   : "=r"(p) : "r"(barrier) : "memory");
      done |= p;
    }
    if (WAIT == TRY)
      asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.b32 %0, 1, 0, p;}"
                   : "=r"(p) : "r"(barrier) : "memory");
    if (WAIT == SUSPENDED)
      asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0, %2; selp.b32 %0, 1, 0, p;}"
                   : "=r"(p) : "r"(barrier), "r"(1000000) : "memory");
    if (WAIT != TEST) done |= p;
  });
  if (done) *work.sink = done;
}

template <Data DATA, bool A_IN_REGISTERS>
__global__ void __launch_bounds__(256, 1) multiply(Work work) {
  fill<DATA>();
  uint32_t base = (uint32_t)__cvta_generic_to_shared(shared), r[4];
  for (int i = 0; i < 4; i++) r[i] = DATA == ZEROS ? 0u : DATA == ONES ? 0x3f803f80u : two_normals(threadIdx.x * 4 + i);
  uint64_t a = descriptor(base + threadIdx.x / 128 * 16384), b = descriptor(base + 65536);
  float d[64] = {}, sum = 0;
  repeat<true>(work, [&](unsigned long long) {
    for (int n = 0; n < 8; n++) {
      fence();
#pragma unroll
      for (int k = 0; k < 8; k++)
        wgmma<A_IN_REGISTERS>(d, a + 2 * (k & 3) + (k >> 2) * 512, r, b + (A_IN_REGISTERS ? k * 128 : 2 * (k & 3)));
      commit();
      wait<0>();
    }
  });
  for (int i = 0; i < 64; i++) sum += d[i];
  if (sum == 12345.f) *work.sink = sum;
}

// --- the host ---------------------------------------------------------------------------------------------------

struct Nvml {
  int (*energy)(void *, unsigned long long *);
  int (*clock)(void *, int, unsigned *);
  void *device = nullptr;

  Nvml() {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    char bus[32];
    CHECK(cudaDeviceGetPCIBusId(bus, sizeof(bus), 0));
    if (!library || ((int (*)())dlsym(library, "nvmlInit_v2"))() ||
        ((int (*)(const char *, void **))dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"))(bus, &device)) {
      std::printf("no NVML\n");
      std::exit(1);
    }
    energy = (decltype(energy))dlsym(library, "nvmlDeviceGetTotalEnergyConsumption");
    clock = (decltype(clock))dlsym(library, "nvmlDeviceGetClockInfo");
  }
  double joules() {
    unsigned long long mj = 0;
    return energy(device, &mj) ? -1 : mj * 1e-3;
  }
  unsigned mhz() {
    unsigned value = 0;
    clock(device, 1, &value);
    return value;
  }
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

struct Run {
  const char *name, *unit;
  void (*kernel)(Work);  // nullptr: nothing runs
  int threads;           // of a CTA, one on each SM
  double each;           // units of a thread in a round
  size_t window = 0;
};

// 132 SMs of 16 warps read 4.4 GB of HBM, or 17 MB of the L2 cache.
constexpr size_t HBM_WINDOW = 1 << 21, L2_WINDOW = 1 << 13, MEMORY = size_t(5) << 30;
constexpr double FLOPS_A_THREAD = 8.0 * 8 * 2 * 64 * 128 * 16 / 128;
const Run RUNS[] = {
    {"idle", "-", nullptr, 0, 0},
    {"threads asleep", "-", asleep, 512, 0},
    {"FFMA", "operations", arithmetic<FFMA>, 512, REPEATS * LOOKS},
    {"LOP3", "operations", arithmetic<LOP3>, 512, REPEATS * LOOKS},
    {"EX2 and two LOP3", "operations", arithmetic<EX2>, 512, REPEATS * LOOKS},
    {"shared memory, read", "bytes", shared_reads, 512, 16.0 * REPEATS},
    {"L2, read", "bytes", global_reads, 512, 16.0 * REPEATS, L2_WINDOW},
    {"HBM, read", "bytes", global_reads, 512, 16.0 * REPEATS, HBM_WINDOW},
    {"16 warps poll an mbarrier (test_wait)", "polls of threads", waits<TEST>, 512, REPEATS},
    {"16 warps wait (try_wait)", "polls of threads", waits<TRY>, 512, 1},
    {"16 warps wait (try_wait, 1 ms)", "polls of threads", waits<SUSPENDED>, 512, 1},
    {"1 warp polls (test_wait)", "polls of threads", waits<TEST>, 32, REPEATS},
    {"wgmma bf16, A and B in shared memory, zeros", "FLOPs", multiply<ZEROS, false>, 256, FLOPS_A_THREAD},
    {"wgmma bf16, A and B in shared memory, ones", "FLOPs", multiply<ONES, false>, 256, FLOPS_A_THREAD},
    {"wgmma bf16, A and B in shared memory, normal", "FLOPs", multiply<NORMAL, false>, 256, FLOPS_A_THREAD},
    {"wgmma bf16, A in registers, zeros", "FLOPs", multiply<ZEROS, true>, 256, FLOPS_A_THREAD},
    {"wgmma bf16, A in registers, normal", "FLOPs", multiply<NORMAL, true>, 256, FLOPS_A_THREAD},
};

int main(int count, char **arguments) {
  double seconds = count > 1 ? std::atof(arguments[1]) : 3.0;
  cudaDeviceProp device;
  CHECK(cudaGetDeviceProperties(&device, 0));
  Nvml nvml;
  int sms = device.multiProcessorCount;
  if (sms * 16 * HBM_WINDOW > MEMORY) return std::printf("more SMs than the memory is for\n"), 1;
  Work work{};
  unsigned long long *rounds = nullptr;
  CHECK(cudaMallocManaged(&rounds, sms * sizeof(*rounds)));
  CHECK(cudaMalloc(&work.memory, MEMORY));
  write_normals<<<sms * 4, 512>>>(work.memory, MEMORY / sizeof(uint4));
  CHECK(cudaMalloc(&work.sink, sizeof(float)));
  work.rounds = rounds;
  for (const Run &run : RUNS) {
    if (count > 2 && !std::strstr(run.name, arguments[2])) continue;
    CHECK(cudaMemset(rounds, 0, sms * sizeof(*rounds)));
    work.nanoseconds = (unsigned long long)(seconds * 1e9);
    work.window = run.window;
    if (run.kernel) {
      CHECK(cudaFuncSetAttribute(run.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
      run.kernel<<<sms, run.threads, SHARED_BYTES>>>(work);
      CHECK(cudaGetLastError());
    }
    sleep(seconds / 4);
    double from = seconds_now(), joules = nvml.joules();
    sleep(seconds / 2);
    unsigned mhz = nvml.mhz();
    sleep(seconds / 5);
    double watts = (nvml.joules() - joules) / (seconds_now() - from);
    CHECK(cudaDeviceSynchronize());
    double units = 0;
    for (int i = 0; run.kernel && i < sms; i++) units += (double)rounds[i] * 32 * run.each;
    std::printf("{\"device\": \"%s\", \"sms\": %d, \"what\": \"%s\", \"unit\": \"%s\", \"watts\": %.1f, \"mhz\": %u, "
                "\"per_second\": %.4g}\n",
                device.name, sms, run.name, run.unit, watts, mhz, units / seconds);
    std::fflush(stdout);
    sleep(0.5);
  }
}

// The instruction caches of a Hopper SM: cycles an instruction in a loop of so many KiB / in its first, cold pass.
//
//     nvcc -std=c++17 -arch=sm_90a -o hopper_instructions hopper_instructions.cu && ./hopper_instructions
//
// 16 bytes an instruction, eight independent FFMA chains a warp. Columns: one CTA, then one on each SM; of 1, 4 and 12
// warps, for a warp of a scheduler. docs/performance/method.md has what follows.
#include <cstdio>

#define F(i) "fma.rn.f32 %" #i ",%" #i ",%8,%9;\n"
#define R8 F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7)
#define R64 R8 R8 R8 R8 R8 R8 R8 R8
#define X(i) "+f"(r[i])

template <int KIB> __global__ void loop(long long *out, float *p) {
  float r[8], a = p[0], b = p[1];
  for (int i = 0; i < 8; i++) r[i] = p[i] + threadIdx.x;
  long long cold = clock64(), warm = 0;
#pragma unroll 1
  for (int turn = 0; turn < 6; turn++) {
    if (turn == 1) cold = clock64() - cold;
    if (turn == 2) __syncthreads(), warm = clock64();
#pragma unroll
    for (int i = 0; i < KIB; i++)
      asm volatile(R64 : X(0), X(1), X(2), X(3), X(4), X(5), X(6), X(7) : "f"(a), "f"(b));
  }
  __syncthreads();
  warm = clock64() - warm;
  float sum = 0;
  for (int i = 0; i < 8; i++) sum += r[i];
  if (sum == 3) p[0] = sum;
  if (threadIdx.x == 0) out[2 * blockIdx.x] = warm, out[2 * blockIdx.x + 1] = cold;
}

template <int... KIB> void all(long long *o, float *p, int sms) {
  long long h[512];
  auto of = [&](int kib, void (*f)(long long *, float *)) {
    printf("%4d KiB", kib);
    for (int ctas : {1, sms})
      for (int warps : {1, 4, 12}) {
        f<<<ctas, 32 * warps>>>(o, p);
        cudaMemcpy(h, o, 16 * ctas, cudaMemcpyDeviceToHost);
        double n = kib * 64. * (warps < 4 ? 1 : warps / 4), warm = 0, cold = 0;
        for (int i = 0; i < ctas; i++) warm = fmax(warm, h[2 * i] / 4 / n), cold = fmax(cold, h[2 * i + 1] / n);
        printf("  %.2f / %.1f", warm, cold);
      }
    puts("");
  };
  (of(KIB, loop<KIB>), ...);
}

int main() {
  long long *o;
  float *p;
  cudaDeviceProp device;
  cudaGetDeviceProperties(&device, 0);
  cudaMalloc(&o, 1 << 14), cudaMalloc(&p, 64), cudaMemset(p, 0, 64);
  puts(device.name);
  all<8, 16, 24, 28, 32, 40, 48, 64, 96, 112, 120, 128, 136, 160, 192, 256, 384>(o, p, device.multiProcessorCount);
}

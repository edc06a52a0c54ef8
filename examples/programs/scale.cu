// y = factor * x + shift, n numbers.
//
// python -m cute_fa4.emulator run examples/programs/scale.cu --entry scale --grid 2 --block 64
//     --argument f32:100:zeros --argument f32:100:count --argument f32:3 --argument f32:7 --argument u32:100

__global__ void scale(float *y, const float *x, float factor, float shift, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i] + shift;
}

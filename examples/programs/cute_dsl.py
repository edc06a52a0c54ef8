"""A program for a Blackwell GPU, in the shape of CUTLASS's examples: y = factor * x in CuTe DSL.

python -m cute_fa4.emulator run examples/programs/cute_dsl.py --n 96
"""

import argparse

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute import testing
from cutlass.cute.runtime import from_dlpack

BLOCK = 32


@cute.kernel
def scale_kernel(x: cute.Tensor, y: cute.Tensor, factor: cutlass.Float32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    i = BLOCK * block + thread
    y[i] = factor * x[i]


@cute.jit
def scale(x: cute.Tensor, y: cute.Tensor, factor: cutlass.Float32, stream: cuda.CUstream):
    scale_kernel(x, y, factor).launch(
        grid=[x.shape[0] // BLOCK, 1, 1], block=[BLOCK, 1, 1], stream=stream
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=1 << 10, help="a multiple of 32; default: 1024")
    n = parser.parse_args().n

    error, devices = cuda.cuDeviceGetCount()
    if error != cuda.CUresult.CUDA_SUCCESS or devices < 1 or not torch.cuda.is_available():
        raise RuntimeError("a GPU is required")
    cutlass.cuda.initialize_cuda_context()
    print(f"{cutlass.utils.HardwareInfo().get_max_active_clusters(4)} clusters of 4 CTAs at a time")

    own = torch.cuda.Stream()
    stream = cuda.CUstream(own.cuda_stream)
    x = torch.arange(float(n), device="cuda")
    y = torch.empty_like(x)
    arguments = from_dlpack(x), from_dlpack(y), cutlass.Float32(3.0), stream
    compiled = cute.compile(scale, *arguments)

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(own):
        begin.record()
        compiled(*arguments)
        end.record()
    torch.cuda.synchronize()
    assert torch.equal(y.cpu(), 3.0 * torch.arange(float(n)))
    microseconds = testing.benchmark(
        compiled, kernel_arguments=testing.JitArguments(*arguments), stream=stream
    )
    print(f"{begin.elapsed_time(end)} ms between the events, {microseconds} us a launch")
    print("PASS")


if __name__ == "__main__":
    main()

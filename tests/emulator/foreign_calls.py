"""Calls of packages' kernels as a program with a GPU makes them, each compared with a reference in float64.

Inside of as_if_cuda: tensors "on cuda" are CPU tensors. Sizes: the smallest with more than one tile where it is cheap.
"""

import os
import subprocess
import tempfile
from pathlib import Path

import torch

from cute_fa4.emulator import ptx_files


def check(name, got, exact, bound):
    """Raises ValueError where the norm of the error is more than bound of the norm of the exact values."""
    error = ((got.double() - exact).norm() / exact.norm()).item()
    if not error <= bound:
        raise ValueError(f"{name}: relative error {error:.2e}; accepted: {bound}")


def random(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda", dtype=dtype)


def attention(backward=False, head_dim=64, length=256):
    """flash-attn-4, causal, two heads; its backward's errors come from bf16 P and dS."""
    from flash_attn.cute import interface

    torch.manual_seed(0)
    q, k, v, d_out = (random(1, length, 2, head_dim) for _ in range(4))
    out, lse, *_ = interface._flash_attn_fwd(q, k, v, causal=True, return_lse=True)
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    scores = torch.einsum("bqhd,bkhd->bhqk", *exact[:2]) / head_dim**0.5
    scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf)
    expected = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), exact[2])
    check("out", out, expected.detach(), 5e-3)
    if backward:
        gradients = interface._flash_attn_bwd(q, k, v, out, d_out, lse, causal=True)
        expected.backward(d_out.double())
        for name, got, x in zip(("dq", "dk", "dv"), gradients, exact, strict=False):
            check(name, got, x.grad, 5e-3)


def softmax():
    from quack.softmax import softmax_fwd

    x = random(8, 1024)
    check("softmax", softmax_fwd(x), x.double().softmax(-1), 5e-3)


def rmsnorm():
    from quack.rmsnorm import rmsnorm_fwd

    x, w = random(8, 1024), random(1024, dtype=torch.float32)
    out = rmsnorm_fwd(x, w)
    exact = x.double() * (x.double().square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w.double()
    check("rmsnorm", out[0] if isinstance(out, tuple) else out, exact, 5e-3)


def cross_entropy():
    from quack.cross_entropy import cross_entropy_fwd

    x, target = random(8, 1024), torch.randint(0, 1024, (8,), device="cuda")
    loss = cross_entropy_fwd(x, target)
    exact = torch.nn.functional.cross_entropy(x.double(), target, reduction="none")
    check("cross entropy", loss[0] if isinstance(loss, tuple) else loss, exact, 1e-5)


def gemm():
    from quack.gemm_interface import gemm as of_quack

    a, b = random(256, 128), random(128, 256)
    check("gemm", of_quack(a, b, tuned=False), a.double() @ b.double(), 5e-3)


DEEP_GEMM = """
#include <deep_gemm/impls/sm100_bf16_gemm.cuh>
using namespace deep_gemm;
template __global__ void deep_gemm::sm100_bf16_gemm_impl<
    cute::UMMA::Major::K, cute::UMMA::Major::K, 0, 0, 0, 128, 128, 64, 1, 128, 128, 128, 4, 128, 128, 1, false, 2, 128,
    false, false, GemmType::Normal, false, cutlass::bfloat16_t, 100>(
    int*, uint32_t, uint32_t, uint32_t, const __grid_constant__ cute::TmaDescriptor,
    const __grid_constant__ cute::TmaDescriptor, const __grid_constant__ cute::TmaDescriptor);
"""


def compiled(source, *folders):
    """The PTX that nvcc makes of CUDA C++ for sm_100a."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "kernel.cu"
        path.write_text(source)
        command = ["nvcc", "--ptx", "-arch=sm_100a", "-std=c++20", "--expt-relaxed-constexpr", "-w"]
        command += [f"-I{folder}" for folder in folders]
        subprocess.run([*command, str(path), "-o", f"{path}.ptx"], check=True, capture_output=True)
        return Path(f"{path}.ptx").read_text()


def deep_gemm():
    """CUDA C++: the dense bf16 GEMM, persistent on two CTAs; tensor maps as its host code makes them."""
    folders = (
        Path(os.environ["DEEPGEMM"]) / "deep_gemm/include",
        Path(os.environ["CUTLASS"]) / "include",
    )
    kernel = ptx_files.load(compiled(DEEP_GEMM, *folders))
    torch.manual_seed(0)
    m, n, k = 256, 256, 192
    a, b = random(m, k), random(n, k)
    d = ptx_files.aligned_empty(m, n, dtype=torch.bfloat16)
    maps = [
        ptx_files.encode_tiled(
            "bf16", t, (t.shape[1], t.shape[0]), (2 * t.shape[1],), box=(64, 128), swizzle=128
        )
        for t in (a, b, d)
    ]
    with ptx_files.reachable(a, b, d):
        kernel.launch(None, m, n, k, *maps, grid=2, block=256, shared=200 * 1024)
    check("DeepGEMM", d, a.double() @ b.double().T, 5e-3)

"""Calls of packages' kernels as a program with a GPU makes them, each compared with a reference in float64.

Inside of as_if_cuda: tensors "on cuda" are CPU tensors. Sizes: the smallest with more than one tile where it is cheap.
"""

import importlib
import os
import sys
import types
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


def flashinfer(module):
    """A module of FlashInfer's CuTe DSL kernels, of the checkout FLASHINFER.

    Their packages import everything else of FlashInfer, with its extensions: here they are namespaces.
    """
    sys.modules.setdefault(
        "pynvml", types.ModuleType("pynvml")
    )  # asked for by utils.py, used by nobody here
    name = "flashinfer"
    for part in ("", ".cute_dsl", ".attention", ".wrappers"):
        name += part
        package = sys.modules.setdefault(name, types.ModuleType(name))
        package.__path__ = [os.path.join(os.environ["FLASHINFER"], *name.split("."))]
    return importlib.import_module(f"{name}.{module}")


def exact_attention(q, k, v, causal):
    """float64, [rows, heads, depth]; the last query sees the last key."""
    k, v = (x.double().repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) / q.shape[-1] ** 0.5
    if causal:
        hidden = torch.ones(len(q), len(k), dtype=torch.bool).triu(1 + len(k) - len(q))
        scores = scores.masked_fill(hidden, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def flashinfer_prefill(head_dim=64):
    """Two sequences of 136 and 64 rows, causal, two heads on one of keys."""
    module = flashinfer("batch_prefill")
    torch.manual_seed(0)
    ends = (0, 136, 200)
    q, k, v = (random(200, heads, head_dim) for heads in (2, 1, 1))
    offsets = torch.tensor(ends, dtype=torch.int32, device="cuda")
    wrapper = module.BatchPrefillCuteDSLWrapper(torch.empty(1, dtype=torch.uint8, device="cuda"))
    wrapper.plan(
        offsets, offsets, num_qo_heads=2, num_kv_heads=1, head_dim_qk=head_dim, causal=True,
        q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16,
    )  # fmt: skip
    out = wrapper.run(q, k, v)
    for one in (slice(*ends[:2]), slice(*ends[1:])):
        check("prefill", out[one], exact_attention(q[one], k[one], v[one], True), 5e-3)


def flashinfer_decode(head_dim=128, length=512, splits=1):
    """One query of 8 heads on one of keys, in two sequences.

    With splits a cluster has several CTAs, and those of odd rank free tensor memory while a product is in flight (CuTe
    DSL's PipelineUmmaAsync.producer_tail waits in even ranks alone): TensorMemoryError, whatever is checked.
    """
    module = flashinfer("batch_decode")
    torch.manual_seed(0)
    q = random(2, 1, 8, head_dim)
    k, v = (random(2, length, 1, head_dim) for _ in "kv")
    wrapper = module.BatchDecodeCuteDSLWrapper(
        torch.zeros(1 << 22, dtype=torch.int8, device="cuda")
    )
    wrapper.plan(
        batch_size=2, max_kv_len=length, num_qo_heads=8, num_kv_heads=1, head_dim=head_dim,
        q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16, kv_splits=splits,
    )  # fmt: skip
    out = wrapper.run(q, k, v)
    exact = torch.stack([exact_attention(*x, False) for x in zip(q, k, v, strict=True)])
    check("decode", out.reshape(exact.shape), exact, 5e-3)


def deep_gemm():
    """CUDA C++, as PTX in the file DEEPGEMM: the dense, persistent bf16 GEMM for two CTAs,
    tiles of 128 x 128 x 64 in four stages.

    Tensor maps as its host code makes them.
    """
    kernel = ptx_files.load(Path(os.environ["DEEPGEMM"]))
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

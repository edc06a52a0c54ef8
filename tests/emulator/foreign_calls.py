"""Calls of packages' kernels as a program with a GPU makes them, each compared with a reference in float64.

Inside of as_if_cuda: tensors "on cuda" are CPU tensors. Sizes: the smallest with more than one tile where it is cheap.
"""

import importlib
import os
import struct
import sys
import types
from pathlib import Path

import torch

from cute_fa4.emulator.host import ptx_files


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


def frost(causal, depths=(128, 128), rows=256, keys=384, heads=(2, 1)):
    """cuDNN's open forward kernels, as its adapter chooses them -> (out, exact). The mask begins at the first key."""
    from benchmarks.cycle_model.frost import forward

    torch.manual_seed(0)
    q, k = random(1, rows, heads[0], depths[0]), random(1, keys, heads[1], depths[0])
    v = random(1, keys, heads[1], depths[1])
    out, _ = forward(q, k, v, causal)
    k, v = (x.double().repeat_interleave(heads[0] // heads[1], 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k) / depths[0] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(rows, keys, dtype=torch.bool).triu(1), -torch.inf)
    exact = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
    check("out", out, exact, 3e-3)
    return out, exact


def frost_backward(causal=False, rows=256, keys=256, heads=1):
    """The gradients of its kernel for head dim 128 -> [(got, exact)] of q, k and v, with statistics of float64."""
    from benchmarks.cycle_model.frost import backward

    torch.manual_seed(0)
    q, dout = random(1, rows, heads, 128), random(1, rows, heads, 128)
    k, v = random(1, keys, heads, 128), random(1, keys, heads, 128)
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    scores = torch.einsum("bqhd,bkhd->bhqk", exact[0], exact[1]) / 128**0.5
    if causal:
        hidden = torch.ones(rows, keys, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), exact[2])
    gradients = torch.autograd.grad(out, exact, dout.double())
    lse = ptx_files.aligned(scores.logsumexp(-1).detach().float())
    out = ptx_files.aligned(out.detach().bfloat16())
    got = backward(q, k, v, out, lse, dout, causal)
    for name, mine, right in zip(("dq", "dk", "dv"), got, gradients, strict=True):
        check(name, mine, right, 3e-3)
    return list(zip(got, gradients, strict=True))


LATENT, ROPE = 512, 64


def latent(heads, one_cta, queries=1, keys=256):
    """flash-attn-4's attention over latent rows -> (out, exact, q, rows): 512 columns, the values, and 64.

    one_cta   its kernel of one CTA (.ws products; up to 64 rows one that takes 64 keys at a time), or that of CTA pairs
    """
    from flash_attn.cute import interface

    os.environ["FLASH_ATTENTION_MLA_1CTA"] = str(int(one_cta))
    torch.manual_seed(0)
    q, rows = random(1, queries, heads, LATENT + ROPE), random(1, keys, 1, LATENT + ROPE)
    scale = q.shape[-1] ** -0.5
    out, *_ = interface._flash_attn_fwd(
        q[..., LATENT:].contiguous(), rows[..., LATENT:], rows[..., :LATENT], qv=q[..., :LATENT].contiguous(),
        softmax_scale=scale,
    )  # fmt: skip
    scores = torch.einsum("bqhd,bkd->bhqk", q.double(), rows[:, :, 0].double()) * scale
    exact = torch.einsum("bhqk,bkd->bqhd", scores.softmax(-1), rows[:, :, 0, :LATENT].double())
    check("out", out, exact, 3e-3)
    return out, exact, q, rows


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
    )  # required by utils.py, unused here
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


def flash_mla(keys=128, page=64, pages=4):
    """CUDA C++, as PTX in the file FLASHMLA: the sparse decode over a cache of e4m3 for 64 heads (ModelType::V32).

    A row of the cache: 512 e4m3, the scales of 128 each, 64 rotary columns of bf16. Its two parameters are a structure
    of sizes, pointers and strides, and one of tensor maps, each pair of which follows the sizes of what it loads.
    """
    kernel = ptx_files.load(Path(os.environ["FLASHMLA"]))
    torch.manual_seed(0)
    heads, width, row = 64, LATENT + ROPE, 656
    scale = width**-0.5
    q = ptx_files.aligned(torch.randn(1, 1, heads, width).bfloat16())
    latent, rotary = torch.randn(pages * page, 4, 128), torch.randn(pages * page, ROPE).bfloat16()
    scales = (latent.abs().amax(-1) / 448).log2().ceil().exp2()
    codes = (latent / scales[..., None]).to(torch.float8_e4m3fn)
    cache = [x.reshape(pages * page, -1).view(torch.uint8) for x in (codes, scales, rotary)]
    cache = ptx_files.aligned(torch.cat(cache, 1))
    chosen = ptx_files.aligned(torch.randperm(pages * page)[:keys].int())
    out = ptx_files.aligned_empty(heads, LATENT, dtype=torch.bfloat16)
    lse = ptx_files.aligned_empty(heads, dtype=torch.float32)
    # One part of the work: the first sequence, from block 0 to the last; parts of it before it, and after it.
    work = ptx_files.aligned(torch.tensor([0, 0, 0, keys // 64, 0, 0, 0, 0], dtype=torch.int32))
    parts = ptx_files.aligned(torch.tensor([0, 1], dtype=torch.int32))
    at = lambda tensor: tensor.data_ptr()
    sizes = struct.pack(
        "<6i2f4i7Q3i4x3Q16i3Q5i4x2Qi4x",
        1, 1, heads, 1, width, LATENT, scale, scale * 1.4426950408889634, pages, page, keys, 0,
        at(q), at(cache), at(chosen), 0, 0, at(lse), at(out),
        *[0] * 6,  # no second cache
        heads * width, heads * width, width, page * row, row, keys, keys, heads, heads,
        heads * LATENT, heads * LATENT, LATENT, *[0] * 4,
        *[0] * 8,  # no stream, no partial results
        at(work), at(parts), 1,
    )  # fmt: skip
    # The map of each: sizes, strides, box, swizzle.
    tiles = ptx_files.encode_tiled(
        "bf16", q, (width, heads, 1, 1), (2 * width, 2 * heads * width, 2 * heads * width),
        box=(64, heads, 1, 1), swizzle=128, l2_promotion=128,
    )  # fmt: skip
    stores = ptx_files.encode_tiled(
        "bf16", out, (LATENT, heads, 1, 1), (2 * LATENT, 2 * heads * LATENT, 2 * heads * LATENT),
        box=(64, heads, 1, 1), swizzle=128, l2_promotion=128,
    )  # fmt: skip
    tails = ptx_files.encode_tiled(
        "bf16", at(q) + 2 * LATENT, (32, heads, 2, 1, 1), (2 * width, 64, 2 * heads * width, 2 * heads * width),
        box=(32, heads, 2, 1, 1), swizzle=64, l2_promotion=128,
    )  # fmt: skip
    codes_of_a_row = ptx_files.encode_tiled(
        "s64", cache, (64, pages * page), (row,), box=(64, 1), l2_promotion=128
    )
    rotary_of_a_row = ptx_files.encode_tiled(
        "bf16", at(cache) + LATENT + 16, (ROPE, pages * page), (row,), box=(32, 1), swizzle=64, l2_promotion=128,
    )  # fmt: skip
    maps = b"".join(
        part.ljust(128, b"\0")
        for part in (
            struct.pack("<4i", heads, width, 1, 1), tiles, b"", struct.pack("<4i", heads, LATENT, 1, 1), stores, b"",
            tails, codes_of_a_row, rotary_of_a_row, b"", b"",
        )
    )  # fmt: skip
    with ptx_files.reachable(q, cache, chosen, lse, out, work, parts):
        kernel.launch(sizes, maps, grid=1, block=384, shared=232192)
    rows = (codes.float() * scales[..., None]).bfloat16().double().reshape(-1, LATENT)
    rows = torch.cat([rows, rotary.double()], 1)[chosen.long()]
    scores = q[0, 0].double() @ rows.T * scale
    check("FlashMLA", out, scores.softmax(-1) @ rows[:, :LATENT], 5e-3)
    check("its lse", lse, scores.logsumexp(-1), 1e-5)

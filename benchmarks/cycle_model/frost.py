"""FROST, the open kernels of cudnn-frontend, on the emulator: calls, and traces of the forward ones for the model.

    python -m benchmarks.cycle_model.frost OUT.pickle '{"maker": "FROST", "causal": true}'

Its adapter chooses the kernel as for a B200, and cute.compile compiles it for the emulator. The package's binder of C++
accepts tensors of a GPU only, so its own binder of Python fills the arguments.

Needs nvidia-cudnn-frontend 1.32 (the extra `compare` of this project), which loads without libcudnn.
"""

from __future__ import annotations

import math
import os

import torch

from benchmarks.cycle_model import peer_process
from benchmarks.cycle_model.our_kernel import torch_dtype
from benchmarks.cycle_model.workloads import Workload, workloads_of
from cute_fa4 import emulator
from cute_fa4.emulator import ptx_files
from cute_fa4.emulator.as_if_cuda import as_if_cuda
from cute_fa4.emulator.host.host_binding import keeping_machine_code
from cute_fa4.emulator.model import trace


def forward(q, k, v, causal: bool = False, bottom_right: bool = False, ctas: int | None = None):
    """(out, the compiled function) of one call, inside as_if_cuda().

    q, k, v       (batch, rows or keys, heads, depth) of bf16 or fp16
    bottom_right  the causal mask ends with the last key, where rows and keys differ in number
    ctas          that share an MMA; None: what its adapter chooses for these sizes
    Raises what the package raises where it has no kernel, and errors of the emulator.
    """
    os.environ["CUDNN_FRONTEND_DISABLE_COMPILED_CACHE"] = "1"
    from cudnn.sdpa.fwd import prepared
    from cudnn.sdpa.fwd.api_dsl import SdpaFwdDslSm100

    out = torch.full((*q.shape[:-1], v.shape[-1]), float("nan"), dtype=q.dtype)
    lse = torch.empty(q.shape[0], q.shape[2], q.shape[1])
    heads_first = (x.transpose(1, 2) for x in (q, k, v, out))
    tensors = dict(zip("qkvo", heads_first, strict=True), lse=lse)
    scale = q.shape[-1] ** -0.5
    plan = SdpaFwdDslSm100(
        **{f"sample_{name}": x.cuda() for name, x in tensors.items()},
        is_causal=causal, causal_bottom_right=bottom_right, scale_softmax=scale, cga=ctas,
    )  # fmt: skip
    plan.check_support()
    plan.compile()
    facts = {name: _facts(prepared.BufferFacts, x) for name, x in tensors.items()}
    spec = plan._dense_spec
    arguments = prepared.bind_dense(spec, facts, 0, 0)
    arguments[spec.index["scale_softmax_log2"]] = scale * math.log2(math.e)
    with ptx_files.reachable(q, k, v, out, lse):
        plan._compiled_kernel(*arguments)
    return out, plan._compiled_kernel


def backward(q, k, v, out, lse, dout, causal: bool = False) -> list[torch.Tensor]:
    """The gradients of q, k and v by its kernel for head dim 128, inside as_if_cuda().

    q, k, v, out, dout  (batch, rows or keys, heads, 128) of bf16 or fp16; lse: (batch, heads, rows) of float32
    Raises what the package raises where it has no kernel, and errors of the emulator.
    """
    os.environ["CUDNN_FRONTEND_DISABLE_COMPILED_CACHE"] = "1"
    from cudnn.sdpa.bwd import prepared
    from cudnn.sdpa.bwd.api_dsl_sm100_d128 import SdpaBwdDslSm100D128
    from cudnn.sdpa.fwd.prepared import BufferFacts

    found = [torch.full_like(x, float("nan")) for x in (q, k, v)]
    inputs = [x.transpose(1, 2) for x in (q, k, v, out, dout)]
    tensors = [*inputs, lse[..., None], *(x.transpose(1, 2) for x in found)]
    tensors = dict(zip(prepared.ROLES, tensors, strict=False))
    scale = q.shape[-1] ** -0.5
    plan = SdpaBwdDslSm100D128(
        **{f"sample_{name}": x.cuda() for name, x in tensors.items()}, is_causal=causal, scale_softmax=scale
    )  # fmt: skip
    for name in tensors:  # the package asks where they are
        object.__setattr__(getattr(plan, f"{name}_desc"), "device", torch.device("cuda", 0))
    plan.check_support()
    plan.compile()
    spec = plan._prepared
    workspace = ptx_files.aligned(torch.zeros(max(spec.workspace_bytes, 16), dtype=torch.uint8))
    facts = {name: _facts(BufferFacts, x) for name, x in tensors.items()}
    own = workspace.data_ptr() if spec.workspace_bytes else 0
    arguments = prepared._bind_python(spec, facts, own, 0, scale=scale)
    with ptx_files.reachable(q, k, v, out, lse, dout, *found, workspace):
        spec.fn(*arguments)
    return found


def _facts(kind, x: torch.Tensor):
    """The description that the package makes of a tensor on its GPU."""
    span = 1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    dtype = str(x.dtype).removeprefix("torch.")
    return kind(x.data_ptr(), dtype, (2, 0), span, tuple(x.shape), tuple(x.stride()))


def launch(work: Workload, ctas: int):
    """Call the kernel with data of a workload's size; its first clusters take as many tiles as the workload says.

    ctas: that share an MMA in long calls. The adapter has CTAs alone for 512 rows and keys of depth 192
    """
    generator = torch.Generator().manual_seed(0)

    def tensor(rows: int, heads: int, depth: int):
        found = torch.randn(1, rows, heads, depth, generator=generator)
        return ptx_files.aligned(found.to(torch_dtype(work.dtype)))

    group = work.heads_q // work.heads_kv
    heads = (group, 1) if group > work.work_tiles else (work.heads_q, work.heads_kv)
    q = tensor(work.seqlen_q, heads[0], work.head_dim)
    k, v = (
        tensor(work.seqlen_k, heads[1], depth)
        for depth in (work.head_dim, work.head_dim_v or work.head_dim)
    )
    with emulator.use(checks=None, claims=work.work_tiles - 1):
        return forward(q, k, v, work.causal, bottom_right=work.causal, ctas=ctas)[1]


def record(variant, arch: str) -> tuple:
    """(ptx, cubin, traces) of the one kernel of a variant's workloads."""
    kernels, ctas = [], 2 if variant.pair else 1
    with trace.installed(), as_if_cuda(arch=arch), keeping_machine_code() as machine_code:
        traces = {
            work: trace.record(lambda work=work: kernels.append(launch(work, ctas)))
            for work in workloads_of(variant)
        }
    texts = {kernel.__ptx__ for kernel in kernels}
    if len(texts) != 1:
        raise RuntimeError(f"{variant}: the workloads run {len(texts)} kernels, not one")
    [ptx] = texts
    return ptx, machine_code[ptx], traces


if __name__ == "__main__":
    peer_process.main(__doc__, record)

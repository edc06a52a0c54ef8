"""Our kernel: the cubin that a GPU gets, and traces of the same source on the emulator."""

from __future__ import annotations

from benchmarks.cycle_model import trace
from benchmarks.cycle_model.workloads import Workload, workloads_of


def trace_kernel(
    variant, works: list[Workload] | None = None
) -> tuple[str, bytes, dict[Workload, trace.Trace]]:
    """(PTX, cubin, traces) of a kernels.Variant, for these workloads or all that the model wants.

    Raises ValueError with the reasons for a configuration that cute_fa4 refuses.
    """
    import torch

    from benchmarks.sass.our_kernel import compile_artifacts
    from cute_fa4 import emulator
    from cute_fa4.compile_cache import fake_arguments
    from cute_fa4.sm100.choose_config import choose_config
    from cute_fa4.sm100.forward_kernel import SM100MHA2Q

    config = choose_config(
        qkv_dtype="bf16",
        head_dim=variant.head_dim,
        head_dim_v=variant.head_dim,
        group=variant.group,
        causal=variant.causal,
    )
    artifacts = compile_artifacts(config)
    if works is None:
        works = workloads_of(
            variant.head_dim,
            variant.causal,
            variant.group,
            packed=variant.packed,
            pair=variant.pair,
            persistent=variant.persistent,
        )
    generator = torch.Generator().manual_seed(0)

    def tensor(seqlen, heads):
        shape = (1, seqlen, heads, variant.head_dim)
        return torch.randn(shape, generator=generator).to(torch.bfloat16)

    with trace.installed():
        kernel = emulator.compile(SM100MHA2Q(config), *fake_arguments(config))
        traces = {}
        for work in works:
            q, k, v = (
                tensor(work.seqlen_q, work.heads_q),
                *(tensor(work.seqlen_k, work.heads_kv) for _ in range(2)),
            )
            nothing_more = (
                *(None,) * 6,
                work.seqlen_q,
                None,
                None,
                None,
            )  # no lengths, pages, sink, aux
            arguments = (q, k, v, torch.empty_like(q), None, variant.head_dim**-0.5, *nothing_more)
            traces[work] = trace.record(lambda a=arguments: kernel(*a))
    # The traces name lines of the PTX that ran; it differs from the other in line information only.
    return kernel.__ptx__, artifacts.cubin, traces

"""Our kernel: the cubin that a GPU gets, and traces of the same source on the emulator."""

from __future__ import annotations

from functools import lru_cache

from benchmarks.cycle_model import trace
from benchmarks.cycle_model.workloads import KEYS_A_TILE, Workload

# Bytes: torch aligns to at least this, so a page table is read as many entries at a time as there are.
TABLE_ALIGNMENT = 16


def cubin(variant) -> bytes:
    """The machine code of a kernels.Variant. ValueError with the reasons if cute_fa4 refuses it."""
    from benchmarks.sass.our_kernel import compile_artifacts

    return compile_artifacts(config(variant)).cubin


def trace_kernel(variant, works: list[Workload]) -> tuple[str, dict[Workload, trace.Trace]]:
    """(PTX, traces) of a kernels.Variant for these workloads.

    The traces name lines of this PTX; it differs from the cubin's in line information only.
    """
    from cute_fa4 import emulator
    from cute_fa4.compile_cache import fake_arguments
    from cute_fa4.sm100.forward_kernel import SM100MHA2Q

    configuration = config(variant)
    with trace.installed():
        kernel = emulator.compile(SM100MHA2Q(configuration), *fake_arguments(configuration))
        traces = {}
        for work in works:
            arguments, cta = _arguments(work), _first_cta(configuration, work)
            if work.tiles:
                traces[work] = trace.record(lambda a=arguments: kernel(*a), cta)
            else:  # a CTA that leaves at once: there is nothing to record
                warps = configuration.warps.threads // 32
                traces[work] = trace.Trace({(0, warp): [] for warp in range(warps)}, {})
    return kernel.__ptx__, traces


@lru_cache(maxsize=64)
def config(variant):
    """The FA4Config of a kernels.Variant: every choice of the kernel, its schedule too.

    ValueError with the reasons if cute_fa4 refuses it.
    """
    from cute_fa4.sm100.choose_config import choose_config, page_table_vector

    layout = "packed" if variant.ragged else "dense"
    found = choose_config(
        qkv_dtype="bf16",
        head_dim=variant.head_dim,
        group=variant.group,
        mask=_mask(variant.causal, variant.window).mask,
        q_layout=layout,
        kv_layout="paged" if variant.page_size else layout,
        seqused_k=variant.page_size > 0,
        page_size=variant.page_size,
    )
    if found.refusals():
        raise ValueError(f"{variant}: " + "; ".join(found.refusals()))
    if variant.page_size:
        found = found.with_(page_table_vector=page_table_vector(found.kv_boxes, TABLE_ALIGNMENT))
    return found


def _mask(causal: bool, window: int):
    """The BoundMask that the public functions make of their options."""
    from cute_fa4 import masks

    if window:
        return masks.window(window - 1, 0)
    return masks.causal() if causal else masks.window(None, None)


def _arguments(work: Workload) -> tuple:
    """What the compiled kernel of a workload is called with: random data, by parameter name."""
    import inspect

    import torch

    from cute_fa4.sm100.forward_kernel import SM100MHA2Q

    generator = torch.Generator().manual_seed(0)

    def tensor(*rows, heads):
        shape = (*rows, heads, work.head_dim)
        return torch.randn(shape, generator=generator).to(torch.bfloat16)

    def numbers(*values):
        return torch.tensor(values, dtype=torch.int32)

    more: dict = {"mask_sizes": _mask(work.causal, work.window).sizes or None}
    if work.ragged:
        # A sequence without rows comes first: what its CTA does is what a CTA does that has no work.
        keys = work.seqlen_k or KEYS_A_TILE
        q = tensor(work.seqlen_q, heads=work.heads_q)
        k, v = (tensor(keys, heads=work.heads_kv) for _ in range(2))
        more |= dict(cu_seqlens_q=numbers(0, 0, work.seqlen_q), cu_seqlens_k=numbers(0, 0, keys))
    elif work.page_size:
        q, pages = tensor(1, work.seqlen_q, heads=work.heads_q), -(-work.seqlen_k // work.page_size)
        k, v = (tensor(pages, work.page_size, heads=work.heads_kv) for _ in range(2))
        table = torch.randperm(pages, generator=generator).to(torch.int32)[None]
        more |= dict(page_table=table, seqused_k=numbers(work.seqlen_k))
    else:
        q = tensor(1, work.seqlen_q, heads=work.heads_q)
        k, v = (tensor(1, work.seqlen_k, heads=work.heads_kv) for _ in range(2))
    scale = work.head_dim**-0.5
    more |= dict(mQ=q, mK=k, mV=v, mO=torch.empty_like(q), softmax_scale=scale)
    more |= dict(max_seqlen_q=work.seqlen_q)
    names = inspect.signature(SM100MHA2Q.__call__).parameters
    unknown = set(more) - set(names)
    if unknown:
        raise TypeError(f"SM100MHA2Q.__call__ has no parameters {sorted(unknown)}")
    return tuple(more.get(name) for name in names if name not in ("self", "stream"))


def _first_cta(configuration, work: Workload) -> int:
    """The first CTA that has work, or with a workload of no tiles the first that has none."""
    from cute_fa4.sm100 import tile_scheduler

    if not work.ragged:
        return 0
    number = tile_scheduler.grid_size(configuration, work.seqlen_q, work.heads_q, 2)
    order = tile_scheduler.tile_order(configuration, work.seqlen_q, work.seqlen_q, work.heads_q, 2)
    wanted = int(work.tiles > 0)  # the sequence, see _arguments
    return next(
        cta
        for cta in range(number)
        if tile_scheduler.work_tile(configuration, cta, order).batch == wanted
    )

"""Our kernel: the cubin for a GPU, and traces of the same source on the emulator."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial

from benchmarks.cycle_model.workloads import (
    KEYS_A_TILE,
    CacheWorkload,
    ListedWorkload,
    ListPartsWorkload,
    PartsWorkload,
    RopeWorkload,
    Workload,
)
from cute_fa4.emulator.model import trace


def cubin(variant) -> bytes:
    """The machine code of a kernels.Variant. ValueError with the reasons if cute_fa4 refuses it."""
    from benchmarks.sass.our_kernel import compile_artifacts

    return compile_artifacts(config(variant)).cubin


def trace_kernel(variant, works: list[Workload]) -> tuple[str, dict[Workload, trace.Trace]]:
    """(PTX, traces) of a kernels.Variant for these workloads.

    The traces name lines of this PTX; it differs from the cubin's in line information only.
    """
    from cute_fa4 import emulator
    from cute_fa4.compiler.compiler import kernel_and_arguments

    attention, arguments, _ = kernel_and_arguments(config(variant))
    with trace.installed():
        kernel = emulator.compile(attention, *arguments, arch=variant.arch)
        traces = {}
        for work in works:
            traces[work] = trace.record(partial(_launch, kernel, work, config(variant)))
    return kernel.__ptx__, traces


def _launch(kernel, work: Workload, cfg) -> None:
    """The first CTA runs as many blocks as the workload says; the heads of a group may be more blocks than that."""
    from cute_fa4 import emulator

    group = work.heads_q // work.heads_kv
    if group > work.work_tiles:  # one group has blocks enough
        work = replace(work, heads_q=group, heads_kv=1)
    with emulator.use(checks=None, claims=work.work_tiles - 1):
        kernel(*_arguments(work, cfg))


def _workspace(work: PartsWorkload, cfg) -> list:
    """Memory for sums that the CTAs of a workload keep from part to part."""
    import torch

    from cute_fa4.sm100.choose.launches import own_parts_shapes

    return [torch.empty((work.work_tiles, *shape)) for shape in own_parts_shapes(cfg)]


def _slots(work: ListedWorkload, cfg) -> tuple:
    """Memory for the parts of lists that are cut."""
    import torch

    from cute_fa4.sm100.choose.launches import list_parts_shapes

    return tuple(torch.empty((2 * work.work_tiles, *shape)) for shape in list_parts_shapes(cfg))


def torch_dtype(name: str):
    """Dtypes of q, k and v."""
    import torch

    return {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}[name]


def cached(x, name: str) -> tuple:
    """A tensor as a cache of this dtype holds it, and where its blocks have scales, those.

    Numbers of 4 bits are any, and scales 1: no time depends on them.
    """
    import torch

    from cute_fa4.dtypes import DTYPES

    row = DTYPES[name]
    if row.in_byte > 1:
        x = torch.arange(x.numel() // row.in_byte).byte().view(*x.shape[:-1], -1)
    else:
        x = x.to(DTYPES[row.element].torch)
    if row.cache_scales is None:
        return (x,)
    ones = torch.ones(*x.shape[:-1], x.shape[-1] * row.in_byte // row.block)
    return x, ones.to(row.cache_scales.torch)


def _in_rope(work: Workload, q, k) -> dict:
    """K without the columns of a separate tensor, and these columns; likewise Q if the dtypes differ."""
    if not isinstance(work, RopeWorkload):
        return {}
    (own, rope), dtype = _apart(k, work.rope_depth), torch_dtype(work.rope_dtype)
    rope = rope[..., :1, :].to(dtype).contiguous()
    if work.dtype == "bf16" or work.dtype == work.rope_dtype:
        return {"mK": own, "rope": (rope,)}
    of_q, rope_of_q = _apart(q, work.rope_depth)
    return {"mQ": of_q, "mK": own, "rope": (rope, rope_of_q.to(dtype))}


def all_tiles(work: ListedWorkload) -> tuple:
    """Counts and entries of a list with every key tile of a workload, for all work tiles."""
    import torch

    parts = 2 if isinstance(work, ListPartsWorkload) else 1
    counts = torch.full((1, 1, 1), work.tiles * parts, dtype=torch.int32)
    return counts, torch.arange(work.tiles, dtype=torch.int32).repeat(parts)[None, None, None]


def all_blocks(work: ListedWorkload, cfg) -> tuple:
    """The same, and the order of the work tiles, if the kernel has one."""
    import torch

    counts, entries = all_tiles(work)
    parts = 2 if isinstance(work, ListPartsWorkload) else 1
    order = torch.arange(work.work_tiles, dtype=torch.int32)
    if cfg.cut_lists:
        zeros = torch.zeros_like(order)
        order = torch.stack((order, zeros, zeros + parts, parts * order), 1)
    return counts, entries, *[order] * cfg.longest_first


def _apart(x, depth: int) -> tuple:
    """Columns of Q or K before the last ones, and these."""
    return x[..., :-depth].contiguous(), x[..., -depth:].contiguous()


@lru_cache(maxsize=64)
def config(variant):
    """The FA4Config of a kernels.Variant: every choice of the kernel, its schedule too.

    ValueError with the reasons if cute_fa4 refuses it.
    """
    from cute_fa4.sm100.choose.choose_config import choose_config
    from cute_fa4.sm100.choose.which_kernel import Call, which_kernel

    layout = "packed" if variant.ragged else "dense"
    choices = dict(
        qkv_dtype=variant.dtype,
        head_dim=variant.head_dim,
        head_dim_v=variant.head_dim_v or None,
        group=variant.group,
        mask=_mask(variant.causal, variant.window).mask,
        q_layout=layout,
        kv_layout="paged" if variant.page_size else layout,
        seqused_k=variant.page_size > 0,
        page_size=variant.page_size,
        claims=variant.claims,
        arch=variant.arch,
        q_block=variant.q_block,
        kv_block=KEYS_A_TILE if variant.q_block else 0,
        **dict(variant.choices),
    )
    call = Call.of_choices(choices, seqlen_q=variant.rows, pairs=variant.pairs, stays=True)
    found = choose_config(**choices, family=which_kernel(call).family)
    if found.refusals():
        raise ValueError(f"{variant}: " + "; ".join(found.refusals()))
    return found


def _mask(causal: bool, window: int):
    """The BoundMask that the public functions make of their options."""
    from cute_fa4 import masks

    if window:
        return masks.window(window - 1, 0)
    return masks.causal() if causal else masks.window(None, None)


def _arguments(work: Workload, cfg) -> tuple:
    """Arguments of the compiled kernel of a workload: random data, by parameter name."""
    import inspect

    import torch

    from cute_fa4.sm100.blueprint import cache_blocks
    from cute_fa4.sm100.two_tiles.kernel import SM100MHA2Q

    generator = torch.Generator().manual_seed(0)

    def tensor(*rows, heads, depth=work.head_dim):
        shape = (*rows, heads, depth)
        return torch.randn(shape, generator=generator).to(torch_dtype(work.dtype))

    def numbers(*values):
        return torch.tensor(values, dtype=torch.int32)

    depths = work.head_dim, work.head_dim_v or work.head_dim
    more: dict = {"mask_sizes": _mask(work.causal, work.window).sizes or None}
    if work.ragged:
        keys = work.seqlen_k or KEYS_A_TILE
        q = tensor(work.seqlen_q, heads=work.heads_q)
        k, v = (tensor(keys, heads=work.heads_kv, depth=depth) for depth in depths)
        empty = [0] * (0 if work.tiles else work.work_tiles - 1)
        more |= dict(
            cu_seqlens_q=numbers(*empty, 0, work.seqlen_q), cu_seqlens_k=numbers(*empty, 0, keys)
        )
    elif work.page_size:
        q, pages = tensor(1, work.seqlen_q, heads=work.heads_q), -(-work.seqlen_k // work.page_size)
        k, v = (tensor(pages, work.page_size, heads=work.heads_kv, depth=depth) for depth in depths)
        table = torch.randperm(pages, generator=generator).to(torch.int32)[None]
        more |= dict(page_table=table, seqused_k=numbers(work.seqlen_k), in_cache=(0,))
    else:
        q = tensor(1, work.seqlen_q, heads=work.heads_q)
        k, v = (tensor(1, work.seqlen_k, heads=work.heads_kv, depth=depth) for depth in depths)
    if isinstance(work, CacheWorkload):
        (k, *of_k), (v, *of_v) = (cached(x, work.kv_dtype) for x in (k, v))
        if cfg.cache_blocks:
            words = (cache_blocks.in_words(cfg, name) for name in "kv")
            more["descales"] = tuple(
                x.view(torch.int32 if whole else torch.uint8)
                for x, whole in zip((*of_k, *of_v), words, strict=True)
            )
    scale = work.head_dim**-0.5
    more |= dict(
        mQ=q,
        mK=k,
        mV=v,
        mO=torch.empty((*q.shape[:-1], depths[1]), dtype=torch.bfloat16),
        softmax_scale=scale,
    )
    more |= _in_rope(work, q, k)
    if isinstance(work, ListedWorkload):
        more["blocks"] = all_blocks(work, cfg)
        if cfg.cut_lists:
            more["split"] = _slots(work, cfg)
            more["mLSE"] = torch.empty((1, work.heads_q, work.seqlen_q))
    more |= dict(max_seqlen_q=work.seqlen_q)
    if isinstance(work, PartsWorkload):
        more |= dict(split=(work.tiles_of_part, *_workspace(work, cfg)))
    names = inspect.signature(SM100MHA2Q.__call__).parameters
    unknown = set(more) - set(names)
    if unknown:
        raise TypeError(f"SM100MHA2Q.__call__ has no parameters {sorted(unknown)}")
    return tuple(more.get(name) for name in names if name not in ("self", "stream"))

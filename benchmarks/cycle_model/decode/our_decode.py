"""Our decoding kernels: the cubin of a configuration, and traces of the same source on the emulator."""

from __future__ import annotations

import inspect
from functools import partial

from benchmarks.cycle_model.decode.variants import Work
from cute_fa4.dtypes import DTYPES
from cute_fa4.emulator.model import trace

# The warp that stores scales of blocks has the same barriers for each of its key tiles and for the next work tile: what
# it stores tells them apart.
HANDED_OVER = frozenset({"sstore"})


def cubin(config) -> bytes:
    """The machine code of an FA4Config or a CombineConfig."""
    from benchmarks.sass.our_kernel import compile_artifacts

    return compile_artifacts(config).cubin


def trace_attention(config, seqlen_q: int, works: list[Work]) -> tuple[str, dict]:
    """(PTX, traces) of an attention kernel for these works."""
    compiled, names = _compiled(config)
    traces = {}
    for work in works:
        run = partial(_attend, compiled, names, config, seqlen_q, work)
        traces[work] = trace.record(run, more=HANDED_OVER if config.cache_blocks else frozenset())
    return compiled.__ptx__, traces


def trace_merge(config, parts: tuple[int, ...]) -> tuple[str, dict]:
    """(PTX, traces) of the merging kernel, by number of parts: a CTA whose rows are heads of one query."""
    import torch

    from cute_fa4.sm100.combine.kernel import WARPS

    rows = WARPS // config.warps_of_row
    compiled, names = _compiled(config)
    traces = {}
    for number in parts:
        values = dict(
            partial_o=torch.randn(number, 1, rows, config.depth),
            partial_lse=torch.randn(number, rows, 1)[
                (slice(None), *(() if config.shared else (None,)))
            ],
            parts=torch.tensor([[0, number]], dtype=torch.int32) if config.shared else None,
            out=torch.empty(1, 1, rows, config.depth, dtype=torch.bfloat16),
            lse=torch.empty(1, rows, 1) if config.write_lse else None,
            max_seqlen_q=1,
        )
        traces[number] = trace.record(partial(compiled, *(values.get(name) for name in names)))
    return compiled.__ptx__, traces


def _compiled(config) -> tuple:
    """(emulated kernel, names of its arguments); within trace.installed()."""
    from cute_fa4 import emulator
    from cute_fa4.compiler.compiler import kernel_and_arguments

    kernel, arguments, _ = kernel_and_arguments(config)
    names = [name for name in inspect.signature(kernel.__call__).parameters if name != "stream"]
    return emulator.compile(kernel, *arguments), names


def _attend(compiled, names: list[str], config, seqlen_q: int, work: Work) -> None:
    from cute_fa4 import emulator

    values = _arguments(config, seqlen_q, work)
    unknown = set(values) - set(names)
    if unknown:
        raise TypeError(f"the kernel has no parameters {sorted(unknown)}")
    with emulator.use(checks=None, claims=work.blocks - 1):
        compiled(*(values.get(name) for name in names))


def _arguments(config, seqlen_q: int, work: Work) -> dict:
    """One sequence with a key head for each block, random data, by parameter name."""
    import torch

    from cute_fa4.calls.operands.tensors import DTYPE_NAMES
    from cute_fa4.calls.split_keys.split import Shared

    generator = torch.Generator().manual_seed(0)
    of_name = {name: dtype for dtype, name in DTYPE_NAMES.items()}

    def tensor(*shape, dtype):
        return torch.randn(shape, generator=generator).to(of_name[dtype])

    if config.latent:
        return _latent_arguments(config, seqlen_q, work)
    depth, page = config.qk_depth, config.page_size
    heads_kv = work.blocks
    heads_q = heads_kv * config.group
    pages = work.keys // page
    q = tensor(1, seqlen_q, heads_q, depth, dtype=config.qkv_dtype)
    rows = pages, page, heads_kv
    stored = DTYPES[config.kv_dtype or config.qkv_dtype]
    if stored.in_byte > 1:
        numbers = 2, *rows, depth // stored.in_byte
        k, v = torch.randint(0, 256, numbers, generator=generator).byte()
    else:
        k, v = (tensor(*rows, depth, dtype=stored.element) for _ in range(2))
    values = dict(
        mQ=q,
        mK=k,
        mV=v,
        mO=torch.empty(q.shape, dtype=torch.bfloat16),
        softmax_scale=depth**-0.5,
        seqused_k=torch.tensor([work.keys], dtype=torch.int32),
        in_cache=(0,),
        page_table=torch.randperm(pages, generator=generator).to(torch.int32)[None],
        max_seqlen_q=seqlen_q,
    )
    if config.cache_blocks:
        ones = torch.ones(2, *rows, depth // stored.block).to(stored.cache_scales.torch)
        values["descales"] = tuple(ones.view(torch.int32))
    if config.share_keys:  # all of the line for one CTA
        positions = min(seqlen_q, config.tiles.positions_per_cta)
        blocks = heads_q // config.heads_per_tile
        shared = Shared(1, work.tiles, blocks, positions, config.heads_per_tile)
        values["mO"], values["mLSE"], _, values["split"] = shared.workspace(q, v)
    elif config.split_keys:
        values["mO"] = torch.empty(q.shape, dtype=torch.float32)
        values["mLSE"] = torch.empty((1, 1, heads_q, seqlen_q))
        values["split"] = (1, 0)
    if config.in_runs:
        values["mO"] = torch.empty((work.parts, *q.shape[1:]), dtype=torch.float32)
        values["mLSE"] = torch.empty((work.parts, 1, heads_q, seqlen_q))
        values["split"] = (work.parts, work.tiles, work.parts)
    return values


def _latent_arguments(config, seqlen_q: int, work: Work) -> dict:
    """A sequence for each block, with as many heads and queries as a tile has rows."""
    import torch

    from cute_fa4.calls.operands.latent_rows import rows_from
    from cute_fa4.calls.split_keys.split import Shared

    generator = torch.Generator().manual_seed(0)
    heads, page, batch = config.heads_per_tile, config.page_size, work.blocks
    pages, positions = work.keys // page, min(seqlen_q, config.tiles.positions_per_cta)
    dtype = torch.float8_e4m3fn if config.qkv_dtype == "e4m3" else torch.bfloat16
    q = torch.randn(batch, positions, heads, config.qk_depth, generator=generator).to(dtype)
    cache = torch.randn(batch * pages, page, 1, config.qk_depth, generator=generator).to(dtype)
    if config.scale_dtype:
        latent, rope = cache.split((config.ov_depth, config.qk_depth - config.ov_depth), -1)
        cache = rows_from(latent, rope).view(torch.float8_e4m3fn)
    v = cache[..., : config.ov_depth]
    values = dict(
        mQ=q,
        mK=cache,
        mV=v,
        mO=torch.empty(*q.shape[:-1], config.ov_depth, dtype=torch.bfloat16),
        mLSE=torch.empty(batch, heads, positions),
        softmax_scale=config.qk_depth**-0.5,
        seqused_k=torch.full((batch,), work.keys, dtype=torch.int32),
        in_cache=(0,),
        page_table=torch.randperm(batch * pages, generator=generator).int().view(batch, pages),
        max_seqlen_q=positions,
    )
    if config.descales:
        values["descales"] = (torch.ones(batch, 1),) * len(config.descales.given)
    if config.share_keys:  # all of the line for one CTA
        shared = Shared(1, work.tiles * batch, batch, positions, heads)
        values["mO"], values["mLSE"], _, values["split"] = shared.workspace(q, v)
    return values

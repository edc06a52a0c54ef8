"""The choices of a public call for a problem, queried from the package: kernel, parts, merge."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from benchmarks.cycle_model.decode.problems import ROWS, DecodeProblem
from cute_fa4.dtypes import DTYPES, E4M3, E8M0, MXE4M3

KEYS_A_TILE = 128


@dataclass(frozen=True)
class Call:
    """One call.

    config  of the attention kernel
    queues  key tiles of the blocks, or pieces of blocks, of each CTA, in their order; with claims the later queues go
            to whichever CTA claims them first
    parts   largest number of parts of a block; 1: no merge, unless merge is set
    merge   config of the merge kernel, if any
    cluster whether the parts of a block merge within a cluster; config is then that of a single CTA, which has
            the same cycles up to the merge
    """

    config: object
    queues: tuple[tuple[int, ...], ...]
    parts: int = 1
    merge: object = None
    cluster: bool = False


@lru_cache(maxsize=256)
def call_of(
    problem: DecodeProblem,
    num_splits: int = 0,
    batch_invariant: bool | None = None,
    tokens_per_split: int | None = None,
) -> Call:
    """flash_attn_with_kvcache, or flash_mla_with_kvcache, with this number of parts; 0: as many as it chooses."""
    import torch

    from cute_fa4 import masks
    from cute_fa4.calls.attention import config_of
    from cute_fa4.calls.operands.scales import checked_scales
    from cute_fa4.calls.request import Options, Where
    from cute_fa4.calls.split_keys.split import Clustered, Shared, Split, split_of
    from cute_fa4.operands import CallTensors
    from cute_fa4.sm100.choose.choose_config import LATENT_DEPTHS, split_configs
    from cute_fa4.system.devices import target_of

    def tensor(*shape, dtype=torch.bfloat16):
        return torch.empty(shape, dtype=dtype, device="meta")

    batch, page = problem.batch, problem.page_size
    pages = -(-max(problem.lengths) // page)
    stored = E4M3 if problem.kv_dtype == ROWS else DTYPES[DTYPES[problem.kv_dtype].element]
    sizes = batch, problem.seqlen_q, problem.heads_q, problem.head_dim
    q = tensor(*sizes, dtype=DTYPES[problem.dtype].torch)
    rows = batch * pages, page, problem.heads_kv
    k = tensor(*rows, problem.cache_columns, dtype=stored.torch)
    lengths, table = tensor(batch, dtype=torch.int32), tensor(batch, pages, dtype=torch.int32)
    tensors = CallTensors(q, k, seqused_k=lengths, page_table=table)
    where = Where(tensors)
    mask = masks.causal() if problem.seqlen_q > 1 else masks.window(None, None)
    scales = None
    if problem.latent and problem.dtype == "e4m3":
        one = tensor(1, dtype=torch.float32)
        tensors = tensors._replace(q_descale=one, k_descale=one, v_descale=one)
        scales = checked_scales(tensors, batch)
    if problem.kv_dtype == MXE4M3.name:  # known by the dtype of its scales
        of_blocks = tensor(*rows, problem.head_dim // MXE4M3.block, dtype=E8M0.torch)
        tensors = tensors._replace(v=k, k_block_scale=of_blocks, v_block_scale=of_blocks)
        scales = checked_scales(tensors, batch)
    options = Options(
        1.0, mask, None, None, (), None, None, num_splits=num_splits, latent=problem.latent,
        scales=scales, batch_invariant=batch_invariant, tokens_per_split=tokens_per_split,
    )  # fmt: skip
    lse, v = problem.latent, k[..., : LATENT_DEPTHS[1]] if problem.latent else k
    config = config_of(where.replaced(v=v), options, page, lse, target_of(torch.device("cpu")))
    split = split_of(q, k, where, options, config)
    per_head = -(-problem.seqlen_q // config.tiles.positions_per_cta)
    blocks = per_head * problem.heads_q // config.heads_per_tile
    tiles = [-(-keys // KEYS_A_TILE) for keys in problem.lengths]
    each = [n for n in tiles for _ in range(blocks)]
    if split is None:
        return Call(config, tuple((n,) for n in each))
    if isinstance(split, Shared):
        partial, merge = split_configs(config, lse, shared=True)
        return Call(partial, *_shared(each, split), merge)
    if isinstance(split, Clustered):
        cut = [n for tiles in each for n in _parts(tiles, Split(split.parts))]
        alone = config.with_(claims=False)
        return Call(alone, tuple((n,) for n in cut), split.parts, cluster=True)
    partial, merge = split_configs(config, lse)
    run = split.in_runs(q, where, partial).run or 1
    cut = (_parts(tiles, split) for tiles in each)
    queues = (tuple(parts[i : i + run]) for parts in cut for i in range(0, len(parts), run))
    return Call(partial, tuple(queues), split.parts, merge)


def _shared(blocks: list[int], split) -> tuple[tuple[tuple[int, ...], ...], int]:
    """(pieces of every CTA, most pieces of a block), sm100/work/stream_k.py."""
    from cute_fa4.sm100.work.stream_k import pieces_of

    queues: list[list[int]] = [[] for _ in range(split.ctas)]
    number = [0] * len(blocks)
    for cta, block, begin, end in pieces_of(blocks, split.ctas, split.least):
        queues[cta].append(end - begin)
        number[block] += 1
    return tuple(tuple(queue) for queue in queues if queue), max(number)


def _parts(tiles: int, split) -> list[int]:
    """Key tiles of each part of a sequence (sm100/work/split.py)."""
    if split.tiles_each:
        return [
            max(0, min(split.tiles_each, tiles - i * split.tiles_each)) for i in range(split.parts)
        ]
    each, more = divmod(tiles, split.parts)
    return [each + (part < more) for part in range(split.parts)]

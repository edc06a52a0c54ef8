"""Which kernels a call launches: calls, capabilities(), catalogues and lists of a model's kernels ask here.

    cut of the keys    attention kernel                          then
    WHOLE              as configured
    in_cluster(n)      n CTAs of a cluster share a block's keys
    PARTS              partial results of each part              a kernel merges the parts of each sequence
    SHARED             partial results of equal stretches        a kernel merges the slots of each block

calls/split_keys/split.py chooses one of cuts_of(config) for each call, from its lengths, num_splits and the number
of SMs. A list of a model's kernels takes all of them: it holds for every length, every num_splits and every chip.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from ...scales import Scales
from ..append.config import AppendConfig
from ..backward.config import BackwardConfig
from ..blueprint.entries import SUMS_OF_ACCESS
from ..blueprint.small_blocks import reads_units
from ..combine.config import CombineConfig
from ..two_tiles.schedule import TwoTiles
from ..work.lists.config import BlockListsConfig
from .choose_config import CLUSTER_PARTS, cut_configs, sorted_config, split_configs
from .config import FA4Config


class Cut(NamedTuple):
    """How a call divides its keys, as far as it decides which kernels are launched.

    merges         partial results go to a workspace, and a second kernel merges them
    shared         each CTA takes an equal share of the batch's key tiles (with merges)
    cluster_parts  CTAs of a cluster that share the keys of a block
    own_parts      a CTA takes the parts of its rows' keys one after the other and merges them
    """

    merges: bool = False
    shared: bool = False
    cluster_parts: int = 1
    own_parts: bool = False


WHOLE, PARTS, SHARED = Cut(), Cut(merges=True), Cut(merges=True, shared=True)


OWN_PARTS = Cut(own_parts=True)


def in_cluster(parts: int) -> Cut:
    """The cut for clusters of so many CTAs; of one it is WHOLE."""
    return Cut(cluster_parts=parts)


class Launches(NamedTuple):
    """The attention kernel of a call, and the kernel that merges its partial results, or None."""

    attention: FA4Config
    combine: CombineConfig | None = None


def may_cluster(config: FA4Config, in_float32: bool = False) -> bool:
    """Whether clusters of CTAs may share the keys of a block.

    They round O, which in_float32 forbids. Packed keys come from prefill: decode has a cache, and the rare calls
    with few queries and packed keys merge in a second launch (docs/decisions/0030).
    """
    clusters = getattr(config.schedule, "clusters", False) and config.kv_layout != "packed"
    return bool(clusters) and not in_float32


def may_own_parts(config: FA4Config, in_float32: bool = False) -> bool:
    """Whether a CTA may take all parts of its rows' keys and merge them. It rounds O, which in_float32 forbids."""
    if in_float32 or type(config.schedule) is not TwoTiles:
        return False
    return not config.with_(own_parts=True).refusals()


def may_sort(config: FA4Config) -> bool:
    """Whether work tiles may be sorted by the lengths of their lists."""
    return config.lists_blocks and not config.longest_first


def may_cut(config: FA4Config) -> bool:
    """Whether long lists may be cut into parts: of dense queries, where softmax sums P.

    Parts are merged by the sum of P before it is rounded.
    """
    sums = getattr(config.schedule, "row_sum", None) != "rounded"
    return may_sort(config) and config.q_layout == "dense" and sums


def own_parts_shapes(config: FA4Config) -> tuple[tuple, tuple]:
    """Shapes of the workspace of a CTA with own_parts: of sums of results, and of log-sum-exps (work/own_parts.py)."""
    tiles, (_, columns, _) = config.tiles, config.tiles.pv_mma_shape
    rows = tiles.rows_per_q_tile
    return (tiles.num_q, columns // SUMS_OF_ACCESS, rows, SUMS_OF_ACCESS), (tiles.num_q * rows,)


def list_parts_shapes(config: FA4Config) -> tuple[tuple, tuple]:
    """Shapes of a slot for a part of a list: of its O, and of its log-sum-exps (work/list_parts.py)."""
    tiles, (_, columns, _) = config.tiles, config.tiles.pv_mma_shape
    rows = tiles.num_q * tiles.rows_per_q_tile
    return (rows, columns), (rows,)


def kept_shapes(config: FA4Config) -> tuple[tuple, tuple]:
    """Shapes of the workspace that the attention kernel itself takes: of a CTA, or of a slot."""
    return own_parts_shapes(config) if config.own_parts else list_parts_shapes(config)


def may_share(config: FA4Config) -> bool:
    """Whether key tiles may be split evenly (stream-K): where only the device knows how many there are."""
    return config.clips_keys


def cuts_of(config: FA4Config, in_float32: bool = False) -> tuple[Cut, ...]:
    """Every cut that a call of this configuration may have, WHOLE first."""
    found = [WHOLE]
    if may_cluster(config, in_float32):
        found += [in_cluster(parts) for parts in CLUSTER_PARTS if parts > 1]
    if may_own_parts(config, in_float32):
        found.append(OWN_PARTS)
    return (*found, PARTS, *([SHARED] if may_share(config) else []))


def launches(
    config: FA4Config,
    cut: Cut,
    write_lse: bool | None = None,
    in_float32: bool = False,
    dependent_launch: bool | None = None,
) -> Launches:
    """The kernels that a call of `config` launches; config: of the call without a cut.

    write_lse   whether the call returns the log-sum-exp; None: as config
    in_float32  out is float32, because it is merged with other results; without a cut the partial result is out
    dependent_launch  False: no kernel is a dependent launch; None: as schedules choose
    """
    write_lse = config.write_lse if write_lse is None else bool(write_lse)
    if cut.own_parts:
        return Launches(config.with_(own_parts=True))
    if not cut.merges and not in_float32:
        parts = cut.cluster_parts
        return Launches(config if parts == 1 else config.with_(cluster_parts=parts))
    partial, combine = split_configs(config, write_lse, cut.shared, dependent_launch)
    if not cut.merges:
        return Launches(partial.with_(sink=config.sink, sink_dtype=config.sink_dtype))
    return Launches(partial, replace(combine, o_dtype="f32") if in_float32 else combine)


def every_launch(
    config: FA4Config,
    in_float32: bool = False,
    cuts: bool = True,
    dependent_launch: bool | None = None,
) -> list:
    """The configurations of launches() for every cut, without doubles; cuts=False: of WHOLE alone."""
    asked = cuts_of(config, in_float32) if cuts else (WHOLE,)
    options = dict(in_float32=in_float32, dependent_launch=dependent_launch)
    found = (kernel for cut in asked for kernel in launches(config, cut, **options))
    return list(dict.fromkeys(kernel for kernel in found if kernel is not None))


def with_conversions(configs: Iterable, dependent_launch: bool | None = None) -> list:
    """The configurations, and the kernels that convert or sort lists for their calls, without doubles.

    A call with lists has sorted work tiles or not, and lists that are cut or not, by its sizes: all of these attention
    kernels are there. dependent_launch: as in launches()
    """
    found = []
    for config in configs:
        makes: tuple = ()
        if isinstance(config, BackwardConfig) and config.listed:
            makes = "kinds", "order", "longest"
        elif isinstance(config, FA4Config) and reads_units(config.mask_mod):
            makes = ("tiles",)
        if isinstance(config, FA4Config) and may_sort(config):
            found.append(sorted_config(config, dependent_launch=dependent_launch))
            makes += ("longest",)
        if isinstance(config, FA4Config) and may_cut(config):
            found += cut_configs(config, dependent_launch)
            makes += ("cut",)
        found += [config, *(BlockListsConfig(each, config.arch) for each in makes)]
    return list(dict.fromkeys(found))


def append_launch(
    dtype: str, depths: tuple[int, int], new_dtype: str, said: Scales, **fields
) -> AppendConfig:
    """The kernel that appends new rows to a cache.

    dtype      of the cache
    depths     columns of k and of v
    new_dtype  of the new rows
    said       scales of the call's tensors: new rows that are quantized are divided by those of k and v
    fields     packed, page_size, cache_batch_idx, v_block_scale_layout, four_over_six, arch
    """
    if new_dtype != dtype:
        fields["descales"] = said.only("k", "v")
    return AppendConfig(dtype, *depths, new_dtype=new_dtype, **fields)

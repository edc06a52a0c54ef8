"""Problem -> FA4Config, as an ordered list of one-line rules; nothing but the problem is read."""

from dataclasses import fields
from functools import lru_cache

from . import bands
from .chip import FP8_DTYPES
from .combine.config import CombineConfig
from .config import SCHEDULES, FA4Config
from .mha1q.schedule import OneTile
from .mha2q.schedule import TwoTiles
from .mhamx.schedule import BlockScaled
from .mhapair.schedule import Pair
from .mharope.schedule import RopeTile
from .mhaswap.schedule import CLUSTER_PARTS, SwappedTile
from .mhaswap.tiles import padded_heads
from .mhawide.schedule import WideTile
from .mhawiden.schedule import WidenedTile
from .mhawidepair.schedule import WidePair
from .mla_decode.schedule import LatentTile
from .mla_decode.tiles import LATENT_DEPTH, ROPE_DEPTH
from .mla_pair.schedule import LatentPair
from .mla_widen.schedule import STORED, LatentRows
from .mla_widen.tiles import ROW_BYTES
from .mla_widenpair.schedule import LatentRowsPair
from .problem import MOST_LATENT_ROWS, heads_of_latent_tile
from .row_schedule import (
    DEEP,
    DEEP_OF_FP8,
    DEPTHS,
    DEPTHS_OF_FP8,
    QK_DEPTHS,
    WIDE_DEPTHS,
    RowSchedule,
    depths_of,
    in_words,
)
from .schedule import Schedule
from .tiles import ROWS_PER_Q_TILE

__all__ = [
    "ALL_DEPTHS",
    "CLUSTER_PARTS",
    "DEPTHS",
    "KEYS_PER_TILE",
    "QK_DEPTHS",
    "PAIRED",
    "ROWS_PER_CTA",
    "SWAPPED_ROWS",
    "WIDENED_DEPTH",
    "choose_config",
    "columns_of_v",
    "config_for",
    "LATENT_DEPTHS",
    "LATENT_ROW_BYTES",
    "depths_of",
    "family_for",
    "in_words",
    "is_wide",
    "latent_rows",
    "latent_tile",
    "packs_gqa",
    "split_configs",
    "swapped_rows",
    "tile_for",
    "wide_family_for",
    "widens_rope",
]

# DEPTHS, QK_DEPTHS: head dims that most families run, of V and O, and of Q and K.
ALL_DEPTHS = WIDE_DEPTHS + DEEP  # that some family runs, of either
ROWS_PER_CTA = TwoTiles.query_tiles * ROWS_PER_Q_TILE
KEYS_PER_TILE = 128  # of every configuration that is chosen here
WIDENED_DEPTH = DEPTHS_OF_FP8[-1]  # head dims of queries of 16 bits over keys of 8
PAIRED = (Pair, WidePair)  # schedules of CTAs that share their MMAs, each with what runs them alone
SWAPPED_ROWS = (8, 32)  # of a tile with swapped operands, as calls ask for it: docs/decisions/0008
LATENT_ROWS = (16, 32, MOST_LATENT_ROWS)  # of a tile over a latent cache
LATENT_DEPTHS = (LATENT_DEPTH + ROPE_DEPTH, LATENT_DEPTH)  # of K and V in a latent cache
LATENT_ROW_BYTES = ROW_BYTES  # of a row with scales and rotary columns of its own
FAMILIES = {schedule.family: schedule for schedule in SCHEDULES.values()}
SCHEDULE_CHOICES = frozenset(f.name for cls in FAMILIES.values() for f in fields(cls))


def choose_config(
    *,
    qkv_dtype: str,
    head_dim: int,
    head_dim_v: int | None = None,
    group: int = 1,
    causal: bool = False,
    write_lse: bool = False,
    arch: str = "sm_100a",
    family: str | None = None,
    **choices,
) -> FA4Config:
    """The configuration that serves a problem best; the caller looks at its `refusals()`.

    choices: further fields of FA4Config that the call decides (layouts, mask instead of causal, sink, score_mod, ...)
    and of its schedule (claims, ...); with rows, that of swapped_rows, the schedule is SwappedTile
    family: of the kernel, a name of FAMILIES, as family_for says of a call; None: that of two query tiles, or the wide
    one where head dims need it
    head_dim_v: beyond 256 the kernel has half of the columns, and a call launches it for either half (columns_of_v)

    Nothing else here depends on lengths, batch or head count: one compile serves them all.
    """
    of_schedule = {name: choices.pop(name) for name in SCHEDULE_CHOICES & set(choices)}
    choices.setdefault("mask", bands.Causal() if causal else bands.Full())
    of_8_bits = (choices.get("kv_dtype") or qkv_dtype) in FP8_DTYPES
    if not choices.get("latent"):
        head_dim_v = columns_of_v(head_dim_v or head_dim, of_8_bits)
    if "schedule" not in choices:
        if family is None and choices.get("latent"):
            family = (LatentRows if choices.get("kv_dtype") else LatentTile).family
        elif family is None and "x" in choices.get("descales", ""):
            family = BlockScaled.family
        elif family is None and widens_rope(qkv_dtype, choices.get("rope_dtype")):
            family = RopeTile.family
        elif family is None and choices.get("kv_dtype"):
            family = WidenedTile.family
        elif (
            family is None
            and "rows" not in of_schedule
            and is_wide(head_dim, head_dim_v or head_dim, of_8_bits)
        ):
            family = WideTile.family
        choices["schedule"] = _schedule(max(head_dim, head_dim_v or 0), family, **of_schedule)
    return FA4Config(
        qkv_dtype=qkv_dtype,
        qk_depth=head_dim,
        ov_depth=head_dim_v,
        group=group,
        write_lse=write_lse,
        arch=arch,
        **choices,
    )


def _schedule(depth: int, family: str | None, **choices) -> Schedule:
    if family is None:
        family = (SwappedTile if "rows" in choices else TwoTiles).family
    if family not in FAMILIES:
        raise ValueError(f"family: {family!r}; accepted: {', '.join(FAMILIES)}")
    cls = FAMILIES[family]
    for name in {"maximum", "exponential"} - {f.name for f in fields(cls)}:
        if choices.get(name) in (None, "exact"):
            choices.pop(name, None)  # it has no other
    foreign = sorted(set(choices) - {f.name for f in fields(cls)})
    if foreign:
        raise ValueError(
            f"family={family!r} with {', '.join(foreign)}: choices of another schedule than {cls.__name__}"
        )
    if depth <= 64 and issubclass(cls, RowSchedule) and not issubclass(cls, WideTile):
        # Tensor memory would allow 192 keys a tile, but 192 f32 scores do not fit the 192 registers of a
        # softmax thread; reading S twice instead costs more than the wider tile saves.
        choices.setdefault("bn_cap", 128)
    return cls(**choices)


def widens_rope(qkv_dtype: str, rope_dtype: str | None) -> bool:
    """Whether columns of K with a tensor of their own, of such a dtype, need the family that widens them.

    >>> widens_rope("bf16", "e4m3"), widens_rope("bf16", None), widens_rope("e4m3", "bf16")
    (True, False, False)
    """
    return rope_dtype is not None and qkv_dtype not in FP8_DTYPES


def is_wide(head_dim: int, head_dim_v: int, of_8_bits: bool = False) -> bool:
    """Whether head dims need the family that has one O and units of 64 columns, which are of 16 bits.

    >>> is_wide(192, 128), is_wide(256, 256), is_wide(128, 136), is_wide(256, 256, of_8_bits=True)
    (False, True, True, False)
    """
    return not of_8_bits and (head_dim > QK_DEPTHS[-1] or head_dim_v > DEPTHS[-1])


def columns_of_v(head_dim_v: int, of_8_bits: bool = False) -> int:
    """Columns of V that a kernel has: all, or half of them, one launch behind the other (calls/halves.py).

    >>> columns_of_v(256), columns_of_v(512), columns_of_v(272), columns_of_v(256, of_8_bits=True)
    (256, 256, 136, 128)
    """
    return head_dim_v // 2 if head_dim_v in (DEEP_OF_FP8 if of_8_bits else DEEP) else head_dim_v


def wide_family_for(seqlen_q: int, heads: int, pairs: bool | None = None) -> str:
    """The same of wide heads: pairs of CTAs where there are rows for both. Neither has more rows than alone, and each
    loads half (docs/decisions/0015). heads, pairs: as family_for

    >>> wide_family_for(1, 8), wide_family_for(128, 1), wide_family_for(17, 8), wide_family_for(300, 1, pairs=False)
    ('mhawide', 'mhawide', 'mhawidepair', 'mhawide')
    """
    pays = pairs is not False and seqlen_q * heads > ROWS_PER_Q_TILE
    return (WidePair if pays else WideTile).family


def family_for(seqlen_q: int, heads: int, pairs: bool = False) -> str:
    """The family that runs up to `seqlen_q` queries best, of `heads` heads that share a tile of 128 rows.

    One query tile where it has all of the rows; tiles of few rows are asked for by swapped_rows.

    pairs: whether more rows are those of two CTAs that share their MMAs (mhapair/pays.py)

    >>> family_for(1, 8), family_for(17, 8), family_for(128, 1), family_for(129, 1)
    ('mha1q', 'mha2q', 'mha1q', 'mha2q')
    """
    if seqlen_q * heads <= ROWS_PER_Q_TILE:
        return OneTile.family
    return (Pair if pairs else TwoTiles).family


def tile_for(
    seqlen_q: int, group: int, pack_gqa: bool | None = None, swaps: bool = True
) -> tuple[bool, int | None]:
    """-> (whether the heads of a group share a tile, rows of a tile with swapped operands or None).

    pack_gqa, swaps: what the call allows

    >>> [tile_for(queries, 8) for queries in (1, 2, 5, 256)]
    [(True, 8), (True, 32), (True, None), (False, None)]
    >>> [tile_for(queries, 7) for queries in (1, 4, 5, 300)]
    [(True, 8), (True, 32), (False, 8), (False, None)]
    """
    if swaps and group > 1 and pack_gqa is not False:
        rows = swapped_rows(seqlen_q, group)
        if rows is not None:
            return True, rows
    pack = group > 1 and (packs_gqa(seqlen_q, group) if pack_gqa is None else pack_gqa)
    return pack, None if pack or not swaps else swapped_rows(seqlen_q, 1)


def swapped_rows(seqlen_q: int, heads: int) -> int | None:
    """Rows of a tile with swapped operands that serves up to `seqlen_q` queries best, of `heads` heads that share it.

    None: tiles of 128 rows serve them as well. A group of 16 has a tile of its own for one query; otherwise two heights
    are enough, so that a service has few kernels.

    >>> [swapped_rows(queries, 8) for queries in (1, 2, 4, 5)], swapped_rows(1, 16), swapped_rows(4, 7)
    ([8, 32, 32, None], 16, 32)
    """
    heads = padded_heads(heads)
    if seqlen_q == 1 and heads == 16:
        return heads
    return next((rows for rows in SWAPPED_ROWS if seqlen_q * heads <= rows), None)


def latent_rows(seqlen_q: int, heads: int) -> int | None:
    """Rows of a tile over a latent cache that serves up to `seqlen_q` queries best, of `heads` query heads.

    None: there are more than a CTA has, and two share them (mla_pair/).

    >>> [latent_rows(1, heads) for heads in (8, 16, 24, 64, 128)], latent_rows(2, 16), latent_rows(8, 16)
    ([16, 16, 32, 64, None], 32, None)
    """
    needed = seqlen_q * padded_heads(heads_of_latent_tile(heads, LatentPair.latent_rows))
    return next((rows for rows in LATENT_ROWS if needed <= rows), None)


def latent_tile(seqlen_q: int, heads: int, of_rows: bool = False) -> dict:
    """The choices of choose_config that a call over a latent cache makes.

    of_rows: whether a row of the cache has 656 bytes, with scales and rotary columns of its own

    >>> latent_tile(1, 16), latent_tile(1, 128)
    ({'family': 'mla_decode', 'rows': 16}, {'family': 'mla_pair'})
    >>> [latent_tile(queries, 16, of_rows=True)["family"] for queries in (1, 2, 3, 8)]
    ['mla_widen', 'mla_widen', 'mla_widenpair', 'mla_widenpair']
    """
    rows = latent_rows(seqlen_q, heads)
    if of_rows:
        if rows is None or rows > LatentRows.latent_rows:
            return {"family": LatentRowsPair.family, **STORED}
        return {"family": LatentRows.family, "rows": rows, **STORED}
    if rows is None:
        return {"family": LatentPair.family}
    return {"family": LatentTile.family, "rows": rows}


def packs_gqa(seqlen_q: int, group: int) -> bool:
    """Whether the heads of a group share a query tile: when whole groups fit a tile and fewer CTAs are launched.

    >>> packs_gqa(1, 8), packs_gqa(256, 8), packs_gqa(300, 8), packs_gqa(1, 1), packs_gqa(1, 7)
    (True, False, True, False, False)
    """
    fits = ROWS_PER_Q_TILE % group == 0
    return fits and _blocks(seqlen_q * group) < group * _blocks(seqlen_q)


def _blocks(rows: int) -> int:
    """CTAs that own so many query rows."""
    return -(-rows // ROWS_PER_CTA)


@lru_cache(maxsize=4096)
def config_for(**choices) -> FA4Config:
    """The configuration that runs such a problem; ValueError with every reason if none does."""
    config = choose_config(**choices)
    refusals = config.refusals()
    if refusals:
        raise ValueError("q, k, v: " + "; ".join(refusals))
    return config


def split_configs(
    config: FA4Config, write_lse: bool, shared: bool = False
) -> tuple[FA4Config, CombineConfig]:
    """The two kernels of a call whose keys are split: the one of `config` into a workspace, and what merges it.

    Pairs of CTAs do not split keys: where there are too few blocks for the chip there is nothing to pair.

    shared: every CTA takes as many keys as any other, not every part of a sequence.
    """
    if isinstance(config.schedule, PAIRED):
        config = config.with_(schedule=config.schedule.alone)
    partial = config.with_(split_keys=True, share_keys=shared, write_lse=True, o_dtype="f32")
    combine = CombineConfig(
        config.o_dtype,
        config.ov_depth,
        packed=config.q_layout == "packed",
        seqused_q=config.seqused_q,
        shared=shared,
        write_lse=bool(write_lse),
        arch=config.arch,
    )
    return partial, combine

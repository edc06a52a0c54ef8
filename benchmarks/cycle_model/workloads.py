"""The small problems whose emulator runs give the model the order of events in a CTA.

A CTA's work is its number of key tiles, how many of them are masked, and, in a persistent kernel,
how many work tiles follow each other. Cycles are modelled for small numbers and continued linearly:
the steady state repeats itself.

    query rows   those of one cluster (256 or 512): one work tile
    keys         128 x tiles; a causal mask aligned bottom-right leaves the last query rows n tiles
    heads        work tiles of a persistent kernel
    window       a causal window of W keys over 128 x tiles keys. Up to W / 128 tiles are a block at
                 the beginning of a sequence, which the window does not cut; W / 128 + 2 tiles are
                 every later block: masked at both ends. More tiles come with a window that is so
                 much longer, and give the steady state between two masked ends
    listed       block_sparse_tensors: a list has every key tile, as a full block
    ragged       packed sequences. Without a causal mask the last key tile is half full, as the one
                 that nearly every sequence ends with. 0 tiles: CTAs that find nothing to do
"""

from __future__ import annotations

from dataclasses import dataclass, replace

KEYS_A_TILE = 128
ROWS_A_CTA = 256


# Key tiles for which a CTA is simulated. Between them cycles are interpolated, beyond the last they
# grow by the steady state's cycles a tile, which is the difference of the last two.
TILES = (1, 2, 3, 4, 6, 8, 16)
# A persistent kernel's work tiles overlap: what each adds comes from a CTA that does several.
PERSISTENT_TILES = (1, 2, 4, 8)
PERSISTENT_WORK_TILES = 3
# To find the cost of a block without rows: this many of them, with one block of a single key tile.
EMPTY_BLOCKS = 4
# Key tiles between a window's masked ends that give its steady state.
WINDOW_STEADY_TILES = 8


# Key tiles of blocks whose CTA takes their keys in parts: of blocks of one part, and of each of several.
TILES_OF_ONE_PART = (8, 16)
TILES_OF_A_PART = 4

ROPE_DEPTH = 64  # columns of K in a separate tensor


@dataclass(frozen=True)
class Workload:
    """One emulated launch: the shape of q, and of k and v, and which keys a query sees.

    tiles: key tiles of a work tile. work_tiles: how many work tiles the recorded cluster walks; of no
    tiles, all but one, which has one.
    window: keys that a query sees, itself included; 0: all before it. missing: keys by which the
    last tile falls short.
    """

    head_dim: int
    causal: bool
    heads_q: int
    heads_kv: int
    seqlen_q: int
    tiles: int
    work_tiles: int = 1
    window: int = 0
    ragged: bool = False
    missing: int = 0
    page_size: int = 0
    head_dim_v: int = 0  # 0: as head_dim
    dtype: str = "bf16"  # of q, k and v

    @property
    def seqlen_k(self) -> int:
        return self.tiles * KEYS_A_TILE - self.missing


@dataclass(frozen=True)
class RopeWorkload(Workload):
    """The last columns of K in a separate tensor of this dtype; also those of Q if dtypes differ."""

    rope_dtype: str = "bf16"
    rope_depth: int = ROPE_DEPTH


@dataclass(frozen=True)
class PartsWorkload(Workload):
    """One whose CTAs take the keys of their rows in parts of so many key tiles, and merge them."""

    tiles_of_part: int = 1

    @property
    def parts(self) -> int:
        return -(-self.tiles // self.tiles_of_part)


@dataclass(frozen=True)
class CacheWorkload(Workload):
    """One whose K and V have another dtype than q, of 8 bits under 16."""

    kv_dtype: str = "e4m3"


@dataclass(frozen=True)
class ListedWorkload(Workload):
    """One whose key tiles are listed: one list of all tiles, which every work tile reads."""


class ListPartsWorkload(ListedWorkload):
    """One whose work tiles are each the first of two parts of a list, which has every key tile twice."""


def workload(variant, tiles: int, work_tiles: int = 1, window: int = 0) -> Workload:
    """A CTA, or pair of CTAs, of a kernels.Variant with so many key tiles."""
    rows = variant.rows
    half_full = variant.ragged and not variant.causal and tiles > 0
    kind = ListedWorkload if variant.q_block else Workload
    if variant.in_parts:
        kind = ListPartsWorkload
    return kind(
        variant.head_dim,
        variant.causal,
        variant.group * work_tiles,
        work_tiles,
        rows // variant.group if variant.packed else rows,
        tiles,
        work_tiles,
        window,
        variant.ragged,
        KEYS_A_TILE // 2 if half_full else 0,
        variant.page_size,
        variant.head_dim_v,
        variant.dtype,
    )


def workloads_of(variant) -> list[Workload]:
    """What to emulate for a kernels.Variant. ValueError for a window that does not end with a tile."""
    if variant.window:
        chosen = _windows(variant.window, variant.rows)
        several = chosen[-2:] if variant.persistent else ()
        return [
            *(workload(variant, tiles, window=window) for tiles, window in chosen),
            *(workload(variant, n, PERSISTENT_WORK_TILES, window) for n, window in several),
        ]
    if dict(variant.choices).get("own_parts"):
        return own_parts_workloads(variant)
    several = PERSISTENT_TILES if variant.persistent else ()
    empty = [workload(variant, 0)] if variant.ragged else []
    if variant.claims:
        empty = [replace(work, work_tiles=EMPTY_BLOCKS + 1) for work in empty]
    return [
        *empty,
        *(workload(variant, n) for n in TILES),
        *(workload(variant, n, PERSISTENT_WORK_TILES) for n in several),
    ]


def own_parts_workloads(variant) -> list[Workload]:
    """Blocks of one part, of two sizes, and of two and three parts; alone and after others of their CTA."""
    sizes = [(n, n) for n in TILES_OF_ONE_PART]
    sizes += [(parts * TILES_OF_A_PART, TILES_OF_A_PART) for parts in (2, 3)]
    return [
        PartsWorkload(**vars(workload(variant, tiles, blocks)), tiles_of_part=each)
        for blocks in (1, PERSISTENT_WORK_TILES)
        for tiles, each in sizes
    ]


def _windows(window: int, rows: int) -> list[tuple[int, int]]:
    """(key tiles, window) of the CTAs of a window: at the beginning, later, and the longer one."""
    whole, rest = divmod(window, KEYS_A_TILE)
    if rest or not whole:
        raise ValueError(f"window of {window} keys; accepted: multiples of {KEYS_A_TILE}")
    rows_in_tiles = rows // KEYS_A_TILE
    later = whole + rows_in_tiles
    # Blocks end at multiples of their rows; the first that the window cuts has `later` tiles.
    beginning = range(rows_in_tiles, later, rows_in_tiles)
    longer = WINDOW_STEADY_TILES
    return [
        *((tiles, window) for tiles in beginning),
        (later, window),
        (later + longer, window + longer * KEYS_A_TILE),
    ]


def uses_pairs(variant) -> bool:
    """Whether flash-attn-4 takes two CTAs a tile: its interface.py, use_2cta_instrs."""
    depths = variant.head_dim, variant.head_dim_v or variant.head_dim
    if depths == (256, 256):  # under every mask
        return True
    dense = not variant.causal and not variant.ragged and not variant.q_block
    return dense and depths in ((128, 128), (192, 128))

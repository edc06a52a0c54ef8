"""A mask_mod for blocks that are smaller than a tile: it reads which of them a row sees from an aux tensor, `kinds`.

kinds is (batch or 1, heads or 1, query blocks, bytes), uint8. A byte has the kinds of four units of 16 keys, two bits
each (listed.PARTIAL, listed.FULL), so any block of a multiple of 16 keys is a number of units:

    blocks of 48 keys    0 0 0 1 | 1 1 2 2 | 2 ...      block 0 is hidden, 1 is partial, 2 is full
    bytes                0b01000000, 0b10100101, ...    the first unit has the lowest bits

The kernel passes indices that are clamped to the sequence. This function reads kinds at the place in the key tile
instead, which is a multiple of 128 plus a constant: one load of a byte then serves 64 keys of a row. Listed key tiles
lie within kinds, and the last byte of a row is that of its last tile.
"""

from collections.abc import Mapping

import torch

from ...scales import Scales
from ..traced.expressions import data_of
from ..traced.slopes import values_of
from ..traced.symbols import Symbol
from ..traced.trace import MASK, Traced, reads_of
from .listed import FULL, LISTED_BLOCK, PARTIAL
from .score_mods import ScoreMod, of_traced, renumbered

UNIT = 16  # keys
UNITS = 4  # of a byte
KINDS = ("u8", 4)  # dtype and rank of the aux tensor
PLACES = ("q_place", "kv_place")
"""Arguments that only functions of this package have: q_idx and kv_idx before they are clamped to the sequence."""


def with_kinds(mod: ScoreMod | None, number: int, queries: int) -> ScoreMod:
    """Whether a key is in a full block of kinds, or in a partial one and shown by `mod`; None: all are full.

    number: of kinds in aux, after the tensors that mod reads; queries: of a block
    """
    key = "" if mod is None else mod.key, number, queries
    if key not in _made:
        _made[key] = _with_kinds(counted_from_first(mod, number), number, queries)
    return _made[key]


_made: dict[tuple, ScoreMod] = {}


def tile_of(queries: int, two_tiles: bool, invariant: bool = False) -> int:
    """Queries of a tile for blocks of so many.

    two_tiles: the only kernel of a call has two query tiles in a CTA: q and k have scales of blocks, or key tiles may
    be skipped. invariant: the bits of a row may not depend on the lists of other blocks in its tile, which move its key
    tiles to other turns. With one query tile warpgroups take turns, and merge two sums of a row; with two, a row has
    one sum (docs/invariance.md).

    >>> tile_of(512, False), tile_of(384, False), tile_of(384, True), tile_of(64, False), tile_of(64, False, True)
    (256, 128, 256, 128, 256)
    """
    whole = queries % (2 * LISTED_BLOCK) == 0
    shared = invariant and queries % LISTED_BLOCK != 0
    return 2 * LISTED_BLOCK if two_tiles or whole or shared else LISTED_BLOCK


def are_tiles(queries: int, keys: int, two_tiles: bool) -> bool:
    """Whether kernels have blocks of these sizes.

    >>> are_tiles(384, 128, False), are_tiles(384, 128, True), are_tiles(256, 64, False)
    (True, False, False)
    """
    return queries % tile_of(queries, two_tiles) == keys % LISTED_BLOCK == 0


def of_small_blocks(problem: Mapping, invariant: bool) -> dict:
    """Fields of the attention kernel that runs small blocks, from those that say them; of other blocks nothing.

    invariant: as tile_of takes it

    ValueError for sizes that are no multiples of UNIT.
    """
    queries, keys = (problem.get(name, 0) for name in ("q_block", "kv_block"))
    block_scales = Scales.of(problem.get("descales", Scales())).of_blocks
    two_tiles = block_scales or bool(problem.get("skip_softmax"))
    if are_tiles(queries, keys, two_tiles):
        return {}
    for name, size in (("q_block", queries), ("kv_block", keys)):
        if size < 1 or size % UNIT:
            raise ValueError(f"{name}: {size}; accepted: multiples of {UNIT}")
    aux = tuple(problem.get("aux", ()))
    return {
        "q_block": tile_of(queries, two_tiles, invariant),
        "kv_block": LISTED_BLOCK,
        "full_blocks": True,
        "packed_lists": False,
        "list_offsets": False,
        "score_mod": counted_from_first(problem.get("score_mod"), len(aux)),
        "mask_mod": with_kinds(problem.get("mask_mod"), len(aux), queries),
        "aux": (*aux, KINDS),
    }


def reads_units(mod: ScoreMod | None) -> bool:
    """Whether a mask_mod is one of with_kinds."""
    arguments = getattr(getattr(mod, "function", None), "arguments", None)
    return PLACES[1] in (arguments or ())


def _with_kinds(mod: ScoreMod | None, number: int, queries: int) -> ScoreMod:
    nodes = None if mod is None else _nodes_of(mod, queries)
    unit = (Symbol("arg", ("kv_place",), "int") >> _log2(UNIT)) & (UNITS - 1)
    of_block = _byte(number, queries) >> (unit * 2)
    shown = (of_block & FULL) != 0
    if nodes is not None:
        root = values_of(nodes)[-1]
        shown = shown | (((of_block & PARTIAL) != 0) & root)
    nodes = data_of(shown)
    return of_traced(Traced(MASK, nodes, None, reads_of(nodes)), "" if mod is None else mod.label)


def _nodes_of(mod: ScoreMod, queries: int) -> list:
    nodes = mod.function.nodes if isinstance(mod.function, Traced) else None
    if nodes is None:
        raise NotImplementedError(
            f"mask_mod: {mod.name} handles values of the compiler (cutlass) beside blocks of {queries} queries; "
            "accepted: functions of operators and functions of torch, or a block_size of multiples of 128"
        )
    return nodes


def _byte(number: int, queries: int):
    q_place, kv_place, batch, head = (
        Symbol("arg", (name,), "int") for name in (*PLACES, "batch", "head")
    )
    # Shifts: the compiler then sees that keys of a byte have one address.
    row = q_place >> _log2(queries) if queries & (queries - 1) == 0 else q_place // queries
    of_dims = zip((batch, head, row), range(3), strict=True)
    at = [torch.minimum(i, Symbol("size", (number, dim), "int") - 1) for i, dim in of_dims]
    return Symbol("read", (number, *at, kv_place >> _log2(UNIT * UNITS)), "int")


def _log2(number: int) -> int:
    return number.bit_length() - 1


def counted_from_first(mod: ScoreMod | None, given: int) -> ScoreMod | None:
    """The same where aux[-1] is the last of `given` aux tensors, to which others may be added."""
    if mod is None:
        return None
    return renumbered(mod, lambda number: number + given if number < 0 else number)

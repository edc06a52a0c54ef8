"""Work tiles whose query tiles see different key tiles: each skips the key tiles that it does not see.

Under a causal mask query tile 1 sees one key tile more than query tile 0: of 2 c products S of c key tiles, 2 c - 1
are needed. Softmax takes turns with the tensor core, warpgroup by warpgroup, and an empty turn stalls both.
So the query tile that sees more goes first, and its warpgroup is the one that was second at the end of the previous
work tile. With a and b for the warpgroups, c = 2, 2 and 3, and each letter an S:

    key tile            0      1       0      1       0      1      2
    all computed        a b    a b     a b    a b     a b    a b    a b
    skipped             a b    a       b a    b       a b    a b    a        no turn is empty
    query tile 1 is     a              b              a

Under a window query tile 1 also begins one key tile late. There query tile 0 goes first, and its warpgroup is the one
that was second at the end of the previous work tile. A window of 128 keys, three key tiles a work tile:

    key tile            0      1      2       0      1      2
    all computed        a b    a b    a b     a b    a b    a b
    skipped             a      b a    b       a      b a    b
    query tile 1 is     b                     b

    role         difference
    load         Q1 K0 Q0 V0 ..., each Q to the place of its warpgroup: that of the query tile that goes first is free
                 first. Under a window Q1 comes with its own first key tile. With a work tile it announces how many key
                 tiles each query tile skips, and which warpgroup leads, that is, has query tile 1 (queue.py)
    mma          over.py, beside.py: `leader` is a warpgroup, a number of the kernel; its query tile is always 1
    softmax i    rows and key tiles of its query tile (q_tile, first_tile, number_of_tiles)
    correction   correction.py: O of query tile 0, which is complete first, then that of query tile 1

Skipped scores are all masked: their P is 0, and the maximum, the row sum and O stay bitwise unchanged.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute

from cute_fa4.layouts.scalars import choose

from ...roles.merge import Turns
from ...roles.order import Order
from ...steps import loads
from ...sync.kernel_args import Events, KernelArgs, Smem
from ...work.tile import Work
from ..p_beside_s import PBesideSCode
from ..p_over_s import POverSCode
from ..single_tile import hooks as single
from ..single_tile.hooks import Single, SinglePBesideS, SinglePOverS
from ..single_tile.tile import is_single
from . import beside, correction, over


def query_tile(work, i):
    """The query tile of softmax warpgroup i; the leader has query tile 1."""
    return (i ^ work.tiles.leader) ^ 1


def warpgroup_of(work, q_tile):
    """The inverse: the warpgroup of a query tile."""
    return query_tile(work, q_tile)


def load_q(cfg, args: KernelArgs, smem: Smem, events: Events, work: Work, i: int):
    """Load query tile i to the place of its warpgroup."""
    loads.load_q(cfg, args, smem, events, work, i, warpgroup_of(work, i))


@cute.jit
def load_q_unless_single(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    events: Events,
    work: Work,
    i: cutlass.Constexpr,
):
    """The same, but in a single-tile work tile load query tile 0 to place 0, and nothing to the other place."""
    if is_single(cfg, work):
        single.load_q(cfg, args, smem, events, work, i)
    else:
        load_q(cfg, args, smem, events, work, i)


class Uneven(Order):
    """Hooks of an order whose query tiles take turns with the warpgroups."""

    nothing_corrected = staticmethod(Turns.none)
    correct_tiles = staticmethod(correction.correct_tiles)

    load_q = staticmethod(load_q)

    def q_tile_of_turn(self, turn):
        return 1 - turn

    def q_place(self, cfg, work, i):
        return warpgroup_of(work, i)

    def key_tile_of_q(self, cfg, work, i):
        return work.tiles.begin_of(i)

    def first_tile(self, cfg, work, i):
        return work.tiles.begin_of(query_tile(work, i))

    def parity(self, cfg, work, n, i, before):
        return (n - self.first_tile(cfg, work, i) + before) & 1

    def q_tile(self, cfg, work, i):
        return query_tile(work, i)

    def number_of_tiles(self, cfg, work, i):
        return work.tiles.count_of(query_tile(work, i))


class UnevenSingle(Uneven):
    """The same with single-tile work tiles, which have no rows in query tile 1 (single_tile/hooks.py)."""

    correct_tiles = staticmethod(correction.correct_single_or_two)
    load_q = staticmethod(load_q_unless_single)

    parity, next_tile = Single.parity, Single.next_tile

    def q_place(self, cfg, work, i):
        return choose(is_single(cfg, work), i, warpgroup_of(work, i))

    def key_tile_of_q(self, cfg, work, i):
        if i == 0 or not cfg.begins_late:
            return Single.key_tile_of_q(self, cfg, work, i)
        lent, own = work.tiles.count - 1, work.tiles.before(i)
        return work.tiles.first + choose(is_single(cfg, work), lent, own)

    def first_tile(self, cfg, work, i):
        if not cfg.begins_late:
            return Single.first_tile(self, cfg, work, i)
        before = work.tiles.before(query_tile(work, i))
        return work.tiles.first + choose(is_single(cfg, work), i, before)

    def q_tile(self, cfg, work, i):
        return choose(is_single(cfg, work), 0, query_tile(work, i))

    def number_of_tiles(self, cfg, work, i):
        alternating = (work.tiles.count + 1 - i) >> 1
        of_two = work.tiles.count_of(query_tile(work, i))
        return choose(is_single(cfg, work), alternating, of_two)


@dataclass(frozen=True)
class UnevenPOverS(Uneven, POverSCode):
    """P over S."""

    run = staticmethod(over.run)


@dataclass(frozen=True)
class UnevenPBesideS(Uneven, PBesideSCode):
    """P beside S."""

    run = staticmethod(beside.run)


@dataclass(frozen=True)
class UnevenSinglePOverS(UnevenSingle, SinglePOverS):
    """P over S, with single-tile work tiles."""

    run = staticmethod(over.run)


@dataclass(frozen=True)
class UnevenSinglePBesideS(UnevenSingle, SinglePBesideS):
    """P beside S, with single-tile work tiles."""

    run = staticmethod(beside.run)


CODE = {"p_over_s": UnevenPOverS(), "p_beside_s": UnevenPBesideS()}
WITH_SINGLE_TILES = {"p_over_s": UnevenSinglePOverS(), "p_beside_s": UnevenSinglePBesideS()}

"""Work tiles whose query tiles see different key tiles: what either does not see is left out.

Under a causal mask query tile 1 sees a key tile more than query tile 0: of 2 c products S of c key tiles, 2 c - 1 are
needed. Softmax takes turns with the tensor core, warpgroup by warpgroup, and a turn of nobody is a pause of everybody.
So the query tile that sees more goes first, and its warpgroup is the one that was second at the end of the work tile
before. With a and b for the warpgroups, c = 2, 2 and 3, and each letter an S:

    key tile            0      1       0      1       0      1      2
    all computed        a b    a b     a b    a b     a b    a b    a b
    left out            a b    a       b a    b       a b    a b    a        the turns never stop
    query tile 1 is     a              b              a

Under a window query tile 1 also begins a key tile late. There query tile 0 goes first, and its warpgroup is the one
that was second at the end of the work tile before. A window of 128 keys, three key tiles a work tile:

    key tile            0      1      2       0      1      2
    all computed        a b    a b    a b     a b    a b    a b
    left out            a      b a    b       a      b a    b
    query tile 1 is     b                     b

    role         what it does otherwise
    load         Q1 K0 Q0 V0 ..., each Q to the place of its warpgroup: that of the query tile which goes first is free
                 first. Under a window Q1 comes with its own first key tile. With a work tile it announces how many key
                 tiles either query tile leaves out, and which warpgroup leads, that is, has query tile 1 (queue.py)
    mma          over.py, beside.py: `leader` is a warpgroup, a number of the kernel; its query tile is always 1
    softmax i    rows and key tiles of its query tile (q_tile, first_tile, number_of_tiles)
    correction   correction.py: O of query tile 0, which is complete first, then that of query tile 1

Scores that are left out are all masked: their P is 0, and maximum, row sum and O stay what they are, bit by bit.
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
from ..single_tile import hooks as lone
from ..single_tile.hooks import Lone, LonePBesideS, LonePOverS
from ..single_tile.tile import is_lone
from . import beside, correction, over


def query_tile(work, i):
    """The query tile of softmax warpgroup i: the leader's is 1."""
    return (i ^ work.tiles.leader) ^ 1


def warpgroup_of(work, q_tile):
    """The other way round."""
    return query_tile(work, q_tile)


def load_q(cfg, args: KernelArgs, smem: Smem, events: Events, work: Work, i: int):
    """Query tile i, to the place of its warpgroup."""
    loads.load_q(cfg, args, smem, events, work, i, warpgroup_of(work, i))


@cute.jit
def load_q_unless_lone(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    events: Events,
    work: Work,
    i: cutlass.Constexpr,
):
    """The same, or of a lone work tile query tile 0 to place 0, and to the other one nothing."""
    if is_lone(cfg, work):
        lone.load_q(cfg, args, smem, events, work, i)
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


class UnevenLone(Uneven):
    """The same with lone work tiles, which have no rows in query tile 1 (single_tile/hooks.py)."""

    correct_tiles = staticmethod(correction.correct_lone_or_two)
    load_q = staticmethod(load_q_unless_lone)

    parity, next_tile = Lone.parity, Lone.next_tile

    def q_place(self, cfg, work, i):
        return choose(is_lone(cfg, work), i, warpgroup_of(work, i))

    def key_tile_of_q(self, cfg, work, i):
        if i == 0 or not cfg.begins_late:
            return Lone.key_tile_of_q(self, cfg, work, i)
        lent, own = work.tiles.count - 1, work.tiles.before(i)
        return work.tiles.first + choose(is_lone(cfg, work), lent, own)

    def first_tile(self, cfg, work, i):
        if not cfg.begins_late:
            return Lone.first_tile(self, cfg, work, i)
        before = work.tiles.before(query_tile(work, i))
        return work.tiles.first + choose(is_lone(cfg, work), i, before)

    def q_tile(self, cfg, work, i):
        return choose(is_lone(cfg, work), 0, query_tile(work, i))

    def number_of_tiles(self, cfg, work, i):
        alternating = (work.tiles.count + 1 - i) >> 1
        of_two = work.tiles.count_of(query_tile(work, i))
        return choose(is_lone(cfg, work), alternating, of_two)


@dataclass(frozen=True)
class UnevenPOverS(Uneven, POverSCode):
    """P over S."""

    run = staticmethod(over.run)


@dataclass(frozen=True)
class UnevenPBesideS(Uneven, PBesideSCode):
    """P beside S."""

    run = staticmethod(beside.run)


@dataclass(frozen=True)
class UnevenLonePOverS(UnevenLone, LonePOverS):
    """P over S, with lone work tiles."""

    run = staticmethod(over.run)


@dataclass(frozen=True)
class UnevenLonePBesideS(UnevenLone, LonePBesideS):
    """P beside S, with lone work tiles."""

    run = staticmethod(beside.run)


CODE = {"p_over_s": UnevenPOverS(), "p_beside_s": UnevenPBesideS()}
WITH_LONE_TILES = {"p_over_s": UnevenLonePOverS(), "p_beside_s": UnevenLonePBesideS()}

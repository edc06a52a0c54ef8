"""How the roles handle a single-tile work tile: a work tile with rows for one query tile.

Packed queries, and query lengths that come from a tensor, cut a batch into work tiles of which many have at most 128
rows: a decode step in a batch with a prompt, a draft, the rest of a prompt. Where such a work tile has several key
tiles, one softmax warpgroup processes its rows over even key tiles and the other over odd ones, as in the one-tile
kernel (roles/alternate.py, roles/merge.py); the second query tile is neither loaded nor computed.

    role         two query tiles                         single-tile
    load         Q0 K0 Q1 V0 K1 V1 ...                   Q0 K0 V0 K1 V1 ..., and at the end the place of Q1 is lent
    mma          S0 S1 with each K, O0 O1 with each V    S0 O0 with even key tiles, S1 O1 with odd ones
    softmax i    the rows of query tile i                the rows of query tile 0, every second key tile from i on
    correction   O0 / sum 0, O1 / sum 1                  (w0 O0 + w1 O1) / sum

Each role decides independently, from the announced work tile. These rules keep the roles in step:

    parities     a warpgroup has fewer key tiles in a single-tile work tile: each role counts them by warpgroup (`turns`
                 here, Turns of roles/merge.py, `phases` of the MMA warp). Barriers of Q and O: a phase per work tile
    row maxima   for the merge lie where Q1 would be. Softmax may write them there because the last S1 was made before
                 the first S of this work tile; the next Q1 waits for q_free[1], which correction raises when it has
                 read them. q_full[1] completes its phase without a copy
    chunks of O  the second query tile has none: groups without copies stand for them, because steps/store.py finds
                 the free buffer by counting groups
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from cute_fa4.layouts.scalars import choose

from ...roles.merge import Turns
from ...roles.order import Order
from ...steps import loads
from ...sync.kernel_args import Events, KernelArgs, Smem
from ...work.tile import Work
from ..p_beside_s import PBesideSCode
from ..p_over_s import POverSCode
from . import beside, correction, over
from .tile import is_single, one_if_single


@cute.jit
def load_q(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    events: Events,
    work: Work,
    i: cutlass.Constexpr,
):
    """Load query tile i; the second one of a single-tile work tile is not copied."""
    if cutlass.const_expr(i == 0):
        loads.load_q(cfg, args, smem, events, work, i)
    elif is_single(cfg, work):
        with cute.arch.elect_one():
            events.q_full.arrive(i)
    else:
        loads.load_q(cfg, args, smem, events, work, i)


@cute.jit
def keep_maximum(cfg: cutlass.Constexpr, smem: Smem, work: Work, thread: Int32, row_max: Float32):
    """Keep the row maximum of a single-tile work tile for the merge."""
    if is_single(cfg, work):
        smem.row_max[thread] = row_max


class Single(Order):
    """Hooks of an order whose single-tile work tiles alternate between the warpgroups."""

    nothing_corrected = staticmethod(Turns.none)
    correct_tiles = staticmethod(correction.correct_tiles)
    load_q = staticmethod(load_q)

    def key_tile_of_q(self, cfg, work, i):
        """Lend the place of Q1 with the last key tile: by then the merge of the previous work tile is done with it."""
        if i == 0:
            return work.tiles.first
        return work.tiles.first + choose(is_single(cfg, work), work.tiles.count - 1, 0)

    def stride(self, cfg, work):
        return 1 + one_if_single(cfg, work)

    def first_tile(self, cfg, work, i):
        return work.tiles.first + choose(is_single(cfg, work), i, 0)

    def next_tile(self, cfg, work, n, i):
        return n + ((n - work.tiles.first - i) & one_if_single(cfg, work))

    def parity(self, cfg, work, n, i, before):
        # Written so that all but three instructions do not depend on n.
        shift = one_if_single(cfg, work)
        return (n + ((before << shift) - self.first_tile(cfg, work, i)) >> shift) & 1

    def number_of_tiles(self, cfg, work, i):
        alternating = (work.tiles.count + 1 - i) >> 1
        return choose(is_single(cfg, work), alternating, work.tiles.count)

    def q_tile(self, cfg, work, i):
        return choose(is_single(cfg, work), 0, i)

    def has_sink(self, cfg, work, i):
        return choose(is_single(cfg, work), i, 0) == 0

    def writes_lse(self, cfg, work):
        return one_if_single(cfg, work) == 0

    def hand_over(self, cfg, smem, work, thread, state):
        smem.row_scale[thread] = state.row_sum
        keep_maximum(cfg, smem, work, thread, state.row_max)


@dataclass(frozen=True)
class SinglePOverS(Single, POverSCode):
    """P over S."""

    run = staticmethod(over.run)


@dataclass(frozen=True)
class SinglePBesideS(Single, PBesideSCode):
    """P beside S."""

    run = staticmethod(beside.run)

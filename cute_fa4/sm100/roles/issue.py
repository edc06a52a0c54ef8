"""The MMA warp's loop over key tiles, for families with one query tile and one softmax role.

    one_ahead    S(0)    S(1) PV(0)    S(2) PV(1)    ...    PV(last)       softmax of one S overlaps the MMAs
    in_turn      S(0) PV(0)    S(1) PV(1)    ...                           V is part of K, which is held until its P V

A family's Products define the MMAs and the places of K and V. The loop handles the barriers of Q.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..steps.warps import MmaWarp
from ..sync.kernel_args import KernelArgs
from ..work.queue import NO_MORE, WorkQueue


@dataclass(frozen=True)
class Products:
    """MMAs that a family issues. tile: key tile number over all work tiles; it gives buffers and parities."""

    def await_q(self, events, phase):
        """Wait until Q of a work tile may be read, before its first S."""
        events.q_full.wait(0, phase)

    def make_scores(self, cfg, mma, at, tile):
        """S of a key tile, as soon as its K is ready -> the next position."""
        raise NotImplementedError

    def finish_tile(self, cfg, mma, at, tile, accumulate):
        """P V of a key tile, as soon as its P is ready -> the next position."""
        raise NotImplementedError


@cute.jit
def one_ahead(
    cfg: cutlass.Constexpr,
    products: cutlass.Constexpr,
    args: KernelArgs,
    mma: MmaWarp,
    queue: WorkQueue,
    at,
) -> Int32:
    """Every work tile of the CTA, from position `at` of its rings on; -> the number of its key tiles."""
    events = mma.events
    tile = Int32(0)
    number, q_phase = Int32(0), Int32(0)
    count = queue.next(cfg, args, number).tiles.count
    while count != NO_MORE:
        for n in cutlass.range(count, unroll=1):
            if n == 0:
                products.await_q(events, q_phase)
            at = products.make_scores(cfg, mma, at, tile)
            if n == count - 1:
                events.q_free.commit(0)
            if n > 0:
                at = products.finish_tile(cfg, mma, at, tile - 1, n > 1)
            tile = tile + 1
        if count > 0:
            at = products.finish_tile(cfg, mma, at, tile - 1, count > 1)
            q_phase = q_phase ^ 1
        number = number + 1
        count = queue.next(cfg, args, number).tiles.count
    return tile


@cute.jit
def in_turn(
    cfg: cutlass.Constexpr,
    products: cutlass.Constexpr,
    args: KernelArgs,
    mma: MmaWarp,
    queue: WorkQueue,
    at,
):
    """The same, where S of a key tile leaves the position in place: P V uses the slot that S has read."""
    events = mma.events
    tile = Int32(0)
    number, q_phase = Int32(0), Int32(0)
    count = queue.next(cfg, args, number).tiles.count
    while count != NO_MORE:
        for n in cutlass.range(count, unroll=1):
            if n == 0:
                products.await_q(events, q_phase)
            products.make_scores(cfg, mma, at, tile)
            if n == count - 1:
                events.q_free.commit(0)
            at = products.finish_tile(cfg, mma, at, tile, n > 0)
            tile = tile + 1
        if count > 0:
            q_phase = q_phase ^ 1
        number = number + 1
        count = queue.next(cfg, args, number).tiles.count

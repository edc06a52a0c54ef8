"""Gather warps: where rows of a latent cache are gathered, three warps share the gathers of each unit.

    gathers of 64 keys     0 .. 3     4 .. 9         10 .. 15      of four rows each; of 128 keys twice as many
    warp                   load       gathers 0      gathers 1     on three sub-partitions of the SM

A gather takes 128 bytes of each of four rows, and its coordinates are uniform registers. A warp that issued all of them
took 7,200 modeled cycles for a key tile of a pair, whose products take 2,300 (docs/decisions/0079). The load warp has
fewer, since it also looks for work and loads Q. It announces the bytes of all three; those of another warp may count
before that, as they may in a pair (pair/sync.py). A slot is free for all of them at once.

The four rows of a gather are in all lanes of its warp for every unit of the same keys.
"""

from dataclasses import dataclass, replace

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cute_fa4.tma import copies
from cute_fa4.tma.gathered_rows import ROWS, GatheredRows

from ..operands.kv_buffer import SPAN_BYTES
from ..steps.loads import look_up
from ..steps.warps import LoadWarp, TileToLoad
from ..sync.kernel_args import Events, KernelArgs, Smem
from ..sync.pipelines import Slot, TMAProducerPipeline
from ..work.queue import NO_MORE, WorkQueue

KV_HEAD = 0  # a latent cache has one head


@dataclass(frozen=True)
class Share:
    """The gathers of a unit that a warp issues.

    begin, end   sixteenths of a unit
    announces    whether it announces the bytes of the unit: the load warp does
    """

    begin: int
    end: int
    announces: bool

    def gathers(self, keys: int) -> range:
        """Their numbers in a unit of so many keys.

        >>> [share.gathers(64) for share in SHARES], SHARES[1].gathers(128)
        ([range(0, 4), range(4, 10), range(10, 16)], range(8, 20))
        """
        of_part = keys // ROWS // PARTS
        return range(self.begin * of_part, self.end * of_part)

    def full_of(self, ring: TMAProducerPipeline, slot: Slot):
        """The mbarrier for the copies into a slot."""
        return ring.get_v(slot) if self.announces else ring.of_v(slot)


PARTS = 16
SHARES = (Share(0, 4, True), Share(4, 10, False), Share(10, 16, False))  # of load, of gather warps
ALONE = Share(0, PARTS, True)


def of_load(cfg) -> Share:
    """The share of the load warp."""
    return SHARES[0] if cfg.warps.values else ALONE


def in_all_lanes(args: KernelArgs, share: Share, rows: GatheredRows, keys: int) -> tuple:
    """(number, its four rows of the map) of each gather of a warp, from the rows of a unit of so many keys."""
    of_heads = args.k.of_heads
    rows = rows.in_map(of_heads.per_row, Int32(KV_HEAD) * of_heads.per_head)
    return tuple((p, rows.of_gather(p)) for p in share.gathers(keys))


def issue(args: KernelArgs, to: tuple, rows: tuple, first_column, unit: tuple):
    """Copy columns of the rows of in_all_lanes. to: (address, mbarrier); unit: (keys, chunks of columns, CTAs)"""
    address, mbarrier = to
    keys, chunks, ctas = unit
    for p, four in rows:
        line = address + p * (ROWS * SPAN_BYTES)
        of_chunks = chunks, keys * SPAN_BYTES
        copies.gather_rows(args.k.boxes, line, *of_chunks, mbarrier, four, first_column, ctas)


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    events: Events,
    kv,
    queue: WorkQueue,
    number: cutlass.Constexpr,
):
    """Every work tile of the CTA, of gather warp `number`. kv: the producer of the family's load warp."""
    kv = replace(kv, share=SHARES[1 + number])
    warp = LoadWarp(args, smem, events, kv)
    work_tile, at = Int32(0), kv.first()
    work = queue.next(cfg, args, work_tile)
    while work.tiles.count != NO_MORE:
        first, count = work.tiles.first, work.tiles.count
        entries = look_up(cfg, args, work, first)
        for n in cutlass.range(first, first + count, unroll=1):
            ahead = look_up(cfg, args, work, n + 1)
            at = order.load_tile(cfg, order, warp, TileToLoad(work, n, entries), at, Int32(0))
            entries = ahead
        work_tile = work_tile + 1
        work = queue.next(cfg, args, work_tile)


@cute.jit
def run_warps(cfg: cutlass.Constexpr, order: cutlass.Constexpr, args: KernelArgs, cta, warp):
    """The gather warps of a CTA, if it has any."""
    for number in cutlass.range_constexpr(len(cfg.warps.values)):
        if warp == cfg.warps.values.start + number:
            run(cfg, order, args, cta.smem, cta.events, cta.producer, cta.queue, number)

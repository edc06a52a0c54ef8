"""Order of the load warp for few query rows: in a short launch, the cycles before the first copy count.

    otherwise   length ... | page table ... | announce | next pages | Q K V
    here        length, page table ... | K | announce | next pages | Q V

The load warp looks up the pages of a CTA's first key tile together with the length of its sequence. It discards them if
the mask begins elsewhere (steps/loads.py: guess). K of a tile is sixteen times Q, and the first product waits for both.
The copies of K start before the work tile is announced and before the pages of the next key tile are looked up.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32

from ..operands.kv_buffer import KVBuffer, KVBufferConfig
from ..roles.order import LoadOrder
from ..steps import loads
from ..steps.warps import LoadWarp, TileToLoad
from ..sync.pipelines import Slot
from ..work.tile import Work


@cute.jit
def load_tile(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    warp: LoadWarp,
    tile: TileToLoad,
    at: Slot,
    q_phase: Int32,
    started: Boolean,
) -> Slot:
    """Load key tile n as roles/load.py does, but Q after K. started: its K is in flight, and `at` is past it."""
    args, smem, events, kv = warp.args, warp.smem, warp.events, warp.kv
    work, n, entries = tile.work, tile.n, tile.entries
    k = KVBuffer(KVBufferConfig.for_k(cfg), smem.kv_address, args.k)
    v = KVBuffer(KVBufferConfig.for_v(cfg), smem.kv_address, args.v)
    of_k, of_v = loads.find_rows(cfg, args, work, n, entries)
    if not started:
        at = loads.load_k(cfg, k, kv, work, at, of_k)
    if n == work.tiles.first:
        events.q_free.wait(0, q_phase ^ 1)
        loads.load_q(cfg, args, smem, events, work, 0)
    return loads.load_v(cfg, v, kv, work, at, of_v)


def start(
    cfg, warp: LoadWarp, work: Work, entries: Int32 | tuple, at: Slot
) -> tuple[Slot, Boolean]:
    """-> (the slot after K of the first key tile, if there is a tile; whether there is one)."""
    return loads.load_first_k(cfg, KVBufferConfig.for_k(cfg), warp, work, entries, at)


class GuessingOrder(LoadOrder):
    """Looks up the first pages together with the length; copies in the order of roles/load.py.

    Used where another warp copies V (roles/values.py): that warp receives a work tile before the 1,500 cycles of K's
    gathers, and Q, which is not gathered, is loaded before them.
    """

    def guessed_entries(self, cfg, args, block):
        return loads.guess(cfg, args, block)

    def first_entries(self, cfg, args, work, guessed):
        if guessed is None:
            return loads.look_up(cfg, args, work, work.tiles.first)
        return loads.look_up_guessed(cfg, args, work, guessed, Int32(0))


class EarlyOrder(GuessingOrder):
    """The order of loads for few query rows."""

    load_tile = staticmethod(load_tile)
    start = staticmethod(start)
    starts_early = True

    def further_arguments(self, started):
        return (started,)

    def after_tile(self, entries):
        return Boolean(False)


EARLY, BESIDE_VALUES = EarlyOrder(), GuessingOrder()


def order_of(cfg) -> GuessingOrder:
    """The order of the load warp in this configuration."""
    return BESIDE_VALUES if cfg.warps.values else EARLY

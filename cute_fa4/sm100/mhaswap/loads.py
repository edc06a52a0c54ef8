"""What the load warp of few query rows does in another order: cycles until the first copy are cycles of a short launch.

    otherwise   length ... | page table ... | Q K V
    here        length, page table ... | K Q V

The pages of a CTA's first key tile are looked up beside the length of its sequence, and thrown away if the mask begins
elsewhere (steps/loads.py: guess). K of a tile is sixteen times Q, and the first product waits for both.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..kernel_args import Events, KernelArgs, Smem
from ..operands.kv_buffer import KVBuffer, KVBufferConfig
from ..roles.order import Order
from ..steps import loads
from ..sync.pipelines import Slot, TMAProducerPipeline
from ..work.tile import Work


@cute.jit
def load_tile(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    events: Events,
    kv: TMAProducerPipeline,
    work: Work,
    n: Int32,
    entries: Int32 | tuple,
    at: Slot,
    q_phase: Int32,
) -> Slot:
    """Key tile n, as roles/load.py says; Q behind K."""
    k = KVBuffer(KVBufferConfig.for_k(cfg), smem.kv_address, args.k)
    v = KVBuffer(KVBufferConfig.for_v(cfg), smem.kv_address, args.v)
    of_k, of_v = loads.find_rows(cfg, args, work, n, entries)
    at = loads.load_k(cfg, k, kv, work, at, of_k)
    if n == work.tiles.first:
        events.q_free.wait(0, q_phase ^ 1)
        loads.load_q(cfg, args, smem, events, work, 0)
    return loads.load_v(cfg, v, kv, work, at, of_v)


class EarlyOrder(Order):
    """Loads of few rows."""

    load_tile = staticmethod(load_tile)

    def guess(self, cfg, args, block):
        return loads.guess(cfg, args, block)

    def first_entries(self, cfg, args, work, guessed):
        if guessed is None:
            return loads.look_up(cfg, args, work, work.tiles.first)
        return loads.look_up_guessed(cfg, args, work, guessed)


EARLY = EarlyOrder()

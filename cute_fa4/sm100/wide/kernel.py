"""SM100MHAWide: forward attention with head dims up to 512, 256 columns of V a launch, one query tile and one O a CTA.

Steady state of one CTA. A line is an issue slot, not a duration; S has two buffers.

    load     mma              softmax          correction      note
    Q  K0    .                .                .               four units of 64 columns each
    K1       S[0] = Q K0      .                .               a slot is free after its unit
    V0       S[1] = Q K1      P0 = 2^(S-m)     .               made while softmax works on tile 0
    K2       O = P0 V0        P1, factor 1     .               p_ready[0]: 128 + 128 arrivals
    V1       S[0] = Q K2      .                O *= factor 1   pv_done says that O is complete
    K3       O += P1 V1       P2, factor 2     .

Read next: products.py, units.py (the ring), correction.py, barriers.py (the table), then
roles/softmax.py and key_tile.py.
"""

from dataclasses import dataclass

from ..kernel import CTA, SM100Kernel
from ..roles import dispatch
from ..roles.order import Order
from ..sync.kernel_args import KernelArgs
from . import correction, loads, products


@dataclass(frozen=True)
class InTwoBuffers(Order):
    """One softmax warpgroup processes every key tile; tile t uses S and barriers of buffer t & 1."""

    sum_early = True
    run = staticmethod(products.run)
    nothing_corrected = staticmethod(correction.no_tiles)
    correct_tiles = staticmethod(correction.correct_tiles)
    load_tile = staticmethod(loads.load_tile)
    load_units_of_two = staticmethod(loads.load_units_of_two)

    def announced(self, cfg, events, kv, at, unit):
        """Announce a unit of K that has columns from a separate tensor; returns the mbarrier for its copies."""
        return kv.get_v(at)

    def buffer_at(self, cfg, work, n, i, before):
        return self.number(work, n, before) & 1

    def parity(self, cfg, work, n, i, before):
        return (self.number(work, n, before) >> 1) & 1

    def number(self, work, n, before):
        """The number of key tile n, counted over all work tiles of the CTA."""
        return n - work.tiles.first + before

    def buffer_before(self, at):
        return at ^ 1

    def buffer_and_parity(self, i, number):
        return number & 1, (number >> 1) & 1

    def s_address(self, cfg, tmem, at):
        return tmem + at * (cfg.tmem.s[1] - cfg.tmem.s[0])

    def factor_word(self, cfg, thread, at):
        return thread + at * cfg.tiles.rows_per_q_tile


class SM100MHAWide(SM100Kernel):
    """Forward attention on SM100: 384 threads, 128 query rows a CTA, S, P and O in tensor memory."""

    def roles(self, args: KernelArgs, cta: CTA, warp):
        dispatch.run(self.cfg, InTwoBuffers(), args, cta, warp)


KERNEL = SM100MHAWide

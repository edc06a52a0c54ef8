"""SM100MHAWiden2Q: many 16-bit queries over 8-bit or 4-bit keys, which two warps dequantize in place.

Steady state of one CTA: the additions to two_tiles/kernel.py. A line is an issue slot, not a duration.

    load     dequantize  mma             note
    Q0 K0    .           .               rows of 8 or 4 bits: raw_full[0]
    Q1 V0    K0          .               kv_full[0] is raised by the 64 threads that dequantize
    K1       V0          S0 = Q0 K0      .
    V1       K1          S1 = Q1 K0      K0's slot is free after S1
    K2       V1          O0 = P0 V0      .

Everything else is that of two_tiles/: a slot has the size for 16 bits, and half or a quarter of it arrives.

Read next: tiles.py (where a key's row lies), dequantize.py, barriers.py (the table), two_tiles/kernel.py.
"""

from dataclasses import dataclass, replace

import cutlass.cute as cute

from ...kernel import CTA, OverRawRows
from ...roles import dispatch
from ...roles.order import Order
from ...steps import store_rows
from ...sync.kernel_args import KernelArgs
from ...sync.pipelines import ConsumerBesideRests, ProducerBesideRests
from ..kernel import SM100MHA2Q
from ..p_over_s import POverSCode
from ..uneven.hooks import UnevenPOverS
from . import dequantize


class ByRows(Order):
    """Hooks of an order whose O the threads of its rows store."""

    store_o = staticmethod(store_rows.store_o)
    correct_empty = staticmethod(store_rows.zeros)


@dataclass(frozen=True)
class POverSByRows(ByRows, POverSCode):
    """P over S."""


@dataclass(frozen=True)
class UnevenPOverSByRows(ByRows, UnevenPOverS):
    """The same, of query tiles that see different key tiles."""


class SM100MHAWiden2Q(OverRawRows, SM100MHA2Q):
    """Forward attention on SM100: 512 threads, 256 16-bit query rows a CTA, K and V dequantized in place."""

    def __init__(self, cfg):
        super().__init__(cfg)
        if not cfg.schedule.stages_o(cfg):
            self.order = UnevenPOverSByRows() if cfg.uneven else POverSByRows()

    def prologue(self, base, mbarriers) -> CTA:
        """Beside rests of K both ends of the ring have the barriers of rests, too."""
        cta, tiles = super().prologue(base, mbarriers), self.cfg.tiles
        if tiles.k_rests == 1:
            return cta
        first = self.cfg.barriers.first_index
        rest_full = mbarriers + first("rest_full")
        rest_ready = mbarriers + first("rest_ready") if tiles.rest_is_early else None
        of_rest = dict(rest_full=rest_full, rest_bytes=tiles.raw_bytes)
        return replace(
            cta,
            producer=ProducerBesideRests(**vars(cta.producer), **of_rest),
            consumer=ConsumerBesideRests(**vars(cta.consumer), rest_ready=rest_ready),
        )

    @cute.jit
    def roles(self, args: KernelArgs, cta: CTA, warp):
        dispatch.run(self.cfg, self.order, args, cta, warp)
        if warp >= self.cfg.warps.dequantize.start:
            dequantize.run(self.cfg, args, cta.smem, cta.events, cta.consumer, cta.queue)


KERNEL = SM100MHAWiden2Q

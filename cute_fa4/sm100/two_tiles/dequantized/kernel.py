"""SM100MHAWiden2Q: many 16-bit queries over 8-bit keys, which two warps dequantize in place.

Steady state of one CTA: the additions to two_tiles/kernel.py. A line is an issue slot, not a duration.

    load     dequantize  mma             note
    Q0 K0    .           .               rows of 8 bits: raw_full[0]
    Q1 V0    K0          .               kv_full[0] is raised by the 64 threads that dequantize
    K1       V0          S0 = Q0 K0      .
    V1       K1          S1 = Q1 K0      K0's slot is free after S1
    K2       V1          O0 = P0 V0      .

Everything else is that of two_tiles/: a slot has the size for 16 bits, and the arriving data is half as large.

Read next: tiles.py (where a key's row lies), dequantize.py, barriers.py (the table), two_tiles/kernel.py.
"""

from dataclasses import replace

import cutlass.cute as cute

from ...kernel import CTA
from ...operands import tma
from ...roles import dispatch
from ...sync.kernel_args import KernelArgs
from ..kernel import SM100MHA2Q
from . import dequantize
from .tiles import RAW_COLUMNS


class SM100MHAWiden2Q(SM100MHA2Q):
    """Forward attention on SM100: 512 threads, 256 16-bit query rows a CTA, 8-bit K and V dequantized in place."""

    def kv_operands(self, mK, mV) -> tuple:
        return (
            *tma.kv_operand(self.cfg, mK, RAW_COLUMNS, is_v=False),
            *tma.kv_operand(self.cfg, mV, RAW_COLUMNS, is_v=True),
        )

    def prologue(self, base, mbarriers) -> CTA:
        """The load warp announces rows of 8 bits, and waits for the MMAs that read those of 16."""
        cta, raw_bytes = super().prologue(base, mbarriers), self.cfg.tiles.raw_bytes
        raw_full = mbarriers + self.cfg.barriers.first_index("raw_full")
        of_raw = dict(full=raw_full, k_bytes=(raw_bytes,), v_bytes=raw_bytes)
        return replace(cta, producer=replace(cta.producer, **of_raw))

    @cute.jit
    def roles(self, args: KernelArgs, cta: CTA, warp):
        dispatch.run(self.cfg, self.order, args, cta, warp)
        if warp >= self.cfg.warps.dequantize.start:
            dequantize.run(self.cfg, args, cta.smem, cta.events, cta.consumer, cta.queue)


KERNEL = SM100MHAWiden2Q

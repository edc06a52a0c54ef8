"""SM100MHA2Q: forward attention with two query tiles a CTA.

Steady state of one CTA. A line is an issue slot, not a duration; S0 and S1 belong to query tile 0 and 1.

    load     mma             softmax 0       softmax 1       correction      note
    Q0 K0    .               .               .               .
    Q1 V0    S0 = Q0 K0      .               .               .               s_ready[0]
    K1       S1 = Q1 K0      P0 = 2^(S0-m0)  .               .               K0's slot is free after S1
    V1       O0 = P0 V0      .               P1 = 2^(S1-m1)  .               tile 0: nothing to rescale
    K2       S0 = Q0 K1      .               .               .
    V2       O1 = P1 V0      P0, factor 0    .               .               V0's slot is free after O1
    .        S1 = Q1 K1      .               .               O0 *= factor 0  K1's slot is free after S1
    K3       O0 += P0 V1     .               P1, factor 1    .               p_ready[0]: 128 + 128 arrivals
    V3       S0 = Q0 K2      .               .               O1 *= factor 1

Where query lengths differ, work tiles with rows in only one query tile take another path: single_tile/hooks.py.
Where a mask shows the query tiles different key tiles, each skips those that only the other one sees: uneven/hooks.py.
Where a CTA takes the parts of its rows' keys one after the other, it merges them itself: own_parts/hooks.py.
A CTA may have one query tile, with the arithmetic of two: one_query_tile.py.

Read next: barriers.py (the table), p_over_s.py, p_beside_s.py and p_crossed.py (orders of the products), then
roles/softmax.py, key_tile.py, correction.py, load.py, steps/store.py, and work/queue.py (a CTA runs several such tiles,
one after the other).
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..kernel import CTA, SM100Kernel
from ..roles import dispatch
from ..steps.store import PIECE_BYTES, store_piece
from ..sync.kernel_args import KernelArgs, Smem, floats
from . import one_query_tile
from .own_parts import hooks as own_parts
from .p_beside_s import PBesideSCode, SkippingBesideS
from .p_crossed import PCrossedCode
from .p_over_s import POverSCode
from .single_tile.hooks import SinglePBesideS, SinglePOverS
from .uneven import hooks as uneven

ORDER_CODE = {
    "p_over_s": POverSCode(),
    "p_beside_s": PBesideSCode(),
    "p_crossed": PCrossedCode(),
    "p_crossed_summed": PCrossedCode(),
}
WITH_SKIPPED_TILES = {"p_over_s": POverSCode(), "p_beside_s": SkippingBesideS()}
WITH_SINGLE_TILES = {"p_over_s": SinglePOverS(), "p_beside_s": SinglePBesideS()}


def codes_of(cfg) -> dict:
    """Orders of the products by name, for the work tiles that a configuration has."""
    if cfg.schedule.one_query_tile:
        return one_query_tile.codes_of(cfg)
    if cfg.skip_softmax:
        return WITH_SKIPPED_TILES
    if cfg.own_parts:
        return own_parts.CODE
    if cfg.uneven:
        return uneven.WITH_SINGLE_TILES if cfg.schedule.lone_tiles else uneven.CODE
    return WITH_SINGLE_TILES if cfg.schedule.lone_tiles else ORDER_CODE


@cute.jit
def fill_ones(cfg: cutlass.Constexpr, smem: Smem, warp):
    """The softmax warps write the ones for the row sums; the MMA warp synchronizes with them in set_up."""
    warps = cfg.warps
    nbytes = cfg.smem.ones.nbytes // warps.threads_of("softmax")
    if warp < warps.softmax.stop:
        thread, _, _ = cute.arch.thread_idx()
        word = Int32(cfg.operand.quantized.one * 0x01010101)
        for piece in range(nbytes // PIECE_BYTES):
            at = smem.kv_address + (cfg.smem.ones.offset - cfg.smem.kv.offset + piece * PIECE_BYTES)
            store_piece(at + thread * nbytes, [word] * 4)
        cute.arch.fence_proxy("async.shared", space="cta")


class SM100MHA2Q(SM100Kernel):
    """Forward attention on SM100: 512 threads, 256 query rows a CTA, S, P and O in tensor memory."""

    def __init__(self, cfg):
        super().__init__(cfg)
        self.order = codes_of(cfg)[cfg.schedule.order]

    def shared(self, base) -> Smem:
        """The row maxima of single-tile work tiles use the space of Q1."""
        if not self.cfg.schedule.lone_tiles:
            return super().shared(base)
        softmax = self.cfg.warps.threads_of("softmax")
        row_max = floats(base + self.cfg.tiles.q_tile_bytes, softmax)
        return Smem.of(self.cfg.smem, base, row_max=row_max)

    def o_operand(self, mO):
        """Where O does not go through shared memory the tensor itself, because threads store it without TMA."""
        return super().o_operand(mO) if self.cfg.smem.o.nbytes else (mO, Int32(0))

    def set_up(self, args: KernelArgs, cta: CTA, warp, mbarriers):
        if self.cfg.tmem.sums:
            fill_ones(self.cfg, cta.smem, warp)
        super().set_up(args, cta, warp, mbarriers)

    def roles(self, args: KernelArgs, cta: CTA, warp):
        dispatch.run(self.cfg, self.order, args, cta, warp)


KERNEL = SM100MHA2Q

"""IndexerKernel: scores of keys by a lightning indexer (DeepSeek-V3.2), as DeepGEMM's fp8_mqa_logits defines them.

    logit[i, j] = scale[j] * sum over heads h of weight[i, h] * max(0, q[i, h] . k[j])

One CTA has the heads of a few queries and a stretch of key tiles, in time:

    load     Q K0 | K1    | K2 ...
    mma           | S0    | S1            | S2 ...        S^T = K Q^T: two buffers in tensor memory
    score                 | S0 -> logits  | S1 -> logits  a thread has one key: its sum needs no other thread

A logit is a sum over one row of S^T in the order of the heads, so it has the same bits in every batch. A key's numbers
reach its own row alone: NaN in keys that no query sees changes nothing.

Read next: config.py (sizes), barriers.py, work.py (which keys), roles.py.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ...dtypes import E4M3
from ...tma.tensor_maps import dense_view, make_operand
from ..blueprint.chip import SMEM_BASE_ALIGNMENT
from ..sync.kernel_args import Events, Smem
from ..sync.pipelines import initialise
from . import roles
from .barriers import LOAD, MMA, SCORE, THREADS
from .config import DEPTH, IndexerConfig
from .roles import CTA, IndexerArgs
from .work import Keys, Sizes, grid_size, work_of

SET_UP = 2  # named barrier: mbarriers and tensor memory are ready


class IndexerKernel:
    """Logits of queries and keys: made from an IndexerConfig and called with tensors."""

    def __init__(self, cfg: IndexerConfig):
        """Raises ValueError with every reason if the variant cannot run."""
        why = cfg.refusals()
        if why:
            raise ValueError("this IndexerConfig cannot run:\n  " + "\n  ".join(why))
        self.cfg = cfg

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        k: cute.Tensor,
        k_scale: cute.Tensor,
        weights: cute.Tensor,
        starts: cute.Tensor | None,
        ends: cute.Tensor,
        pages: cute.Tensor | None,
        logits: cute.Tensor,
        tiles_each: Int32,
        stream,
    ):
        """Launch.

        q           (batch, queries, heads, 128) e4m3
        k           (rows of a page, pages, 128) e4m3; without pages (keys, 1, 128)
        k_scale     the same without the depth, f32
        weights     (batch, queries, heads) f32
        starts      (batch, queries) int32: the first key that a query sees; None: 0
        ends        (batch, queries) int32: one past the last; cfg.ends "lengths": (batch,), keys of each sequence
        pages       (batch, pages of a sequence) int32
        logits      (batch, queries, keys) f32
        tiles_each  key tiles of a CTA; no result depends on it
        """
        cfg = self.cfg
        held = k.shape[0]
        if cutlass.const_expr(pages is not None):
            held = pages.shape[1] * cfg.page_size
        sizes = Sizes(
            *(Int32(n) for n in (q.shape[0], q.shape[1], held, logits.shape[2])), tiles_each
        )
        e4m3 = E4M3.cutlass
        args = IndexerArgs(
            q=make_operand(dense_view(q, DEPTH, DEPTH, cfg.heads), e4m3, cfg.columns, DEPTH),
            k=make_operand(dense_view(k, DEPTH, DEPTH), e4m3, cfg.box, DEPTH),
            weights=weights,
            keys=Keys(k_scale, pages, starts, ends),
            logits=logits,
            sizes=sizes,
        )
        self.kernel.set_name_prefix(
            f"cute_fa4_{cfg.name}", remove_cutlass_symbol=True, keep_mangled_name=False
        )
        self.kernel(args).launch(
            grid=[grid_size(cfg, sizes), 1, 1],
            block=[THREADS, 1, 1],
            smem=cfg.smem.nbytes,
            stream=stream,
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def kernel(self, args: IndexerArgs):
        cfg, smem = self.cfg, self.cfg.smem
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        block, _, _ = cute.arch.block_idx()
        base = cute.arch.get_dyn_smem(cutlass.Int8, alignment=SMEM_BASE_ALIGNMENT)
        mbarriers = cute.recast_ptr(base + smem.mbarriers.offset, dtype=Int64)
        address = cute.recast_ptr(base + smem.tmem_address.offset, dtype=Int32)
        if warp == MMA:
            cute.arch.alloc_tmem(cfg.tmem.columns, address)
            cute.arch.relinquish_tmem_alloc_permit()
        if warp == LOAD:
            initialise(mbarriers, [barrier.count for _, _, barrier in cfg.barriers.instances()])
        cute.arch.barrier(barrier_id=SET_UP, number_of_threads=THREADS)
        tmem = cute.make_tensor(address, cute.make_layout(1))[0]
        cta = CTA(Smem.of(smem, base), Events.of(cfg.barriers, mbarriers), tmem)
        work = work_of(cfg, args.keys, args.sizes, block)
        if warp < SCORE.stop:
            roles.score(cfg, args, cta, work, warp)
        elif warp == MMA:
            roles.multiply(cfg, cta, work)
        else:
            roles.load(cfg, args, cta, work)
        cute.arch.sync_threads()
        if warp == MMA:
            pointer = cute.arch.retrieve_tmem_ptr(Float32, 16, address)
            cute.arch.dealloc_tmem(pointer, cfg.tmem.columns)

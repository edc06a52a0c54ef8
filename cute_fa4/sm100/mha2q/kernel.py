"""SM100MHA2Q: forward attention with two query tiles a CTA; composes the role files of this folder.

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

Read next: barriers.py (the table), p_over_s.py and p_beside_s.py (two orders of the products), then roles/softmax.py,
correction.py, load.py, steps/store.py, and work/queue.py (a CTA runs several such tiles, one after the other).
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ...layouts.scalars import maximum
from ..config import FA4Config
from ..kernel_args import Events, KernelArgs, Smem
from ..operands import tma
from ..roles import correction, load, softmax
from ..steps.row_math import LOG2_E
from ..sync import barriers
from ..sync.pipelines import Event, KVConsumerPipeline, TMAProducerPipeline, initialise
from ..work import packed_order, tile_order
from ..work.packed_order import PackedOrder
from ..work.queue import OneBlock, WorkQueue
from ..work.sequence import Lengths
from . import p_beside_s, p_over_s, smem_map

SET_UP = 2  # named barrier: mbarriers and tensor memory are there. 0 is sync_threads, 1 in store.py


def first_column(tmem_address: cute.Pointer) -> Int32:
    """The tensor-memory address that tcgen05.alloc left at a shared address."""
    return cute.make_tensor(tmem_address, cute.make_layout(1))[0]


def own_lanes(tmem_address: cute.Pointer, warp) -> Int32:
    """The same for the 32 lanes that a warp sees, those of its place in the warpgroup."""
    return first_column(tmem_address) + (warp % 4) * (32 << 16)


def grid_and_order(cfg: FA4Config, rows, batch, seqlen_q, seqlen_k, heads):
    """-> (number of CTAs, how their numbers are taken apart). rows: of packed queries; seqlen_q: theirs at most."""
    if cfg.q_layout == "packed":
        grid = packed_order.grid_size(cfg, rows, batch, seqlen_q, heads)
        return grid, PackedOrder(batch, heads // cfg.heads_per_tile)
    if cfg.kv_layout == "packed":  # many sequences' rows: the mean stands for one
        seqlen_k = seqlen_k // maximum(batch, 1)
    divisor = cute.fast_divmod_create_divisor_v2
    order = tile_order.tile_order(cfg, seqlen_q, seqlen_k, heads, batch, divisor)
    return tile_order.grid_size(cfg, seqlen_q, heads, batch), order


class SM100MHA2Q:
    """Forward attention on SM100: 512 threads, 256 query rows a CTA, S, P and O in tensor memory."""

    def __init__(self, cfg: FA4Config):
        """cfg: what to build. Raises ValueError with every reason if the variant cannot run."""
        why = cfg.refusals()
        if why:
            raise ValueError("this FA4Config cannot run:\n  " + "\n  ".join(why))
        self.cfg = cfg

    @cute.jit
    def __call__(
        self,
        mQ: cute.Tensor,
        mK: cute.Tensor,
        mV: cute.Tensor,
        mO: cute.Tensor,
        mLSE: cute.Tensor | None,
        softmax_scale: Float32,
        cu_seqlens_q: cute.Tensor | None,
        cu_seqlens_k: cute.Tensor | None,
        seqused_q: cute.Tensor | None,
        seqused_k: cute.Tensor | None,
        key_limit: cute.Tensor | None,
        page_table: cute.Tensor | None,
        max_seqlen_q: Int32,
        mask_sizes: tuple | None,
        sink: cute.Tensor | None,
        aux: tuple | None,
        stream,
    ):
        """Launch. What a configuration does not use is None; unused numbers are ignored.

        mQ, mO      (batch, seqlen_q, heads, depth), packed: (total_q, heads, depth)
        mK, mV      (batch, seqlen_k, kv_heads, depth), packed: (total_k, kv_heads, depth), paged:
                    (num_pages, page_size, kv_heads, depth) or (num_pages, kv_heads, page_size, depth)
        mLSE        (batch, heads, seqlen_q), packed: (heads, total_q); f32, natural logarithm
        cu_seqlens  (batch + 1,) int32; seqused, key_limit (batch,) int32; page_table (batch, pages) int32
        max_seqlen_q  of packed queries: at least the longest sequence
        mask_sizes  run-time numbers of the mask, as many as it has, Int32
        sink        (heads,), natural units
        aux         tensors for score_mod and mask_mod

        The depth is contiguous; softmax_scale multiplies Q K^T.
        """
        cfg = self.cfg
        o, o_rows = tma.o_operand(cfg, mO)
        k, k_rows = tma.kv_operand(cfg, mK, cfg.BK0, is_v=False)
        v, v_rows = tma.kv_operand(cfg, mV, cfg.padded_ov_depth, is_v=True)
        heads = mQ.shape[-2]
        if cutlass.const_expr(cfg.q_layout == "dense"):
            batch, seqlen_q = mQ.shape[0], mQ.shape[1]
        else:
            batch, seqlen_q = cu_seqlens_q.shape[0] - 1, max_seqlen_q
        if cutlass.const_expr(cfg.kv_layout == "paged"):
            seqlen_k = page_table.shape[1] * cfg.page_size
        else:
            seqlen_k = mK.shape[1] if cutlass.const_expr(cfg.kv_layout == "dense") else mK.shape[0]
        grid, order = grid_and_order(
            cfg, Int32(mQ.shape[-3]), Int32(batch), Int32(seqlen_q), Int32(seqlen_k), Int32(heads)
        )
        args = KernelArgs(
            q=tma.q_operand(cfg, mQ),
            k=k,
            v=v,
            o=o,
            lse=mLSE,
            lengths=Lengths(
                cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, key_limit, Int32(mQ.shape[-3])
            ),
            page_table=page_table,
            num_pages=Int32(mK.shape[0]),
            rows_per_block=(o_rows, k_rows, v_rows),
            seqlen_q=Int32(seqlen_q),
            seqlen_k=Int32(seqlen_k),
            order=order,
            scale=softmax_scale,
            scale_log2=softmax_scale * LOG2_E,
            mask_sizes=() if cutlass.const_expr(mask_sizes is None) else mask_sizes,
            sink=sink,
            aux=() if cutlass.const_expr(aux is None) else aux,
        )
        self.kernel.set_name_prefix(
            f"cute_fa4_{cfg.name}", remove_cutlass_symbol=True, keep_mangled_name=False
        )
        self.kernel(args).launch(
            grid=[grid, 1, 1],
            block=[cfg.warps.threads, 1, 1],
            smem=cfg.smem_bytes,
            stream=stream,
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def kernel(self, args: KernelArgs):
        cfg, warps = self.cfg, self.cfg.warps
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        base = cute.arch.get_dyn_smem(cutlass.Int8, alignment=1024)
        region = smem_map.regions(cfg)
        mbarriers = cute.recast_ptr(base + region["mbarriers"].offset, dtype=Int64)
        tmem_address = cute.recast_ptr(base + region["tmem_address"].offset, dtype=Int32)

        def floats(name):
            pointer = cute.recast_ptr(base + region[name].offset, dtype=Float32)
            return cute.make_tensor(pointer, cute.make_layout(256))

        smem = Smem(
            q_address=base.toint(),
            kv_address=base.toint() + region["kv"].offset,
            o_address=base.toint() + region["o"].offset,
            row_scale=floats("row_scale"),
            row_bias=floats("row_bias"),
        )

        def event(name):
            return Event(mbarriers + barriers.first_index(cfg, name))

        events = Events(
            q_full=event("q_full"),
            q_free=event("q_free"),
            s_ready=event("s_ready"),
            row_scale=event("row_scale"),
            p_ready=event("p_ready"),
            p_last=event("p_last"),
            s_free=event("s_free") if cfg.p_apart else None,
            pv_done=event("pv_done") if cfg.p_apart else None,
            o_ready=event("o_ready"),
        )
        ring = dict(
            full=event("kv_full").mbarriers,
            empty=event("kv_empty").mbarriers,
            slots=cfg.kv_slots,
            qk_stages=cfg.qk_stages,
        )
        producer = TMAProducerPipeline(**ring, k_stage_bytes=cfg.k_stage_bytes, v_bytes=cfg.v_bytes)
        queue = (WorkQueue if cfg.claims else OneBlock).at(
            cute.recast_ptr(base + region["work_queue"].offset, dtype=Int32),
            ready=event("work_ready").mbarriers,
            read=event("work_read").mbarriers,
            claimed=event("work_claimed").mbarriers,
        )

        if warp == warps.mma.start:
            cute.arch.alloc_tmem(cfg.tmem_columns, tmem_address)
            cute.arch.relinquish_tmem_alloc_permit()
        if warp == warps.load.start:  # goes on at once: its copies need nothing of the others
            initialise(mbarriers, [barrier.count for _, _, barrier in barriers.instances(cfg)])
            cute.arch.barrier_arrive(barrier_id=SET_UP, number_of_threads=warps.threads)
        else:
            cute.arch.barrier(barrier_id=SET_UP, number_of_threads=warps.threads)

        if warp < warps.softmax.stop:
            cute.arch.setmaxregister_increase(warps.softmax_registers)
            i = warp // 4
            s_address = own_lanes(tmem_address, warp) + i * (cfg.tmem_s[1] - cfg.tmem_s[0])
            softmax.run(cfg, args, smem, s_address, events, queue, i)
        elif warp < warps.correction.stop:
            cute.arch.setmaxregister_decrease(warps.correction_registers)
            lanes = own_lanes(tmem_address, warp)
            correction.run(cfg, args, smem, lanes, events, queue)
        else:
            cute.arch.setmaxregister_decrease(warps.other_registers)
            if warp == warps.mma.start:
                schedule = p_beside_s if cfg.p_apart else p_over_s
                consumer = KVConsumerPipeline(**ring)
                tmem = first_column(tmem_address)
                schedule.run(cfg, args, smem, tmem, events, consumer, queue)
            elif warp == warps.load.start:
                block, _, _ = cute.arch.block_idx()
                load.run(cfg, args, smem, events, producer, queue, block)

        cute.arch.sync_threads()
        if warp == warps.mma.start:
            tmem_pointer = cute.arch.retrieve_tmem_ptr(Float32, 16, tmem_address)
            cute.arch.dealloc_tmem(tmem_pointer, cfg.tmem_columns)

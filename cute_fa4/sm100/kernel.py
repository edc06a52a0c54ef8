"""SM100Kernel: what every attention kernel shares: launch, prologue, set-up and teardown. A family adds its roles.

host                  descriptors of Q, K, V, O; the order of the blocks; one launch
every warp            addresses in shared memory, the events of the barrier table, ring and work queue
load warp             initializes the mbarriers and continues at once: its copies
                      need nothing from the other warps
mma warp              allocates tensor memory
all others            wait for both
every warp            waits for the previous grid (dependent_launch): no access to global memory before that
roles(...)            defined by the family: the role of each warp (two_tiles/kernel.py)
load warp             has no more work: the next grid may start (dependent_launch)
every warp            synchronizes; the mma warp frees tensor memory
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass._mlir import ir

from ..layouts.scalars import maximum
from .blueprint.barriers import KV_SLOT
from .blueprint.chip import SMEM_BASE_ALIGNMENT
from .blueprint.raw_rows import RAW_COLUMNS
from .operands import tma
from .operands.rope import Rope
from .steps.row_math import LOG2_E
from .sync.kernel_args import Events, KernelArgs, Smem
from .sync.pipelines import KVConsumerPipeline, TMAProducerPipeline, initialise
from .work import packed_order, tile_order
from .work.block_lists import BlockLists
from .work.checked import queue_of
from .work.list_parts import ListParts
from .work.own_parts import OwnParts
from .work.packed_order import PackedOrder
from .work.queue import WorkQueue
from .work.sequence import Lengths
from .work.split import Splits
from .work.stream_k import StreamK

SET_UP = 2  # named barrier: mbarriers and tensor memory are ready. 0 is sync_threads, 1 in steps/store.py


def grid_and_order(cfg, rows, batch, seqlen_q, seqlen_k, heads):
    """-> (number of CTAs, the order that decomposes CTA numbers). rows: of packed queries; seqlen_q: their maximum."""
    if cfg.q_layout == "packed":
        grid = packed_order.grid_size(cfg, rows, batch, seqlen_q, heads)
        held = packed_order.sequences_held(batch)
        return grid, PackedOrder(batch, heads // cfg.heads_per_tile, held)
    if cfg.kv_layout == "packed":  # rows of many sequences: use the mean length
        seqlen_k = seqlen_k // maximum(batch, 1)
    divisor = cute.fast_divmod_create_divisor_v2
    order = tile_order.tile_order(cfg, seqlen_q, seqlen_k, heads, batch, divisor)
    return tile_order.grid_size(cfg, seqlen_q, heads, batch), order


def stream_k(cfg, batch, seqlen_q, heads, lse, split: tuple) -> StreamK:
    """How the key tiles of a batch are split (stream-K); split: (CTAs, least tiles, parts)."""
    ctas, least, parts = split
    return StreamK(
        num_sequences=Int32(batch),
        num_heads=Int32(heads) // cfg.heads_per_tile,
        num_blocks=tile_order.blocks(cfg, Int32(seqlen_q)),
        num_ctas=ctas,
        least=least,
        positions=Int32(lse.shape[-1]),
        parts=parts,
    )


def places_in_cache(cfg, in_cache: tuple | None, cache) -> tuple:
    """-> the last fields of Lengths. cache: the tensor whose first dimension counts the sequences of the cache."""
    new_keys, *given = in_cache or (0,)
    batch_idx = given.pop(0) if cfg.cache_batch_idx else None
    leftpad = given.pop(0) if cfg.cache_leftpad else None
    return new_keys, batch_idx, leftpad, Int32(cache.shape[0]) if cfg.cache_batch_idx else None


@dataclass(frozen=True)
class CTA:
    """The state of a CTA after the prologue, for its roles."""

    smem: Smem
    events: Events
    producer: TMAProducerPipeline
    consumer: KVConsumerPipeline
    queue: WorkQueue
    tmem_address: cute.Pointer  # shared: where tcgen05.alloc leaves the address
    # The same for the load warp, by another_base, if cfg.load_apart.
    of_load: "CTA | None" = field(default=None, kw_only=True)


def another_base(base: cute.Pointer) -> cute.Pointer:
    """The same address as a value that ptxas does not merge with it: plus blockIdx.z, which is 0 in every grid here.

    ptxas makes one value of all uses of the address of shared memory. Where one role has no register for it, ptxas
    spills that value, and then every role reads it from local memory, in its loops over key tiles too.
    """
    _, _, zero = cute.arch.block_idx()
    address, space = base.toint() + zero, cute.AddressSpace.smem
    return cute.make_ptr(cutlass.Int8, address, space, assumed_align=SMEM_BASE_ALIGNMENT)


@cute.jit
def set_up(cfg: cutlass.Constexpr, args: KernelArgs, cta: CTA, warp, mbarriers):
    """The load warp initializes mbarriers and does not wait for the tensor memory that the mma warp allocates."""
    warps = cfg.warps
    if warp == warps.mma.start:
        cute.arch.alloc_tmem(cfg.tmem.columns, cta.tmem_address)
        cute.arch.relinquish_tmem_alloc_permit()
    if warp == warps.load.start:  # continues at once: its copies need nothing from others
        initialise_all(cfg, args, mbarriers)
        cute.arch.barrier_arrive(barrier_id=SET_UP, number_of_threads=warps.threads)
    else:
        cute.arch.barrier(barrier_id=SET_UP, number_of_threads=warps.threads)


def initialise_all(cfg, args: KernelArgs, mbarriers):
    """Load warp: every mbarrier of the table."""
    initialise(mbarriers, [barrier.count for _, _, barrier in cfg.barriers.instances()])


def say_cluster(shape: tuple) -> None:
    """.reqnctapercluster of the traced kernel: ptxas and the driver know the cluster before a launch.

    nvvm.cluster_dim is the attribute of LLVM's NVVM dialect for it; the DSL has no parameter.
    """
    kernel = ir.InsertionPoint.current.block.owner
    kernel.attributes["nvvm.cluster_dim"] = ir.Attribute.parse(
        f"array<i32: {', '.join(map(str, shape))}>"
    )


@cute.jit
def tear_down(cfg: cutlass.Constexpr, cta: CTA, warp):
    """Every warp synchronizes; the mma warp frees tensor memory."""
    cute.arch.sync_threads()
    if warp == cfg.warps.mma.start:
        tmem_pointer = cute.arch.retrieve_tmem_ptr(Float32, 16, cta.tmem_address)
        cute.arch.dealloc_tmem(tmem_pointer, cfg.tmem.columns)


@dataclass(frozen=True)
class Grouping:
    """How the CTAs of a launch belong together: alone, or as a pair that shares its MMAs (pair/kernel.py).

    cluster             shape of a cluster; None: CTAs are launched one by one
    producer, consumer  the ends of the ring of K and V
    events_of           (barrier table, its first mbarrier) -> the events
    queue_of            (cfg) -> the type of the work queue
    set_up, tear_down   mbarriers and tensor memory, before the first role and after the last
    """

    cluster: tuple[int, int, int] | None
    producer: type[TMAProducerPipeline]
    consumer: type[KVConsumerPipeline]
    events_of: Callable
    queue_of: Callable
    set_up: Callable
    tear_down: Callable

    def ctas(self, blocks):
        """The number of CTAs for `blocks` blocks."""
        return blocks if self.cluster is None else blocks * math.prod(self.cluster)


ALONE = Grouping(
    cluster=None,
    producer=TMAProducerPipeline,
    consumer=KVConsumerPipeline,
    events_of=Events.of,
    queue_of=queue_of,
    set_up=set_up,
    tear_down=tear_down,
)


class SM100Kernel:
    """Base of the families: a kernel is made from an FA4Config and called with tensors."""

    grouping = ALONE

    def __init__(self, cfg):
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
        split: tuple | None,
        in_cache: tuple | None,
        descales: tuple | None,
        rope: tuple | None,
        blocks: tuple | None,
        skip: tuple | None,
        stream,
    ):
        """Launch. Arguments that a configuration does not use are None; unused numbers are ignored.

        mQ, mO      (batch, seqlen_q, heads, depth), packed: (total_q, heads, depth)
        mK, mV      (batch, seqlen_k, kv_heads, depth), packed: (total_k, kv_heads, depth), paged:
                    (num_pages, page_size, kv_heads, depth) or (num_pages, kv_heads, page_size, depth)
        mLSE        (batch, heads, seqlen_q), packed: (heads, total_q); f32, natural logarithm. With write_max
                    (2, batch, heads, seqlen_q): then the largest scores
        cu_seqlens  (batch + 1,) int32; seqused, key_limit (batch,) int32; page_table (batch, pages) int32
        max_seqlen_q  for packed queries: at least the longest sequence
        mask_sizes  run-time numbers of the mask, as many as it has, Int32
        sink        (heads,), natural units
        aux         tensors for score_mod and mask_mod
        split       if keys are split: (parts, key tiles of a part or 0 for even parts), Int32. mO and mLSE are then
                    partial, float32, with parts times as many sequences (packed: rows), part by part; mLSE has the
                    parts as its first dimension. With cfg.in_runs then the parts that a CTA takes (work/runs.py).
                    With share_keys: (CTAs, least key tiles of one, Int32 (blocks, 2) for the slots of the
                    parts of a block). mO is then (slots, positions, heads of a tile, depth), packed: (slots *
                    positions, heads of a tile, depth), mLSE (slots, heads of a tile, positions); work/stream_k.py
                    With cut_lists: the workspace of work/list_parts.py, O and the log-sum-exp
        in_cache    with seqused_k: 1 if seqused_k does not count the keys of this call's queries, else 0; then the
                    tensors cache_batch_idx and cache_leftpad, (batch,) int32, as far as the configuration has them
        descales    the tensors of cfg.descales, (batch, kv_heads) f32 of any strides; Q's as mQ with a depth of 1. With
                    cfg.cache_blocks then the scales of K and V, as they with an Int32 for four of them as depth,
                    or with a byte for each (blueprint/cache_blocks.py)
        rope        the last cfg.rope_depth columns of K, which all heads share, as K of one head, or in pages of
                    cfg.rope_page_size rows; then their page table, (batch, pages) int32; if they have 16 bits and
                    the rest 8, those of Q, as mQ; if they have scales, one for each of their rows, f32 of any strides
        blocks      counts and entries of the lists of partial blocks, then, as far as the configuration has them, of
                    full ones, and where those of a sequence begin, then the order of work tiles, int32
                    (work/block_lists.py)
        skip        log2 of the threshold's scale factor, Float32, and with cfg.count_skipped two int32 that it adds to
                    (steps/skipped.py)

        The depth is contiguous; softmax_scale multiplies Q K^T.
        """
        cfg = self.cfg
        o, o_rows = self.o_operand(mO)
        k, k_rows, v, v_rows = self.kv_operands(mK, mV)
        heads = mQ.shape[-2]
        if cutlass.const_expr(cfg.q_layout == "dense"):
            batch, seqlen_q = mQ.shape[0], mQ.shape[1]
        else:
            batch, seqlen_q = cu_seqlens_q.shape[0] - 1, max_seqlen_q
        if cutlass.const_expr(cfg.kv_layout == "paged"):
            rows_of_page = Int32(mK.shape[-2 if cfg.page_heads_first else -3])
            seqlen_k = page_table.shape[1] * rows_of_page
        else:
            seqlen_k = mK.shape[1] if cutlass.const_expr(cfg.kv_layout == "dense") else mK.shape[0]
        page_divisor = None
        if cutlass.const_expr(cfg.binds_page_size):
            page_divisor = cute.fast_divmod_create_divisor_v2(rows_of_page)
        splits = None
        if cutlass.const_expr(cfg.share_keys):
            grid, order = split[0], stream_k(cfg, batch, seqlen_q, heads, mLSE, split)
        else:
            grid, order = grid_and_order(
                cfg,
                Int32(mQ.shape[-3]),
                Int32(batch),
                Int32(seqlen_q),
                Int32(seqlen_k),
                Int32(heads),
            )
        if cutlass.const_expr(cfg.split_keys and not cfg.share_keys):
            splits = Splits.of(split, Int32(mQ.shape[0]))
            grid = grid * splits.ctas_of_block()
        if cutlass.const_expr(cfg.own_parts):
            splits = OwnParts.of(split)
        if cutlass.const_expr(cfg.cut_lists):
            splits, grid = ListParts(*split), Int32(blocks[-1].shape[0])
        args = KernelArgs(
            q=self.q_operand(mQ),
            k=k,
            v=v,
            o=o,
            lse=mLSE,
            lengths=Lengths(
                cu_seqlens_q,
                cu_seqlens_k,
                seqused_q,
                seqused_k,
                key_limit,
                Int32(mQ.shape[-3]),
                *places_in_cache(cfg, in_cache, mK if page_table is None else page_table),
            ),
            page_table=page_table,
            num_pages=Int32(mK.shape[0]),
            page_divisor=page_divisor,
            rows_per_block=(o_rows, k_rows, v_rows),
            seqlen_q=Int32(seqlen_q),
            seqlen_k=Int32(seqlen_k),
            order=order,
            splits=splits,
            scale=softmax_scale,
            scale_log2=softmax_scale * LOG2_E,
            descales=() if cutlass.const_expr(descales is None) else descales,
            rope=None if cutlass.const_expr(rope is None) else Rope.of(cfg, mQ, *rope),
            mask_sizes=() if cutlass.const_expr(mask_sizes is None) else mask_sizes,
            sink=sink,
            aux=() if cutlass.const_expr(aux is None) else aux,
            blocks=None if cutlass.const_expr(blocks is None) else BlockLists.of(cfg, blocks),
            skip=() if cutlass.const_expr(skip is None) else skip,
        )
        self.kernel.set_name_prefix(
            f"cute_fa4_{cfg.name}", remove_cutlass_symbol=True, keep_mangled_name=False
        )
        self.kernel(args).launch(
            grid=[self.grouping.ctas(grid), 1, 1],
            cluster=self.grouping.cluster,
            block=[cfg.warps.threads, 1, 1],
            smem=cfg.smem.nbytes,
            stream=stream,
            min_blocks_per_mp=1,
            use_pdl=cfg.schedule.dependent_launch,
        )

    @cute.kernel
    def kernel(self, args: KernelArgs):
        cfg, warps = self.cfg, self.cfg.warps
        if cutlass.const_expr(self.grouping.cluster is not None):
            say_cluster(self.grouping.cluster)
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        base = cute.arch.get_dyn_smem(cutlass.Int8, alignment=SMEM_BASE_ALIGNMENT)
        mbarriers = self.mbarriers(base)
        cta = self.prologue(base, mbarriers)
        if cutlass.const_expr(cfg.load_apart):
            another = another_base(base)
            of_load = self.prologue(another, self.mbarriers(another))
            cta = replace(cta, of_load=of_load)

        self.set_up(args, cta, warp, mbarriers)
        if cutlass.const_expr(cfg.schedule.dependent_launch):
            cute.arch.griddepcontrol_wait()
        self.roles(args, cta, warp)
        if cutlass.const_expr(cfg.schedule.dependent_launch):
            if warp == warps.load.start:
                cute.arch.griddepcontrol_launch_dependents()
        self.grouping.tear_down(cfg, cta, warp)

    def set_up(self, args: KernelArgs, cta: "CTA", warp, mbarriers):
        """Set up mbarriers and tensor memory before any role begins."""
        self.grouping.set_up(self.cfg, args, cta, warp, mbarriers)

    def q_operand(self, mQ):
        """The operand that loads Q."""
        return tma.q_operand(self.cfg, mQ)

    def o_operand(self, mO):
        """-> (the operand that stores O, rows per batch in its row space): TMA, unless a family overrides it."""
        return tma.o_operand(self.cfg, mO)

    def kv_operands(self, mK, mV) -> tuple:
        """-> the operand that loads K, rows from one batch or page to the next, and the same for V."""
        cfg = self.cfg
        return (
            *tma.k_operand(cfg, mK),
            *tma.kv_operand(cfg, mV, cfg.tiles.v_cols_per_cta, is_v=True),
        )

    def mbarriers(self, base) -> cute.Pointer:
        """The first mbarrier; base: the CTA's shared memory."""
        return cute.recast_ptr(base + self.cfg.smem.mbarriers.offset, dtype=Int64)

    def shared(self, base) -> Smem:
        """Addresses of the tiles in shared memory; base: the CTA's."""
        return Smem.of(self.cfg.smem, base)

    def prologue(self, base, mbarriers) -> CTA:
        """Addresses of everything; only address arithmetic is executed."""
        cfg, grouping = self.cfg, self.grouping
        table, tiles = cfg.barriers, cfg.tiles
        ring = table.ring(mbarriers, "kv", KV_SLOT, tiles.qk_stages) | dict(rests=tiles.k_rests)
        queue_type = grouping.queue_of(cfg)
        queue = queue_type.at(
            cute.recast_ptr(base + cfg.smem.work_queue.offset, dtype=Int32),
            **{
                name: mbarriers + table.first_index(barrier)
                for name, barrier in queue_type.BARRIERS.items()
            },
        )
        return CTA(
            smem=self.shared(base),
            events=grouping.events_of(table, mbarriers),
            producer=grouping.producer(
                **ring, k_bytes=tiles.bytes_of_stages, v_bytes=tiles.v_bytes
            ),
            consumer=grouping.consumer(**ring),
            queue=queue,
            tmem_address=cute.recast_ptr(base + cfg.smem.tmem_address.offset, dtype=Int32),
        )


class OverRawRows(SM100Kernel):
    """For a family whose K and V arrive as 8-bit rows, which become 16-bit in their slots (blueprint/raw_rows.py)."""

    def kv_operands(self, mK, mV) -> tuple:
        return (
            *tma.kv_operand(self.cfg, mK, RAW_COLUMNS, is_v=False),
            *tma.kv_operand(self.cfg, mV, RAW_COLUMNS, is_v=True),
        )

    def prologue(self, base, mbarriers) -> CTA:
        """The load warp announces rows of 8 bits, and waits for the MMAs that read those of 16."""
        cta, tiles = super().prologue(base, mbarriers), self.cfg.tiles
        raw_full = mbarriers + self.cfg.barriers.first_index("raw_full")
        of_raw = dict(full=raw_full, k_bytes=(tiles.raw_bytes,), v_bytes=tiles.raw_bytes)
        return replace(cta, producer=replace(cta.producer, **of_raw))

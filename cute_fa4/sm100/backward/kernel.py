"""BackwardKernel: launches on one stream: deltas (delta.py), then the owners of queries and of keys, or one for both.

    S = Q K^T    P = 2^(c S - L)    dP = dO V^T    dS = P (dP - delta) scale    dQ = dS K    dK = dS^T Q    dV = P^T dO

Two owners compute S and dP, each for its side. That takes seven products instead of five, but no gradient accumulates
in global memory: no atomics, no waiting for an order of CTAs, no float32 copy of dQ. The kernel of all gradients
(joint.py) takes five, and pairs of CTAs add dQ in float32 to global memory in a fixed order. The same inputs give the
same bits, and a sequence in a batch has the same gradients as alone.

One CTA, in time (owner of keys; the other one has no dV):

    load     K Q0 V dO0 | Q1 dO1 | Q2 dO2 ...
    mma      S0 dP0 S1 |               dV += P0 dO0 | dK += dS0 Q0, dP1 | S2 |         dV += P1 dO1 | dK += dS1 Q1 ...
    compute         S0->P0 | dP0->dS0              | S1->P1                  | dP1->dS1            | S2->P2 ...

A separate function makes gradients of aux tensors (AuxKernel): deltas, then sums of scores for them (sums.py).

Read next: config.py and owner.py (sizes), barriers.py, work.py (which tiles), products.py, compute.py, pair.py.
"""

from dataclasses import dataclass, replace

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ..blueprint.chip import SMEM_BASE_ALIGNMENT
from ..pair.barriers import CTAS
from ..pair.kernel import allocate, meet, say_pair
from ..pair.sync import is_leader
from ..steps.row_math import LOG2_E
from ..sync.pipelines import initialise
from . import (
    compute,
    delta,
    dv_alone,
    joint,
    joint_dq,
    joint_kernel,
    load,
    operands,
    products,
    subtracted,
    sums,
)
from .config import BackwardConfig
from .cta import SET_UP, cta_of, thread_of
from .listed import TileLists
from .operands import JointArgs, OwnerArgs
from .owner import ROWS
from .work import Sizes, grid_of, heads_side_by_side, work_of


def sizes_of(cfg, q: cute.Tensor, k: cute.Tensor, mask_sizes, lengths) -> Sizes:
    """Sizes of a launch from its arguments."""
    batch, seqlen_q, seqlen_k, offsets = q.shape[0], q.shape[1], k.shape[1], (None,) * 5
    if cfg.packed:
        seqlen_q, seqlen_k, *offsets = lengths
        offsets = (*offsets, None, None, None)[:5]
        batch = offsets[0].shape[0] - 1
    return Sizes(
        *(Int32(n) for n in (batch, seqlen_q, seqlen_k, q.shape[-2], k.shape[-2])),
        *(Int32(q.shape[-3]), Int32(k.shape[-3])),
        () if mask_sizes is None else mask_sizes,
        *offsets,
    )


@dataclass(frozen=True)
class Given:
    """What every owner's kernel reads.

    rest   the fields of OwnerArgs after the operands: stats, sizes, tensors of functions, two scales
    lists  of the launch, or None
    """

    q_and_do: tuple[cute.Tensor, cute.Tensor]
    k_and_v: tuple[cute.Tensor, cute.Tensor]
    rest: tuple
    lists: tuple | None

    @property
    def sizes(self) -> Sizes:
        return self.rest[1]

    def arguments(self, cfg, owner, results: tuple) -> OwnerArgs:
        """results: operands of what the owner writes."""
        sides = self.q_and_do, self.k_and_v
        own, others = reversed(sides) if owner.owns_keys else sides
        group = owner.ctas
        of_own = [1 if i in owner.moved else group for i in range(2)]
        return OwnerArgs(
            operands.load_operands(cfg, owner.depths, own, ROWS, of_own),
            operands.load_operands(cfg, owner.depths, others, owner.tiles[0].rows, [group] * 2),
            results,
            *self.rest,
            lists=self.tile_lists(cfg, owner),
            **self.halves(cfg, owner, others),
        )

    def of_joint(self, cfg, written: tuple) -> OwnerArgs:
        """Of the kernel of all gradients (joint.py). written: dq, dk, dv, counters, and where dq has 16 bits its sum"""
        dq, dk, dv, counters, *total = written
        owner = cfg.joint_owner
        results = tuple(operands.result_operand(cfg, x) for x in (dk, dv))
        halves, group = joint.DEPTH // owner.ctas, [owner.ctas]
        (columns,) = operands.load_operands(cfg, [halves], self.k_and_v[:1], ROWS, group)
        side = Int32(heads_side_by_side(self.sizes.seqlen_k))
        of_joint = JointArgs(columns, counters, side, **joint_dq.arguments(cfg, dq, *total))
        return replace(self.arguments(cfg, owner, results), joint=of_joint)

    def halves(self, cfg, owner, others: tuple) -> dict:
        """Further operands of a pair. others: tensors of the other side."""
        if owner.ctas == 1:
            return {}
        of_sums = [others[i] for i in owner.results]
        columns = [owner.summed_tile(i).cols for i in owner.results]
        groups = [owner.ctas] * len(of_sums)
        summed = operands.load_operands(cfg, columns, of_sums, owner.other_rows, groups)
        stats, *_ = self.rest
        parts = operands.parts_operand(owner, stats) if owner.subtracts else None
        return dict(summed=summed, parts=parts)

    def tile_lists(self, cfg, owner) -> TileLists | None:
        """The owner's lists from those of the launch."""
        if not cfg.listed:
            return None
        lists = self.lists
        return TileLists(*(lists[3:] if owner.owns_keys else lists[:3]))


class BackwardKernel:
    """Gradients of attention: made from a BackwardConfig and called with tensors."""

    def __init__(self, cfg: BackwardConfig):
        """Raises ValueError with every reason if the variant cannot run."""
        why = cfg.refusals()
        if why:
            raise ValueError("this BackwardConfig cannot run:\n  " + "\n  ".join(why))
        self.cfg = cfg

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        k: cute.Tensor,
        v: cute.Tensor,
        o: cute.Tensor,
        lse: cute.Tensor,
        do: cute.Tensor,
        dlse: cute.Tensor | None,
        written: tuple,
        stats: cute.Tensor,
        softmax_scale: Float32,
        mask_sizes: tuple | None,
        aux: tuple | None,
        lengths: tuple | None,
        lists: tuple | None,
        stream,
    ):
        """Launch.

        q, o, do    (batch, seqlen_q, heads, depth), packed: (total_q, heads, depth); o and do with depth_v
        k, v        (batch, seqlen_k, kv_heads, depth), packed: (total_k, kv_heads, depth); v with depth_v
        lse         (batch, heads, seqlen_q), packed: (heads, total_q); f32, natural logarithm; dlse: its gradient
        written     what launch_owners writes
        stats       (heads, tiles, cfg.numbers_of_tile) f32, written and read here; tiles: work.stats_tiles
        mask_sizes  of the mask
        aux         tensors that score_mod and mask_mod read
        lengths     packed: (longest sequence of queries, of keys, or more, offsets of queries, of keys); offsets:
                    (batch + 1,) int32; with used also lengths of both and how many keys may be seen, (batch,) int32
        lists       counts, entries and order for the owner of queries, then for the owner of keys (listed.py);
                    sums for aux tensors: counts and entries for the owner of queries
        """
        cfg = self.cfg
        sizes = sizes_of(cfg, q, k, mask_sizes, lengths)
        self.deltas.set_name_prefix(
            f"cute_fa4_deltas_{cfg.name}", remove_cutlass_symbol=True, keep_mangled_name=False
        )
        scales = softmax_scale, softmax_scale * LOG2_E
        self.deltas(o, do, (lse, dlse), stats, scales[1], sizes).launch(
            grid=[sizes.tiles_of_queries, 1, 1], block=[delta.THREADS, 1, 1], stream=stream
        )
        aux = () if cutlass.const_expr(aux is None) else aux
        given = Given((q, do), (k, v), (stats, sizes, aux, *scales), lists)
        self.launch_owners(given, written, stream)

    def launch_owners(self, given: Given, written: tuple, stream):
        """The owner of queries, then the owner of keys. written: dq, dk, dv, as q, k, v."""
        cfg, sizes = self.cfg, given.sizes
        if cutlass.const_expr(cfg.joint):
            args, owner = given.of_joint(cfg, written), cfg.joint_owner
            self.launch(self.joint, "joint", owner, args, grid_of(owner, sizes), stream)
            return
        dq, dk, dv = written
        for owner in (cfg.owner("queries"), *cfg.owners_of_keys):
            tensors = (dk, dv) if owner.owns_keys else (dq,)
            results = tuple(operands.result_operand(cfg, tensors[i]) for i in owner.results)
            args = given.arguments(cfg, owner, results)
            kernel = {None: "dkv", 0: "dk", 1: "dv"}[owner.only] if owner.owns_keys else "dq"
            self.launch(getattr(self, kernel), kernel, owner, args, grid_of(owner, sizes), stream)

    def launch(self, kernel, result: str, owner, args: OwnerArgs, ctas, stream):
        """One of the kernels. result: the name of what it writes."""
        kernel.set_name_prefix(
            f"cute_fa4_{result}_{self.cfg.name}",
            remove_cutlass_symbol=True,
            keep_mangled_name=False,
        )
        kernel(args).launch(
            grid=[ctas, 1, 1],
            cluster=[CTAS, 1, 1] if owner.ctas > 1 else None,
            block=[owner.warps.threads, 1, 1],
            smem=owner.smem.nbytes,
            stream=stream,
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def deltas(
        self,
        o: cute.Tensor,
        do: cute.Tensor,
        lses: tuple,
        stats: cute.Tensor,
        scale_log2: Float32,
        sizes: Sizes,
    ):
        delta.run(self.cfg, o, do, lses, stats, scale_log2, sizes)

    @cute.kernel
    def dq(self, args: OwnerArgs):
        self.roles(self.cfg.owner("queries"), args)

    @cute.kernel
    def dkv(self, args: OwnerArgs):
        self.roles(self.cfg.owner("keys"), args)

    @cute.kernel
    def dk(self, args: OwnerArgs):
        self.roles(self.cfg.owners_of_keys[0], args)

    @cute.kernel
    def dv(self, args: OwnerArgs):
        self.roles(self.cfg.owners_of_keys[1], args)

    @cute.kernel
    def joint(self, args: OwnerArgs):
        joint_kernel.run(self.cfg, self.cfg.joint_owner, args)

    @cute.jit
    def roles(self, owner: cutlass.Constexpr, args: OwnerArgs):
        """The work of each warp, between setup and teardown."""
        cfg, smem, warps = self.cfg, owner.smem, owner.warps
        if cutlass.const_expr(owner.ctas > 1):
            say_pair()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        block, _, _ = cute.arch.block_idx()
        base = cute.arch.get_dyn_smem(cutlass.Int8, alignment=SMEM_BASE_ALIGNMENT)
        cta = cta_of(owner, base)
        address = cute.recast_ptr(base + smem.tmem_address.offset, dtype=Int32)
        if cutlass.const_expr(owner.ctas == 1):
            if warp == warps.mma:
                cute.arch.alloc_tmem(owner.tmem_columns, address)
                cute.arch.relinquish_tmem_alloc_permit()
        if warp == warps.load:
            counts = [barrier.count for _, _, barrier in owner.barriers.instances()]
            initialise(cta.own_full.mbarriers, counts)
        if cutlass.const_expr(owner.subtracts):
            subtracted.write_ones(owner, base)
        if cutlass.const_expr(owner.ctas > 1):
            allocate(owner.tmem_columns, address, warp, warps.mma)
        cute.arch.barrier(barrier_id=SET_UP, number_of_threads=warps.threads)
        tmem = cute.make_tensor(address, cute.make_layout(1))[0]
        if cutlass.const_expr(args.first is not None):
            block = block + args.first
        work = work_of(cfg, owner, args.sizes, args.lists, block)
        if warp < warps.compute.stop:
            thread = thread_of(owner, args, tmem, warp, work)
            if cutlass.const_expr(owner.results):
                compute.run(cfg, owner, args, cta, thread, work)
            else:
                sums.run(cfg, owner, args, cta, thread, work)
        elif warp == warps.mma:
            if cutlass.const_expr(owner.ctas > 1):
                if is_leader():
                    self.multiply(owner, args, cta, tmem, work)
            else:
                self.multiply(owner, args, cta, tmem, work)
        else:
            load.run(cfg, owner, args, cta, work)
        if cutlass.const_expr(owner.ctas > 1):
            meet()
        else:
            cute.arch.sync_threads()
        if warp == warps.mma:
            pointer = cute.arch.retrieve_tmem_ptr(Float32, 16, address)
            cute.arch.dealloc_tmem(pointer, owner.tmem_columns, is_two_cta=owner.ctas > 1)

    @cute.jit
    def multiply(
        self, owner: cutlass.Constexpr, args: OwnerArgs, cta: cutlass.Constexpr, tmem: Int32, work
    ):
        """Every product of the owner."""
        if cutlass.const_expr(not owner.has_dp):
            dv_alone.multiply(owner, cta, tmem, work)
        elif cutlass.const_expr(owner.results):
            products.run(self.cfg, owner, args, cta, tmem, work)
        else:
            sums.multiply(owner, cta, tmem, work)


class AuxKernel(BackwardKernel):
    """Sums for the gradients of aux tensors: made from a BackwardConfig with `wanted`."""

    def launch_owners(self, given: Given, written: tuple, stream):
        """Some CTAs of the owner of queries.

        written  (lines, number of the first CTA). lines: (CTAs, numbers) f32 for each of cfg.summed, as sums.py writes
                 them; where no tile is seen, unchanged
        """
        lines, first = written
        owner = self.cfg.owner("scores")
        args = replace(given.arguments(self.cfg, owner, ()), lines=lines, first=first)
        self.launch(self.daux, "daux", owner, args, lines[0].shape[0], stream)

    @cute.kernel
    def daux(self, args: OwnerArgs):
        self.roles(self.cfg.owner("scores"), args)

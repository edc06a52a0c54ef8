"""A warp-specialized GEMM in the style of CUTLASS's examples: a struct of shared memory, pipelines, ids of warps.

C = A B^T of one tile of 128 x 128. No name is given to the emulator.
"""

import functools

import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as sm100
import torch
from cutlass import pipeline
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.cute.runtime import make_fake_compact_tensor

from cute_fa4 import emulator

M, N, K_TILE, COLUMNS, STAGES = 128, 128, 64, 128, 2
TILER = (M, N, K_TILE)
BYTES = (M + N) * K_TILE * 2  # of one stage


class Gemm:
    def __init__(self, forgets_to_load_b=False):
        self.epilogue_warp_ids = (0, 1, 2, 3)
        self.mma_warp_id = 4
        self.load_warp_id = 5
        self.forgets_to_load_b = forgets_to_load_b

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        k_major = cute.nvgpu.OperandMajorMode.K
        mma = cute.make_tiled_mma(
            tcgen05.MmaF16BF16Op(
                cutlass.BFloat16, cutlass.Float32, (M, N, 16), tcgen05.CtaGroup.ONE,
                tcgen05.OperandSource.SMEM, k_major, k_major,
            )
        )  # fmt: skip
        a_layout = sm100.make_smem_layout_a(mma, TILER, a.element_type, STAGES)
        b_layout = sm100.make_smem_layout_b(mma, TILER, b.element_type, STAGES)
        load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
        a_stage, b_stage = (cute.select(x, mode=[0, 1, 2]) for x in (a_layout, b_layout))
        a_atom, a_map = cute.nvgpu.make_tiled_tma_atom_A(load, a, a_stage, TILER, mma)
        b_atom, b_map = cute.nvgpu.make_tiled_tma_atom_B(load, b, b_stage, TILER, mma)
        self.kernel(mma, a_atom, a_map, b_atom, b_map, c, a_layout, b_layout).launch(
            grid=[1, 1, 1], block=[192, 1, 1]
        )

    @cute.kernel
    def kernel(
        self, mma: cute.TiledMma, a_atom: cute.CopyAtom, a: cute.Tensor, b_atom: cute.CopyAtom, b: cute.Tensor,
        c: cute.Tensor, a_layout: cute.ComposedLayout, b_layout: cute.ComposedLayout,
    ):  # fmt: skip
        thread, _, _ = cute.arch.thread_idx()
        warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())

        @cute.struct
        class Storage:
            ab_mbar_ptr: cute.struct.MemRange[cutlass.Int64, 2 * STAGES]
            acc_mbar_ptr: cute.struct.MemRange[cutlass.Int64, 2]
            tmem_holding_buf: cutlass.Int32

        smem = cutlass.memory.SmemAllocator()
        storage = smem.allocate(Storage)
        s_a = smem.allocate_tensor(
            cutlass.BFloat16, a_layout.outer, byte_alignment=128, swizzle=a_layout.inner
        )
        s_b = smem.allocate_tensor(
            cutlass.BFloat16, b_layout.outer, byte_alignment=128, swizzle=b_layout.inner
        )
        one = pipeline.CooperativeGroup(pipeline.Agent.Thread)
        ab_producer, ab_consumer = pipeline.PipelineTmaUmma.create(
            num_stages=STAGES,
            producer_group=one,
            consumer_group=one,
            tx_count=BYTES,
            barrier_storage=storage.ab_mbar_ptr.data_ptr(),
        ).make_participants()
        acc_pipeline = self.make_pipeline(storage)
        if warp_idx == self.epilogue_warp_ids[0]:
            cute.arch.alloc_tmem(COLUMNS, storage.tmem_holding_buf.ptr)
        cute.arch.sync_threads()
        tmem = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, storage.tmem_holding_buf.ptr)

        of_mma = mma.get_slice(0)
        g_a = of_mma.partition_A(cute.local_tile(a, (M, K_TILE), (0, None)))
        g_b = of_mma.partition_B(cute.local_tile(b, (N, K_TILE), (0, None)))
        one_cta = cute.make_layout(1)
        to_a, from_a = cpasync.tma_partition(
            a_atom, 0, one_cta, cute.group_modes(s_a, 0, 3), cute.group_modes(g_a, 0, 3)
        )
        to_b, from_b = cpasync.tma_partition(
            b_atom, 0, one_cta, cute.group_modes(s_b, 0, 3), cute.group_modes(g_b, 0, 3)
        )
        shape = mma.partition_shape_C((M, N))
        accumulator = cute.make_tensor(tmem, mma.make_fragment_C(shape).layout)
        tiles = cute.size(from_a, mode=[1])

        if warp_idx == self.load_warp_id:
            for k in cutlass.range(tiles, unroll=1):
                slot = ab_producer.acquire_and_advance()
                cute.copy(a_atom, from_a[None, k], to_a[None, slot.index], tma_bar_ptr=slot.barrier)
                if cutlass.const_expr(not self.forgets_to_load_b):
                    cute.copy(
                        b_atom, from_b[None, k], to_b[None, slot.index], tma_bar_ptr=slot.barrier
                    )
        if warp_idx == self.mma_warp_id:
            multiply_a, multiply_b = mma.make_fragment_A(s_a), mma.make_fragment_B(s_b)
            done = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 1)
            acc_pipeline.producer_acquire(done)
            mma.set(tcgen05.Field.ACCUMULATE, False)
            for _ in cutlass.range(tiles, unroll=1):
                slot = ab_consumer.wait_and_advance()
                for step in cutlass.range_constexpr(cute.size(multiply_a, mode=[2])):
                    at = (None, None, step, slot.index)
                    cute.gemm(mma, accumulator, multiply_a[at], multiply_b[at], accumulator)
                    mma.set(tcgen05.Field.ACCUMULATE, True)
                slot.release()
            acc_pipeline.producer_commit(done)
        if warp_idx < self.mma_warp_id:
            ready = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1)
            acc_pipeline.consumer_wait(ready)
            self.store(mma, accumulator, cute.local_tile(c, (M, N), (0, 0)), thread)
            acc_pipeline.consumer_release(ready)
            cute.arch.barrier(barrier_id=1, number_of_threads=M)
        if warp_idx == self.epilogue_warp_ids[0]:
            cute.arch.relinquish_tmem_alloc_permit()
            cute.arch.dealloc_tmem(tmem, COLUMNS)

    def make_pipeline(self, storage):
        return pipeline.PipelineUmmaAsync.create(
            num_stages=1,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, M),
            barrier_storage=storage.acc_mbar_ptr.data_ptr(),
        )

    @cute.jit
    def store(self, mma: cute.TiledMma, accumulator: cute.Tensor, tile: cute.Tensor, thread):
        """Each thread reads one row of the accumulator, 32 columns at a time."""
        g_c = mma.get_slice(0).partition_C(tile)
        part = ((cute.size(accumulator, mode=[0, 0]), 32),)
        read = tcgen05.make_tmem_copy(
            cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x32), cutlass.Float32),
            cute.zipped_divide(accumulator, part)[None, 0],
        ).get_slice(thread)
        source = read.partition_S(cute.zipped_divide(accumulator, part))
        target = read.partition_D(cute.zipped_divide(g_c, part))
        registers = cute.make_rmem_tensor(target[None, None, 0].shape, cutlass.Float32)
        for i in cutlass.range_constexpr(cute.size(source, mode=[2])):
            cute.copy(read, source[None, None, i], registers)
            cute.autovec_copy(registers, target[None, None, i])


@functools.cache
def compiled(labels=None, forgets_to_load_b=False):
    kinds = (cutlass.BFloat16, cutlass.BFloat16, cutlass.Float32)
    fake = [
        make_fake_compact_tensor(kind, (M, columns), stride_order=(1, 0), assumed_align=128)
        for kind, columns in zip(kinds, (DEPTH, DEPTH, N), strict=True)
    ]
    return emulator.compile(Gemm(forgets_to_load_b), *fake, labels=labels)


DEPTH = 16 * K_TILE


def run(labels=None, forgets_to_load_b=False):
    """The GEMM on random numbers, compared with float64."""
    aligned = emulator.ptx_files.aligned
    torch.manual_seed(0)
    a, b = (aligned(torch.randn(M, DEPTH, dtype=torch.bfloat16)) for _ in range(2))
    c = aligned(torch.zeros(M, N))
    compiled(labels, forgets_to_load_b)(a, b, c)
    assert torch.allclose(c.double(), a.double() @ b.double().T, atol=1e-3)

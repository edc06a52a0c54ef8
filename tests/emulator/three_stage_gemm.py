"""A warp-specialised GEMM with a ring of three stages, written as a stranger would: nothing is named to the emulator.

C = A B^T of 128 x 128, as two tiles of 64 columns with five k blocks each: ten steps go round the ring three times, and
the second tile reuses the accumulator and the buffer of the output.

    warp 5      load        TMA: a block of A and of B to a stage; waits for empty, announces on full
    warp 4      mma         tcgen05.mma: waits for full, commits to empty; waits for drained, commits to done
    warps 0-3   epilogue    waits for done, tcgen05.ld, raises drained; shared memory, TMA store
"""

import functools

import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as sm100
import torch
from cutlass._mlir.dialects import nvvm
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.cute.runtime import make_fake_compact_tensor

from cute_fa4 import emulator

M, N, K_TILE, STAGES = 128, 64, 64, 3
TILES, BLOCKS = 2, 5
TILER = (M, N, K_TILE)
A_BYTES, B_BYTES = M * K_TILE * 2, N * K_TILE * 2  # of one stage
EPILOGUE = 128


class Gemm:
    def __init__(self):
        self.epilogue_warp_ids = (0, 1, 2, 3)
        self.mma_warp_id = 4
        self.load_warp_id = 5

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
        c_layout = cute.make_layout((M, N), stride=(N, 1))
        load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
        a_stage, b_stage = (cute.select(x, mode=[0, 1, 2]) for x in (a_layout, b_layout))
        a_tma = cute.nvgpu.make_tiled_tma_atom_A(load, a, a_stage, TILER, mma)
        b_tma = cute.nvgpu.make_tiled_tma_atom_B(load, b, b_stage, TILER, mma)
        c_tma = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), c, c_layout, (M, N))
        atoms, tensors = zip(a_tma, b_tma, c_tma, strict=True)
        self.kernel(mma, atoms, tensors, (a_layout, b_layout, c_layout)).launch(
            grid=[1, 1, 1], block=[192, 1, 1]
        )

    @cute.kernel
    def kernel(self, mma: cute.TiledMma, atoms, tensors, layouts):
        a_atom, b_atom, c_atom = atoms
        a, b, c = tensors
        a_layout, b_layout, c_layout = layouts
        thread, _, _ = cute.arch.thread_idx()
        warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        full = smem.allocate_array(cutlass.Int64, STAGES)
        empty = smem.allocate_array(cutlass.Int64, STAGES)
        done = smem.allocate_array(cutlass.Int64, 1)
        drained = smem.allocate_array(cutlass.Int64, 1)
        address = smem.allocate_array(cutlass.Int32, 1)
        s_a = smem.allocate_tensor(
            cutlass.BFloat16, a_layout.outer, byte_alignment=1024, swizzle=a_layout.inner
        )
        s_b = smem.allocate_tensor(
            cutlass.BFloat16, b_layout.outer, byte_alignment=1024, swizzle=b_layout.inner
        )
        s_c = smem.allocate_tensor(cutlass.Float32, c_layout, byte_alignment=1024)
        if thread == 0:
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(full + i, 1)
                cute.arch.mbarrier_init(empty + i, 1)
            cute.arch.mbarrier_init(done, 1)
            cute.arch.mbarrier_init(drained, EPILOGUE)
            cute.arch.mbarrier_init_fence()
        if warp_idx == self.epilogue_warp_ids[0]:
            cute.arch.alloc_tmem(N, address)
            cute.arch.relinquish_tmem_alloc_permit()
        cute.arch.sync_threads()
        tmem = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, address)
        accumulator = cute.make_tensor(
            tmem, mma.make_fragment_C(mma.partition_shape_C((M, N))).layout
        )

        if warp_idx == self.load_warp_id:
            self.load((a_atom, b_atom), mma, (a, b), (s_a, s_b), full, empty)
        if warp_idx == self.mma_warp_id:
            self.multiply(mma, accumulator, (s_a, s_b), (full, empty), (done, drained))
        if warp_idx < self.mma_warp_id:
            self.store(c_atom, mma, accumulator, c, s_c, done, drained)
        cute.arch.sync_threads()
        if warp_idx == self.epilogue_warp_ids[0]:
            cute.arch.dealloc_tmem(tmem, N)

    @cute.jit
    def load(self, atoms, mma, tensors, buffers, full, empty):
        one = mma.get_slice(0)
        g_a = one.partition_A(cute.local_tile(tensors[0], (M, K_TILE), (0, None)))
        g_b = one.partition_B(cute.local_tile(tensors[1], (N, K_TILE), (None, None)))
        s_a, s_b = (cute.group_modes(x, 0, 3) for x in buffers)
        cta = cute.make_layout(1)
        to_a, from_a = cpasync.tma_partition(atoms[0], 0, cta, s_a, cute.group_modes(g_a, 0, 3))
        to_b, from_b = cpasync.tma_partition(atoms[1], 0, cta, s_b, cute.group_modes(g_b, 0, 3))
        for step in cutlass.range(TILES * BLOCKS, unroll=1):
            tile, k = step // BLOCKS, step % BLOCKS
            stage, turn = step % STAGES, step // STAGES & 1
            cute.arch.mbarrier_wait(empty + stage, turn ^ 1)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full + stage, A_BYTES + B_BYTES)
            cute.copy(atoms[0], from_a[None, k], to_a[None, stage], tma_bar_ptr=full + stage)
            cute.copy(atoms[1], from_b[None, tile, k], to_b[None, stage], tma_bar_ptr=full + stage)

    @cute.jit
    def multiply(self, mma, accumulator, buffers, ring, output):
        full, empty = ring
        done, drained = output
        multiply_a, multiply_b = mma.make_fragment_A(buffers[0]), mma.make_fragment_B(buffers[1])
        for tile in cutlass.range(TILES, unroll=1):
            cute.arch.mbarrier_wait(drained, (tile & 1) ^ 1)
            nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)
            mma.set(tcgen05.Field.ACCUMULATE, False)
            for k in cutlass.range(BLOCKS, unroll=1):
                step = tile * BLOCKS + k
                stage, turn = step % STAGES, step // STAGES & 1
                cute.arch.mbarrier_wait(full + stage, turn)
                for depth in cutlass.range_constexpr(K_TILE // 16):
                    at = (None, None, depth, stage)
                    cute.gemm(mma, accumulator, multiply_a[at], multiply_b[at], accumulator)
                    mma.set(tcgen05.Field.ACCUMULATE, True)
                with cute.arch.elect_one():
                    tcgen05.commit(empty + stage)
            with cute.arch.elect_one():
                tcgen05.commit(done)

    @cute.jit
    def store(self, c_atom, mma, accumulator, c, s_c, done, drained):
        thread, _, _ = cute.arch.thread_idx()
        warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        g_c = cute.local_tile(c, (M, N), (0, None))
        from_c, to_c = cpasync.tma_partition(
            c_atom, 0, cute.make_layout(1), cute.group_modes(s_c, 0, 2), cute.group_modes(g_c, 0, 2)
        )
        part = ((cute.size(accumulator, mode=[0, 0]), 32),)
        read = tcgen05.make_tmem_copy(
            cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x32), cutlass.Float32),
            cute.zipped_divide(accumulator, part)[None, 0],
        ).get_slice(thread)
        source = read.partition_S(cute.zipped_divide(accumulator, part))
        target = read.partition_D(cute.zipped_divide(mma.get_slice(0).partition_C(s_c), part))
        registers = cute.make_rmem_tensor(target.shape, cutlass.Float32)
        for tile in cutlass.range(TILES, unroll=1):
            cute.arch.mbarrier_wait(done, tile & 1)
            nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)
            for i in cutlass.range_constexpr(N // 32):
                cute.copy(read, source[None, None, i], registers[None, None, i])
            cute.arch.fence_view_async_tmem_load()
            nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.BEFORE_THREAD_SYNC)
            cute.arch.mbarrier_arrive(drained)
            if warp_idx == 0:
                cute.arch.cp_async_bulk_wait_group(0, read=True)
            cute.arch.barrier(barrier_id=1, number_of_threads=EPILOGUE)
            for i in cutlass.range_constexpr(N // 32):
                cute.autovec_copy(registers[None, None, i], target[None, None, i])
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=1, number_of_threads=EPILOGUE)
            if warp_idx == 0:
                cute.copy(c_atom, from_c, to_c[None, tile])
                cute.arch.cp_async_bulk_commit_group()
        if warp_idx == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)


@functools.cache
def compiled():
    shapes = ((M, BLOCKS * K_TILE), (N * TILES, BLOCKS * K_TILE), (M, N * TILES))
    kinds = (cutlass.BFloat16, cutlass.BFloat16, cutlass.Float32)
    fake = [
        make_fake_compact_tensor(kind, shape, stride_order=(1, 0), assumed_align=128)
        for kind, shape in zip(kinds, shapes, strict=True)
    ]
    return emulator.compile(Gemm(), *fake)


@functools.cache
def operands():
    """A, B and their product in float64."""
    generator = torch.Generator().manual_seed(0)
    a, b = (
        emulator.ptx_files.aligned(
            torch.randn(rows, BLOCKS * K_TILE, generator=generator).bfloat16()
        )
        for rows in (M, N * TILES)
    )
    return a, b, a.double() @ b.double().T


def run():
    """How far the GEMM is from the product in float64; NaN where it stored nothing."""
    a, b, exact = operands()
    c = emulator.ptx_files.aligned(torch.full((M, N * TILES), float("nan")))
    compiled()(a, b, c)
    return float((c.double() - exact).abs().max())

"""A first tcgen05 kernel to debug: C = A B^T, tiles of 128 x 128, a warp that loads and a warp that multiplies.

docs/debugging.md walks through it. --broken plants a bug that compiles and, on a GPU, may hang or give wrong numbers:

    parity   the warp that multiplies always waits for the same parity
    bytes    the mbarrier of a stage is told of one operand only
    empty    the warp that loads begins with the parity of an mbarrier that has been raised
    leak     tensor memory is not freed

python examples/13_debug_a_tcgen05_kernel.py
python examples/13_debug_a_tcgen05_kernel.py --broken parity
"""

import argparse

import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as sm100
import torch
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.cute.runtime import make_fake_compact_tensor

from cute_fa4 import emulator
from cute_fa4.emulator import KernelLabels

M, N, K_TILE, COLUMNS = 128, 128, 64, 128
LOAD, MULTIPLY = 0, 1
TILER = (M, N, K_TILE)
BYTES = (M + N) * K_TILE * 2  # of one stage


def names(stages: int) -> KernelLabels:
    """Names of warps and mbarriers in reports: offset in shared memory, name, who waits, who arrives."""
    full = [(8 * i, f"full[{i}]", "multiply", "load") for i in range(stages)]
    empty = [(8 * (stages + i), f"empty[{i}]", "load", "multiply") for i in range(stages)]
    return KernelLabels(
        roles=((range(0, 1), "load"), (range(1, 2), "multiply"), (range(2, 4), "store")),
        barriers=(*full, *empty, (16 * stages, "done", "store", "multiply")),
    )


class Gemm:
    """C[m, n] = sum over k of A[m, k] B[n, k]; A and B in bf16, C in float32."""

    def __init__(self, stages: int = 2, broken: str = ""):
        self.stages, self.broken = stages, broken

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        k_major = cute.nvgpu.OperandMajorMode.K
        mma = cute.make_tiled_mma(
            tcgen05.MmaF16BF16Op(
                cutlass.BFloat16, cutlass.Float32, (M, N, 16), tcgen05.CtaGroup.ONE,
                tcgen05.OperandSource.SMEM, k_major, k_major,
            )
        )  # fmt: skip
        a_layout = sm100.make_smem_layout_a(mma, TILER, a.element_type, self.stages)
        b_layout = sm100.make_smem_layout_b(mma, TILER, b.element_type, self.stages)
        load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
        a_stage, b_stage = (cute.select(x, mode=[0, 1, 2]) for x in (a_layout, b_layout))
        a_atom, a_map = cute.nvgpu.make_tiled_tma_atom_A(load, a, a_stage, TILER, mma)
        b_atom, b_map = cute.nvgpu.make_tiled_tma_atom_B(load, b, b_stage, TILER, mma)
        self.kernel(mma, a_atom, a_map, b_atom, b_map, c, a_layout, b_layout).launch(
            grid=[a.shape[0] // M, b.shape[0] // N, 1], block=[128, 1, 1]
        )

    @cute.kernel
    def kernel(
        self, mma: cute.TiledMma, a_atom: cute.CopyAtom, a: cute.Tensor, b_atom: cute.CopyAtom, b: cute.Tensor,
        c: cute.Tensor, a_layout: cute.ComposedLayout, b_layout: cute.ComposedLayout,
    ):  # fmt: skip
        thread, _, _ = cute.arch.thread_idx()
        row, column, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        full = smem.allocate_array(cutlass.Int64, 2 * self.stages + 1)
        empty, done = full + self.stages, full + 2 * self.stages
        address = smem.allocate_array(cutlass.Int32, 1)
        s_a = smem.allocate_tensor(
            cutlass.BFloat16, a_layout.outer, byte_alignment=1024, swizzle=a_layout.inner
        )
        s_b = smem.allocate_tensor(
            cutlass.BFloat16, b_layout.outer, byte_alignment=1024, swizzle=b_layout.inner
        )
        if thread == 0:
            for i in cutlass.range_constexpr(2 * self.stages + 1):
                cute.arch.mbarrier_init(full + i, 1)
            cute.arch.mbarrier_init_fence()
        if warp == LOAD:
            cute.arch.alloc_tmem(COLUMNS, address)
        cute.arch.sync_threads()
        tmem = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, address)

        one = mma.get_slice(0)
        g_a = one.partition_A(cute.local_tile(a, (M, K_TILE), (row, None)))
        g_b = one.partition_B(cute.local_tile(b, (N, K_TILE), (column, None)))
        to_a, from_a = cpasync.tma_partition(
            a_atom, 0, cute.make_layout(1), cute.group_modes(s_a, 0, 3), cute.group_modes(g_a, 0, 3)
        )
        to_b, from_b = cpasync.tma_partition(
            b_atom, 0, cute.make_layout(1), cute.group_modes(s_b, 0, 3), cute.group_modes(g_b, 0, 3)
        )
        accumulator = cute.make_tensor(
            tmem, mma.make_fragment_C(mma.partition_shape_C((M, N))).layout
        )
        tiles = cute.size(from_a, mode=[1])

        if warp == LOAD:
            for k in cutlass.range(tiles, unroll=1):
                stage, turn = k % self.stages, k // self.stages & 1
                # A fresh mbarrier counts as raised for parity 1.
                begins = cutlass.const_expr(0 if self.broken == "empty" else 1)
                cute.arch.mbarrier_wait(empty + stage, turn ^ begins)
                announced = cutlass.const_expr(BYTES // 2 if self.broken == "bytes" else BYTES)
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(full + stage, announced)
                cute.copy(a_atom, from_a[None, k], to_a[None, stage], tma_bar_ptr=full + stage)
                cute.copy(b_atom, from_b[None, k], to_b[None, stage], tma_bar_ptr=full + stage)
        if warp == MULTIPLY:
            multiply_a, multiply_b = mma.make_fragment_A(s_a), mma.make_fragment_B(s_b)
            mma.set(tcgen05.Field.ACCUMULATE, False)
            for k in cutlass.range(tiles, unroll=1):
                stage, turn = k % self.stages, k // self.stages & 1
                if cutlass.const_expr(self.broken == "parity"):
                    turn = 0
                cute.arch.mbarrier_wait(full + stage, turn)
                for step in cutlass.range_constexpr(cute.size(multiply_a, mode=[2])):
                    at = (None, None, step, stage)
                    cute.gemm(mma, accumulator, multiply_a[at], multiply_b[at], accumulator)
                    mma.set(tcgen05.Field.ACCUMULATE, True)
                with cute.arch.elect_one():
                    tcgen05.commit(empty + stage)
            with cute.arch.elect_one():
                tcgen05.commit(done)

        cute.arch.mbarrier_wait(done, 0)
        self.store(mma, accumulator, cute.local_tile(c, (M, N), (row, column)), thread)
        cute.arch.sync_threads()
        if cutlass.const_expr(self.broken != "leak"):
            if warp == LOAD:
                cute.arch.relinquish_tmem_alloc_permit()
                cute.arch.dealloc_tmem(tmem, COLUMNS)

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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--broken", choices=("parity", "bytes", "empty", "leak"), default="", help="default: no bug"
    )
    parser.add_argument("--depth", type=int, default=512, help="k, a multiple of 64; default: 512")
    parser.add_argument("--stages", type=int, default=2, help="of the ring of k tiles; default: 2")
    arguments = parser.parse_args()

    shapes = ((M, arguments.depth), (N, arguments.depth), (M, N))
    types = (cutlass.BFloat16, cutlass.BFloat16, cutlass.Float32)
    fake = [
        make_fake_compact_tensor(kind, shape, stride_order=(1, 0), assumed_align=128)
        for kind, shape in zip(types, shapes, strict=True)
    ]
    gemm = emulator.compile(
        Gemm(arguments.stages, arguments.broken), *fake, labels=names(arguments.stages)
    )

    torch.manual_seed(0)
    a, b = (
        emulator.ptx_files.aligned(torch.randn(*shape, dtype=torch.bfloat16))
        for shape in shapes[:2]
    )
    c = emulator.ptx_files.aligned(torch.zeros(M, N))
    try:
        gemm(a, b, c)
    except emulator.EmulatorError as error:
        print(f"{type(error).__name__}: {error}")
        return
    exact = a.double() @ b.double().T
    worst = float((c - exact).abs().max())
    print(f"C of {M} x {N}, k = {arguments.depth}: differs by at most {worst:.1e} from float64")


if __name__ == "__main__":
    main()

"""Tensor memory <-> registers: load, store, the waits, and the fences around barriers.

Thread t of warp w reads and writes lane 32 (w % 4) + t: in the 32x32b shape a thread owns one row, a register is
one column. Values are Python lists of Int32 or Float32, unrolled by the compiler.

PTX ISA: "tcgen05.ld", "tcgen05.st", "tcgen05.wait", "tcgen05.fence".
"""

from cutlass import Float32, Int32
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm, nvvm, vector
from cutlass.cutlass_dsl import T


def _pointer(address):
    return llvm.inttoptr(ir.Type.parse("!llvm.ptr<6>"), Int32(address).ir_value())


def load(address, columns: int) -> list:
    """`columns` f32 values of this thread's row, from the column of `address` on.

    Defined only after wait_load().
    """
    words = nvvm.tcgen05_ld(
        T.vector(columns, T.i32()), nvvm.Tcgen05LdStShape.SHAPE_32X32B, _pointer(address)
    )
    words = vector.bitcast(T.vector(columns, T.f32()), words)
    return [Float32(vector.extract(words, [], [i])) for i in range(columns)]


def load_with_maximum(address, columns: int) -> tuple:
    """-> (what `load` gives, the largest of them, NaN if one of them is). sm_103a: PTX ISA, "tcgen05.ld.red".

    As an operation of NVVM, which is known to read memory: as inline assembly without side effects two loads from one
    address were merged, whatever was written between them (NVIDIA/cutlass#3090).
    """
    words, largest = nvvm.tcgen05_ld_red(
        T.vector(columns, T.f32()),
        T.f32(),
        nvvm.Tcgen05LdStShape.SHAPE_32X32B,
        nvvm.ReductionKind.MAX,
        _pointer(address),
        nan=True,
    )
    return [Float32(vector.extract(words, [], [i])) for i in range(columns)], Float32(largest)


def store(address, words: list):
    """32-bit words (Int32 or Float32) to this thread's row, from the column of `address` on."""
    _store(nvvm.Tcgen05LdStShape.SHAPE_32X32B, address, words)


def store_fragments(address, words: list, columns: int):
    """Words to the 16 rows from the lane of `address` on, as the fragments of matrices of so many columns, 4 or 8.

    4: words 2 i and 2 i + 1 of lane l are column 4 i + l % 4 of rows l / 4 and l / 4 + 8
    8: words 4 i to 4 i + 3 are columns 8 i + 2 (l % 4) and the next of row l / 4, then of row l / 4 + 8
    """
    shape = {4: nvvm.Tcgen05LdStShape.SHAPE_16X128B, 8: nvvm.Tcgen05LdStShape.SHAPE_16X256B}
    _store(shape[columns], address, words)


def _store(shape, address, words: list):
    values = [word.bitcast(Int32) if isinstance(word, Float32) else word for word in words]
    packed = vector.from_elements(T.vector(len(values), T.i32()), [v.ir_value() for v in values])
    nvvm.tcgen05_st(shape, _pointer(address), packed)


def load_batches(address, columns: int, batch: int):
    """Yield (first column, values) in batches; the next batch is on its way while one is worked on."""
    yield from batches_after(load(address, min(batch, columns)), address, columns, batch)


def batches_after(ahead: list, address, columns: int, batch: int):
    """The same where the first batch is on its way already."""
    for start in range(0, columns, batch):
        values = ahead
        wait_load()
        following = start + batch
        if following < columns:
            ahead = load(address + following, min(batch, columns - following))
        yield start, values


def load_pairs(first, second, columns: int, batch: int):
    """Yield (first column, (values at `first`, values at `second`)) in batches, the next ones on their way."""
    ahead = load(first, batch), load(second, batch)
    for start in range(0, columns, batch):
        values = ahead
        wait_load()
        following = start + batch
        if following < columns:
            ahead = load(first + following, batch), load(second + following, batch)
        yield start, values


def wait_load():
    """All loads of this thread have delivered their registers."""
    nvvm.tcgen05_wait(nvvm.Tcgen05WaitKind.LOAD)


def wait_store():
    """All stores of this thread are in tensor memory."""
    nvvm.tcgen05_wait(nvvm.Tcgen05WaitKind.STORE)


def fence_after():
    """After waiting on a barrier: later tensor-memory accesses come after what the barrier announced."""
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)


def fence_before():
    """Before arriving on a barrier: earlier tensor-memory accesses come before it."""
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.BEFORE_THREAD_SYNC)

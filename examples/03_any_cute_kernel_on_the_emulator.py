"""A small CuTe DSL kernel on the emulator: every block reverses its 128 numbers in shared memory.

With --broken thread 5 does not store its number. On a GPU its partner would read garbage; here the read is an error
with its location.

python examples/03_any_cute_kernel_on_the_emulator.py
python examples/03_any_cute_kernel_on_the_emulator.py --broken
"""

import argparse

import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import make_fake_compact_tensor

from cute_fa4 import emulator

BLOCK = 128


class ReverseBlocks:
    """y[BLOCK b + i] = x[BLOCK b + BLOCK - 1 - i]."""

    def __init__(self, broken: bool):
        self.broken = broken

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor):
        self.kernel(x, y).launch(grid=[x.shape[0] // BLOCK, 1, 1], block=[BLOCK, 1, 1])

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        tile = cutlass.memory.SmemAllocator().allocate_tensor(
            cutlass.Float32, cute.make_layout(BLOCK), byte_alignment=16
        )
        if cutlass.const_expr(self.broken):
            if thread != 5:
                tile[thread] = x[block * BLOCK + thread]
        else:
            tile[thread] = x[block * BLOCK + thread]
        cute.arch.sync_threads()
        y[block * BLOCK + thread] = tile[BLOCK - 1 - thread]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--broken", action="store_true")
    arguments = parser.parse_args()

    # Compiled once for every length that is a multiple of BLOCK: the size is a symbol.
    size = cute.sym_int(divisibility=BLOCK)
    fake = [make_fake_compact_tensor(cutlass.Float32, (size,), assumed_align=16) for _ in "xy"]
    reverse = emulator.compile(ReverseBlocks(arguments.broken), *fake)

    x = torch.arange(4 * BLOCK, dtype=torch.float32)
    y = torch.empty_like(x)
    try:
        reverse(x, y)
    except emulator.EmulatorError as error:
        print(f"{type(error).__name__}: {error}")
        return
    assert torch.equal(y, x.view(-1, BLOCK).flip(1).flatten())
    run = emulator.last_run()
    print(f"{y.numel()} numbers reversed in blocks of {BLOCK}: equal to torch")
    print(f"{run.instructions} warp instructions:")
    for opcode, count in run.opcodes.most_common():
        print(f"{count:>6}  {opcode}")


if __name__ == "__main__":
    main()

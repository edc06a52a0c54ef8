"""Find a race: a kernel that gives the right numbers unless one warp is late.

One warp sums blocks of 64 numbers that another warp has copied to shared memory. The consumer releases a slot to
the producer too early: before it has read the slot. Under most schedules the result is right. emulator.compare runs
many schedules and names both accesses, and the trace shows the place.

python examples/05_find_a_race.py
python examples/05_find_a_race.py --trace trace.json
"""

import argparse

import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import make_fake_compact_tensor

from cute_fa4 import emulator
from cute_fa4.emulator.reports import trace

BLOCK, BLOCKS = 32, 6
PRODUCER, CONSUMER = 0, 1


class AddBlocks:
    """y[i] = sum over b of x[b, i], block by block through one slot of shared memory."""

    def __init__(self, release_early: bool):
        self.release_early = release_early

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor):
        self.kernel(x, y).launch(grid=[1, 1, 1], block=[2 * BLOCK, 1, 1])

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        warp, lane = cute.arch.make_warp_uniform(cute.arch.warp_idx()), thread % BLOCK
        smem = cutlass.memory.SmemAllocator()
        slot = smem.allocate_tensor(cutlass.Float32, cute.make_layout(BLOCK), byte_alignment=128)
        barriers = smem.allocate_array(cutlass.Int64, 2)
        full, empty = barriers, barriers + 1
        if thread == 0:
            cute.arch.mbarrier_init(full, BLOCK)
            cute.arch.mbarrier_init(empty, BLOCK)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        if warp == PRODUCER:
            for b in cutlass.range(BLOCKS, unroll=1):
                cute.arch.mbarrier_wait(empty, (b & 1) ^ 1)
                slot[lane] = x[b * BLOCK + lane]
                cute.arch.mbarrier_arrive(full)
        else:
            total = cutlass.Float32(0.0)
            for b in cutlass.range(BLOCKS, unroll=1):
                cute.arch.mbarrier_wait(full, b & 1)
                if cutlass.const_expr(self.release_early):
                    cute.arch.mbarrier_arrive(empty)
                # The neighbor's number, so that the compiler cannot keep it in a register.
                total += slot[(lane + 1) % BLOCK]
                if cutlass.const_expr(not self.release_early):
                    cute.arch.mbarrier_arrive(empty)
            y[lane] = total


def compiled(release_early: bool):
    """The kernel for the emulator; labels name what the reports talk about."""
    labels = emulator.KernelLabels(
        roles=((range(0, 1), "producer"), (range(1, 2), "consumer")),
        shared=((0, 4 * BLOCK, "slot"),),
        barriers=(
            (4 * BLOCK, "full", "consumer", "producer"),
            (4 * BLOCK + 8, "empty", "producer", "consumer"),
        ),
    )
    fake = [
        make_fake_compact_tensor(cutlass.Float32, (n,), assumed_align=16)
        for n in (BLOCK * BLOCKS, BLOCK)
    ]
    return emulator.compile(AddBlocks(release_early), *fake, labels=labels)


def caller(function):
    """A function without arguments that creates inputs, calls the kernel and returns the results."""

    def run():
        x, y = torch.arange(BLOCK * BLOCKS, dtype=torch.float32), torch.zeros(BLOCK)
        function(x, y)
        return y

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument(
        "--trace", metavar="FILE", help="write Chrome trace events of the fixed kernel"
    )
    options = parser.parse_args()
    expected = torch.arange(BLOCK * BLOCKS).float().view(BLOCKS, BLOCK).sum(0).roll(-1)

    broken = caller(compiled(release_early=True))
    with emulator.use(checks=None):
        assert torch.equal(broken(), expected)
    print("One run of the broken kernel, unchecked: the right numbers.\n")

    print("Results only, under many schedules:")
    print(emulator.compare(broken, options.seeds, checks=None), "\n")
    print("With the order of accesses checked:")
    print(emulator.compare(broken, options.seeds, checks="ptx"), "\n")

    fixed = caller(compiled(release_early=False))
    print("Released after the read:", emulator.compare(fixed, options.seeds, checks="ptx"), "\n")
    with trace.record() as recording:
        assert torch.equal(fixed(), expected)
    if options.trace:
        recording.chrome(options.trace)
        print(f"{options.trace}: {len(recording.marks)} marks, for https://ui.perfetto.dev")
    print("Who waited for what, in the fixed kernel:")
    for mark in recording.marks:
        if mark.kind == "wait":
            print(
                f"  {mark.role:<9} steps {mark.first:>3} to {mark.last:>3}  {mark.name:<6} {mark.line}"
            )


if __name__ == "__main__":
    main()

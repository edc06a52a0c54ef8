"""What hardware would not tell: whether the order of accesses is promised, or only happened.

    clocks.py      what a warp or an asynchronous operation knows to have happened
    ordering.py    how barriers, fences, commits and copies pass that knowledge on
    shadow.py      who wrote every byte last, and who has read it since
    memory.py      every access of shared, tensor and global memory, checked against both
    equal_writes.py  two warps that write the same bytes: what is a note, and not a race
    tensor_maps.py maps that the kernel changed, and the fences between the change and a copy
    registers.py   registers of tcgen05.ld that are used before tcgen05.wait::ld
    reports.py     the text: both accesses, their warps, PTX and Python lines

Two levels. "ptx": the written rules. "hardware": what published kernels rely on in addition, namely that
registers of tcgen05.ld are interlocked and that waiting on an mbarrier orders accesses to tensor memory. The
second is no promise: DeepGEMM had a race there (deepseek-ai/DeepGEMM#384).
"""

from cute_fa4.emulator.checks.ordering import LEVELS, Ordering

__all__ = ["LEVELS", "Ordering"]

"""Checks for errors that hardware would not report: is the order of two accesses guaranteed, or accidental?

    clocks.py      the accesses that a warp or an asynchronous operation comes after
    ordering.py    how barriers, fences, commits and copies propagate clocks
    shadow.py      the last writer and the readers of every byte
    memory.py      every access of shared, tensor and global memory, checked against both
    equal_writes.py  two warps that write the same bytes: a note instead of a race
    operand_boxes.py  operands that an MMA reads in another form than TMA wrote: notes
    tensor_maps.py maps that the kernel changed, and the fences between the change and a copy
    registers.py   registers of tcgen05.ld that are used before tcgen05.wait::ld
    reports.py     the text of reports: both accesses, their warps, PTX and Python lines

There are two levels. "ptx" requires the documented rules. "hardware" also accepts two assumptions of published
kernels: registers of tcgen05.ld are interlocked, and waiting on an mbarrier orders accesses to tensor memory. The
second is not guaranteed: DeepGEMM had a race there (deepseek-ai/DeepGEMM#384).
"""

from cute_fa4.emulator.checks.ordering import LEVELS, Ordering

__all__ = ["LEVELS", "Ordering"]
